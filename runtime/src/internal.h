/* internal.h: what the source files of librecur_rt share. Nothing here is visible outside the library. */
#ifndef RECUR_INTERNAL_H_
#define RECUR_INTERNAL_H_

#include <recur/abi.h>
#include <stdbool.h>

/** Leading dimensions (batch, token, head) and own ones. */
enum { RECUR_I_MAX_NDIM = 3 + RECUR_MAX_RANK };

/** Most threads that a call can use. */
enum { RECUR_I_MAX_THREADS = 512 };

/* ---- error.c ---- */

/** Text under construction: appended to, cut with "..." when full. Zero-initialised. */
typedef struct recur_i_text {
  char data[1024];
  size_t used;
} recur_i_text;

/** Appends as printf does. */
void recur_i_append(recur_i_text *text, const char *format, ...) __attribute__((format(printf, 2, 3)));

/** Makes "MODEL_ENTRY: ..." this thread's last error, tells the handler, and returns `code`. */
int32_t recur_i_fail(const recur_model *model, const char *entry, int32_t code, const char *format, ...)
    __attribute__((format(printf, 4, 5)));

/* ---- cpu.c ---- */

/** Whether this process may use all of `features`; asks the kernel for the tile registers if they are among
 * them. */
bool recur_i_cpu_has(uint64_t features);

/** Appends the names of RECUR_CPU_* bits, "x86-64" for none. */
void recur_i_append_features(recur_i_text *text, uint64_t features);

/* ---- cuda.c ---- */

typedef struct recur_i_call recur_i_call;

/** Loads the driver on first use and finds the capability of the call's device. */
int32_t recur_i_cuda_begin(recur_i_call *call);

/** Whether a GPU of that capability runs the code. */
bool recur_i_cuda_runs(const recur_cuda_kernel *kernel, int32_t capability);

/** Bytes of workspace for the chosen variant. */
int64_t recur_i_cuda_workspace(const recur_i_call *call);

/** Launches the chosen variant. */
int32_t recur_i_cuda_launch(const recur_i_call *call, void *workspace, void *stream);

/* ---- settings.c ---- */

/** Who is told of errors. */
typedef struct recur_i_reporter {
  recur_error_handler handler;
  void *context;
} recur_i_reporter;

/** The handler as it is set now. */
recur_i_reporter recur_i_reporter_now(void);

/** The parallel loop of one call. */
typedef struct recur_i_loop {
  recur_parallel_for run; /**< NULL: the pool */
  void *context;
  int32_t threads; /**< recur_threads() */
} recur_i_loop;

/** The loop that `where` and the process ask for. */
recur_i_loop recur_i_loop_now(const recur_stream *where);

/* ---- pool.c ---- */

/** Runs body(data, i, worker) for 0 <= i < tasks; `workers` is at most loop->threads. */
void recur_i_parallel_for(const recur_i_loop *loop, int64_t tasks, int32_t workers, recur_task body,
                          void *data);

/* ---- call.c, bind.c, tensor.c, variant.c, sequence.c: one call ---- */

/** One tensor of one call, as the kernel will see it: a state of a forward call is two of these. */
typedef struct recur_i_operand {
  const recur_tensor *tensor;        /**< what the model says of it */
  const DLTensor *argument;          /**< what the caller gave; NULL for an absent state */
  const char *prefix;                /**< "initial_", "final_" or "", before the name */
  bool written;                      /**< an output or a final state */
  int32_t lead;                      /**< leading dimensions: batch, token, head, or some of them */
  int64_t strides[RECUR_I_MAX_NDIM]; /**< in elements; 0 where a size is below 2 */
  int64_t low, high; /**< bytes from the first element to the lowest and past the highest one */
  bool empty;        /**< no elements */
  char *data;        /**< first element */
} recur_i_operand;

/** One of cu_seqlens, state_index, positions. Zero when not given. */
typedef struct recur_i_indices {
  const char *name;
  const DLTensor *argument;
  int64_t size, stride; /**< entries, and elements from one to the next */
  int64_t low, high;    /**< as in recur_i_operand */
  const char *data;     /**< first entry */
} recur_i_indices;

/** A call from its arguments to its kernel. */
struct recur_i_call {
  const recur_model *model;
  const char *entry; /**< "forward" or "step" */
  bool step;
  bool cuda;          /**< the tensors are on a GPU */
  DLDevice device;    /**< where they are */
  int32_t capability; /**< of the GPU: ten times its compute capability */
  recur_i_indices cu_seqlens, state_index, positions;
  int64_t batch, tokens, heads, sequences;
  const recur_variant *variant;
  int32_t operand_count;
  recur_i_operand operands[RECUR_MAX_TENSORS]; /**< in the kernel's order; cleared as they are added */
};

/* ---- task.c ---- */

/** An operand as a task needs it. */
typedef struct recur_i_cursor {
  char *data;
  int64_t row, head; /**< bytes from a sequence (or token, or slot) and from a group of heads to the next */
  int64_t group;     /**< heads that share one */
} recur_i_cursor;

/** How a call's work is cut: each head into parts of its columns, or each sequence into segments. */
typedef struct recur_i_cut {
  int64_t parts, segments;
} recur_i_cut;

/** What all tasks of a call share. */
typedef struct recur_i_plan {
  const recur_i_call *call;
  recur_i_cursor cursors[RECUR_MAX_TENSORS];
  recur_i_cut cut;
  int32_t workers;
  char *scratch; /**< of worker 0 */
  int64_t scratch_step;
  char *kept;               /**< arrays of the first head's segments */
  const recur_round *round; /**< that runs now */
} recur_i_plan;

/** Bytes that `segments` segments of one head keep. */
int64_t recur_i_kept_bytes(const recur_segments *model, int64_t segments);

/** Does the work. The plan's cursors are filled here. */
void recur_i_run(recur_i_plan *plan, const recur_i_loop *loop);

/** recur_i_fail with the call's names. */
#define RECUR_I_FAIL(call, code, ...) recur_i_fail((call)->model, (call)->entry, code, __VA_ARGS__)

/** Fills everything from the arguments but `data` of operands and indices; checks all that shapes, strides
 * and types can tell. */
int32_t recur_i_bind(recur_i_call *call, const DLTensor *const *args);

/** Checks data pointers and the contents of the integer tensors, and fills `data`. */
int32_t recur_i_check_data(recur_i_call *call);

/** Checks one operand by itself: device, type family, rank, sizes, strides. Fills strides, low, high, empty.
 */
int32_t recur_i_check_operand(const recur_i_call *call, recur_i_operand *operand);

/** Checks one integer tensor by itself and fills its size and stride. */
int32_t recur_i_check_indices(const recur_i_call *call, recur_i_indices *indices);

/** Checks and computes the address of the first element. `low` and `high` as in recur_i_operand. */
int32_t recur_i_locate(const recur_i_call *call, const char *prefix, const char *name,
                       const DLTensor *argument, int64_t low, int64_t high, char **data);

/** Checks that some variant takes the operand's element type. */
int32_t recur_i_check_dtype(const recur_i_call *call, const recur_i_operand *operand);

/** Compares own dimensions and types with the variants and takes the first that fits arguments and machine.
 */
int32_t recur_i_choose_variant(recur_i_call *call);

/** Checks the contents of the integer tensors. */
int32_t recur_i_check_contents(const recur_i_call *call);

/** Entry i of an integer tensor. */
int64_t recur_i_index(const recur_i_indices *indices, int64_t i);

/** Name of dimension `axis` of an operand: "batch", "head", "dk". */
const char *recur_i_axis_name(const recur_i_call *call, const recur_i_operand *operand, int32_t axis);

/** Appends the name of an element type: "bfloat16". */
void recur_i_append_dtype(recur_i_text *text, DLDataType type);

/** Whether two element types are the same. */
bool recur_i_same_dtype(DLDataType a, DLDataType b);

#endif /* RECUR_INTERNAL_H_ */

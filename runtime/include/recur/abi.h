/* abi.h: the contract between compiled objects and librecur_rt.
 *
 * A compiled object holds one constant recur_model, its kernels, and five functions that hand the model and
 * their arguments to the functions below. Programs include recur.h and the rule's own header; only a program
 * that calls rules it does not know by name needs this one.
 */
#ifndef RECUR_ABI_H_
#define RECUR_ABI_H_

#include <recur/recur.h>

#ifdef __cplusplus
extern "C" {
#endif

/** Limits of one model; the compiler refuses a rule beyond them. */
enum {
  RECUR_MAX_TENSORS = 64, /**< inputs + params + outputs + 2 x states */
  RECUR_MAX_DIMS = 64,    /**< distinct dimensions */
  RECUR_MAX_RANK = 3      /**< own dimensions of one tensor: steps, rows, columns */
};

/** What a tensor is to its rule, and with that its leading dimensions. */
typedef enum recur_role {
  RECUR_INPUT = 0, /**< [batch, token, head, own..], read; may have fewer heads, in groups */
  RECUR_PARAM = 1, /**< [head, own..], read; may have fewer heads, in groups */
  RECUR_STATE = 2, /**< [sequence, head, own..], or [slot, head, own..] with a state_index */
  RECUR_OUTPUT = 3 /**< [batch, token, head, own..], written */
} recur_role;

/** One tensor of a rule. */
typedef struct recur_tensor {
  const char *name;    /**< its name in the spec */
  int32_t role;        /**< a recur_role */
  int32_t rank;        /**< number of own dimensions, at most RECUR_MAX_RANK */
  const int32_t *dims; /**< rank indices into recur_model.dim_names and recur_variant.dims */
} recur_tensor;

/** What one kernel call works on: one head of one sequence, or one part of its state's columns. */
typedef struct recur_span {
  int64_t tokens;   /**< number of tokens, may be 0 */
  int64_t position; /**< index of the first of them in its sequence */
  int64_t head;     /**< which head, from 0 */
  int64_t heads;    /**< how many heads there are */
  int64_t part;     /**< which part of the columns, from 0 */
  int64_t parts; /**< how many parts, from 1 to the variant's; calls with all of them together do the work */
} recur_span;

/** A kernel. views[i] points to an MLIR memref descriptor {void *allocated, *aligned; int64_t offset,
 * sizes[r], strides[r]}, strides in elements, of the i-th tensor in this order: inputs, params, initial
 * states, outputs, final states. Inputs and outputs have the token as dimension 0 before their own; the
 * others have their own only. A NULL `aligned` marks an absent state: begin with the rule's initial value, or
 * do not store the final one. An initial and a final state may be the same memory. `scratch` has the
 * variant's scratch bytes, aligned to 64. A kernel must do its work for any number of tokens: for 0, store
 * the initial state as the final one. */
typedef void (*recur_kernel)(void *const *views, const recur_span *span, void *scratch);

/** What a CPU must have beyond x86-64. The levels are those of the x86-64 psABI. */
#define RECUR_CPU_X86_64_V2 (UINT64_C(1) << 0)
#define RECUR_CPU_X86_64_V3 (UINT64_C(1) << 1)
#define RECUR_CPU_X86_64_V4 (UINT64_C(1) << 2)
#define RECUR_CPU_AVX512_BF16 (UINT64_C(1) << 3)
#define RECUR_CPU_AVX512_FP16 (UINT64_C(1) << 4)
#define RECUR_CPU_AMX_TILE (UINT64_C(1) << 5)
#define RECUR_CPU_AMX_BF16 (UINT64_C(1) << 6)
#define RECUR_CPU_AMX_INT8 (UINT64_C(1) << 7)

/* ---- Kernels for NVIDIA GPUs ---- */

/** One tensor of a launch. Strides in elements. Fields are 8 bytes each, as kernels read them. */
typedef struct recur_cuda_tensor {
  void *data;       /**< first element; NULL where an optional state is absent */
  int64_t sequence; /**< from a sequence (or slot) to the next; 0 for params and packed tokens */
  int64_t token;    /**< from a token to the next; of states that are in no slots, from a sequence to
                     * the next; else 0 */
  int64_t head;     /**< from a group of heads to the next */
  int64_t group;    /**< heads that share one */
  int64_t own[RECUR_MAX_RANK]; /**< of its own dimensions */
} recur_cuda_tensor;

/** cu_seqlens, state_index or positions: in memory that the device reads. */
typedef struct recur_cuda_index {
  const void *data; /**< first entry */
  int64_t stride;   /**< from an entry to the next, in elements */
  int64_t bits;     /**< 32 or 64; 0 where it was not given */
} recur_cuda_index;

/** The parameter of a kernel, by value; `tensors` has as many as the rule has, in the order of recur_kernel's
 * views. Block b works on shard b % shards of head b / shards % heads of sequence b / shards / heads. */
typedef struct recur_cuda_call {
  int64_t tokens, heads; /**< of each sequence, unless cu_seqlens says; of a token */
  int64_t slots;         /**< state slots; a sequence whose state_index is not below it is left alone */
  void *scratch;         /**< the workspace */
  recur_cuda_index cu_seqlens, state_index, positions;
  int64_t segments; /**< of each sequence; read by kernels that work on segments */
  int64_t few; /**< whether a segment may begin only few chunks before its first, where it may begin early */
  int64_t pairs; /**< heads of all sequences */
  recur_cuda_tensor tensors[RECUR_MAX_TENSORS];
} recur_cuda_call;

/** The most tensors that one kernel copies in boxes, temporaries, and entry points. */
enum {
  RECUR_MAX_MAPS = 12,
  RECUR_MAP_BOX = 1 << 16,
  RECUR_TENSOR_STEP = 1 << 16,
  RECUR_MAX_TEMPORARIES = 12,
  RECUR_MAX_ENTRIES = 24
};

/** Bits of recur_cuda_entry.flags. */
enum {
  /** Tensors with dimensions of their own start at a multiple of 16 bytes, their last stride is 1 and all
   * others are multiples of 4. */
  RECUR_CUDA_PACKED = 1,
  /** Each sequence is cut into `segments`, as many as `most` lets be; where that is less than two the entry
   * does not fit. Block b works on segment b / shards % segments; heads and sequences follow. */
  RECUR_CUDA_SEGMENTS = 2,
  /** The next entry is launched after this one, and finds the workspace as this one left it. Both fit, or
   * neither. */
  RECUR_CUDA_CONTINUES = 4,
  /** Each sequence is cut into segments of few tokens, whatever their number; of more where there are at
   * least `most` of them. Block b works on head b / shards % heads; segments and sequences follow. */
  RECUR_CUDA_TOKENS = 8,
  /** With RECUR_CUDA_SEGMENTS: one segment will do, and where `most` processors get several blocks each, the
   * segments are as many as take them the least time. Blocks of all first segments come before those of the
   * second ones. */
  RECUR_CUDA_ANY = 16,
  /** Each sequence is cut into segments of whole chunks, such that blocks, of which `most` run at a time, end
   * together. */
  RECUR_CUDA_SPREAD = 32,
  /** `most` is no limit. */
  RECUR_CUDA_MORE = 64,
  /** With RECUR_CUDA_SEGMENTS: where less than two segments would be, one will do. Blocks as with
     RECUR_CUDA_ANY. */
  RECUR_CUDA_ONE = 128,
  /** With RECUR_CUDA_SPREAD: the blocks of first segments read initial states. */
  RECUR_CUDA_INITIAL = 256,
  /** May begin while the entry before it, which it continues, still runs: as soon as all of that one's blocks
   * have begun and let it. Blocks of all first segments come before those of the second ones. */
  RECUR_CUDA_OVERLAPS = 512,
  /** With RECUR_CUDA_SEGMENTS: as many segments as take `most` processors the least time, where each gets
   * several blocks, else one. A block waits for the state of the segment before. Blocks as with
   * RECUR_CUDA_ANY. Of several segments, the workspace begins with 16 bytes, and 16 for each block, that are
   * 0. */
  RECUR_CUDA_PASSES = 1024,
  /** With RECUR_CUDA_SEGMENTS: where that is less than three the entry does not fit. */
  RECUR_CUDA_SEVERAL = 2048,
  /** With RECUR_CUDA_ONE: `most` tells the segments, but the entry fits where those of one segment are at
   * most five eighths of it. */
  RECUR_CUDA_FEW = 4096,
  /** For calls whose first tokens have position 0: without `positions`. Chunks begin where blocks of the rule
   * do. */
  RECUR_CUDA_AT_START = 8192
};

/** A tensor that a launch leaves in the workspace for the next: [batch, token, head, entry], as the inputs
 * are but for the own dimensions, which are one of `entries`, or some rows of so many. */
typedef struct recur_cuda_temporary {
  int64_t rows;    /**< of a matrix; 0: a vector or a number */
  int64_t entries; /**< of a vector or of each row; 0: a number, no dimension of its own */
  int64_t bits;    /**< of an entry: 16 or 32 */
} recur_cuda_temporary;

/** One entry point and how it is launched. */
typedef struct recur_cuda_entry {
  const char *name;  /**< in its code */
  const void *cubin; /**< machine code that has it; entries of one code follow one another */
  int32_t threads;   /**< of a block */
  int32_t shards;    /**< blocks of one head of one sequence */
  int64_t shared;    /**< bytes of shared memory of a block */
  int64_t scratch;   /**< bytes of the workspace of a block */
  int64_t flags;     /**< RECUR_CUDA_* */
  int64_t tokens;    /**< for calls of at least so many tokens */
  /** Tensors, of 16 bits and with a token dimension, that the kernel copies in boxes of 64 tokens by 64
   * entries: their descriptors are its second parameter, an array of CUtensorMap. Where some have n
   * micro-steps, a box has 64 / n tokens, with all micro-steps; of a tensor t listed as t + RECUR_MAP_BOX *
   * m, m tokens. The first entries, and all strides but the last, which is 1, must lie at multiples of 16
   * bytes. Micro-steps that are the last dimension, fewer than 64, lie without gaps, and a box has them as
   * they lie. */
  const int32_t *maps;
  int32_t map_count; /**< at most RECUR_MAX_MAPS */
  int32_t most;      /**< for launches of at most so many blocks; 0: of any number */
  /** What the kernel's tensors are: those of the call by number, temporary t as -1 - t; t +
   * RECUR_TENSOR_STEP * m for tensor t's micro-step m, from 1, as a tensor without micro-steps. NULL: those
   * of the call, in order. */
  const int32_t *tensors;
  int64_t tensor_count;
  /** Bytes of the workspace for each chunk of 64 tokens and head, which this entry leaves for the next. Those
   * of a chunk follow one another by head. A sequence has as many chunks as it needs, the ones after it
   * follow; packed sequence s, from token t on, begins with chunk t / 64 + s. */
  int64_t record;
} recur_cuda_entry;

/** The code of one variant for GPUs. */
typedef struct recur_cuda_kernel {
  const char *ptx;                 /**< text for later chips, or NULL */
  int32_t capability;              /**< ten times the compute capability it was compiled for: 90 */
  int32_t exact;                   /**< 1: runs on no other capability */
  int32_t entry_count;             /**< at least one, at most RECUR_MAX_ENTRIES */
  int32_t temporary_count;         /**< at most RECUR_MAX_TEMPORARIES */
  const recur_cuda_entry *entries; /**< best first: the first that fits is launched, else the last */
  const recur_cuda_temporary *temporaries;
} recur_cuda_kernel;

/* ---- Sequences cut into segments, on CPUs ---- */

/** The most arrays of a variant. */
enum { RECUR_MAX_ARRAYS = 48 };

/** Numbers (f32, contiguous) that calls keep of each segment. */
typedef struct recur_array {
  int64_t rank; /**< at most 2 */
  int64_t sizes[2];
} recur_array;

/** A kernel that makes numbers of a segment's tokens. Its views are inputs, params, and twice its states:
 * what each begins with and where it is stored at the end. */
typedef struct recur_gather {
  recur_kernel kernel;
  const int32_t *states; /**< array a: begins as the kernel says and is stored there; -1 - s: begins as state
                          * s of the segment and is not stored */
  int64_t state_count;
} recur_gather;

/** All gathers of a round run before its stitch, and that before the next round. */
typedef struct recur_round {
  const recur_gather *gathers;
  recur_kernel stitch;   /**< with a segment for a token; its views are `inputs`, params, initial states, the
                          * states   after each token, final states */
  const int32_t *inputs; /**< arrays */
  const int32_t *states; /**< the rule's states by number: array s holds state s before each segment */
  int32_t gather_count, input_count, state_count, reserved;
} recur_round;

/** How states before segments are found. */
typedef struct recur_segments {
  const recur_array *arrays; /**< of the rule's states first */
  const recur_round *rounds;
  int32_t array_count, round_count;
  int64_t scratch; /**< bytes that any kernel of the rounds needs */
  int64_t cost;    /**< of gathering, in thousandths of what the variant's kernel takes for the same tokens */
} recur_segments;

/** One compiled kernel and what it was compiled for. A variant for GPUs has `cuda` and no `kernel`. */
typedef struct recur_variant {
  uint64_t features;              /**< RECUR_CPU_* bits the machine must have */
  const char *target;             /**< its name on recurc's command line, such as "x86-64-v3" */
  const int64_t *dims;            /**< recur_model.dim_count sizes */
  const DLDataType *dtypes;       /**< recur_model.tensor_count element types */
  int64_t scratch;                /**< bytes of scratch memory of one worker */
  recur_kernel kernel;            /**< the code for a CPU, or NULL */
  const recur_cuda_kernel *cuda;  /**< the code for GPUs, or NULL */
  int64_t parts;                  /**< most parts that the kernel can cut a head into; 0 means 1 */
  const recur_segments *segments; /**< NULL where sequences are never cut */
} recur_variant;

/** Bits of recur_model.flags. */
enum {
  RECUR_USES_POSITION = 1, /**< results depend on the tokens' positions, so a step must be told them */
  RECUR_NO_STEP = 2        /**< the state at the start of a block of tokens is read, which no step has */
};

/** A compiled rule. */
typedef struct recur_model {
  uint32_t magic;                 /**< RECUR_MAGIC */
  uint32_t abi_version;           /**< RECUR_ABI_VERSION; what follows is read only if both match */
  const char *name;               /**< prefix of the rule's functions */
  const recur_metadata *metadata; /**< what NAME_metadata returns */
  uint32_t flags;                 /**< RECUR_USES_POSITION, RECUR_NO_STEP */
  int32_t tensor_count;           /**< number of tensors */
  const recur_tensor *tensors;    /**< inputs, then params, then states, then outputs (at least one) */
  int32_t dim_count;              /**< number of dimensions */
  int32_t variant_count;          /**< number of variants, at least one */
  const char *const *dim_names;   /**< symbols; a fixed size has its digits as its name */
  const recur_variant *variants;  /**< best first: the first that fits arguments and machine is taken */
} recur_model;

/** Runs a rule over sequences. `args` is an array of pointers to DLTensor, as the rule's args structure is:
 * inputs, params, initial states, cu_seqlens, state_index, positions, outputs, final states; initial and
 * final states and the three integer tensors may be NULL. `workspace` has as many bytes as
 * recur_rt_forward_workspace says, and may be NULL where that is 0. `where` may be NULL. Nothing is kept
 * after the return. Returns RECUR_OK or a negative recur_error; then nothing was written. */
RECUR_API int32_t recur_rt_forward(const recur_model *model, const void *args, void *workspace,
                                   const recur_stream *where);

/** Bytes of workspace that recur_rt_forward needs for these arguments, or a negative recur_error. Looks at
 * shapes, strides and types only: data pointers may be NULL. */
RECUR_API int64_t recur_rt_forward_workspace(const recur_model *model, const void *args);

/** Runs one token of each sequence and updates the states in place. `args` is inputs, params, state_index,
 * positions, outputs, states; the token dimension of inputs and outputs is 1; state_index may be NULL, and
 * positions where the rule does not use them. The rest is as for recur_rt_forward. */
RECUR_API int32_t recur_rt_step(const recur_model *model, const void *args, void *workspace,
                                const recur_stream *where);

/** Bytes of workspace that recur_rt_step needs, or a negative recur_error; as recur_rt_forward_workspace. */
RECUR_API int64_t recur_rt_step_workspace(const recur_model *model, const void *args);

/** Has the CUDA driver's functions looked up by `find`, which gives NULL for those it has not, in place of
 * libcuda.so.1. To be called before the first call with a tensor on a GPU; later it changes nothing. */
RECUR_API void recur_rt_find_driver_with(void *(*find)(const char *name));

/** The RECUR_CPU_* bits of this machine, of those that the operating system saves. */
RECUR_API uint64_t recur_cpu_features(void);

#ifdef __cplusplus
}
#endif

#endif /* RECUR_ABI_H_ */

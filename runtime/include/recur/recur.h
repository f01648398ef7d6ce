/* recur.h: what a program that calls compiled rules needs to know.
 *
 * A compiled rule NAME is an object file and a header NAME.h. The header declares NAME_forward, NAME_step,
 * their workspace queries and NAME_metadata; this header declares what those share: tensors, error codes, the
 * parallel loop. Link the object with librecur_rt, libm and the threads library.
 *
 * C11 and C++17. Nothing here throws, and nothing allocates inside a call.
 */
#ifndef RECUR_RECUR_H_
#define RECUR_RECUR_H_

#include <stddef.h>
#include <stdint.h>

/** Version of the package. */
#define RECUR_VERSION_MAJOR 0
#define RECUR_VERSION_MINOR 1
#define RECUR_VERSION_PATCH 0
#define RECUR_VERSION "0.1.0"

/** Version of the contract between compiled objects, their headers and librecur_rt. Objects compiled for
 * another one are refused when called. */
#define RECUR_ABI_VERSION 14

/** The first word of every model in a compiled object: "RCUR" in memory. */
#define RECUR_MAGIC 0x52554352u

#if defined(__GNUC__)
#define RECUR_API __attribute__((visibility("default")))
#else
#define RECUR_API
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* The tensor of DLPack (https://dmlc.github.io/dlpack), declared here with the same layout unless dlpack.h
 * was included before. A program that uses both includes dlpack.h first. */
#ifndef DLPACK_DLPACK_H_

/** Where data lives. Compiled code runs on kDLCPU and kDLCUDA. */
#ifdef __cplusplus
typedef enum : int32_t {
#else
typedef enum {
#endif
  kDLCPU = 1,
  kDLCUDA = 2,
  kDLCUDAHost = 3,
  kDLCUDAManaged = 13
} DLDeviceType;

/** One device. */
typedef struct {
  DLDeviceType device_type; /**< what kind of device */
  int32_t device_id;        /**< which of them; 0 for the CPU */
} DLDevice;

/** Families of element types. */
typedef enum {
  kDLInt = 0,
  kDLUInt = 1,
  kDLFloat = 2,
  kDLBfloat = 4,
  kDLComplex = 5,
  kDLBool = 6
} DLDataTypeCode;

/** An element type: float32 is {kDLFloat, 32, 1}, bfloat16 {kDLBfloat, 16, 1}. */
typedef struct {
  uint8_t code;   /**< a DLDataTypeCode */
  uint8_t bits;   /**< bits of one lane */
  uint16_t lanes; /**< 1, unless the element is a short vector */
} DLDataType;

/** A view of an array in memory that somebody else owns. */
typedef struct {
  void *data;           /**< start of the allocation; may be NULL where there are no elements */
  DLDevice device;      /**< where data lives */
  int32_t ndim;         /**< number of dimensions */
  DLDataType dtype;     /**< type of the elements */
  int64_t *shape;       /**< ndim sizes */
  int64_t *strides;     /**< ndim strides, in elements, any sign; NULL means compact row-major */
  uint64_t byte_offset; /**< bytes from data to the first element */
} DLTensor;

#endif /* DLPACK_DLPACK_H_ */

/** What the functions of a compiled rule return. The text is in recur_last_error(). */
typedef enum recur_error {
  RECUR_OK = 0,
  RECUR_ERROR_VERSION = -1,    /**< the object was compiled for another version of librecur_rt */
  RECUR_ERROR_NULL = -2,       /**< a pointer that must be given is NULL */
  RECUR_ERROR_DEVICE = -3,     /**< a tensor is not where the others are */
  RECUR_ERROR_DTYPE = -4,      /**< an element type the object was not compiled for */
  RECUR_ERROR_SHAPE = -5,      /**< a rank or a size that does not fit */
  RECUR_ERROR_STRIDE = -6,     /**< written elements that overlap, or a tensor past the address space */
  RECUR_ERROR_ALIGNMENT = -7,  /**< data that is not aligned to its elements */
  RECUR_ERROR_SEQUENCES = -8,  /**< cu_seqlens breaks its rules */
  RECUR_ERROR_INDEX = -9,      /**< state_index is out of range, or names a written slot twice */
  RECUR_ERROR_POSITION = -10,  /**< positions are missing or out of range */
  RECUR_ERROR_VARIANT = -11,   /**< no variant in the object was compiled for this combination */
  RECUR_ERROR_TARGET = -12,    /**< no variant in the object runs on this machine */
  RECUR_ERROR_WORKSPACE = -13, /**< a workspace is needed and NULL was given */
  RECUR_ERROR_THREADS = -14,   /**< more threads than the workspace is counted for */
  RECUR_ERROR_CUDA = -15       /**< the CUDA driver is missing, or it failed */
} recur_error;

/** The text of the last error in this thread, "" before the first; never NULL. It is a lower-case sentence
 * that names the function, the argument, what must hold and what was found. It stays valid, and is
 * overwritten by the next error in the same thread; success leaves it alone. */
RECUR_API const char *recur_last_error(void);

/** The name of an error code, "RECUR_ERROR_SHAPE" for -5; "unknown" for a number that is none. */
RECUR_API const char *recur_error_name(int32_t code);

/** Is told of every error, on the thread that made it, before the failing function returns. `text` lives as
 * long as the call. */
typedef void (*recur_error_handler)(void *context, int32_t code, const char *text);

/** Installs a process-wide error handler; NULL removes it. Safe from any thread. */
RECUR_API void recur_set_error_handler(recur_error_handler handler, void *context);

/** One task of a parallel loop: `task` counts from 0; `worker` says whose scratch memory to use. */
typedef void (*recur_task)(void *data, int64_t task, int32_t worker);

/** A parallel loop: calls body(data, i, worker) exactly once for each 0 <= i < tasks, on any threads, in any
 * order, and returns when all have returned. 0 <= worker < workers; two calls that run at the same time have
 * different workers. `context` is what was registered with the loop. Not called where one worker is enough.
 */
typedef void (*recur_parallel_for)(void *context, int64_t tasks, int32_t workers, recur_task body,
                                   void *data);

/** Replaces the parallel loop of the whole process. `loop` NULL means librecur_rt's own thread pool.
 * `threads` is the largest number of workers of a call, and what workspace queries count; 0 means one per CPU
 * this process may run on, or the environment's RECUR_NUM_THREADS. Safe from any thread; calls under way keep
 * the loop they began with. Query workspaces again after changing `threads`. */
RECUR_API void recur_set_parallel_for(recur_parallel_for loop, void *context, int32_t threads);

/** The largest number of workers of a call, as set or as found; at least 1. */
RECUR_API int32_t recur_threads(void);

/** Where one call runs. Zero in every field means the default; so does a NULL recur_stream. */
typedef struct recur_stream {
  recur_parallel_for parallel_for; /**< the loop of this call; NULL: the process's */
  void *context;                   /**< handed to parallel_for */
  int32_t threads;   /**< workers of this call, at most recur_threads(); 0: recur_threads(). How work
                      * is cut depends on this number, so results may differ in their last digits from
                      * one number to another; for one number they are always the same */
  void *cuda_stream; /**< a CUstream (or cudaStream_t) of the tensors' device; unused on the CPU. The
                      * call only enqueues work on it, and can be captured into a graph. What stands in
                      * cu_seqlens, state_index and positions is not looked at before: kernels stay in
                      * bounds, and leave a sequence alone whose slot is not there. With
                      * RECUR_CHECK_INDICES set in the environment it is checked, and the stream waited
                      * for. */
} recur_stream;

struct recur_model;

/** What is known about a compiled rule. All strings are constants of the object. */
typedef struct recur_metadata {
  int32_t abi_version;             /**< RECUR_ABI_VERSION when it was compiled */
  const char *name;                /**< the rule's name, the prefix of its functions */
  const char *spec;                /**< text of the spec file */
  const char *spec_sha256;         /**< SHA-256 of that text, 64 hexadecimal digits */
  const char *rule_class;          /**< the class the rule was sorted into */
  const char *form;                /**< the form it was compiled to */
  const char *precision;           /**< types of products, sums and states */
  const char *compiler;            /**< version of the compiler */
  const char *json;                /**< all of this, the tensors and the variants, as one JSON object */
  const struct recur_model *model; /**< for callers that know no rule by name: see recur/abi.h */
} recur_metadata;

#ifdef __cplusplus
}
#endif

#endif /* RECUR_RECUR_H_ */

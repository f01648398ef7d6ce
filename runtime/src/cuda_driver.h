/* cuda_driver.h: what is used of the CUDA driver's interface, declared as cuda.h has it. The driver is looked
 * for when the first tensor on a GPU comes along. */
#ifndef RECUR_CUDA_DRIVER_H_
#define RECUR_CUDA_DRIVER_H_

#include "internal.h"

typedef int CUresult;
typedef int CUdevice;
typedef struct CUctx_st *CUcontext;
typedef struct CUmod_st *CUmodule;
typedef struct CUfunc_st *CUfunction;
typedef struct CUstream_st *CUstream;
enum {
  CU_CAPABILITY_MAJOR = 75,
  CU_CAPABILITY_MINOR = 76,
  CU_MAX_DYNAMIC_SHARED = 8,
  CU_CAPTURE_RELAXED = 2,
  CU_LAUNCH_OVERLAPS = 6 /* an attribute: programmatic stream serialisation */
};
/** How a kernel is launched, with attributes. */
typedef struct CUlaunchAttribute {
  int id;
  _Alignas(8) union {
    int number;
    char bytes[64];
  } value;
} CUlaunchAttribute;
typedef struct CUlaunchConfig {
  unsigned blocks[3], threads[3], shared;
  CUstream stream;
  CUlaunchAttribute *attributes;
  unsigned attribute_count;
} CUlaunchConfig;
/** Attributes of pointers, and a memory type. */
enum {
  CU_POINTER_MEMORY_TYPE = 2,
  CU_POINTER_DEVICE = 9,
  CU_POINTER_RANGE_START = 11,
  CU_POINTER_RANGE_SIZE = 12,
  CU_POINTER_IS_PLAIN = 13, /* an allocation of cudaMalloc: its range is all of it */
  CU_MEMORY_DEVICE = 2
};

/** The driver's functions. */
typedef struct recur_i_driver {
  CUresult (*init)(unsigned);
  CUresult (*driver_get_version)(int *); /**< may be NULL */
  CUresult (*get_error_string)(CUresult, const char **);
  CUresult (*device_get)(CUdevice *, int);
  CUresult (*device_get_attribute)(int *, int, CUdevice);
  CUresult (*ctx_get_current)(CUcontext *);
  CUresult (*ctx_get_device)(CUdevice *);
  CUresult (*ctx_get_id)(CUcontext, unsigned long long *); /**< since CUDA 12.0; may be NULL */
  CUresult (*ctx_push_current)(CUcontext);
  CUresult (*ctx_pop_current)(CUcontext *);
  CUresult (*primary_ctx_retain)(CUcontext *, CUdevice);
  CUresult (*exchange_capture_mode)(int *);
  CUresult (*module_load_data)(CUmodule *, const void *);
  CUresult (*module_get_function)(CUfunction *, CUmodule, const char *);
  CUresult (*func_set_attribute)(CUfunction, int, int);
  /** Since CUDA 12.0; may be NULL. */
  CUresult (*encode_tiled)(void *, int, uint32_t, void *, const uint64_t *, const uint64_t *,
                           const uint32_t *, const uint32_t *, int, int, int, int);
  CUresult (*launch_kernel)(CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
                            CUstream, void **, void **);
  /** NULL where launches that overlap cannot be captured into a graph, before CUDA 12.3. */
  CUresult (*launch_kernel_ex)(const CUlaunchConfig *, CUfunction, void **, void **);
  CUresult (*memset_d32_async)(unsigned long long, unsigned, size_t, CUstream);
  CUresult (*pointer_get_attributes)(unsigned, int *, void **, unsigned long long);
  CUresult (*stream_is_capturing)(CUstream, int *);
  CUresult (*stream_synchronize)(CUstream);
  CUresult (*memcpy_dtoh)(void *, unsigned long long, size_t);
} recur_i_driver;
extern recur_i_driver recur_i_cuda;

/** Reports a failure of the driver. */
int32_t recur_i_fail_driver(const recur_i_call *call, const char *what, CUresult result);

/** A descriptor as the driver has it. */
typedef struct recur_i_map {
  _Alignas(64) uint64_t words[16];
} recur_i_map;

/** Makes a context of the call's device current. `pushed` says whether it must be taken away again. */
int32_t recur_i_cuda_enter(const recur_i_call *call, CUcontext *context, bool *pushed);

/** The functions of the chosen variant's entries in a context; loads its code if need be. */
int32_t recur_i_cuda_functions(const recur_i_call *call, CUcontext current, const CUfunction **functions);

/** Whether the tensors that an entry copies in boxes can be copied so; `operands` are the entry's. */
bool recur_i_can_map(const recur_i_operand *const *operands, const recur_cuda_entry *entry);

/** Describes them. */
CUresult recur_i_describe_maps(const recur_i_operand *const *operands, const recur_cuda_entry *entry,
                               recur_i_map *out);

/** Initial states that are read from copies of them, one for each sequence; what they are copies of, and the
 * final states of the same names. */
typedef struct recur_i_copies {
  int32_t count;
  const recur_i_operand *initial[RECUR_MAX_TENSORS], *final[RECUR_MAX_TENSORS];
  recur_cuda_tensor tensors[RECUR_MAX_TENSORS];
} recur_i_copies;

/** The number of entries in the group that begins with one, and into how many segments one cuts sequences. */
int32_t recur_i_count_launches(const recur_cuda_entry *entry);
int64_t recur_i_count_segments(const recur_i_call *call, const recur_cuda_entry *entry);

/** Describes the copies that a group's launches need, one after the other from `data` on: those of states
 * that final ones overlap or, for all calls with the same tensors, may overlap. Returns the bytes that they
 * take. */
int64_t recur_i_place_copies(const recur_i_call *call, const recur_cuda_entry *group, bool overlapping,
                             char *data, recur_i_copies *copies);

/** Checks before a launch, in a context of the call's device, what the driver knows about the memory: that it
 * is the device's, and that no tensor reaches past an allocation. With RECUR_CHECK_INDICES set in the
 * environment, also the contents of the integer tensors, which waits for the stream. */
int32_t recur_i_cuda_check(const recur_i_call *call, const void *workspace, int64_t workspace_bytes,
                           CUstream stream);

#endif /* RECUR_CUDA_DRIVER_H_ */

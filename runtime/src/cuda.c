/* cuda.c: the code of kernels for NVIDIA GPUs in the contexts that they run in. The first call of a kernel in
 * a context loads its code. */
#include "cuda_driver.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;

/** Machine code runs on the same major capability and later minors. */
static bool runs_code(const recur_cuda_kernel *kernel, int32_t capability) {
  if (kernel->exact)
    return capability == kernel->capability;
  return capability / 10 == kernel->capability / 10 && capability >= kernel->capability;
}

bool recur_i_cuda_runs(const recur_cuda_kernel *kernel, int32_t capability) {
  return runs_code(kernel, capability) || (kernel->ptx && !kernel->exact && capability >= kernel->capability);
}

/* ---- Code in contexts ---- */

/** A kernel's functions in one context. Nodes are added at the head and stay. */
typedef struct node {
  struct node *next;
  const recur_cuda_kernel *kernel;
  unsigned long long context;
  CUfunction functions[RECUR_MAX_ENTRIES];
} node;
static _Atomic(node *) nodes;

static const node *find(const recur_cuda_kernel *kernel, unsigned long long context) {
  const node *n = atomic_load_explicit(&nodes, memory_order_acquire);
  while (n && (n->kernel != kernel || n->context != context))
    n = n->next;
  return n;
}

/** Loads a kernel's code into the current context; the mutex is held. */
static int32_t load_code(const recur_i_call *call, unsigned long long context, const node **out) {
  const recur_cuda_kernel *kernel = call->variant->cuda;
  node *n = calloc(1, sizeof *n);
  if (!n)
    return RECUR_I_FAIL(call, RECUR_ERROR_CUDA, "there is no memory for the kernel's handles");
  n->kernel = kernel;
  n->context = context;
  /* Loading is no work on a stream: it must not break a capture that is under way. */
  int mode = CU_CAPTURE_RELAXED;
  recur_i_cuda.exchange_capture_mode(&mode);
  const bool code = runs_code(kernel, call->capability);
  const void *loaded = NULL;
  CUmodule module = NULL;
  CUresult result = 0;
  for (int32_t e = 0; e < kernel->entry_count && e < RECUR_MAX_ENTRIES && !result; ++e) {
    const void *image = code ? kernel->entries[e].cubin : (const void *)kernel->ptx;
    if (image != loaded)
      result = recur_i_cuda.module_load_data(&module, image);
    loaded = image;
    if (!result)
      result = recur_i_cuda.module_get_function(&n->functions[e], module, kernel->entries[e].name);
    if (!result && kernel->entries[e].shared)
      result = recur_i_cuda.func_set_attribute(n->functions[e], CU_MAX_DYNAMIC_SHARED,
                                               (int)kernel->entries[e].shared);
  }
  recur_i_cuda.exchange_capture_mode(&mode);
  if (result) {
    free(n);
    return recur_i_fail_driver(call, code ? "loading the kernel" : "compiling the kernel's PTX", result);
  }
  n->next = atomic_load_explicit(&nodes, memory_order_relaxed);
  atomic_store_explicit(&nodes, n, memory_order_release);
  *out = n;
  return RECUR_OK;
}

int32_t recur_i_cuda_functions(const recur_i_call *call, CUcontext current, const CUfunction **functions) {
  unsigned long long context = (unsigned long long)(uintptr_t)current;
  if (recur_i_cuda.ctx_get_id)
    recur_i_cuda.ctx_get_id(current, &context);
  const node *n = find(call->variant->cuda, context);
  int32_t code = RECUR_OK;
  if (!n) {
    pthread_mutex_lock(&mutex);
    n = find(call->variant->cuda, context);
    code = n ? RECUR_OK : load_code(call, context, &n);
    pthread_mutex_unlock(&mutex);
  }
  if (!code)
    *functions = n->functions;
  return code;
}

int32_t recur_i_cuda_enter(const recur_i_call *call, CUcontext *context, bool *pushed) {
  CUdevice wanted = 0, device = 0;
  *pushed = false;
  CUresult result = recur_i_cuda.device_get(&wanted, call->device.device_id);
  if (!result)
    result = recur_i_cuda.ctx_get_current(context);
  if (!result && *context && !recur_i_cuda.ctx_get_device(&device) && device == wanted)
    return RECUR_OK;
  /* The device's own context lives as long as the process: kernels stay loaded in it. */
  if (!result)
    result = recur_i_cuda.primary_ctx_retain(context, wanted);
  if (!result)
    result = recur_i_cuda.ctx_push_current(*context);
  if (result)
    return recur_i_fail_driver(call, "making a context", result);
  *pushed = true;
  return RECUR_OK;
}

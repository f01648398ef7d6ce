/* cuda.c: kernels on NVIDIA GPUs.
 *
 * A call only enqueues a launch: it neither waits nor allocates, so that it can be captured into a graph. The first
 * call of a kernel in a context loads its code. */
#include "cuda_driver.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;

/** Machine code runs on the same major capability and later minors. */
static bool runs_code(const recur_cuda_kernel *kernel, int32_t capability) {
  if (!kernel->cubin || kernel->exact)
    return kernel->cubin && capability == kernel->capability;
  return capability / 10 == kernel->capability / 10 && capability >= kernel->capability;
}

bool recur_i_cuda_runs(const recur_cuda_kernel *kernel, int32_t capability) {
  return runs_code(kernel, capability) || (kernel->ptx && !kernel->exact && capability >= kernel->capability);
}

/* ---- Code in contexts ---- */

enum { MAX_ENTRIES = 8 };

/** A kernel's functions in one context. Nodes are added at the head and stay. */
typedef struct node {
  struct node *next;
  const recur_cuda_kernel *kernel;
  unsigned long long context;
  CUfunction functions[MAX_ENTRIES];
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
  CUmodule module = NULL;
  const bool code = runs_code(kernel, call->capability);
  CUresult result = recur_i_cuda.module_load_data(&module, code ? kernel->cubin : (const void *)kernel->ptx);
  for (int32_t e = 0; e < kernel->entry_count && e < MAX_ENTRIES && !result; ++e) {
    result = recur_i_cuda.module_get_function(&n->functions[e], module, kernel->entries[e].name);
    if (!result && kernel->entries[e].shared)
      result = recur_i_cuda.func_set_attribute(n->functions[e], CU_MAX_DYNAMIC_SHARED, (int)kernel->entries[e].shared);
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

/** The kernel's functions in the current context. */
static int32_t find_code(const recur_i_call *call, CUcontext current, const node **out) {
  unsigned long long context = (unsigned long long)(uintptr_t)current;
  if (recur_i_cuda.ctx_get_id)
    recur_i_cuda.ctx_get_id(current, &context);
  *out = find(call->variant->cuda, context);
  if (*out)
    return RECUR_OK;
  pthread_mutex_lock(&mutex);
  *out = find(call->variant->cuda, context);
  const int32_t code = *out ? RECUR_OK : load_code(call, context, out);
  pthread_mutex_unlock(&mutex);
  return code;
}

/** Makes a context of the call's device current. `pushed` says whether it must be taken away again. */
static int32_t enter(const recur_i_call *call, CUcontext *context, bool *pushed) {
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

/* ---- Launches ---- */

/** Whether a tensor may be read in packets of four, or two where its innermost extent is no multiple of four. */
static bool is_packed(const recur_i_operand *operand) {
  if (!operand->argument || operand->empty || !operand->tensor->rank)
    return true;
  const int32_t last = operand->argument->ndim - 1;
  if ((uintptr_t)operand->data % 16)
    return false;
  const int64_t extent = operand->argument->shape[last], packet = extent % 4 == 0 ? 4 : extent % 2 == 0 ? 2 : 1;
  for (int32_t axis = 0; axis < last; ++axis)
    if (operand->strides[axis] % packet)
      return false;
  return extent < 2 || operand->strides[last] == 1;
}

/** Into how many segments sequences are cut for an entry: as many as give each processor one, but none too short; 1
 * where the entry knows no segments, 0 where there are too few of them. */
static int64_t count_segments(const recur_i_call *call, const recur_cuda_entry *entry) {
  enum { LEAST_TOKENS = 256 };
  if (!(entry->flags & RECUR_CUDA_SEGMENTS))
    return 1;
  const int64_t heads = call->sequences * call->heads;
  if (!heads || heads > entry->most / entry->shards / 2)
    return 0;
  const int64_t tokens = call->cu_seqlens.argument ? call->tokens / call->sequences : call->tokens;
  const int64_t wide = entry->most / entry->shards / heads, tall = tokens / LEAST_TOKENS;
  const int64_t segments = wide < tall ? wide : tall;
  return segments < 2 ? 0 : segments;
}

static const recur_cuda_entry *choose_entry(const recur_i_call *call, int32_t *index) {
  const recur_cuda_kernel *kernel = call->variant->cuda;
  bool packed = true;
  for (int32_t i = 0; i < call->operand_count; ++i)
    packed &= is_packed(&call->operands[i]);
  *index = 0;
  for (; *index + 1 < kernel->entry_count; *index += 1 + (kernel->entries[*index].flags & RECUR_CUDA_SEGMENTS ? 1 : 0)) {
    const recur_cuda_entry *entry = &kernel->entries[*index];
    if (!count_segments(call, entry) || (entry->flags & RECUR_CUDA_SEGMENTS && !recur_i_can_map(call, entry + 1)))
      continue;
    if (call->tokens >= entry->tokens && (packed || !(entry->flags & RECUR_CUDA_PACKED)) && recur_i_can_map(call, entry) &&
        (!entry->most || call->sequences * call->heads <= entry->most / entry->shards))
      break;
  }
  return &kernel->entries[*index];
}

int64_t recur_i_cuda_workspace(const recur_i_call *call) {
  int64_t most = 0;
  for (int32_t e = 0; e < call->variant->cuda->entry_count; ++e) {
    const recur_cuda_entry *entry = &call->variant->cuda->entries[e];
    const int64_t bytes = entry->scratch * entry->shards * call->sequences * call->heads * count_segments(call, entry);
    most = bytes > most ? bytes : most;
  }
  return most;
}

static recur_cuda_index describe_index(const recur_i_indices *indices) {
  if (!indices->argument)
    return (recur_cuda_index){NULL, 0, 0};
  return (recur_cuda_index){indices->data, indices->stride, indices->argument->dtype.bits};
}

static recur_cuda_tensor describe_tensor(const recur_i_call *call, const recur_i_operand *operand) {
  recur_cuda_tensor t = {.group = 1};
  if (!operand->argument)
    return t;
  const int32_t head_axis = operand->lead - 1;
  t.data = operand->data;
  t.head = operand->strides[head_axis];
  t.group = call->heads / operand->argument->shape[head_axis];
  if (operand->lead == 3)
    t.token = operand->strides[1];
  if (operand->lead > 1 && !(operand->lead == 3 && call->cu_seqlens.argument))
    t.sequence = operand->strides[0];
  for (int32_t i = 0; i < operand->tensor->rank; ++i)
    t.own[i] = operand->strides[operand->lead + i];
  return t;
}

/** The slots of the smallest state. */
static int64_t count_slots(const recur_i_call *call) {
  int64_t slots = INT64_MAX;
  for (int32_t i = 0; i < call->operand_count; ++i) {
    const recur_i_operand *operand = &call->operands[i];
    if (operand->lead == 2 && operand->argument && operand->argument->shape[0] < slots)
      slots = operand->argument->shape[0];
  }
  return slots;
}

int32_t recur_i_cuda_launch(const recur_i_call *call, void *workspace, void *stream) {
  int32_t index = 0;
  const recur_cuda_entry *entry = choose_entry(call, &index);
  const int64_t segments = count_segments(call, entry), launches = entry->flags & RECUR_CUDA_SEGMENTS ? 2 : 1;
  int64_t blocks = 0;
  if (__builtin_mul_overflow(call->sequences * call->heads, segments * entry->shards, &blocks) || blocks > INT32_MAX)
    return RECUR_I_FAIL(call, RECUR_ERROR_SHAPE, "%" PRId64 " sequences of %" PRId64 " heads are too many for a GPU",
                        call->sequences, call->heads);
  if (entry->scratch && blocks && !workspace)
    return RECUR_I_FAIL(call, RECUR_ERROR_WORKSPACE, "'workspace' is NULL, but %s_%s_workspace asks for %" PRId64
                        " bytes on the GPU", call->model->name, call->entry, recur_i_cuda_workspace(call));
  if (entry->scratch && (uintptr_t)workspace % 16)
    return RECUR_I_FAIL(call, RECUR_ERROR_ALIGNMENT, "'workspace' must start at a multiple of 16 bytes on a GPU");
  if (!blocks)
    return RECUR_OK;
  recur_cuda_call parameter = {.tokens = call->tokens,
                               .heads = call->heads,
                               .slots = count_slots(call),
                               .scratch = workspace,
                               .cu_seqlens = describe_index(&call->cu_seqlens),
                               .state_index = describe_index(&call->state_index),
                               .positions = describe_index(&call->positions),
                               .segments = segments};
  for (int32_t i = 0; i < call->operand_count; ++i)
    parameter.tensors[i] = describe_tensor(call, &call->operands[i]);

  CUcontext context = NULL;
  bool pushed = false;
  const node *code = NULL;
  int32_t status = enter(call, &context, &pushed);
  if (!status)
    status = recur_i_cuda_check(call, workspace, entry->scratch * blocks, (CUstream)stream);
  if (!status)
    status = find_code(call, context, &code);
  for (int64_t i = 0; i < launches && !status; ++i, ++entry) {
    recur_i_map maps[RECUR_MAX_MAPS];
    CUresult result = recur_i_describe_maps(call, entry, maps);
    void *parameters[] = {&parameter, maps};
    if (!result)
      result = recur_i_cuda.launch_kernel(code->functions[index + i], (unsigned)blocks, 1, 1, (unsigned)entry->threads, 1,
                                          1, (unsigned)entry->shared, (CUstream)stream, parameters, NULL);
    if (result)
      status = recur_i_fail_driver(call, "launching the kernel", result);
  }
  if (pushed)
    recur_i_cuda.ctx_pop_current(&context);
  return status;
}

/* cuda_check.c: what can be known about arguments on a GPU before anything is launched. */
#include "cuda_driver.h"

#include <inttypes.h>
#include <stdlib.h>

/** What the driver says about an address. */
typedef struct {
  unsigned type; /**< 0: it does not know it */
  int device;
  unsigned long long start;
  size_t size;
  int plain;
} memory;

static CUresult look(uintptr_t address, memory *m) {
  int attributes[] = {CU_POINTER_MEMORY_TYPE, CU_POINTER_DEVICE, CU_POINTER_RANGE_START,
                      CU_POINTER_RANGE_SIZE, CU_POINTER_IS_PLAIN};
  void *values[] = {&m->type, &m->device, &m->start, &m->size, &m->plain};
  *m = (memory){0};
  return recur_i_cuda.pointer_get_attributes(5, attributes, values, address);
}

/** Checks that bytes `low` to `high` around `data` are the device's, as far as the driver knows: of memory
 * that was put together from pieces it knows a piece only. */
static int32_t check_memory(const recur_i_call *call, const char *prefix, const char *name, const char *data,
                            int64_t low, int64_t high) {
  memory m;
  const CUresult result = look((uintptr_t)data, &m);
  if (result)
    return recur_i_fail_driver(call, "looking up an address", result);
  if (!m.type)
    return RECUR_I_FAIL(
        call, RECUR_ERROR_DEVICE,
        "'%s%s' must be in memory of CUDA device %d, but the driver does not know its address", prefix, name,
        call->device.device_id);
  if (m.type == CU_MEMORY_DEVICE && m.device != call->device.device_id)
    return RECUR_I_FAIL(call, RECUR_ERROR_DEVICE,
                        "'%s%s' must be in memory of CUDA device %d, but its address is on device %d", prefix,
                        name, call->device.device_id, m.device);
  const uintptr_t first = (uintptr_t)data + (uintptr_t)low, end = (uintptr_t)data + (uintptr_t)high;
  if (m.plain && (first < m.start || end > m.start + m.size))
    return RECUR_I_FAIL(call, RECUR_ERROR_STRIDE,
                        "'%s%s' reaches %" PRIu64 " bytes past its allocation of %" PRIu64 " bytes", prefix,
                        name, (uint64_t)(first < m.start ? m.start - first : end - m.start - m.size),
                        (uint64_t)m.size);
  return RECUR_OK;
}

static int32_t check_workspace(const recur_i_call *call, const void *workspace, int64_t bytes) {
  memory m;
  const CUresult result = look((uintptr_t)workspace, &m);
  if (result)
    return recur_i_fail_driver(call, "looking up the workspace", result);
  if (m.type != CU_MEMORY_DEVICE || m.device != call->device.device_id)
    return RECUR_I_FAIL(call, RECUR_ERROR_DEVICE, "'workspace' must be in memory of CUDA device %d",
                        call->device.device_id);
  const uint64_t left = m.start + m.size - (uintptr_t)workspace;
  if (m.plain && left < (uint64_t)bytes)
    return RECUR_I_FAIL(call, RECUR_ERROR_WORKSPACE,
                        "'workspace' must have %" PRId64 " bytes, but its allocation ends after %" PRIu64,
                        bytes, left);
  return RECUR_OK;
}

/** Copies the integer tensors to the host and checks what is in them. */
static int32_t check_contents(const recur_i_call *call, CUstream stream) {
  int capturing = 0;
  if (recur_i_cuda.stream_is_capturing(stream, &capturing) || capturing)
    return RECUR_OK;
  recur_i_call copy = *call;
  recur_i_indices *indices[] = {&copy.cu_seqlens, &copy.state_index, &copy.positions};
  char *held[3] = {NULL};
  CUresult result = recur_i_cuda.stream_synchronize(stream);
  int32_t code = RECUR_OK;
  for (int i = 0; i < 3 && !result && !code; ++i) {
    if (!indices[i]->data)
      continue;
    const size_t bytes = (size_t)(indices[i]->high - indices[i]->low);
    held[i] = malloc(bytes);
    if (!held[i])
      code = RECUR_I_FAIL(call, RECUR_ERROR_CUDA, "there is no memory for a copy of '%s'", indices[i]->name);
    else
      result =
          recur_i_cuda.memcpy_dtoh(held[i], (uintptr_t)indices[i]->data + (uintptr_t)indices[i]->low, bytes);
    indices[i]->data = held[i] - indices[i]->low;
  }
  if (result)
    code = recur_i_fail_driver(call, "copying the integer tensors", result);
  if (!code)
    code = recur_i_check_contents(&copy);
  for (int i = 0; i < 3; ++i)
    free(held[i]);
  return code;
}

int32_t recur_i_cuda_check(const recur_i_call *call, const void *workspace, int64_t workspace_bytes,
                           CUstream stream) {
  int32_t code = RECUR_OK;
  for (int32_t i = 0; i < call->operand_count && !code; ++i) {
    const recur_i_operand *operand = &call->operands[i];
    if (operand->data)
      code = check_memory(call, operand->prefix, operand->tensor->name, operand->data, operand->low,
                          operand->high);
  }
  const recur_i_indices *indices[] = {&call->cu_seqlens, &call->state_index, &call->positions};
  for (int i = 0; i < 3 && !code; ++i)
    if (indices[i]->data)
      code = check_memory(call, "", indices[i]->name, indices[i]->data, indices[i]->low, indices[i]->high);
  if (!code && workspace_bytes)
    code = check_workspace(call, workspace, workspace_bytes);
  if (!code && getenv("RECUR_CHECK_INDICES"))
    code = check_contents(call, stream);
  return code;
}

/* tensor.c: checks of one tensor by itself. All arithmetic on what the caller gave is checked for overflow.
 */
#include "internal.h"

#include <inttypes.h>
#include <string.h>

bool recur_i_same_dtype(DLDataType a, DLDataType b) {
  return a.code == b.code && a.bits == b.bits && a.lanes == b.lanes;
}

void recur_i_append_dtype(recur_i_text *text, DLDataType type) {
  static const char *const families[] = {"int", "uint", "float", "handle", "bfloat", "complex", "bool"};
  if (type.code < sizeof families / sizeof *families)
    recur_i_append(text, "%s%d", families[type.code], type.bits);
  else
    recur_i_append(text, "type code %d of %d bits", type.code, type.bits);
  if (type.lanes != 1)
    recur_i_append(text, " in %d lanes", type.lanes);
}

const char *recur_i_axis_name(const recur_i_call *call, const recur_i_operand *operand, int32_t axis) {
  static const char *const token_axes[] = {"batch", "token", "head"};
  if (axis >= operand->lead)
    return call->model->dim_names[operand->tensor->dims[axis - operand->lead]];
  if (operand->lead == 3)
    return token_axes[axis];
  if (operand->lead == 2 && axis == 0)
    return call->state_index.argument ? "slot" : "sequence";
  return "head";
}

static void append_device(recur_i_text *text, DLDevice device) {
  switch ((int)device.device_type) {
  case kDLCPU:
    recur_i_append(text, "on the CPU");
    return;
  case kDLCUDA:
    recur_i_append(text, "on CUDA device %d", device.device_id);
    return;
  default:
    recur_i_append(text, "on device type %d", (int)device.device_type);
  }
}

/** Whether a tensor is where the first output is. Integer tensors may also be in host memory that the GPU
 * reads. */
static int32_t check_device(const recur_i_call *call, const char *prefix, const char *name,
                            const DLTensor *argument, bool is_index) {
  const DLDevice wanted = call->device, found = argument->device;
  if (found.device_type == wanted.device_type && (!call->cuda || found.device_id == wanted.device_id))
    return RECUR_OK;
  const int type = (int)found.device_type;
  if (call->cuda && is_index && (type == kDLCUDAHost || type == kDLCUDAManaged))
    return RECUR_OK;
  recur_i_text must = {{0}, 0}, is = {{0}, 0};
  append_device(&must, wanted);
  append_device(&is, found);
  return RECUR_I_FAIL(call, RECUR_ERROR_DEVICE, "'%s%s' must be %s, as the first output, but it is %s",
                      prefix, name, must.data, is.data);
}

/** Adds one dimension to the elements reached below and above the first; true on overflow. */
static bool extend(int64_t size, int64_t stride, int64_t *low, int64_t *high) {
  int64_t reach = 0;
  if (__builtin_mul_overflow(size - 1, stride, &reach))
    return true;
  return reach < 0 ? __builtin_add_overflow(*low, reach, low) : __builtin_add_overflow(*high, reach, high);
}

static int32_t fail_span(const recur_i_call *call, const char *prefix, const char *name) {
  return RECUR_I_FAIL(call, RECUR_ERROR_STRIDE, "'%s%s' spans more bytes than there are addresses", prefix,
                      name);
}

/** Strides of sizes above 1, as given or compact; the bytes reached on both sides of the first element. */
static int32_t measure(const recur_i_call *call, recur_i_operand *operand) {
  const DLTensor *argument = operand->argument;
  const char *name = operand->tensor->name;
  const int32_t ndim = argument->ndim;
  operand->empty = false;
  for (int32_t axis = 0; axis < ndim; ++axis) {
    if (argument->shape[axis] < 0)
      return RECUR_I_FAIL(
          call, RECUR_ERROR_SHAPE, "'%s%s' has %" PRId64 " in dimension %d (%s), but sizes are not negative",
          operand->prefix, name, argument->shape[axis], axis, recur_i_axis_name(call, operand, axis));
    operand->empty |= argument->shape[axis] == 0;
  }
  if (operand->empty)
    return RECUR_OK;
  int64_t compact = 1, low = 0, high = 1; /* in elements */
  bool overflow = false;
  for (int32_t axis = ndim - 1; axis >= 0; --axis) {
    const int64_t size = argument->shape[axis];
    if (size == 1)
      continue;
    const int64_t stride = argument->strides ? argument->strides[axis] : compact;
    overflow |= !argument->strides && __builtin_mul_overflow(compact, size, &compact);
    overflow |= extend(size, stride, &low, &high);
    operand->strides[axis] = stride;
  }
  const int64_t element = argument->dtype.bits / 8;
  overflow |= __builtin_mul_overflow(low, element, &operand->low);
  overflow |= __builtin_mul_overflow(high, element, &operand->high);
  return overflow ? fail_span(call, operand->prefix, name) : RECUR_OK;
}

/** From the smallest stride outwards, each step must be longer than all that lies inside it. */
static int32_t check_written(const recur_i_call *call, const recur_i_operand *operand) {
  bool seen[RECUR_I_MAX_NDIM] = {false};
  uint64_t inside = 0;
  for (int32_t round = 0; round < operand->argument->ndim; ++round) {
    int32_t best = -1;
    uint64_t step = 0;
    for (int32_t axis = 0; axis < operand->argument->ndim; ++axis) {
      const int64_t stride = operand->strides[axis];
      const uint64_t magnitude = stride < 0 ? 0 - (uint64_t)stride : (uint64_t)stride;
      if (operand->argument->shape[axis] > 1 && !seen[axis] && (best < 0 || magnitude < step)) {
        best = axis;
        step = magnitude;
      }
    }
    if (best < 0)
      break;
    seen[best] = true;
    if (step <= inside)
      return RECUR_I_FAIL(
          call, RECUR_ERROR_STRIDE,
          "'%s%s' is written, so its elements must not share memory, but dimension %d (%s) has stride "
          "%" PRId64 " and the dimensions inside it reach %" PRIu64,
          operand->prefix, operand->tensor->name, best, recur_i_axis_name(call, operand, best),
          operand->strides[best], inside);
    inside += step * (uint64_t)(operand->argument->shape[best] - 1);
  }
  return RECUR_OK;
}

int32_t recur_i_check_operand(const recur_i_call *call, recur_i_operand *operand) {
  const DLTensor *argument = operand->argument;
  const char *name = operand->tensor->name;
  const int32_t ndim = operand->lead + operand->tensor->rank;
  int32_t code = check_device(call, operand->prefix, name, argument, false);
  if (code)
    return code;
  if (argument->ndim != ndim) {
    recur_i_text axes = {{0}, 0};
    for (int32_t axis = 0; axis < ndim; ++axis)
      recur_i_append(&axes, "%s%s", axis ? ", " : "", recur_i_axis_name(call, operand, axis));
    return RECUR_I_FAIL(call, RECUR_ERROR_SHAPE, "'%s%s' must have %d dimensions [%s], but it has %d",
                        operand->prefix, name, ndim, axes.data, argument->ndim);
  }
  if (!argument->shape)
    return RECUR_I_FAIL(call, RECUR_ERROR_NULL, "'%s%s' has a NULL shape", operand->prefix, name);
  code = recur_i_check_dtype(call, operand);
  if (!code)
    code = measure(call, operand);
  if (code || !operand->written || operand->empty)
    return code;
  return check_written(call, operand);
}

int32_t recur_i_check_indices(const recur_i_call *call, recur_i_indices *indices) {
  const DLTensor *argument = indices->argument;
  const int32_t code = check_device(call, "", indices->name, argument, true);
  if (code)
    return code;
  const DLDataType type = argument->dtype;
  if (type.code != kDLInt || (type.bits != 32 && type.bits != 64) || type.lanes != 1) {
    recur_i_text found = {{0}, 0};
    recur_i_append_dtype(&found, type);
    return RECUR_I_FAIL(call, RECUR_ERROR_DTYPE, "'%s' must be int32 or int64, but it is %s", indices->name,
                        found.data);
  }
  if (argument->ndim != 1)
    return RECUR_I_FAIL(call, RECUR_ERROR_SHAPE, "'%s' must have 1 dimension, but it has %d", indices->name,
                        argument->ndim);
  if (!argument->shape)
    return RECUR_I_FAIL(call, RECUR_ERROR_NULL, "'%s' has a NULL shape", indices->name);
  if (argument->shape[0] < 0)
    return RECUR_I_FAIL(call, RECUR_ERROR_SHAPE, "'%s' has %" PRId64 " entries, but sizes are not negative",
                        indices->name, argument->shape[0]);
  indices->size = argument->shape[0];
  indices->stride = indices->size < 2 ? 0 : argument->strides ? argument->strides[0] : 1;
  int64_t low = 0, high = 1;
  if (indices->size && (extend(indices->size, indices->stride, &low, &high) ||
                        __builtin_mul_overflow(low, type.bits / 8, &indices->low) ||
                        __builtin_mul_overflow(high, type.bits / 8, &indices->high)))
    return fail_span(call, "", indices->name);
  return RECUR_OK;
}

int32_t recur_i_locate(const recur_i_call *call, const char *prefix, const char *name,
                       const DLTensor *argument, int64_t low, int64_t high, char **data) {
  if (!argument->data)
    return RECUR_I_FAIL(call, RECUR_ERROR_NULL, "'%s%s' has NULL data, but it is not empty", prefix, name);
  const uintptr_t element = argument->dtype.bits / 8;
  uintptr_t first = 0, end = 0;
  if (__builtin_add_overflow((uintptr_t)argument->data, argument->byte_offset, &first) ||
      first < 0 - (uintptr_t)low || __builtin_add_overflow(first, (uintptr_t)high, &end))
    return RECUR_I_FAIL(call, RECUR_ERROR_STRIDE, "'%s%s' reaches past the end of the address space", prefix,
                        name);
  if (first % element) {
    recur_i_text type = {{0}, 0};
    recur_i_append_dtype(&type, argument->dtype);
    return RECUR_I_FAIL(
        call, RECUR_ERROR_ALIGNMENT,
        "'%s%s' must start at a multiple of %d bytes (%s), but its first element is %d bytes past one",
        prefix, name, (int)element, type.data, (int)(first % element));
  }
  *data = (char *)first;
  return RECUR_OK;
}

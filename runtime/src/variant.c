/* variant.c: own dimensions and element types against the variants of the object. */
#include "internal.h"

#include <inttypes.h>

/** What stands before the next item of a list: nothing, then " or ". */
static const char *separator(int *count) { return (*count)++ ? " or " : ""; }

int32_t recur_i_check_dtype(const recur_i_call *call, const recur_i_operand *operand) {
  const recur_model *model = call->model;
  const int64_t index = operand->tensor - model->tensors;
  const DLDataType found = operand->argument->dtype;
  for (int32_t v = 0; v < model->variant_count; ++v)
    if (recur_i_same_dtype(found, model->variants[v].dtypes[index]))
      return RECUR_OK;
  recur_i_text wanted = {{0}, 0}, got = {{0}, 0};
  int count = 0;
  for (int32_t v = 0; v < model->variant_count; ++v) {
    const DLDataType type = model->variants[v].dtypes[index];
    bool listed = false;
    for (int32_t u = 0; u < v; ++u)
      listed |= recur_i_same_dtype(type, model->variants[u].dtypes[index]);
    if (listed)
      continue;
    recur_i_append(&wanted, "%s", separator(&count));
    recur_i_append_dtype(&wanted, type);
  }
  recur_i_append_dtype(&got, found);
  return RECUR_I_FAIL(call, RECUR_ERROR_DTYPE, "'%s%s' must be %s, but it is %s", operand->prefix,
                      operand->tensor->name, wanted.data, got.data);
}

/** A size that no variant has. */
static int32_t fail_size(const recur_i_call *call, const recur_i_operand *operand, int32_t axis) {
  const recur_model *model = call->model;
  const int32_t dim = operand->tensor->dims[axis - operand->lead];
  recur_i_text wanted = {{0}, 0};
  int count = 0;
  for (int32_t v = 0; v < model->variant_count; ++v) {
    const int64_t size = model->variants[v].dims[dim];
    bool listed = false;
    for (int32_t u = 0; u < v; ++u)
      listed |= model->variants[u].dims[dim] == size;
    if (!listed)
      recur_i_append(&wanted, "%s%" PRId64, separator(&count), size);
  }
  return RECUR_I_FAIL(call, RECUR_ERROR_SHAPE,
                      "'%s%s' has %" PRId64 " in dimension %d (%s), but this was compiled for %s",
                      operand->prefix, operand->tensor->name, operand->argument->shape[axis], axis,
                      model->dim_names[dim], wanted.data);
}

/** Finds the size of every dimension, -1 for one that no argument shows. */
static int32_t find_sizes(const recur_i_call *call, int64_t *sizes) {
  const recur_model *model = call->model;
  const recur_i_operand *source[RECUR_MAX_DIMS] = {NULL};
  for (int32_t d = 0; d < model->dim_count; ++d)
    sizes[d] = -1;
  for (int32_t i = 0; i < call->operand_count; ++i) {
    const recur_i_operand *operand = &call->operands[i];
    if (!operand->argument)
      continue;
    for (int32_t axis = operand->lead; axis < operand->argument->ndim; ++axis) {
      const int32_t dim = operand->tensor->dims[axis - operand->lead];
      const int64_t size = operand->argument->shape[axis];
      bool known = false;
      for (int32_t v = 0; v < model->variant_count; ++v)
        known |= model->variants[v].dims[dim] == size;
      if (!known)
        return fail_size(call, operand, axis);
      if (!source[dim]) {
        source[dim] = operand;
        sizes[dim] = size;
      } else if (sizes[dim] != size) {
        return RECUR_I_FAIL(call, RECUR_ERROR_SHAPE,
                            "'%s%s' has %" PRId64 " in dimension %d (%s), but '%s%s' has %" PRId64,
                            operand->prefix, operand->tensor->name, size, axis, model->dim_names[dim],
                            source[dim]->prefix, source[dim]->tensor->name, sizes[dim]);
      }
    }
  }
  return RECUR_OK;
}

static bool fits(const recur_i_call *call, const recur_variant *variant, const int64_t *sizes) {
  for (int32_t d = 0; d < call->model->dim_count; ++d)
    if (sizes[d] >= 0 && sizes[d] != variant->dims[d])
      return false;
  for (int32_t i = 0; i < call->operand_count; ++i) {
    const recur_i_operand *operand = &call->operands[i];
    if (operand->argument && !recur_i_same_dtype(operand->argument->dtype,
                                                 variant->dtypes[operand->tensor - call->model->tensors]))
      return false;
  }
  return true;
}

/** Whether inputs, params and outputs are all of one type; states are float32 everywhere. */
static bool one_dtype(const recur_model *model, const DLDataType *types) {
  for (int32_t i = 1; i < model->tensor_count; ++i)
    if (model->tensors[i].role != RECUR_STATE && !recur_i_same_dtype(types[i], types[0]))
      return false;
  return model->tensors[0].role != RECUR_STATE;
}

/** "dk=128 dv=128 bfloat16", or "dk=128 dv=128 q:bfloat16 g:float32"; without fixed sizes and states. */
static void append_variant(recur_i_text *text, const recur_model *model, const int64_t *sizes,
                           const DLDataType *types) {
  for (int32_t d = 0; d < model->dim_count; ++d) {
    const char initial = model->dim_names[d][0];
    if (sizes[d] >= 0 && (initial < '0' || initial > '9'))
      recur_i_append(text, " %s=%" PRId64, model->dim_names[d], sizes[d]);
  }
  if (one_dtype(model, types)) {
    recur_i_append(text, " ");
    recur_i_append_dtype(text, types[0]);
    return;
  }
  for (int32_t i = 0; i < model->tensor_count; ++i) {
    if (model->tensors[i].role == RECUR_STATE)
      continue;
    recur_i_append(text, " %s:", model->tensors[i].name);
    recur_i_append_dtype(text, types[i]);
  }
}

/** Whether an earlier variant differs in its target only. */
static bool listed_before(const recur_model *model, int32_t v) {
  const recur_variant *variant = &model->variants[v];
  for (const recur_variant *other = model->variants; other < variant; ++other) {
    bool same = true;
    for (int32_t d = 0; d < model->dim_count; ++d)
      same &= other->dims[d] == variant->dims[d];
    for (int32_t i = 0; i < model->tensor_count; ++i)
      same &= recur_i_same_dtype(other->dtypes[i], variant->dtypes[i]);
    if (same)
      return true;
  }
  return false;
}

/** The arguments fit no variant. */
static int32_t fail_combination(const recur_i_call *call, const int64_t *sizes) {
  const recur_model *model = call->model;
  DLDataType found[RECUR_MAX_TENSORS] = {{0}};
  for (int32_t i = 0; i < call->operand_count; ++i)
    if (call->operands[i].argument)
      found[call->operands[i].tensor - model->tensors] = call->operands[i].argument->dtype;
  recur_i_text text = {{0}, 0};
  recur_i_append(&text, "nothing was compiled for");
  append_variant(&text, model, sizes, found);
  recur_i_append(&text, ", only for");
  int count = 0;
  for (int32_t v = 0; v < model->variant_count; ++v) {
    if (listed_before(model, v))
      continue;
    recur_i_append(&text, "%s", count++ ? ";" : "");
    append_variant(&text, model, model->variants[v].dims, model->variants[v].dtypes);
  }
  return RECUR_I_FAIL(call, RECUR_ERROR_VARIANT, "%s", text.data);
}

int32_t recur_i_choose_variant(recur_i_call *call) {
  int64_t sizes[RECUR_MAX_DIMS];
  const int32_t code = find_sizes(call, sizes);
  if (code)
    return code;
  recur_i_text targets = {{0}, 0};
  int count = 0, elsewhere = 0;
  for (int32_t v = 0; v < call->model->variant_count; ++v) {
    const recur_variant *variant = &call->model->variants[v];
    if (!fits(call, variant, sizes))
      continue;
    if (call->cuda != (variant->cuda != NULL)) {
      ++elsewhere;
      continue;
    }
    if (variant->cuda ? recur_i_cuda_runs(variant->cuda, call->capability)
                      : recur_i_cpu_has(variant->features)) {
      call->variant = variant;
      return RECUR_OK;
    }
    recur_i_append(&targets, "%s%s", separator(&count), variant->target);
  }
  if (!count && !elsewhere)
    return fail_combination(call, sizes);
  if (!count)
    return RECUR_I_FAIL(call, RECUR_ERROR_TARGET, "the tensors are on %s, but nothing was compiled for one",
                        call->cuda ? "a GPU" : "the CPU");
  if (call->cuda)
    return RECUR_I_FAIL(call, RECUR_ERROR_TARGET,
                        "this was compiled for %s, but CUDA device %d has compute capability %d.%d",
                        targets.data, call->device.device_id, call->capability / 10, call->capability % 10);
  recur_i_text machine = {{0}, 0};
  recur_i_append_features(&machine, recur_cpu_features());
  return RECUR_I_FAIL(call, RECUR_ERROR_TARGET, "this was compiled for %s, but this machine only has %s",
                      targets.data, machine.data);
}

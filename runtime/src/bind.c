/* bind.c: from an array of tensor pointers to the operands of a kernel: who is who, and whether they fit
 * together. */
#include "internal.h"

#include <inttypes.h>
#include <string.h>

/** Takes the next argument for `tensor`. */
static int32_t add_operand(recur_i_call *call, const recur_tensor *tensor, const char *prefix, bool written,
                           const DLTensor *argument) {
  recur_i_operand *operand = &call->operands[call->operand_count++];
  memset(operand, 0, sizeof *operand);
  operand->tensor = tensor;
  operand->argument = argument;
  operand->prefix = prefix;
  operand->written = written;
  operand->lead = tensor->role == RECUR_PARAM ? 1 : tensor->role == RECUR_STATE ? 2 : 3;
  const bool optional = tensor->role == RECUR_STATE && !call->step;
  if (argument || optional)
    return RECUR_OK;
  return RECUR_I_FAIL(call, RECUR_ERROR_NULL, "'%s%s' is NULL, but it must be given", prefix, tensor->name);
}

/** Walks the arguments in the order that abi.h gives. */
static int32_t collect(recur_i_call *call, const DLTensor *const *args) {
  const recur_model *model = call->model;
  const recur_tensor *end = model->tensors + model->tensor_count;
  const recur_tensor *tensor = model->tensors;
  int32_t code = RECUR_OK;
  for (; tensor < end && tensor->role <= RECUR_PARAM && !code; ++tensor)
    code = add_operand(call, tensor, "", false, *args++);
  const recur_tensor *states = tensor;
  const recur_tensor *outputs = states;
  while (outputs < end && outputs->role == RECUR_STATE)
    ++outputs;
  const int64_t state_count = outputs - states, output_count = end - outputs;
  const DLTensor *const *initial = args;
  if (!call->step) {
    args += state_count;
    call->cu_seqlens = (recur_i_indices){.name = "cu_seqlens", .argument = *args++};
  }
  call->state_index = (recur_i_indices){.name = "state_index", .argument = *args++};
  call->positions = (recur_i_indices){.name = "positions", .argument = *args++};
  const DLTensor *const *final = args + output_count;
  if (call->step)
    initial = final;
  for (int64_t i = 0; i < state_count && !code; ++i)
    code = add_operand(call, &states[i], call->step ? "" : "initial_", call->step, initial[i]);
  for (int64_t i = 0; i < output_count && !code; ++i)
    code = add_operand(call, &outputs[i], "", true, args[i]);
  for (int64_t i = 0; i < state_count && !code; ++i)
    code = add_operand(call, &states[i], call->step ? "" : "final_", true, final[i]);
  return code;
}

/** Compares a leading dimension with that of the reference, the first output. */
static int32_t check_equal(const recur_i_call *call, const recur_i_operand *operand, int32_t axis,
                           int64_t wanted, const recur_i_operand *reference) {
  const int64_t size = operand->argument->shape[axis];
  if (size == wanted)
    return RECUR_OK;
  return RECUR_I_FAIL(call, RECUR_ERROR_SHAPE,
                      "'%s%s' has %" PRId64 " in dimension %d (%s), but '%s' has %" PRId64, operand->prefix,
                      operand->tensor->name, size, axis, recur_i_axis_name(call, operand, axis),
                      reference->tensor->name, wanted);
}

static int32_t check_heads(const recur_i_call *call, const recur_i_operand *operand,
                           const recur_i_operand *reference) {
  const int32_t axis = operand->lead - 1;
  const int64_t heads = operand->argument->shape[axis];
  if (operand->tensor->role == RECUR_STATE || operand->tensor->role == RECUR_OUTPUT)
    return check_equal(call, operand, axis, call->heads, reference);
  if (heads ? call->heads % heads == 0 : call->heads == 0)
    return RECUR_OK;
  return RECUR_I_FAIL(call, RECUR_ERROR_SHAPE,
                      "'%s' has %" PRId64 " in dimension %d (head), which does not divide the %" PRId64
                      " of '%s'",
                      operand->tensor->name, heads, axis, call->heads, reference->tensor->name);
}

/** Whether there is one entry, or one slot, per sequence. */
static int32_t check_per_sequence(const recur_i_call *call, const char *prefix, const char *name,
                                  int64_t size) {
  if (size == call->sequences)
    return RECUR_OK;
  return RECUR_I_FAIL(call, RECUR_ERROR_SHAPE,
                      "'%s%s' has %" PRId64
                      " in dimension 0 (sequence), but the number of sequences is %" PRId64,
                      prefix, name, size, call->sequences);
}

/** Finds batch, tokens, heads and sequences, and compares all leading dimensions. */
static int32_t check_counts(recur_i_call *call) {
  const recur_i_operand *reference = call->operands;
  while (reference->tensor->role != RECUR_OUTPUT)
    ++reference;
  const int64_t *shape = reference->argument->shape;
  call->batch = call->sequences = shape[0];
  call->tokens = shape[1];
  call->heads = shape[2];
  if (call->cu_seqlens.argument) {
    if (call->batch != 1)
      return RECUR_I_FAIL(call, RECUR_ERROR_SHAPE,
                          "'cu_seqlens' needs a batch of 1, but '%s' has %" PRId64 " in dimension 0",
                          reference->tensor->name, call->batch);
    if (!call->cu_seqlens.size)
      return RECUR_I_FAIL(call, RECUR_ERROR_SEQUENCES,
                          "'cu_seqlens' is empty, but it has one more entry than sequences");
    call->sequences = call->cu_seqlens.size - 1;
  }
  if (call->step && call->tokens != 1)
    return RECUR_I_FAIL(call, RECUR_ERROR_SHAPE,
                        "'%s' has %" PRId64
                        " in dimension 1 (token), but a step takes one token of each sequence",
                        reference->tensor->name, call->tokens);
  int32_t code = RECUR_OK;
  for (int32_t i = 0; i < call->operand_count && !code; ++i) {
    const recur_i_operand *operand = &call->operands[i];
    if (!operand->argument)
      continue;
    if (operand->lead == 3)
      code = check_equal(call, operand, 0, call->batch, reference);
    if (!code && operand->lead == 3)
      code = check_equal(call, operand, 1, call->tokens, reference);
    if (!code && operand->lead == 2 && !call->state_index.argument)
      code = check_per_sequence(call, operand->prefix, operand->tensor->name, operand->argument->shape[0]);
    if (!code)
      code = check_heads(call, operand, reference);
  }
  if (!code && call->state_index.argument)
    code = check_per_sequence(call, "", "state_index", call->state_index.size);
  if (!code && call->positions.argument)
    code = check_per_sequence(call, "", "positions", call->positions.size);
  int64_t tasks = 0;
  if (!code && __builtin_mul_overflow(call->sequences, call->heads, &tasks))
    code = RECUR_I_FAIL(call, RECUR_ERROR_SHAPE,
                        "%" PRId64 " sequences of %" PRId64 " heads are too many to count", call->sequences,
                        call->heads);
  return code;
}

/** The first output says where the call runs. */
static int32_t find_device(recur_i_call *call) {
  const recur_i_operand *output = call->operands;
  while (output->tensor->role != RECUR_OUTPUT)
    ++output;
  call->device = output->argument->device;
  call->cuda = call->device.device_type == kDLCUDA;
  if (call->cuda) {
    bool compiled = false;
    for (int32_t i = 0; i < call->model->variant_count; ++i)
      compiled |= call->model->variants[i].cuda != NULL;
    if (!compiled)
      return RECUR_I_FAIL(
          call, RECUR_ERROR_DEVICE,
          "'%s' must be on the CPU, as this was compiled for no GPU, but it is on CUDA device %d",
          output->tensor->name, (int)call->device.device_id);
    return recur_i_cuda_begin(call);
  }
  if (call->device.device_type == kDLCPU)
    return RECUR_OK;
  return RECUR_I_FAIL(call, RECUR_ERROR_DEVICE,
                      "'%s' must be on the CPU or on a CUDA device, but it is on device type %d",
                      output->tensor->name, (int)call->device.device_type);
}

int32_t recur_i_bind(recur_i_call *call, const DLTensor *const *args) {
  if (!args)
    return RECUR_I_FAIL(call, RECUR_ERROR_NULL, "'args' is NULL");
  if (call->step && (call->model->flags & RECUR_NO_STEP))
    return RECUR_I_FAIL(
        call, RECUR_ERROR_VARIANT,
        "the rule reads the state at the start of a block of tokens, which a step does not have");
  int32_t code = collect(call, args);
  if (!code)
    code = find_device(call);
  for (int32_t i = 0; i < call->operand_count && !code; ++i)
    if (call->operands[i].argument)
      code = recur_i_check_operand(call, &call->operands[i]);
  recur_i_indices *indices[] = {&call->cu_seqlens, &call->state_index, &call->positions};
  for (int32_t i = 0; i < 3 && !code; ++i)
    if (indices[i]->argument)
      code = recur_i_check_indices(call, indices[i]);
  if (!code)
    code = check_counts(call);
  if (!code && call->step && (call->model->flags & RECUR_USES_POSITION) && !call->positions.argument)
    code = RECUR_I_FAIL(call, RECUR_ERROR_POSITION,
                        "'positions' is NULL, but the rule uses the tokens' positions");
  return code ? code : recur_i_choose_variant(call);
}

/* sequence.c: addresses, and the contents of cu_seqlens, state_index and positions. */
#include "internal.h"

#include <inttypes.h>
#include <string.h>

int64_t recur_i_index(const recur_i_indices *indices, int64_t i) {
  if (indices->argument->dtype.bits == 64) {
    int64_t wide = 0;
    memcpy(&wide, indices->data + i * indices->stride * 8, sizeof wide);
    return wide;
  }
  int32_t narrow = 0;
  memcpy(&narrow, indices->data + i * indices->stride * 4, sizeof narrow);
  return narrow;
}

static int32_t check_cu_seqlens(const recur_i_call *call) {
  const recur_i_indices *ends = &call->cu_seqlens;
  int64_t before = recur_i_index(ends, 0);
  if (before != 0)
    return RECUR_I_FAIL(call, RECUR_ERROR_SEQUENCES,
                        "'cu_seqlens' must start at 0, but it starts at %" PRId64, before);
  for (int64_t i = 1; i < ends->size; ++i) {
    const int64_t end = recur_i_index(ends, i);
    if (end < before)
      return RECUR_I_FAIL(call, RECUR_ERROR_SEQUENCES,
                          "'cu_seqlens' must ascend, but entry %" PRId64 " is %" PRId64 " after %" PRId64, i,
                          end, before);
    before = end;
  }
  if (before != call->tokens)
    return RECUR_I_FAIL(call, RECUR_ERROR_SEQUENCES,
                        "'cu_seqlens' must end at the number of tokens, %" PRId64 ", but it ends at %" PRId64,
                        call->tokens, before);
  return RECUR_OK;
}

/** The first two entries that name `slot`. */
static int32_t fail_twice(const recur_i_call *call, int64_t slot) {
  int64_t first = 0;
  while (recur_i_index(&call->state_index, first) != slot)
    ++first;
  int64_t second = first + 1;
  while (recur_i_index(&call->state_index, second) != slot)
    ++second;
  return RECUR_I_FAIL(
      call, RECUR_ERROR_INDEX,
      "'state_index' must not name a slot twice where states are written, but entries %" PRId64
      " and %" PRId64 " are both %" PRId64,
      first, second, slot);
}

/** Looks for duplicates with a fixed bitmap, window by window: no allocation, one pass for pools of common
 * sizes. */
static int32_t check_distinct(const recur_i_call *call, int64_t slots) {
  enum { WINDOW = 1 << 15 };
  uint64_t seen[WINDOW / 64];
  for (int64_t base = 0; base < slots; base += WINDOW) {
    const int64_t size = slots - base < WINDOW ? slots - base : WINDOW;
    memset(seen, 0, (size_t)(size + 63) / 64 * 8);
    for (int64_t i = 0; i < call->sequences; ++i) {
      const int64_t slot = recur_i_index(&call->state_index, i) - base;
      if (slot < 0 || slot >= size)
        continue;
      const uint64_t bit = UINT64_C(1) << slot % 64;
      if (seen[slot / 64] & bit)
        return fail_twice(call, slot + base);
      seen[slot / 64] |= bit;
    }
  }
  return RECUR_OK;
}

static int32_t check_state_index(const recur_i_call *call) {
  int64_t written_slots = 0;
  for (int32_t k = 0; k < call->operand_count; ++k) {
    const recur_i_operand *operand = &call->operands[k];
    if (operand->lead != 2 || !operand->argument)
      continue;
    const int64_t slots = operand->argument->shape[0];
    for (int64_t i = 0; i < call->sequences; ++i) {
      const int64_t slot = recur_i_index(&call->state_index, i);
      if (slot < 0 || slot >= slots)
        return RECUR_I_FAIL(call, RECUR_ERROR_INDEX,
                            "'state_index' must be in range, but entry %" PRId64 " is %" PRId64
                            " and '%s%s' has %" PRId64 " slots",
                            i, slot, operand->prefix, operand->tensor->name, slots);
    }
    if (operand->written)
      written_slots = slots;
  }
  return check_distinct(call, written_slots);
}

static int32_t check_positions(const recur_i_call *call) {
  for (int64_t i = 0; i < call->sequences; ++i) {
    const int64_t position = recur_i_index(&call->positions, i);
    if (position < 0)
      return RECUR_I_FAIL(call, RECUR_ERROR_POSITION,
                          "'positions' must not be negative, but entry %" PRId64 " is %" PRId64, i, position);
    if (position > INT64_MAX - call->tokens)
      return RECUR_I_FAIL(call, RECUR_ERROR_POSITION,
                          "'positions' must leave room for %" PRId64 " tokens, but entry %" PRId64
                          " is %" PRId64,
                          call->tokens, i, position);
  }
  return RECUR_OK;
}

/** What is written begins where nothing else does; a state may be updated in place. Memory that is shared
 * elsewhere is not looked for: tensors may be woven into each other. */
static int32_t check_apart(const recur_i_call *call) {
  for (int32_t i = 0; i < call->operand_count; ++i)
    for (int32_t j = 0; j < call->operand_count; ++j) {
      const recur_i_operand *written = &call->operands[i], *other = &call->operands[j];
      const bool same = written->argument && other->argument && !written->empty && !other->empty &&
                        written->data == other->data;
      if (i == j || !same || !written->written)
        continue;
      if (written->tensor == other->tensor &&
          !memcmp(written->strides, other->strides, written->argument->ndim * sizeof *written->strides))
        continue;
      return RECUR_I_FAIL(call, RECUR_ERROR_STRIDE,
                          "'%s%s' is written, so it must not share memory with '%s%s', but both begin at one "
                          "address%s",
                          written->prefix, written->tensor->name, other->prefix, other->tensor->name,
                          written->tensor == other->tensor ? " with different strides" : "");
    }
  return RECUR_OK;
}

int32_t recur_i_check_data(recur_i_call *call) {
  int32_t code = RECUR_OK;
  for (int32_t i = 0; i < call->operand_count && !code; ++i) {
    recur_i_operand *operand = &call->operands[i];
    if (operand->argument && !operand->empty)
      code = recur_i_locate(call, operand->prefix, operand->tensor->name, operand->argument, operand->low,
                            operand->high, &operand->data);
  }
  if (!code)
    code = check_apart(call);
  recur_i_indices *indices[] = {&call->cu_seqlens, &call->state_index, &call->positions};
  for (int32_t i = 0; i < 3 && !code; ++i) {
    char *data = NULL;
    if (indices[i]->argument && indices[i]->size)
      code = recur_i_locate(call, "", indices[i]->name, indices[i]->argument, indices[i]->low,
                            indices[i]->high, &data);
    indices[i]->data = data;
  }
  if (code ||
      call->cuda) /* reading them would wait for the device; kernels stay within bounds by themselves */
    return code;
  return recur_i_check_contents(call);
}

int32_t recur_i_check_contents(const recur_i_call *call) {
  int32_t code = RECUR_OK;
  if (call->cu_seqlens.argument)
    code = check_cu_seqlens(call);
  if (!code && call->state_index.argument)
    code = check_state_index(call);
  if (!code && call->positions.argument)
    code = check_positions(call);
  return code;
}

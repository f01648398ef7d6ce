/* cuda_states.c: initial states that final ones are stored over.
 *
 * Nothing orders the blocks of a launch. Where several of them read a head's initial state, the one that
 * stores the final state in its place may come first. Such states are copied to the workspace before. The
 * kernel that goes token by token does that, over no token: it knows slots, strides and all else.
 */
#include "cuda_driver.h"

/** The final state of the same name as an operand that is an initial one; else NULL. */
static const recur_i_operand *final_of(const recur_i_call *call, int32_t index) {
  const recur_i_operand *initial = &call->operands[index];
  if (initial->written || initial->tensor->role != RECUR_STATE || !initial->argument)
    return NULL;
  for (int32_t i = index + 1; i < call->operand_count; ++i)
    if (call->operands[i].tensor == initial->tensor && call->operands[i].argument)
      return &call->operands[i];
  return NULL;
}

static bool overlap(const recur_i_operand *x, const recur_i_operand *y) {
  const uintptr_t a = (uintptr_t)x->data, b = (uintptr_t)y->data;
  return a + (uintptr_t)x->low < b + (uintptr_t)y->high && b + (uintptr_t)y->low < a + (uintptr_t)x->high;
}

static bool has_tensor(const recur_cuda_entry *entry, int32_t index) {
  for (int64_t i = 0; entry->tensors && i < entry->tensor_count; ++i)
    if (entry->tensors[i] == index)
      return true;
  return !entry->tensors;
}

/** Whether several blocks read one head's entries of an initial state before it is stored over. Who waits for
 * the state of a segment waits for the first one's blocks, too. Those of entries that spread their
 * blocks over all chunks read none, unless they say so. Of a matrix each of a head's blocks reads its own
 * part; a vector all of them may read. */
static bool is_shared(const recur_i_call *call, const recur_cuda_entry *group, int32_t index) {
  const bool is_vector = call->operands[index].tensor->rank < 2;
  int64_t readers = 0;
  for (int32_t i = 0; i < recur_i_count_launches(group); ++i)
    if ((!(group[i].flags & RECUR_CUDA_SPREAD) || group[i].flags & RECUR_CUDA_INITIAL) &&
        has_tensor(&group[i], index))
      readers += (group[i].flags & RECUR_CUDA_PASSES ? 1 : recur_i_count_segments(call, &group[i])) *
                 (is_vector ? group[i].shards : 1);
  return readers > 1;
}

int64_t recur_i_place_copies(const recur_i_call *call, const recur_cuda_entry *group, bool overlapping,
                             char *data, recur_i_copies *copies) {
  *copies = (recur_i_copies){0};
  int64_t bytes = 0;
  for (int32_t i = 0; i < call->operand_count; ++i) {
    const recur_i_operand *initial = &call->operands[i], *final = final_of(call, i);
    if (!final || initial->empty || !is_shared(call, group, i) || (overlapping && !overlap(initial, final)))
      continue;
    recur_cuda_tensor copy = {.data = data ? data + bytes : NULL, .group = 1};
    /* Of a head whole packets, for kernels that read those. */
    int64_t entries = 1;
    for (int32_t d = initial->tensor->rank; d-- > 0; entries *= initial->argument->shape[initial->lead + d])
      copy.own[d] = entries;
    copy.head = (entries + 3) / 4 * 4;
    copy.token = copy.head * call->heads;
    copies->initial[copies->count] = initial;
    copies->final[copies->count] = final;
    copies->tensors[copies->count++] = copy;
    bytes += copy.token * call->sequences * (int64_t)sizeof(float);
  }
  return bytes;
}

/* cuda_maps.c: descriptors of tensors for the engine that copies boxes of them. */
#include "cuda_driver.h"

/* What copies in boxes can reach: box rows of 128 bytes, exchanged in 16-byte parts by the row's number. */
enum { BOX_ENTRIES = 64, BOX_TOKENS = 64, MAP_RANK = 5, MAP_UINT16 = 1, MAP_SWIZZLE_128B = 3, MAP_PROMOTE_256B = 3 };

/** Whether a tensor can be copied in boxes. */
static bool can_map(const recur_i_operand *operand) {
  const DLTensor *argument = operand->argument;
  if (!argument || operand->empty || argument->dtype.bits != 16 || operand->lead != 3 || argument->ndim != 4 ||
      (uintptr_t)operand->data % 16 || argument->shape[1] > INT32_MAX || operand->strides[3] != 1)
    return false;
  for (int32_t axis = 0; axis < 3; ++axis)
    if (argument->shape[axis] > 1 && (operand->strides[axis] % 8 || operand->strides[axis] <= 0))
      return false;
  return true;
}

/** Describes [batch, token, head, entry] as blocks of 64 entries of tokens. */
static CUresult describe_map(const recur_i_operand *operand, recur_i_map *out) {
  const int64_t *shape = operand->argument->shape;
  enum { BLOCK_BYTES = 128 };
  uint64_t strides[MAP_RANK - 1], bytes[3];
  for (int32_t axis = 0; axis < 3; ++axis) /* where there is but one, any will do */
    bytes[axis] = shape[axis] > 1 ? (uint64_t)operand->strides[axis] * 2 : BLOCK_BYTES;
  const uint64_t sizes[MAP_RANK] = {BOX_ENTRIES, (uint64_t)shape[1], (uint64_t)shape[3] / BOX_ENTRIES, (uint64_t)shape[2],
                                    (uint64_t)shape[0]};
  strides[0] = bytes[1];
  strides[1] = BLOCK_BYTES;
  strides[2] = bytes[2];
  strides[3] = bytes[0];
  const uint32_t box[MAP_RANK] = {BOX_ENTRIES, BOX_TOKENS, 1, 1, 1}, steps[MAP_RANK] = {1, 1, 1, 1, 1};
  return recur_i_cuda.encode_tiled(out, MAP_UINT16, MAP_RANK, operand->data, sizes, strides, box, steps, 0, MAP_SWIZZLE_128B,
                             MAP_PROMOTE_256B, 0);
}

bool recur_i_can_map(const recur_i_operand *const *operands, const recur_cuda_entry *entry) {
  for (int32_t i = 0; i < entry->map_count; ++i)
    if (!recur_i_cuda.encode_tiled || !can_map(operands[entry->maps[i]]))
      return false;
  return true;
}

CUresult recur_i_describe_maps(const recur_i_operand *const *operands, const recur_cuda_entry *entry,
                               recur_i_map *out) {
  CUresult result = 0;
  for (int32_t i = 0; i < entry->map_count && !result; ++i)
    result = describe_map(operands[entry->maps[i]], &out[i]);
  return result;
}

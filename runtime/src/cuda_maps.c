/* cuda_maps.c: descriptors of tensors for the engine that copies boxes of them. */
#include "cuda_driver.h"

/* What copies in boxes can reach: box rows of 128 bytes, exchanged in 16-byte parts by the row's number. */
enum {
  BOX_ENTRIES = 64,
  BOX_ROWS = 64,
  MAP_RANK = 5,
  MAP_UINT16 = 1,
  MAP_SWIZZLE_128B = 3,
  MAP_PROMOTE_256B = 3
};

/** Whether a token's micro-steps, fewer than it has entries, are the columns of a matrix: their entries lie
 * apart. */
static bool are_columns(const DLTensor *argument) {
  return argument->ndim == 5 && argument->shape[4] < argument->shape[3];
}

/** The micro-steps of a token. */
static int64_t count_steps(const recur_i_operand *operand) {
  const DLTensor *argument = operand->argument;
  return argument->ndim < 5 ? 1 : argument->shape[are_columns(argument) ? 4 : 3];
}

/** The tensor of a map, and the tokens of a box, where they are told. */
static int32_t tensor_of(int32_t map) { return map % RECUR_MAP_BOX; }
static int32_t tokens_of(int32_t map) { return map / RECUR_MAP_BOX; }

/** Whether a tensor can be copied in boxes. */
static bool can_map(const recur_i_operand *operand) {
  const DLTensor *argument = operand->argument;
  if (!argument || operand->empty || argument->dtype.bits != 16 || operand->lead != 3 || argument->ndim < 4 ||
      argument->ndim > 5 || (uintptr_t)operand->data % 16 || argument->shape[1] > INT32_MAX ||
      operand->strides[argument->ndim - 1] != 1 || count_steps(operand) > BOX_ROWS)
    return false;
  if (are_columns(argument) && operand->strides[3] != argument->shape[4])
    return false;
  for (int32_t axis = 0; axis < argument->ndim - (are_columns(argument) ? 2 : 1); ++axis)
    if (argument->shape[axis] > 1 && (operand->strides[axis] % 8 || operand->strides[axis] <= 0))
      return false;
  return true;
}

/** Describes [batch, token, head, entry] as entries of tokens, [batch, token, head, micro-step, entry] as
 * entries of micro-steps of tokens: what is past the last entry is zero, and not stored. Columns, [batch,
 * token, head, entry, micro-step], are described as rows of 64 of what a token has together, as many for a
 * block of 64 entries as there are micro-steps. */
static CUresult describe_map(const recur_i_operand *operand, uint32_t tokens, recur_i_map *out) {
  const int64_t *shape = operand->argument->shape;
  enum { BLOCK_BYTES = 128 };
  uint64_t bytes[4];
  for (int32_t axis = 0; axis < operand->argument->ndim - 1; ++axis) /* where there is but one, any will do */
    bytes[axis] = shape[axis] > 1 ? (uint64_t)operand->strides[axis] * 2 : BLOCK_BYTES;
  uint64_t sizes[MAP_RANK] = {(uint64_t)shape[3], (uint64_t)shape[1], 1, (uint64_t)shape[2],
                              (uint64_t)shape[0]};
  uint64_t strides[MAP_RANK - 1] = {bytes[1], BLOCK_BYTES, bytes[2], bytes[0]};
  uint32_t box[MAP_RANK] = {BOX_ENTRIES, tokens, 1, 1, 1};
  if (are_columns(operand->argument)) {
    sizes[0] = BOX_ENTRIES, sizes[1] = (uint64_t)(shape[3] * shape[4] / BOX_ENTRIES);
    sizes[2] = (uint64_t)shape[1];
    strides[0] = BLOCK_BYTES, strides[1] = bytes[1];
    box[1] = (uint32_t)shape[4], box[2] = tokens;
  } else if (operand->argument->ndim == 5) {
    sizes[0] = (uint64_t)shape[4], sizes[1] = (uint64_t)shape[3], sizes[2] = (uint64_t)shape[1];
    strides[0] = bytes[3], strides[1] = bytes[1];
    box[1] = (uint32_t)shape[3], box[2] = tokens;
  }
  const uint32_t each[MAP_RANK] = {1, 1, 1, 1, 1};
  return recur_i_cuda.encode_tiled(out, MAP_UINT16, MAP_RANK, operand->data, sizes, strides, box, each, 0,
                                   MAP_SWIZZLE_128B, MAP_PROMOTE_256B, 0);
}

bool recur_i_can_map(const recur_i_operand *const *operands, const recur_cuda_entry *entry) {
  for (int32_t i = 0; i < entry->map_count; ++i)
    if (!recur_i_cuda.encode_tiled || !can_map(operands[tensor_of(entry->maps[i])]))
      return false;
  return true;
}

CUresult recur_i_describe_maps(const recur_i_operand *const *operands, const recur_cuda_entry *entry,
                               recur_i_map *out) {
  CUresult result = 0;
  uint32_t tokens = BOX_ROWS;
  for (int32_t i = 0; i < entry->map_count; ++i) {
    const int64_t most = BOX_ROWS / count_steps(operands[tensor_of(entry->maps[i])]);
    tokens = most < tokens ? (uint32_t)most : tokens;
  }
  for (int32_t i = 0; i < entry->map_count && !result; ++i) {
    const int32_t own = tokens_of(entry->maps[i]);
    result = describe_map(operands[tensor_of(entry->maps[i])], own ? (uint32_t)own : tokens, &out[i]);
  }
  return result;
}

/* cuda_launch.c: which kernels a call launches, and with what.
 *
 * A call only enqueues launches: it neither waits nor allocates, so that it can be captured into a graph.
 * Entries of which each continues the one before are a group, and are launched together. */
#include "cuda_driver.h"

#include <inttypes.h>

/** The parts of the workspace start at multiples of so many bytes from its beginning. */
enum { PART = 256 };

/** The temporaries of a call, as tensors of it. */
typedef struct {
  recur_tensor tensor[RECUR_MAX_TEMPORARIES];
  DLTensor argument[RECUR_MAX_TEMPORARIES];
  int64_t shape[RECUR_MAX_TEMPORARIES][5];
  recur_i_operand operand[RECUR_MAX_TEMPORARIES];
} temporaries;

/** One of a tensor's micro-steps, as a tensor. */
typedef struct {
  recur_tensor tensor;
  DLTensor argument;
  int64_t shape[RECUR_I_MAX_NDIM];
  recur_i_operand operand;
} step_operand;

/** The tensors of one entry; it points into itself. */
typedef struct {
  int32_t count;
  const recur_i_operand *operands[RECUR_MAX_TENSORS];
  step_operand steps[RECUR_MAX_TENSORS];
} operand_list;

static int64_t round_up(int64_t bytes) { return (bytes + PART - 1) / PART * PART; }

/** Describes the temporaries one after the other from `data` on; returns the bytes that they take. */
static int64_t place_temporaries(const recur_i_call *call, char *data, temporaries *all) {
  const recur_cuda_kernel *kernel = call->variant->cuda;
  int64_t bytes = 0;
  for (int32_t i = 0; i < kernel->temporary_count; ++i) {
    const recur_cuda_temporary *temporary = &kernel->temporaries[i];
    const int64_t bits = temporary->bits, rows = temporary->rows;
    const int64_t last = temporary->entries ? temporary->entries : 1, entries = rows ? rows * last : last;
    all->tensor[i] = (recur_tensor){.rank = rows ? 2 : temporary->entries ? 1 : 0};
    const int64_t shape[] = {call->batch, call->tokens, call->heads, rows ? rows : last, last};
    /* Numbers of a head lie together: what neighbouring threads of a block have is one request. */
    const bool are_numbers = !rows && !temporary->entries;
    const int64_t strides[] = {call->tokens * call->heads * entries, are_numbers ? 1 : call->heads * entries,
                               are_numbers ? call->tokens : entries, rows ? last : 1, 1};
    recur_i_operand *operand = &all->operand[i];
    *operand = (recur_i_operand){.tensor = &all->tensor[i], .argument = &all->argument[i], .lead = 3};
    for (int32_t axis = 0; axis < 3 + all->tensor[i].rank; ++axis) {
      all->shape[i][axis] = shape[axis];
      operand->strides[axis] = strides[axis];
    }
    operand->data = data ? data + bytes : NULL;
    all->argument[i] = (DLTensor){.data = operand->data,
                                  .device = call->device,
                                  .ndim = 3 + all->tensor[i].rank,
                                  .dtype = {kDLFloat, (uint8_t)bits, 1},
                                  .shape = all->shape[i]};
    bytes += round_up(shape[0] * strides[0] * bits / 8);
  }
  return bytes;
}

/** Describes a micro-step, from 0, of a tensor whose first own dimension they are. */
static const recur_i_operand *take_step(const recur_i_operand *whole, int64_t step, step_operand *own) {
  const int32_t axis = whole->lead;
  own->tensor = *whole->tensor;
  --own->tensor.rank;
  ++own->tensor.dims;
  own->operand = *whole;
  own->operand.tensor = &own->tensor;
  own->operand.data = whole->data + step * whole->strides[axis] * (whole->argument->dtype.bits / 8);
  own->argument = *whole->argument;
  own->argument.data = own->operand.data;
  own->argument.byte_offset = 0;
  own->argument.shape = own->shape;
  own->argument.strides = NULL;
  --own->argument.ndim;
  for (int32_t i = 0; i < own->argument.ndim; ++i) {
    const int32_t from = i < axis ? i : i + 1;
    own->shape[i] = whole->argument->shape[from];
    own->operand.strides[i] = whole->strides[from];
  }
  own->operand.argument = &own->argument;
  return &own->operand;
}

static void list_operands(const recur_i_call *call, const recur_cuda_entry *entry, const temporaries *all,
                          operand_list *list) {
  list->count = entry->tensors ? (int32_t)entry->tensor_count : call->operand_count;
  for (int32_t i = 0; i < list->count; ++i) {
    const int32_t tensor = entry->tensors ? entry->tensors[i] : i, step = tensor / RECUR_TENSOR_STEP;
    if (tensor < 0)
      list->operands[i] = &all->operand[-1 - tensor];
    else if (step)
      list->operands[i] = take_step(&call->operands[tensor % RECUR_TENSOR_STEP], step - 1, &list->steps[i]);
    else
      list->operands[i] = &call->operands[tensor];
  }
}

int32_t recur_i_count_launches(const recur_cuda_entry *entry) {
  int32_t launches = 1;
  for (; entry->flags & RECUR_CUDA_CONTINUES; ++entry)
    ++launches;
  return launches;
}

/** Whether a tensor may be read in packets of four, or two where its innermost extent is no multiple of four.
 */
static bool is_operand_packed(const recur_i_operand *operand) {
  if (!operand->argument || operand->empty || !operand->tensor->rank)
    return true;
  const int32_t last = operand->argument->ndim - 1;
  if ((uintptr_t)operand->data % 16)
    return false;
  const int64_t extent = operand->argument->shape[last], packet = extent % 4 == 0   ? 4
                                                                  : extent % 2 == 0 ? 2
                                                                                    : 1;
  for (int32_t axis = 0; axis < last; ++axis)
    if (operand->strides[axis] % packet)
      return false;
  return extent < 2 || operand->strides[last] == 1;
}

static bool is_packed(const recur_i_call *call) {
  for (int32_t i = 0; i < call->operand_count; ++i)
    if (!is_operand_packed(&call->operands[i]))
      return false;
  return true;
}

enum { CHUNK = 64 };

/** The chunks that begin in a number of tokens. */
static int64_t chunks_of(int64_t tokens) { return (tokens + CHUNK - 1) / CHUNK; }

/** Into how many segments to cut so many heads of sequences, where so many blocks run at a time: in 1 to 8
 * rounds of blocks, whichever takes the fewest chunks one after the other. A block's start is as long as a
 * chunk. */
static int64_t spread(int64_t chunks, int64_t heads, int64_t at_a_time) {
  enum { ROUNDS = 8 };
  int64_t best = 1, least = INT64_MAX;
  for (int64_t rounds = 1; rounds <= ROUNDS; ++rounds) {
    int64_t segments = rounds * at_a_time / heads;
    segments = segments < 1 ? 1 : segments < chunks ? segments : chunks;
    const int64_t blocks = (segments * heads + at_a_time - 1) / at_a_time;
    const int64_t time = blocks * ((chunks + segments - 1) / segments + 1);
    if (time < least)
      best = segments, least = time;
  }
  return best;
}

/** The same where blocks begin as what they read comes in, chunk by chunk: short segments, so that none has
 * much left when the last of it is there, but no more than some rounds of blocks. */
static int64_t spread_short(int64_t chunks, int64_t heads, int64_t at_a_time) {
  enum { ROUNDS = 8, MOST_CHUNKS = 3 };
  int64_t each = chunks * heads / (at_a_time * ROUNDS);
  each = each < 1 ? 1 : each < MOST_CHUNKS ? each : MOST_CHUNKS;
  return (chunks + each - 1) / each;
}

/** Whether processors get several blocks each where sequences are cut into so many segments. */
static bool has_rounds(const recur_i_call *call, const recur_cuda_entry *entry, int64_t segments) {
  const int64_t most = entry->flags & RECUR_CUDA_FEW && segments == 1 ? entry->most * 5 / 8 : entry->most;
  return call->sequences * call->heads * segments > most / entry->shards;
}

/** The segments that take the entry's processors the least time, where each gets several blocks: a round of
 * them takes as long as one block, which begins with some tokens' time before its first output: fewer where
 * the state is passed on, but then no two segments of a sequence are in one round. */
static int64_t count_in_rounds(const recur_i_call *call, const recur_cuda_entry *entry, int64_t tokens,
                               int64_t most) {
  const bool passes = entry->flags & RECUR_CUDA_PASSES;
  const int64_t start = passes ? 192 : 320, most_segments = passes ? 8 : 4;
  const int64_t at_once = entry->most < entry->shards ? 1 : entry->most / entry->shards;
  int64_t best = 1, least = INT64_MAX;
  for (int64_t segments = 1; segments == 1 || (segments <= most && segments <= most_segments); ++segments) {
    const int64_t blocks = call->sequences * call->heads * segments;
    int64_t rounds = (blocks + at_once - 1) / at_once;
    if (passes && rounds < segments)
      rounds = segments;
    const int64_t time = rounds * (tokens / segments + start);
    if (time < least) {
      least = time;
      best = segments;
    }
  }
  return best;
}

/** Into how many segments sequences are cut for an entry: as many as give each processor one, but none too
 * short; or as are short, for entries that know no state; 1 where the entry knows no segments or one will do,
 * 0 where there are too few of them. */
int64_t recur_i_count_segments(const recur_i_call *call, const recur_cuda_entry *entry) {
  enum { LEAST_TOKENS = 256, FEW_TOKENS = 16, MORE_TOKENS = 64, UNEVEN = 4 };
  const int64_t tokens =
      call->cu_seqlens.argument && call->sequences ? call->tokens / call->sequences : call->tokens;
  if (entry->flags & RECUR_CUDA_TOKENS) {
    /* Where sequences are packed, some may be longer than the others. */
    const int64_t most = tokens * UNEVEN < call->tokens ? tokens * UNEVEN : call->tokens;
    int64_t few = FEW_TOKENS;
    while (few < MORE_TOKENS && most / (2 * few) * call->sequences * call->heads >= entry->most)
      few *= 2;
    return (most + few - 1) / few;
  }
  const int64_t heads = call->sequences * call->heads;
  if (entry->flags & RECUR_CUDA_SPREAD) {
    const bool overlaps = entry->flags & RECUR_CUDA_OVERLAPS;
    return heads && tokens ? (overlaps ? spread_short : spread)(chunks_of(tokens), heads, entry->most) : 1;
  }
  if (!(entry->flags & RECUR_CUDA_SEGMENTS))
    return 1;
  const int64_t tall = tokens / LEAST_TOKENS;
  if (entry->flags & RECUR_CUDA_PASSES)
    return count_in_rounds(call, entry, tokens, tall);
  const int64_t wide = heads ? entry->most / entry->shards / heads : 0;
  const int64_t segments = wide < tall ? wide : tall;
  if (segments >= (entry->flags & RECUR_CUDA_SEVERAL ? 3 : 2))
    return segments;
  if (entry->flags & RECUR_CUDA_ANY)
    return count_in_rounds(call, entry, tokens, tall);
  return entry->flags & RECUR_CUDA_ONE ? 1 : 0;
}

/** Whether a call's sizes fit an entry. */
static bool fits(const recur_i_call *call, const recur_cuda_entry *entry) {
  return call->tokens >= entry->tokens && recur_i_count_segments(call, entry) &&
         (!entry->most || entry->flags & (RECUR_CUDA_SPREAD | RECUR_CUDA_MORE | RECUR_CUDA_TOKENS) ||
          !has_rounds(call, entry, 1));
}

/** The first entry of the group that is launched. */
static int32_t choose_group(const recur_i_call *call, const temporaries *all) {
  const recur_cuda_kernel *kernel = call->variant->cuda;
  const bool packed = is_packed(call);
  int32_t index = 0;
  for (int32_t launches; index + 1 < kernel->entry_count; index += launches) {
    launches = recur_i_count_launches(&kernel->entries[index]);
    bool good = true;
    for (int32_t i = 0; i < launches && good; ++i) {
      const recur_cuda_entry *entry = &kernel->entries[index + i];
      operand_list list;
      list_operands(call, entry, all, &list);
      good = fits(call, entry) && (packed || !(entry->flags & RECUR_CUDA_PACKED)) &&
             !(entry->flags & RECUR_CUDA_AT_START && call->positions.argument) &&
             recur_i_can_map(list.operands, entry);
    }
    if (good)
      break;
  }
  return index;
}

static int64_t blocks_of(const recur_i_call *call, const recur_cuda_entry *entry) {
  int64_t blocks = 0;
  const bool overflows = __builtin_mul_overflow(call->sequences * call->heads,
                                                recur_i_count_segments(call, entry) * entry->shards, &blocks);
  return overflows || blocks > INT32_MAX ? -1 : blocks;
}

/** The words of the workspace that are 0 before an entry is launched whose blocks pass states on. */
static size_t words_of(const recur_i_call *call, const recur_cuda_entry *entry) {
  const bool passes = entry->flags & RECUR_CUDA_PASSES && recur_i_count_segments(call, entry) > 1;
  return passes ? 4 * (size_t)(1 + blocks_of(call, entry)) : 0;
}

/** Bytes of the workspace of a group before the temporaries. */
static int64_t scratch_of(const recur_i_call *call, const recur_cuda_entry *group) {
  const int64_t chunks = call->cu_seqlens.argument ? call->tokens / CHUNK + call->sequences
                                                   : call->sequences * chunks_of(call->tokens);
  int64_t most = 0;
  for (int32_t i = 0; i < recur_i_count_launches(group); ++i) {
    const int64_t words = (int64_t)words_of(call, &group[i]);
    int64_t bytes = group[i].record * chunks * call->heads;
    if (words || !(group[i].flags & RECUR_CUDA_PASSES))
      bytes += group[i].scratch * blocks_of(call, &group[i]) + (words ? 16 : 0);
    most = bytes > most ? bytes : most;
  }
  return most;
}

static bool has_temporaries(const recur_cuda_entry *group) { return group->tensors; }

/** Bytes of the workspace of a group before the copies of states. */
static int64_t workspace_of(const recur_i_call *call, const recur_cuda_entry *group, temporaries *all) {
  const int64_t scratch = scratch_of(call, group);
  return has_temporaries(group) ? round_up(scratch) + place_temporaries(call, NULL, all) : scratch;
}

/** The number of the entry that goes token by token. */
static int32_t sequential_of(const recur_i_call *call) {
  return call->variant->cuda->entry_count - (is_packed(call) ? 2 : 1);
}

/** Where the copies of states begin in a group's workspace; what copies them has workspace, too. */
static int64_t begin_of_copies(const recur_i_call *call, const recur_cuda_entry *group, temporaries *all) {
  const int64_t own = workspace_of(call, group, all),
                copying = scratch_of(call, &call->variant->cuda->entries[sequential_of(call)]);
  return round_up(own > copying ? own : copying);
}

int64_t recur_i_cuda_workspace(const recur_i_call *call) {
  const recur_cuda_kernel *kernel = call->variant->cuda;
  temporaries all;
  recur_i_copies copies;
  int64_t most = 0;
  for (int32_t e = 0; e < kernel->entry_count; e += recur_i_count_launches(&kernel->entries[e])) {
    bool good = true;
    for (int32_t i = 0; i < recur_i_count_launches(&kernel->entries[e]); ++i)
      good &= fits(call, &kernel->entries[e + i]);
    if (!good && e + 1 < kernel->entry_count)
      continue;
    const recur_cuda_entry *group = &kernel->entries[e];
    int64_t bytes = recur_i_place_copies(call, group, /*overlapping=*/false, NULL, &copies);
    bytes += bytes ? begin_of_copies(call, group, &all) : workspace_of(call, group, &all);
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

/** Lets an entry begin while the launch before it still runs, where the driver knows how: the entry waits for
 * what it needs. */
static CUresult start(const recur_cuda_entry *entry, CUfunction function, unsigned blocks, CUstream stream,
                      void **parameters) {
  const unsigned threads = (unsigned)entry->threads, shared = (unsigned)entry->shared;
  if (!(entry->flags & RECUR_CUDA_OVERLAPS) || !recur_i_cuda.launch_kernel_ex)
    return recur_i_cuda.launch_kernel(function, blocks, 1, 1, threads, 1, 1, shared, stream, parameters,
                                      NULL);
  CUlaunchAttribute overlaps = {.id = CU_LAUNCH_OVERLAPS, .value.number = 1};
  const CUlaunchConfig config = {.blocks = {blocks, 1, 1},
                                 .threads = {threads, 1, 1},
                                 .shared = shared,
                                 .stream = stream,
                                 .attributes = &overlaps,
                                 .attribute_count = 1};
  return recur_i_cuda.launch_kernel_ex(&config, function, parameters, NULL);
}

/** Launches an entry that reads initial states from their copies or, `copying`, stores them there. */
static CUresult launch(const recur_i_call *call, const recur_cuda_entry *entry, const temporaries *all,
                       const recur_i_copies *copies, bool copying, CUfunction function, void *workspace,
                       CUstream stream) {
  operand_list list;
  list_operands(call, entry, all, &list);
  const int64_t segments = recur_i_count_segments(call, entry);
  recur_cuda_call parameter = {.tokens = call->tokens,
                               .heads = call->heads,
                               .slots = count_slots(call),
                               .scratch = workspace,
                               .cu_seqlens = describe_index(&call->cu_seqlens),
                               .state_index = describe_index(&call->state_index),
                               .positions = describe_index(&call->positions),
                               .segments = segments,
                               .pairs = call->sequences * call->heads,
                               .few = segments > 1 && has_rounds(call, entry, segments)};
  for (int32_t i = 0; i < list.count; ++i) {
    parameter.tensors[i] = describe_tensor(call, list.operands[i]);
    for (int32_t c = 0; c < copies->count; ++c)
      if (list.operands[i] == (copying ? copies->final : copies->initial)[c])
        parameter.tensors[i] = copies->tensors[c];
  }
  if (copying) {
    parameter.tokens = 0;
    parameter.cu_seqlens = (recur_cuda_index){NULL, 0, 0};
  }
  recur_i_map maps[RECUR_MAX_MAPS];
  CUresult result = recur_i_describe_maps(list.operands, entry, maps);
  const size_t words = words_of(call, entry);
  if (!result && words)
    result = recur_i_cuda.memset_d32_async((uintptr_t)workspace, 0, words, stream);
  void *parameters[] = {&parameter, maps};
  return result ? result : start(entry, function, (unsigned)blocks_of(call, entry), stream, parameters);
}

int32_t recur_i_cuda_launch(const recur_i_call *call, void *workspace, void *stream) {
  temporaries all;
  place_temporaries(call, NULL, &all);
  const int32_t index = choose_group(call, &all);
  const recur_cuda_entry *group = &call->variant->cuda->entries[index];
  const int32_t launches = recur_i_count_launches(group);
  for (int32_t i = 0; i < launches; ++i)
    if (blocks_of(call, &group[i]) < 0)
      return RECUR_I_FAIL(call, RECUR_ERROR_SHAPE,
                          "%" PRId64 " sequences of %" PRId64 " heads are too many for a GPU",
                          call->sequences, call->heads);
  if (!blocks_of(call, group))
    return RECUR_OK;
  const int64_t scratch = scratch_of(call, group), begin = begin_of_copies(call, group, &all);
  recur_i_copies copies;
  int64_t bytes = recur_i_place_copies(call, group, /*overlapping=*/true,
                                       workspace ? (char *)workspace + begin : NULL, &copies);
  bytes += copies.count ? begin : workspace_of(call, group, &all);
  if (bytes && !workspace)
    return RECUR_I_FAIL(call, RECUR_ERROR_WORKSPACE,
                        "'workspace' is NULL, but %s_%s_workspace asks for %" PRId64 " bytes on the GPU",
                        call->model->name, call->entry, recur_i_cuda_workspace(call));
  if (bytes && (uintptr_t)workspace % 16)
    return RECUR_I_FAIL(call, RECUR_ERROR_ALIGNMENT,
                        "'workspace' must start at a multiple of 16 bytes on a GPU");
  if (has_temporaries(group))
    place_temporaries(call, (char *)workspace + round_up(scratch), &all);

  CUcontext context = NULL;
  bool pushed = false;
  const CUfunction *functions = NULL;
  int32_t status = recur_i_cuda_enter(call, &context, &pushed);
  if (!status)
    status = recur_i_cuda_check(call, workspace, bytes, (CUstream)stream);
  if (!status)
    status = recur_i_cuda_functions(call, context, &functions);
  for (int32_t i = copies.count ? -1 : 0; i < launches && !status; ++i) {
    const int32_t entry = i < 0 ? sequential_of(call) : index + i;
    const CUresult result = launch(call, &call->variant->cuda->entries[entry], &all, &copies, i < 0,
                                   functions[entry], workspace, (CUstream)stream);
    if (result)
      status = recur_i_fail_driver(call, "launching the kernel", result);
  }
  if (pushed)
    recur_i_cuda.ctx_pop_current(&context);
  return status;
}

/* call.c: the four functions that compiled objects call. */
#include "internal.h"

#include <inttypes.h>
#include <string.h>

enum { SCRATCH_ALIGNMENT = 64 };

/** An operand as a task needs it. */
typedef struct {
  char *data;
  int64_t row, head; /**< bytes from a sequence (or token, or slot) and from a group of heads to the next */
  int64_t group;     /**< heads that share one */
} cursor;

/** A memref descriptor of the largest rank; smaller ranks keep their sizes and strides together. */
typedef struct {
  void *allocated, *aligned;
  int64_t offset;
  int64_t extents[2 * (1 + RECUR_MAX_RANK)];
} view;

/** What all tasks of a call share. */
typedef struct {
  const recur_i_call *call;
  cursor cursors[RECUR_MAX_TENSORS];
  char *scratch;
  int64_t scratch_step;
  int64_t parts; /**< of each head */
} plan;

/** Fails on a model of another version; nothing but magic and version may be read before. */
static int32_t check_model(const recur_model *model, const char *entry) {
  if (!model)
    return recur_i_fail(NULL, entry, RECUR_ERROR_NULL, "the model is NULL");
  if (model->magic != RECUR_MAGIC)
    return recur_i_fail(NULL, entry, RECUR_ERROR_VERSION,
                        "the model must start with %#" PRIx32 ", but it starts with %#" PRIx32
                        ": recurc did not make it",
                        RECUR_MAGIC, model->magic);
  if (model->abi_version != RECUR_ABI_VERSION)
    return recur_i_fail(NULL, entry, RECUR_ERROR_VERSION,
                        "the model was compiled for version %" PRIu32
                        " of the binary interface, but this librecur_rt has "
                        "version %d: compile it again, or link the librecur_rt of its compiler",
                        model->abi_version, RECUR_ABI_VERSION);
  int64_t operands = model->tensor_count;
  for (int32_t i = 0; i < model->tensor_count; ++i)
    operands += model->tensors[i].role == RECUR_STATE;
  if (operands > RECUR_MAX_TENSORS || model->dim_count > RECUR_MAX_DIMS)
    return recur_i_fail(model, entry, RECUR_ERROR_VERSION,
                        "the model has %" PRId64 " tensors and %" PRId32
                        " dimensions, but this librecur_rt takes at most %d and %d",
                        operands, model->dim_count, RECUR_MAX_TENSORS, RECUR_MAX_DIMS);
  return RECUR_OK;
}

/** Checks the model and what shapes, strides and types of the arguments can tell. */
static int32_t begin(recur_i_call *call, const recur_model *model, bool step, const void *args) {
  memset(call, 0, offsetof(recur_i_call, operands));
  call->model = model;
  call->entry = step ? "step" : "forward";
  call->step = step;
  const int32_t code = check_model(model, call->entry);
  return code ? code : recur_i_bind(call, args);
}

static int64_t scratch_step(const recur_variant *variant) {
  return (variant->scratch + SCRATCH_ALIGNMENT - 1) / SCRATCH_ALIGNMENT * SCRATCH_ALIGNMENT;
}

static int64_t min(int64_t a, int64_t b) { return a < b ? a : b; }

static void place(const recur_i_call *call, const recur_i_operand *operand, cursor *c) {
  memset(c, 0, sizeof *c);
  if (!operand->argument)
    return;
  const int64_t element = operand->argument->dtype.bits / 8;
  const int32_t head_axis = operand->lead - 1;
  c->data = operand->data;
  c->head = operand->strides[head_axis] * element;
  c->group = call->heads / (operand->argument->shape[head_axis] ? operand->argument->shape[head_axis] : 1);
  if (operand->lead > 1)
    c->row = operand->strides[operand->lead == 3 && call->cu_seqlens.argument ? 1 : 0] * element;
}

/** Writes the descriptor of one operand for one task: the token dimension if it has one, then its own. */
static void describe(const recur_i_operand *operand, char *first, int64_t tokens, view *v) {
  const bool has_tokens = operand->lead == 3;
  const int32_t rank = operand->tensor->rank + has_tokens;
  v->allocated = v->aligned = first;
  v->offset = 0;
  if (has_tokens) {
    v->extents[0] = tokens;
    v->extents[rank] = operand->strides[1];
  }
  for (int32_t i = 0; i < operand->tensor->rank; ++i) {
    v->extents[has_tokens + i] = operand->argument->shape[operand->lead + i];
    v->extents[rank + has_tokens + i] = operand->strides[operand->lead + i];
  }
}

/** One head of one sequence, or a part of it: builds the views on this thread's stack and calls the kernel. */
static void run_task(void *data, int64_t task, int32_t worker) {
  const plan *p = data;
  const recur_i_call *call = p->call;
  const int64_t part = task % p->parts;
  task /= p->parts;
  const int64_t sequence = task / call->heads, head = task % call->heads;
  recur_span span = {call->tokens, 0, head, call->heads, part, p->parts};
  int64_t token_row = sequence, slot = sequence;
  if (call->cu_seqlens.argument) {
    token_row = recur_i_index(&call->cu_seqlens, sequence);
    span.tokens = recur_i_index(&call->cu_seqlens, sequence + 1) - token_row;
  }
  if (call->positions.argument)
    span.position = recur_i_index(&call->positions, sequence);
  if (call->state_index.argument)
    slot = recur_i_index(&call->state_index, sequence);

  view views[RECUR_MAX_TENSORS];
  void *pointers[RECUR_MAX_TENSORS];
  for (int32_t i = 0; i < call->operand_count; ++i) {
    const recur_i_operand *operand = &call->operands[i];
    const cursor *c = &p->cursors[i];
    pointers[i] = &views[i];
    if (!operand->argument) {
      memset(&views[i], 0, sizeof views[i]);
      continue;
    }
    const int64_t row = operand->lead == 3 ? token_row : slot;
    char *first = c->data ? c->data + row * c->row + head / c->group * c->head : NULL;
    describe(operand, first, span.tokens, &views[i]);
  }
  call->variant->kernel(pointers, &span, p->scratch ? p->scratch + worker * p->scratch_step : NULL);
}

enum { LEAST_TOKENS = 64 }; /* for fewer a part takes no longer than waking a thread */

/** Most parts that heads may be cut into. */
static int64_t most_parts(const recur_i_call *call) {
  return call->tokens >= LEAST_TOKENS && call->variant->parts > 1 ? call->variant->parts : 1;
}

/** Into how many parts heads are cut so that `workers` are done soonest. Every part computes again what all columns
 * need: a tenth of a head's time. */
static int64_t choose_parts(const recur_i_call *call, int64_t workers) {
  const int64_t heads = call->sequences * call->heads;
  int64_t best = 1, least = INT64_MAX;
  if (heads >= 8 * workers) /* no more than an eighth to gain */
    return 1;
  for (int64_t parts = 1; parts <= most_parts(call); ++parts) {
    const int64_t rounds = (heads * parts + workers - 1) / workers;
    const int64_t time = rounds * (1000 / parts + 100);
    if (time < least) {
      least = time;
      best = parts;
    }
  }
  return best;
}

/** Most workers that a call can have. */
static int64_t most_workers(const recur_i_call *call, int64_t threads) {
  const int64_t heads = call->sequences * call->heads;
  return heads >= threads ? threads : min(threads, heads * most_parts(call));
}

static int32_t run(const recur_model *model, bool step, const void *args, void *workspace,
                   const recur_stream *where) {
  recur_i_call call;
  int32_t code = begin(&call, model, step, args);
  if (!code)
    code = recur_i_check_data(&call);
  if (code)
    return code;
  if (call.cuda)
    return recur_i_cuda_launch(&call, workspace, where ? where->cuda_stream : NULL);
  const recur_i_loop loop = recur_i_loop_now(where);
  if (where && (where->threads < 0 || where->threads > loop.threads))
    return RECUR_I_FAIL(&call, RECUR_ERROR_THREADS,
                        "'where->threads' must be from 0 to recur_threads(), which is %" PRId32
                        ", but it is %" PRId32,
                        loop.threads, where->threads);
  const int64_t threads = where && where->threads ? where->threads : loop.threads;
  plan p = {.call = &call, .scratch_step = scratch_step(call.variant), .parts = choose_parts(&call, threads)};
  const int64_t tasks = call.sequences * call.heads * p.parts;
  const int64_t workers = min(threads, tasks);
  if (p.scratch_step && tasks) {
    if (!workspace)
      return RECUR_I_FAIL(&call, RECUR_ERROR_WORKSPACE,
                          "'workspace' is NULL, but %s_%s_workspace asks for %" PRId64 " bytes", model->name,
                          call.entry, most_workers(&call, loop.threads) * p.scratch_step + SCRATCH_ALIGNMENT);
    p.scratch = (char *)workspace +
                (SCRATCH_ALIGNMENT - (uintptr_t)workspace % SCRATCH_ALIGNMENT) % SCRATCH_ALIGNMENT;
  }
  if (!tasks)
    return RECUR_OK;
  for (int32_t i = 0; i < call.operand_count; ++i)
    place(&call, &call.operands[i], &p.cursors[i]);
  recur_i_parallel_for(&loop, tasks, (int32_t)workers, run_task, &p);
  return RECUR_OK;
}

static int64_t workspace_size(const recur_model *model, bool step, const void *args) {
  recur_i_call call;
  const int32_t code = begin(&call, model, step, args);
  if (code)
    return code;
  if (call.cuda)
    return recur_i_cuda_workspace(&call);
  const int64_t bytes = most_workers(&call, recur_threads()) * scratch_step(call.variant);
  return bytes ? bytes + SCRATCH_ALIGNMENT : 0;
}

int32_t recur_rt_forward(const recur_model *model, const void *args, void *workspace,
                         const recur_stream *where) {
  return run(model, false, args, workspace, where);
}

int64_t recur_rt_forward_workspace(const recur_model *model, const void *args) {
  return workspace_size(model, false, args);
}

int32_t recur_rt_step(const recur_model *model, const void *args, void *workspace,
                      const recur_stream *where) {
  return run(model, true, args, workspace, where);
}

int64_t recur_rt_step_workspace(const recur_model *model, const void *args) {
  return workspace_size(model, true, args);
}

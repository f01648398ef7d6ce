/* call.c: the four functions that compiled objects call. */
#include "internal.h"

#include <inttypes.h>
#include <string.h>

enum { SCRATCH_ALIGNMENT = 64 };

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

static int64_t min(int64_t a, int64_t b) { return a < b ? a : b; }
static int64_t max(int64_t a, int64_t b) { return a > b ? a : b; }
static int64_t quotient_up(int64_t a, int64_t b) { return (a + b - 1) / b; }

/** Bytes of scratch memory from a worker to the next. */
static int64_t scratch_step(const recur_variant *variant, int64_t segments) {
  const int64_t bytes = max(variant->scratch, segments > 1 ? variant->segments->scratch : 0);
  return quotient_up(bytes, SCRATCH_ALIGNMENT) * SCRATCH_ALIGNMENT;
}

/* Tokens for fewer of which a part takes no longer than waking a thread, and a segment no longer than its
 * states take. */
enum { LEAST_TOKENS = 64, LEAST_SEGMENT = 128 };

/** Most parts that heads may be cut into. */
static int64_t most_parts(const recur_i_call *call) {
  return call->tokens >= LEAST_TOKENS && call->variant->parts > 1 ? call->variant->parts : 1;
}

/** Whether the last dimension of all inputs is contiguous, as gathers want it. */
static bool is_dense(const recur_i_call *call) {
  for (int32_t i = 0; i < call->operand_count && call->operands[i].tensor->role == RECUR_INPUT; ++i) {
    const recur_i_operand *operand = &call->operands[i];
    const int32_t last = operand->argument->ndim - 1;
    if (last >= operand->lead && operand->argument->shape[last] > 1 && operand->strides[last] != 1)
      return false;
  }
  return true;
}

/** Most segments that sequences may be cut into, the shortest of `tokens`: no more than keep all workers
 * busy. */
static int64_t most_segments(const recur_i_call *call, int64_t tokens, int64_t workers) {
  const int64_t heads = call->sequences * call->heads;
  if (!call->variant->segments || heads >= workers || !heads || !is_dense(call))
    return 1;
  return max(1, min(tokens / LEAST_SEGMENT, workers / heads + 1));
}

static int64_t shortest(const recur_i_call *call) {
  int64_t least = call->tokens;
  for (int64_t i = 0; call->cu_seqlens.argument && i < call->sequences; ++i)
    least = min(least, recur_i_index(&call->cu_seqlens, i + 1) - recur_i_index(&call->cu_seqlens, i));
  return least;
}

/** How the work is cut so that `workers` are done soonest, in thousandths of the time of a head: each part
 * computes again what all columns need, a tenth; segments are gathered first, all but the last, and stitched.
 * It depends on the number of workers alone, never on which of them is faster. */
static recur_i_cut choose_cut(const recur_i_call *call, int64_t workers) {
  enum { AGAIN = 100, STITCH = 50 };
  const int64_t heads = call->sequences * call->heads;
  recur_i_cut best = {1, 1};
  if (heads >= 8 * workers) /* no more than an eighth to gain */
    return best;
  int64_t least = INT64_MAX;
  for (int64_t parts = 1; parts <= most_parts(call); ++parts) {
    const int64_t time = quotient_up(heads * parts, workers) * (1000 / parts + (parts > 1 ? AGAIN : 0));
    if (time < least) {
      least = time;
      best = (recur_i_cut){parts, 1};
    }
  }
  for (int64_t segments = most_segments(call, shortest(call), workers); segments > 1; --segments) {
    const recur_segments *model = call->variant->segments;
    const int64_t gathering = quotient_up(heads * (segments - 1), workers) * model->cost / segments;
    const int64_t time =
        gathering + quotient_up(heads * segments, workers) * 1000 / segments + model->round_count * STITCH;
    if (time < least) {
      least = time;
      best = (recur_i_cut){1, segments};
    }
  }
  return best;
}

/** Bytes that a call with at most `threads` workers needs. */
static int64_t workspace_bytes(const recur_i_call *call, int64_t threads) {
  const int64_t heads = call->sequences * call->heads, segments = most_segments(call, call->tokens, threads);
  const int64_t workers = min(threads, heads * max(segments, heads >= threads ? 1 : most_parts(call)));
  const int64_t kept = segments > 1 ? heads * recur_i_kept_bytes(call->variant->segments, segments) : 0;
  const int64_t bytes = workers * scratch_step(call->variant, segments) + kept;
  return bytes ? bytes + SCRATCH_ALIGNMENT : 0;
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
  recur_i_plan plan = {.call = &call, .cut = choose_cut(&call, threads)};
  const int64_t tasks = call.sequences * call.heads * plan.cut.parts * plan.cut.segments;
  if (!tasks)
    return RECUR_OK;
  plan.workers = (int32_t)min(threads, tasks);
  plan.scratch_step = scratch_step(call.variant, plan.cut.segments);
  if (plan.scratch_step || plan.cut.segments > 1) {
    if (!workspace)
      return RECUR_I_FAIL(&call, RECUR_ERROR_WORKSPACE,
                          "'workspace' is NULL, but %s_%s_workspace asks for %" PRId64 " bytes", model->name,
                          call.entry, workspace_bytes(&call, loop.threads));
    plan.scratch = (char *)workspace +
                   (SCRATCH_ALIGNMENT - (uintptr_t)workspace % SCRATCH_ALIGNMENT) % SCRATCH_ALIGNMENT;
    plan.kept = plan.scratch + plan.workers * plan.scratch_step;
  }
  recur_i_run(&plan, &loop);
  return RECUR_OK;
}

static int64_t workspace_size(const recur_model *model, bool step, const void *args) {
  recur_i_call call;
  const int32_t code = begin(&call, model, step, args);
  if (code)
    return code;
  if (call.cuda)
    return recur_i_cuda_workspace(&call);
  return workspace_bytes(&call, recur_threads());
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

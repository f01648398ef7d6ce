/* task.c: what one task of a call does: a head of a sequence, a part of its columns, or a segment of its
 * tokens.
 *
 * Where sequences are cut, the state before each segment is found first. In each round, the segments but the
 * last are gathered side by side into numbers that say what a segment makes of any state; then these are
 * applied, for each head one segment after the other. What segments keep lies in the workspace: for each
 * head, array by array, segment by segment.
 */
#include "internal.h"

#include <string.h>

/** A memref descriptor of the largest rank; smaller ranks keep their sizes and strides together. */
typedef struct {
  void *allocated, *aligned;
  int64_t offset;
  int64_t extents[2 * (1 + RECUR_MAX_RANK)];
} view;

/** Some tokens of one head of one sequence. */
typedef struct {
  int64_t number;          /**< of the head, over all sequences */
  int64_t token_row, slot; /**< of the sequence, in rows of its tensors */
  int64_t begin;           /**< first token, in the sequence */
  recur_span span;
} stretch;

/** The views of one kernel call, in order. */
typedef struct {
  view views[RECUR_MAX_TENSORS];
  void *pointers[RECUR_MAX_TENSORS];
  int32_t count;
} view_list;

/** Operands come by role: inputs, params, initial states, outputs, final states. */
typedef struct {
  int32_t states, outputs, finals, count; /**< the first of each */
} layout;

static layout layout_of(const recur_i_call *call) {
  layout result = {0, 0, 0, call->operand_count};
  int32_t states = 0;
  for (int32_t i = 0; i < call->model->tensor_count; ++i) {
    const int32_t role = call->model->tensors[i].role;
    result.states += role == RECUR_INPUT || role == RECUR_PARAM;
    states += role == RECUR_STATE;
  }
  result.outputs = result.states + states;
  result.finals = result.count - states;
  return result;
}

static void place(const recur_i_call *call, const recur_i_operand *operand, recur_i_cursor *c) {
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

/** All tokens of a head. */
static stretch head_of(const recur_i_plan *plan, int64_t number) {
  const recur_i_call *call = plan->call;
  const int64_t sequence = number / call->heads;
  stretch s = {number, sequence, sequence, 0, {call->tokens, 0, number % call->heads, call->heads, 0, 1}};
  if (call->cu_seqlens.argument) {
    s.token_row = recur_i_index(&call->cu_seqlens, sequence);
    s.span.tokens = recur_i_index(&call->cu_seqlens, sequence + 1) - s.token_row;
  }
  if (call->positions.argument)
    s.span.position = recur_i_index(&call->positions, sequence);
  if (call->state_index.argument)
    s.slot = recur_i_index(&call->state_index, sequence);
  return s;
}

/** Shortens a head to one of its segments. They begin at multiples of what kernels work on at once. */
static void cut_segment(const recur_i_plan *plan, stretch *s, int64_t segment) {
  enum { TOGETHER = 32 };
  const int64_t tokens = s->span.tokens, next = segment + 1;
  s->begin = tokens * segment / plan->cut.segments / TOGETHER * TOGETHER;
  const int64_t end =
      next < plan->cut.segments ? tokens * next / plan->cut.segments / TOGETHER * TOGETHER : tokens;
  s->span.tokens = end - s->begin;
  s->span.position += s->begin;
}

static view *add(view_list *list) {
  view *v = &list->views[list->count];
  list->pointers[list->count++] = v;
  return v;
}

static void add_absent(view_list *list) { memset(add(list), 0, sizeof(view)); }

/** A caller's tensor: the token dimension if it has one, then its own. */
static void add_operand(view_list *list, const recur_i_plan *plan, const stretch *s, int32_t i) {
  const recur_i_operand *operand = &plan->call->operands[i];
  if (!operand->argument) {
    add_absent(list);
    return;
  }
  const recur_i_cursor *c = &plan->cursors[i];
  const bool has_tokens = operand->lead == 3;
  const int32_t rank = operand->tensor->rank + has_tokens;
  view *v = add(list);
  char *first =
      c->data ? c->data + (has_tokens ? s->token_row : s->slot) * c->row + s->span.head / c->group * c->head
              : NULL;
  if (has_tokens) {
    if (first)
      first += s->begin * operand->strides[1] * (operand->argument->dtype.bits / 8);
    v->extents[0] = s->span.tokens;
    v->extents[rank] = operand->strides[1];
  }
  v->allocated = v->aligned = first;
  v->offset = 0;
  for (int32_t d = 0; d < operand->tensor->rank; ++d) {
    v->extents[has_tokens + d] = operand->argument->shape[operand->lead + d];
    v->extents[rank + has_tokens + d] = operand->strides[operand->lead + d];
  }
}

static int64_t entries(const recur_array *array) {
  int64_t count = 1;
  for (int64_t d = 0; d < array->rank; ++d)
    count *= array->sizes[d];
  return (count + 15) / 16 * 16; /* whole lines */
}

int64_t recur_i_kept_bytes(const recur_segments *model, int64_t segments) {
  int64_t count = 0;
  for (int32_t a = 0; a < model->array_count; ++a)
    count += entries(&model->arrays[a]);
  return count * segments * (int64_t)sizeof(float);
}

/** An array of a segment; with `tokens` of 0 or more, of so many segments from that one on, as tokens. */
static void add_array(view_list *list, const recur_i_plan *plan, const stretch *s, int32_t a, int64_t segment,
                      int64_t tokens) {
  const recur_segments *model = plan->call->variant->segments;
  const recur_array *array = &model->arrays[a];
  float *first = (float *)(void *)(plan->kept + s->number * recur_i_kept_bytes(model, plan->cut.segments));
  for (int32_t before = 0; before < a; ++before)
    first += plan->cut.segments * entries(&model->arrays[before]);
  view *v = add(list);
  v->allocated = v->aligned = first + segment * entries(array);
  v->offset = 0;
  const bool has_tokens = tokens >= 0;
  const int64_t rank = array->rank + has_tokens;
  if (has_tokens) {
    v->extents[0] = tokens;
    v->extents[rank] = entries(array);
  }
  int64_t stride = 1;
  for (int64_t d = array->rank; d-- > 0; stride *= array->sizes[d]) {
    v->extents[has_tokens + d] = array->sizes[d];
    v->extents[rank + has_tokens + d] = stride;
  }
}

static void *scratch_of(const recur_i_plan *plan, int32_t worker) {
  return plan->scratch ? plan->scratch + worker * plan->scratch_step : NULL;
}

/** The rule's kernel on one head of one sequence, a part of it, or a segment. */
static void run_task(void *data, int64_t task, int32_t worker) {
  const recur_i_plan *plan = data;
  const recur_i_cut cut = plan->cut;
  const int64_t cuts = cut.parts * cut.segments, segment = cut.segments > 1 ? task % cuts : 0;
  stretch s = head_of(plan, task / cuts);
  s.span.part = cut.parts > 1 ? task % cuts : 0;
  s.span.parts = cut.parts;
  const layout at = layout_of(plan->call);
  if (cut.segments > 1)
    cut_segment(plan, &s, segment);
  view_list list;
  list.count = 0;
  for (int32_t i = 0; i < at.count; ++i)
    if (cut.segments > 1 && i >= at.states && i < at.outputs)
      add_array(&list, plan, &s, i - at.states, segment, -1);
    else if (i >= at.finals && segment + 1 < cut.segments)
      add_absent(&list);
    else
      add_operand(&list, plan, &s, i);
  plan->call->variant->kernel(list.pointers, &s.span, scratch_of(plan, worker));
}

/** One gather of one segment. */
static void run_gather(void *data, int64_t task, int32_t worker) {
  const recur_i_plan *plan = data;
  const recur_gather *gather = &plan->round->gathers[task % plan->round->gather_count];
  task /= plan->round->gather_count;
  const int64_t segment = task % (plan->cut.segments - 1);
  stretch s = head_of(plan, task / (plan->cut.segments - 1));
  cut_segment(plan, &s, segment);
  const int32_t operands = layout_of(plan->call).states;
  view_list list;
  list.count = 0;
  for (int32_t i = 0; i < operands; ++i)
    add_operand(&list, plan, &s, i);
  for (int64_t i = 0; i < gather->state_count; ++i)
    if (gather->states[i] < 0)
      add_array(&list, plan, &s, -1 - gather->states[i], segment, -1);
    else
      add_absent(&list);
  for (int64_t i = 0; i < gather->state_count; ++i)
    if (gather->states[i] < 0)
      add_absent(&list);
    else
      add_array(&list, plan, &s, gather->states[i], segment, -1);
  gather->kernel(list.pointers, &s.span, scratch_of(plan, worker));
}

/** Calls the stitch of a round for `tokens` segments: with none, the states before the first are stored as
 * they begin, the caller's or the rule's, so that a final state may be stored over them; with all but the
 * last, those before all others. */
static void stitch(const recur_i_plan *plan, stretch *s, int64_t tokens, int32_t worker) {
  const recur_round *round = plan->round;
  const layout at = layout_of(plan->call);
  view_list list;
  list.count = 0;
  for (int32_t i = 0; i < round->input_count; ++i)
    add_array(&list, plan, s, round->inputs[i], 0, tokens);
  for (int32_t i = 0; i < at.states; ++i)
    if (plan->call->operands[i].tensor->role == RECUR_PARAM)
      add_operand(&list, plan, s, i);
  for (int32_t i = 0; i < round->state_count; ++i)
    if (tokens)
      add_array(&list, plan, s, round->states[i], 0, -1);
    else
      add_operand(&list, plan, s, at.states + round->states[i]);
  for (int32_t i = 0; i < round->state_count; ++i)
    add_array(&list, plan, s, round->states[i], 1, tokens);
  for (int32_t i = 0; i < round->state_count; ++i)
    if (tokens)
      add_absent(&list);
    else
      add_array(&list, plan, s, round->states[i], 0, -1);
  s->span.tokens = tokens;
  round->stitch(list.pointers, &s->span, scratch_of(plan, worker));
}

static void run_stitch(void *data, int64_t task, int32_t worker) {
  const recur_i_plan *plan = data;
  stretch s = head_of(plan, task);
  stitch(plan, &s, 0, worker);
  stitch(plan, &s, plan->cut.segments - 1, worker);
}

void recur_i_run(recur_i_plan *plan, const recur_i_loop *loop) {
  const recur_i_call *call = plan->call;
  const int64_t heads = call->sequences * call->heads;
  for (int32_t i = 0; i < call->operand_count; ++i)
    place(call, &call->operands[i], &plan->cursors[i]);
  for (int32_t r = 0; plan->cut.segments > 1 && r < call->variant->segments->round_count; ++r) {
    plan->round = &call->variant->segments->rounds[r];
    const int64_t gathers = heads * (plan->cut.segments - 1) * plan->round->gather_count;
    recur_i_parallel_for(loop, gathers, plan->workers < gathers ? plan->workers : (int32_t)gathers,
                         run_gather, plan);
    recur_i_parallel_for(loop, heads, plan->workers < heads ? plan->workers : (int32_t)heads, run_stitch,
                         plan);
  }
  recur_i_parallel_for(loop, heads * plan->cut.parts * plan->cut.segments, plan->workers, run_task, plan);
}

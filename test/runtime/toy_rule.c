/* toy_rule.c: the model and the kernels of toy_rule.h. */
#include "toy_rule.h"

#include <stdatomic.h>
#include <string.h>

/** A memref descriptor of rank r; sizes, then strides. */
typedef struct {
  void *allocated, *aligned;
  int64_t offset;
  int64_t extents[8];
} memref;

enum { FLOAT32, BRAIN, HALF };

void (*toy_inside)(void) = NULL;
static atomic_int scratch_errors;

int toy_scratch_errors(void) { return atomic_load(&scratch_errors); }

float toy_to_float(uint16_t bits, int brain) {
  if (brain) {
    const uint32_t word = (uint32_t)bits << 16;
    float value;
    memcpy(&value, &word, sizeof value);
    return value;
  }
  const int exponent = bits >> 10 & 31;
  float value = (float)(bits & 1023) / 1024 + (exponent ? 1 : 0);
  for (int e = exponent ? exponent : 1; e < 15; ++e)
    value /= 2;
  for (int e = exponent; e > 15; --e)
    value *= 2;
  return bits >> 15 ? -value : value;
}

/* Cuts what does not fit: the tests use numbers that do. */
uint16_t toy_from_float(float value, int brain) {
  uint32_t word;
  memcpy(&word, &value, sizeof word);
  if (brain)
    return (uint16_t)(word >> 16);
  const int exponent = (int)(word >> 23 & 255) - 127 + 15;
  if (exponent <= 0)
    return (uint16_t)(word >> 16 & 0x8000);
  return (uint16_t)((word >> 16 & 0x8000) | (uint32_t)exponent << 10 | (word >> 13 & 1023));
}

static float load(const memref *m, int64_t offset, int type) {
  if (type == FLOAT32)
    return ((const float *)m->aligned)[offset];
  return toy_to_float(((const uint16_t *)m->aligned)[offset], type == BRAIN);
}

static void kernel(void *const *views, const recur_span *span, void *scratch, int type) {
  const memref *q = views[0], *k = views[1], *v = views[2], *g = views[3], *c = views[4], *p = views[5];
  const memref *initial = views[6], *o = views[7], *final = views[8];
  const int64_t dk = q->extents[1], dv = v->extents[1];
  float *state = scratch;
  if (!scratch || (uintptr_t)scratch % 64) {
    atomic_fetch_add(&scratch_errors, 1);
    return;
  }
  float *owner = state + dv * dk;
  const float me = (float)(span->head * 1000 + span->tokens) + (float)(uintptr_t)&q;
  *owner = me;
  for (int64_t i = 0; i < dv; ++i)
    for (int64_t j = 0; j < dk; ++j)
      state[i * dk + j] =
          initial->aligned
              ? ((const float *)initial->aligned)[i * initial->extents[2] + j * initial->extents[3]]
              : 0;
  if (toy_inside)
    toy_inside();
  for (int64_t t = 0; t < span->tokens; ++t) {
    const float decay = load(g, t * g->extents[1], type);
    const float scale = load(c, t * c->extents[2], type) + load(c, t * c->extents[2] + c->extents[3], type);
    for (int64_t i = 0; i < dv; ++i) {
      float sum = 0;
      for (int64_t j = 0; j < dk; ++j) {
        float *s = &state[i * dk + j];
        *s = decay * *s + load(v, t * v->extents[2] + i * v->extents[3], type) *
                              load(k, t * k->extents[2] + j * k->extents[3], type);
        sum += *s * load(q, t * q->extents[2] + j * q->extents[3], type);
      }
      sum = scale * sum + (float)(span->position + t) * load(p, i * p->extents[1], type);
      const int64_t at = t * o->extents[2] + i * o->extents[3];
      if (type == FLOAT32)
        ((float *)o->aligned)[at] = sum;
      else
        ((uint16_t *)o->aligned)[at] = toy_from_float(sum, type == BRAIN);
    }
  }
  if (final->aligned)
    for (int64_t i = 0; i < dv; ++i)
      for (int64_t j = 0; j < dk; ++j)
        ((float *) final->aligned)[i * final->extents[2] + j * final->extents[3]] = state[i * dk + j];
  if (*owner != me)
    atomic_fetch_add(&scratch_errors, 1);
}

static void kernel_f32(void *const *views, const recur_span *span, void *scratch) {
  kernel(views, span, scratch, FLOAT32);
}
static void kernel_bf16(void *const *views, const recur_span *span, void *scratch) {
  kernel(views, span, scratch, BRAIN);
}
static void kernel_f16(void *const *views, const recur_span *span, void *scratch) {
  kernel(views, span, scratch, HALF);
}

#define F32 {kDLFloat, 32, 1}
#define BF16 {kDLBfloat, 16, 1}
#define F16 {kDLFloat, 16, 1}
#define NOWHERE (UINT64_C(1) << 62)

static const char *const dim_names[] = {"dk", "dv", "2"};
static const int32_t vector_dk[] = {0}, vector_dv[] = {1}, vector_2[] = {2}, matrix[] = {1, 0};
static const recur_tensor tensors[] = {{"q", RECUR_INPUT, 1, vector_dk}, {"k", RECUR_INPUT, 1, vector_dk},
                                       {"v", RECUR_INPUT, 1, vector_dv}, {"g", RECUR_INPUT, 0, NULL},
                                       {"c", RECUR_INPUT, 1, vector_2},  {"p", RECUR_PARAM, 1, vector_dv},
                                       {"S", RECUR_STATE, 2, matrix},    {"o", RECUR_OUTPUT, 1, vector_dv}};
static const DLDataType all_f32[] = {F32, F32, F32, F32, F32, F32, F32, F32};
static const DLDataType all_bf16[] = {BF16, BF16, BF16, BF16, BF16, BF16, F32, BF16};
static const DLDataType all_f16[] = {F16, F16, F16, F16, F16, F16, F32, F16};
static const int64_t small[] = {4, 3, 2}, middle[] = {8, 3, 2}, large[] = {16, 3, 2};
static const recur_variant variants[] = {
    {NOWHERE, "moon-v1", small, all_f32, 1 << 20, NULL}, {0, "x86-64", small, all_f32, 52, kernel_f32},
    {0, "x86-64", middle, all_f32, 100, kernel_f32},     {0, "x86-64", small, all_bf16, 52, kernel_bf16},
    {0, "x86-64", small, all_f16, 52, kernel_f16},       {NOWHERE, "moon-v1", large, all_f32, 0, NULL},
    {NOWHERE, "moon-v2", large, all_f32, 0, NULL}};
const recur_model toy_model = {
    RECUR_MAGIC, RECUR_ABI_VERSION, "toy", NULL, RECUR_USES_POSITION, 8, tensors, 3, 7, dim_names, variants};

int32_t toy_forward(const toy_forward_args *args, void *workspace, recur_stream *where) {
  return recur_rt_forward(&toy_model, args, workspace, where);
}
int64_t toy_forward_workspace(const toy_forward_args *args) {
  return recur_rt_forward_workspace(&toy_model, args);
}
int32_t toy_step(const toy_step_args *args, void *workspace, recur_stream *where) {
  return recur_rt_step(&toy_model, args, workspace, where);
}
int64_t toy_step_workspace(const toy_step_args *args) { return recur_rt_step_workspace(&toy_model, args); }

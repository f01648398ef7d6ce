/* Arrays with their DLTensor, and the call of rule.rec that all programs here make. C11 and C++17. */
#ifndef TEST_LINK_ARRAYS_H_
#define TEST_LINK_ARRAYS_H_

#include "rule.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { DK = 4, DV = 3, MAX_BYTES = 1 << 15 };

/* An array of up to 5 dimensions in memory of its own. */
typedef struct Array {
  DLTensor tensor;
  int64_t shape[5], strides[5];
  _Alignas(64) unsigned char bytes[MAX_BYTES];
} Array;

static int failures;

static inline void expect(int condition, const char *what, const char *detail) {
  if (!condition) {
    ++failures;
    printf("FAIL %s: %s\n", what, detail);
  }
}

/* Sets type and sizes; `gap` extra elements lie behind each row of the last dimension, and before the first.
 */
static inline void shapeArray(Array *array, uint8_t code, uint8_t bits, int32_t ndim, const int64_t *shape,
                              int64_t gap) {
  int64_t stride = 1;
  memset(array, 0, sizeof *array);
  for (int32_t i = ndim - 1; i >= 0; --i) {
    array->shape[i] = shape[i];
    array->strides[i] = stride;
    stride *= shape[i] + (i == ndim - 1 ? gap : 0);
  }
  if (stride * bits / 8 + gap * bits / 8 > MAX_BYTES)
    abort();
  array->tensor.data = array->bytes;
  array->tensor.device.device_type = kDLCPU;
  array->tensor.ndim = ndim;
  array->tensor.dtype.code = code;
  array->tensor.dtype.bits = bits;
  array->tensor.dtype.lanes = 1;
  array->tensor.shape = array->shape;
  array->tensor.strides = gap ? array->strides : NULL; /* NULL is compact */
  array->tensor.byte_offset = (uint64_t)(gap * bits / 8);
}

static inline int64_t count(const Array *array) {
  int64_t n = 1;
  for (int32_t i = 0; i < array->tensor.ndim; ++i)
    n *= array->shape[i];
  return n;
}

/* The address of an element by its place in row-major order. */
static inline unsigned char *address(Array *array, int64_t index) {
  int64_t offset = 0;
  for (int32_t i = array->tensor.ndim - 1; i >= 0; --i) {
    offset += index % array->shape[i] * array->strides[i];
    index /= array->shape[i];
  }
  return array->bytes + array->tensor.byte_offset + offset * array->tensor.dtype.bits / 8;
}

static inline void setNumber(Array *array, int64_t index, float value) {
  if (array->tensor.dtype.bits == 32) {
    memcpy(address(array, index), &value, 4);
  } else { /* bfloat16 of a value that it holds exactly */
    unsigned char bytes[4];
    memcpy(bytes, &value, 4);
    memcpy(address(array, index), bytes + 2, 2);
  }
}

static inline float getNumber(Array *array, int64_t index) {
  float value;
  unsigned char bytes[4] = {0, 0, 0, 0};
  if (array->tensor.dtype.bits == 32)
    memcpy(bytes, address(array, index), 4);
  else
    memcpy(bytes + 2, address(array, index), 2);
  memcpy(&value, bytes, 4);
  return value;
}

/* Multiples of 1/8 between -1 and 1, which all types hold exactly. */
static inline void fill(Array *array, unsigned seed) {
  for (int64_t i = 0, n = count(array); i < n; ++i) {
    seed = seed * 1664525u + 1013904223u;
    setNumber(array, i, (float)((int)(seed >> 16) % 17 - 8) / 8);
  }
}

static inline void integers(Array *array, int32_t n, const int32_t *values) {
  int64_t shape[1] = {n};
  shapeArray(array, kDLInt, 32, 1, shape, 0);
  memcpy(array->bytes, values, (size_t)n * 4);
}

/* One call's arrays. */
typedef struct Problem {
  Array q, k, v, a, w, initial, o, final;
  int64_t batch, tokens, heads, sequences;
} Problem;

/* `groups` heads of q, k and w; `slots` states. */
static inline void makeProblem(Problem *p, int64_t batch, int64_t tokens, int64_t heads, int64_t groups,
                               int64_t slots, uint8_t code, uint8_t bits, int64_t gap) {
  int64_t qk[4] = {batch, tokens, groups, DK}, v[4] = {batch, tokens, heads, DV},
          a[3] = {batch, tokens, heads};
  int64_t w[2] = {groups, DV}, S[4] = {slots, heads, DV, DK};
  p->batch = batch;
  p->tokens = tokens;
  p->heads = heads;
  p->sequences = batch;
  shapeArray(&p->q, code, bits, 4, qk, gap);
  shapeArray(&p->k, code, bits, 4, qk, gap);
  shapeArray(&p->v, code, bits, 4, v, gap);
  shapeArray(&p->a, code, bits, 3, a, 0);
  shapeArray(&p->w, code, bits, 2, w, gap);
  shapeArray(&p->o, code, bits, 4, v, gap);
  shapeArray(&p->initial, kDLFloat, 32, 4, S, gap);
  shapeArray(&p->final, kDLFloat, 32, 4, S, gap);
  fill(&p->q, 1);
  fill(&p->k, 2);
  fill(&p->v, 3);
  fill(&p->w, 4);
  fill(&p->initial, 5);
  for (int64_t i = 0, n = count(&p->a); i < n; ++i)
    setNumber(&p->a, i, (float)(i % 5) / 4);
  memset(p->o.bytes, 0x5a, sizeof p->o.bytes);
  memset(p->final.bytes, 0x5a, sizeof p->final.bytes);
}

/* What the rule means, for tokens begin..end of batch entry b and one head; `state` is DV x DK and is
 * updated, `out` (may be NULL) gets tokens x DV numbers. */
static inline void reference(Problem *p, int64_t b, int64_t head, int64_t begin, int64_t end,
                             int64_t position, double *state, double *out) {
  int64_t groups = p->q.shape[2], group = head / (p->heads / groups);
  for (int64_t t = begin; t < end; ++t) {
    int64_t qk = ((b * p->tokens + t) * groups + group) * DK,
            v = ((b * p->tokens + t) * p->heads + head) * DV;
    for (int i = 0; i < DV; ++i) {
      double sum = 0, u = getNumber(&p->v, v + i) +
                          (double)(position + t - begin) / 8 * getNumber(&p->w, group * DV + i);
      for (int j = 0; j < DK; ++j) {
        double *s = &state[i * DK + j];
        *s = getNumber(&p->a, (b * p->tokens + t) * p->heads + head) * *s + u * getNumber(&p->k, qk + j);
        sum += *s * getNumber(&p->q, qk + j);
      }
      if (out)
        *out++ = sum;
    }
  }
}

static inline int near(double x, double y, double tolerance) {
  double difference = x > y ? x - y : y - x, size = y < 0 ? -y : y;
  return difference <= tolerance * (1 + size);
}

/* Compares one sequence and head with what the rule means. Without `initial` the state starts at 0; `slot` is
 * where its states are. */
static inline void compare(Problem *p, const char *what, int64_t b, int64_t head, int64_t begin, int64_t end,
                           int64_t position, int64_t slot, int withInitial, double tolerance) {
  double state[DV * DK] = {0}, out[256 * DV];
  int64_t at = (slot * p->heads + head) * DV * DK;
  for (int i = 0; i < DV * DK && withInitial; ++i)
    state[i] = getNumber(&p->initial, at + i);
  reference(p, b, head, begin, end, position, state, out);
  for (int64_t t = begin; t < end; ++t)
    for (int i = 0; i < DV; ++i)
      if (!near(getNumber(&p->o, ((b * p->tokens + t) * p->heads + head) * DV + i), out[(t - begin) * DV + i],
                tolerance))
        expect(0, what, "the output differs");
  for (int i = 0; i < DV * DK; ++i)
    if (!near(getNumber(&p->final, at + i), state[i], 1e-5))
      expect(0, what, "the final state differs");
}

static inline rule_forward_args forwardArgs(Problem *p) {
  rule_forward_args args;
  memset(&args, 0, sizeof args);
  args.q = &p->q.tensor;
  args.k = &p->k.tensor;
  args.v = &p->v.tensor;
  args.a = &p->a.tensor;
  args.w = &p->w.tensor;
  args.initial_S = &p->initial.tensor;
  args.o = &p->o.tensor;
  args.final_S = &p->final.tensor;
  return args;
}

#endif /* TEST_LINK_ARRAYS_H_ */

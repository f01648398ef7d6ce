/* toy_rule.h: a rule written by hand, as a compiled object would hold it.
 *
 *   input q, k : vector(dk); input v : vector(dv); input g : scalar; input c : vector(2); param p :
 * vector(dv) S = g*S + v*kT; o = (c[1] + c[2])*S*q + t*p
 */
#ifndef RECUR_TEST_TOY_RULE_H_
#define RECUR_TEST_TOY_RULE_H_

#include <recur/abi.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct {
  const DLTensor *q, *k, *v, *g, *c, *p, *initial_S, *cu_seqlens, *state_index, *positions, *o, *final_S;
} toy_forward_args;

typedef struct {
  const DLTensor *q, *k, *v, *g, *c, *p, *state_index, *positions, *o, *S;
} toy_step_args;

/* Variants, best first: (4, 3) f32 for a machine that does not exist; then for every machine (4, 3) f32,
 * (8, 3) f32, (4, 3) bf16, (4, 3) f16; then (16, 3) f32 for that machine only. The states are f32. */
extern const recur_model toy_model;

int32_t toy_forward(const toy_forward_args *args, void *workspace, recur_stream *where);
int64_t toy_forward_workspace(const toy_forward_args *args);
int32_t toy_step(const toy_step_args *args, void *workspace, recur_stream *where);
int64_t toy_step_workspace(const toy_step_args *args);

/* bfloat16 and float16 by their bits. */
float toy_to_float(uint16_t bits, int brain);
uint16_t toy_from_float(float value, int brain);

/* Kernel calls that found somebody else in their scratch memory, or none where there should be some. */
int toy_scratch_errors(void);

/* When set, called by the kernel in every task. */
extern void (*toy_inside)(void);

#ifdef __cplusplus
}
#endif

#endif

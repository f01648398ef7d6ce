/* rwkv7.h: written by recurc 0.1.0 (LLVM 22.1.8).
 *
 *   # RWKV-7 (Goose): a decay per key channel and a generalised delta rule that reads before the decay.
 *   # Peng et al., "RWKV-7 'Goose' with Expressive Dynamic State Evolution", arXiv 2503.14456.
 *   # Conventions: r is the receptance (the query), w the log of the decay, -0.6065306597*sigmoid(.); kk
 *   # the key to remove, normalised here; a the in-context learning rate after its sigmoid; k and v the
 *   # write. No scale.
 *   
 *   input r, k, kk : vector(dk)
 *   input v        : vector(dv)
 *   input w        : vector(dk) in [-0.6065306597, 0)
 *   input a        : vector(dk) in [0, 1]
 *   state S        : matrix(dv, dk)
 *   
 *   kk = l2norm(kk)
 *   S = S*(diag(exp(w)) - kk*(kk.*a).T) + v*kT
 *   o = S*r
 *
 * Compiled for:
 *   x86-64-v4+bf16 dk=128 dv=128 float32
 *
 * Inputs and params may have fewer heads than the outputs when the counts divide: they are shared in groups.
 * Any strides will do; sizes that stand as names are free or those compiled for. */
#ifndef RECUR_RULE_RWKV7_H_
#define RECUR_RULE_RWKV7_H_

#include <recur/recur.h>

#if RECUR_ABI_VERSION != 2
#error "rwkv7.h needs version 2 of recur's binary interface"
#endif

#ifdef __cplusplus
extern "C" {
#endif

/** Arguments of rwkv7_forward. The memory of outputs and final states is written; it must
 * overlap nothing but the initial state of the same name. */
typedef struct rwkv7_forward_args {
  /** [batch, token, head, dk], float32: vector(dk) */
  const DLTensor *r;
  /** [batch, token, head, dk], float32: vector(dk) */
  const DLTensor *k;
  /** [batch, token, head, dk], float32: vector(dk) */
  const DLTensor *kk;
  /** [batch, token, head, dv], float32: vector(dv) */
  const DLTensor *v;
  /** [batch, token, head, dk], float32: vector(dk) in [-0.6065306597, 0) */
  const DLTensor *w;
  /** [batch, token, head, dk], float32: vector(dk) in [0, 1] */
  const DLTensor *a;
  /** [sequence, head, dv, dk], float32: matrix(dv, dk); at the start, or NULL: the rule's own
   * initial value */
  const DLTensor *initial_S;
  /** [sequences + 1], int32 or int64: first tokens of sequences packed into a batch of 1, then
   * the number of tokens, or NULL: each batch entry is a sequence */
  const DLTensor *cu_seqlens;
  /** [sequence], int32 or int64: the slot of each sequence where states are pools [slot, head,
   * ..], or NULL; a slot that is not there is an error on the CPU, and on a GPU leaves its
   * sequence alone */
  const DLTensor *state_index;
  /** [sequence], int32 or int64: index of each sequence's first token, or NULL: 0 */
  const DLTensor *positions;
  /** [batch, token, head, dv], float32: vector(dv); written */
  const DLTensor *o;
  /** [sequence, head, dv, dk], float32: matrix(dv, dk); written at the end, or NULL: not wanted */
  const DLTensor *final_S;
} rwkv7_forward_args;

/** Arguments of rwkv7_step: one token of each sequence. */
typedef struct rwkv7_step_args {
  /** [sequence, 1, head, dk], float32: vector(dk) */
  const DLTensor *r;
  /** [sequence, 1, head, dk], float32: vector(dk) */
  const DLTensor *k;
  /** [sequence, 1, head, dk], float32: vector(dk) */
  const DLTensor *kk;
  /** [sequence, 1, head, dv], float32: vector(dv) */
  const DLTensor *v;
  /** [sequence, 1, head, dk], float32: vector(dk) in [-0.6065306597, 0) */
  const DLTensor *w;
  /** [sequence, 1, head, dk], float32: vector(dk) in [0, 1] */
  const DLTensor *a;
  /** [sequence], int32 or int64: the slot of each sequence where states are pools [slot, head,
   * ..], or NULL; a slot that is not there is an error on the CPU, and on a GPU leaves its
   * sequence alone */
  const DLTensor *state_index;
  /** [sequence], int32 or int64: index of each sequence's first token; unused by this rule, may
   * be NULL */
  const DLTensor *positions;
  /** [sequence, 1, head, dv], float32: vector(dv); written */
  const DLTensor *o;
  /** [sequence, head, dv, dk], float32: matrix(dv, dk); updated in place */
  const DLTensor *S;
} rwkv7_step_args;

/** Runs the rule over sequences. `workspace` has as many bytes as rwkv7_forward_workspace says,
 * and may be NULL where that is 0. `where` may be NULL: the process's parallel loop. Nothing is
 * kept after the return. Returns 0, or a negative recur_error with its text in
 * recur_last_error(); then nothing was written. */
RECUR_API int32_t rwkv7_forward(const rwkv7_forward_args *args, void *workspace,
                                const recur_stream *where);

/** Bytes of workspace that rwkv7_forward needs for these arguments, or a negative recur_error.
 * Looks at shapes, strides and types only: data pointers may be NULL. */
RECUR_API int64_t rwkv7_forward_workspace(const rwkv7_forward_args *args);

/** Runs one token of each sequence and updates the states in place; otherwise as rwkv7_forward. */
RECUR_API int32_t rwkv7_step(const rwkv7_step_args *args, void *workspace,
                             const recur_stream *where);

/** Bytes of workspace that rwkv7_step needs for these arguments, or a negative recur_error.
 * Looks at shapes, strides and types only: data pointers may be NULL. */
RECUR_API int64_t rwkv7_step_workspace(const rwkv7_step_args *args);

/** What is known about the rule, as constants. */
RECUR_API const recur_metadata *rwkv7_metadata(void);

#ifdef __cplusplus
}
#endif

#endif /* RECUR_RULE_RWKV7_H_ */

/* Associative recall with overwriting: why the delta rule exists.
 *
 * Pairs of a key and a value are written into the state, one a token; then half of the keys are written again
 * with new values; then every key is asked for. A sum of v k^T keeps the old value beside the new one; the
 * delta rule takes the old one out first. The state holds 64 x 64 numbers, so past 64 pairs nothing can be
 * exact.
 *
 * This is also the example to copy: fill the argument structure of a rule's header with DLPack tensors, ask
 * for the workspace, call.
 */
#include "deltanet.h"
#include "deltanet_loss.h"
#include "gated_deltanet.h"
#include "linear_attention.h"
#include "retnet.h"
#include "rls.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { D = 64, MAX_PAIRS = 512, MAX_TOKENS = MAX_PAIRS / 2 * 5 };

/* One sequence of one head, [batch, token, head, dim]. */
static float q[MAX_TOKENS][D], k[MAX_TOKENS][D], v[MAX_TOKENS][D], o[MAX_TOKENS][D];
static float write_strength[MAX_TOKENS], log_decay[MAX_TOKENS], regulariser = 1e-3f;
static float keys[MAX_PAIRS][D], values[MAX_PAIRS][D]; /* what must be recalled */

static DLTensor tensor(void *data, int32_t ndim, int64_t *shape) {
  DLTensor t = {data, {kDLCPU, 0}, ndim, {kDLFloat, 32, 1}, shape, NULL, 0};
  return t;
}

/* Calls a rule: queries its workspace, takes the time. Needs `args` of the rule's type. */
#define CALL(rule)                                                                                           \
  int64_t bytes = rule##_forward_workspace(&args);                                                           \
  if (bytes < 0)                                                                                             \
    return -1;                                                                                               \
  void *workspace = malloc((size_t)bytes + 1);                                                               \
  struct timespec begin, end;                                                                                \
  timespec_get(&begin, TIME_UTC);                                                                            \
  int32_t code = rule##_forward(&args, workspace, NULL);                                                     \
  timespec_get(&end, TIME_UTC);                                                                              \
  free(workspace);                                                                                           \
  return code < 0 ? -1 : (double)(end.tv_sec - begin.tv_sec) + 1e-9 * (double)(end.tv_nsec - begin.tv_nsec)

/* The tensors that the rules share. */
typedef struct {
  DLTensor q, k, v, o, b, g, lamb;
} Tensors;

static double linear_attention(const Tensors *t) {
  linear_attention_forward_args args = {.q = &t->q, .k = &t->k, .v = &t->v, .o = &t->o};
  CALL(linear_attention);
}
static double retnet(const Tensors *t) {
  retnet_forward_args args = {.q = &t->q, .k = &t->k, .v = &t->v, .o = &t->o};
  CALL(retnet);
}
static double deltanet(const Tensors *t) {
  deltanet_forward_args args = {.q = &t->q, .k = &t->k, .v = &t->v, .b = &t->b, .o = &t->o};
  CALL(deltanet);
}
static double deltanet_loss(const Tensors *t) {
  deltanet_loss_forward_args args = {.q = &t->q, .k = &t->k, .v = &t->v, .b = &t->b, .o = &t->o};
  CALL(deltanet_loss);
}
static double gated_deltanet(const Tensors *t) {
  gated_deltanet_forward_args args = {.q = &t->q, .k = &t->k, .v = &t->v, .g = &t->g, .b = &t->b, .o = &t->o};
  CALL(gated_deltanet);
}
static double rls(const Tensors *t) {
  rls_forward_args args = {
      .q = &t->q, .k = &t->k, .v = &t->v, .g = &t->g, .b = &t->b, .lamb = &t->lamb, .o = &t->o};
  CALL(rls);
}

/* A point of the unit sphere. */
static void draw(float *x) {
  float square = 0;
  for (int i = 0; i < D; ++i) {
    float sum = 0; /* nearly normal */
    for (int j = 0; j < 12; ++j)
      sum += (float)rand() / (float)RAND_MAX - 0.5f;
    x[i] = sum;
    square += sum * sum;
  }
  for (int i = 0; i < D; ++i)
    x[i] /= sqrtf(square);
}

/* Writes the task's tokens and returns their number; the last `pairs` of them ask. */
static int64_t make_task(int pairs) {
  int64_t tokens = 0;
  memset(k, 0, sizeof k);
  memset(v, 0, sizeof v);
  memset(q, 0, sizeof q);
  memset(write_strength, 0, sizeof write_strength);
  for (int i = 0; i < pairs; ++i)
    draw(keys[i]);
  for (int round = 0; round < 2; ++round)
    for (int i = 0; i < (round ? pairs / 2 : pairs); ++i, ++tokens) {
      draw(values[i]);
      memcpy(k[tokens], keys[i], sizeof keys[i]);
      memcpy(v[tokens], values[i], sizeof values[i]);
      write_strength[tokens] = 1;
    }
  for (int i = 0; i < pairs; ++i, ++tokens)
    memcpy(q[tokens], keys[i], sizeof keys[i]);
  return tokens;
}

/* How far the answers point away from the values: 0 exact, 1 unrelated. */
static double recall_error(int pairs, int64_t tokens) {
  double sum = 0;
  for (int i = 0; i < pairs; ++i) {
    const float *answer = o[tokens - pairs + i];
    double dot = 0, square = 0;
    for (int j = 0; j < D; ++j) {
      dot += (double)answer[j] * values[i][j];
      square += (double)answer[j] * answer[j];
    }
    sum += square > 0 ? 1 - dot / sqrt(square) : 1;
  }
  return sum / pairs;
}

int main(void) {
  static const struct {
    const char *name;
    double (*run)(const Tensors *);
  } rules[] = {{"linear attention", linear_attention},
               {"RetNet", retnet},
               {"DeltaNet", deltanet},
               {"DeltaNet from its loss", deltanet_loss},
               {"Gated DeltaNet", gated_deltanet},
               {"RLS", rls}};
  static const int pairs[] = {8, 16, 32, 64, 128, 256, 512};
  enum { RULES = sizeof rules / sizeof *rules, SIZES = sizeof pairs / sizeof *pairs };

  printf("\nRecall from a state of %d x %d: error (0 exact, 1 unrelated) after writing pairs, half of them "
         "twice\n\n",
         D, D);
  printf("%-24s", "pairs");
  for (int s = 0; s < SIZES; ++s)
    printf("%8d", pairs[s]);
  printf("%14s\n", "ns per token");
  for (int r = 0; r < RULES; ++r) {
    printf("%-24s", rules[r].name);
    double best = INFINITY;
    for (int s = 0; s < SIZES; ++s) {
      srand(1); /* the same task for every rule */
      int64_t tokens = make_task(pairs[s]);
      int64_t matrix[] = {1, tokens, 1, D}, scalar[] = {1, tokens, 1}, head[] = {1};
      Tensors t = {tensor(q, 4, matrix),
                   tensor(k, 4, matrix),
                   tensor(v, 4, matrix),
                   tensor(o, 4, matrix),
                   tensor(write_strength, 3, scalar),
                   tensor(log_decay, 3, scalar),
                   tensor(&regulariser, 1, head)};
      double seconds = INFINITY;
      for (int repeat = 0; repeat < 5; ++repeat) {
        double time = rules[r].run(&t);
        if (time < 0) {
          fprintf(stderr, "\n%s: %s\n", rules[r].name, recur_last_error());
          return 1;
        }
        seconds = fmin(seconds, time);
      }
      best = fmin(best, seconds / (double)tokens);
      printf("%8.3f", recall_error(pairs[s], tokens));
    }
    printf("%14.0f\n", best * 1e9);
  }
  printf("\nA sum keeps the old value of a key beside the new one; the delta rule takes the old value out "
         "first. RLS\n"
         "solves for all writes at once: exact up to 64 keys, but a key that was written twice gets the "
         "mean.\n");
  return 0;
}

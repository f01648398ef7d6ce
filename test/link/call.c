/* Calls rule.rec in every way that its header offers, and compares with what the rule means. */
#include "arrays.h"
#include "rule_bf16.h"

static Problem p;
static _Alignas(64) unsigned char workspace[1 << 20];

static void check(int32_t code, const char *what) {
  expect(code == RECUR_OK, what, code == RECUR_OK ? "" : recur_last_error());
}

static void forward(const rule_forward_args *args, const char *what) {
  int64_t bytes = rule_forward_workspace(args);
  expect(bytes >= 0 && bytes <= (int64_t)sizeof workspace, what, "workspace");
  check(rule_forward(args, workspace, NULL), what);
}

static void padded(int64_t gap, const char *what) {
  makeProblem(&p, 2, 7, 4, 2, 2, kDLFloat, 32, gap);
  rule_forward_args args = forwardArgs(&p);
  forward(&args, what);
  for (int64_t b = 0; b < 2; ++b)
    for (int64_t h = 0; h < 4; ++h)
      compare(&p, what, b, h, 0, 7, 0, b, 1, 1e-5);
  unsigned char untouched[MAX_BYTES]; /* gaps between rows stay as they were */
  memset(untouched, 0x5a, sizeof untouched);
  expect(memcmp(p.o.bytes, untouched, (size_t)gap * 4) == 0, what, "wrote before the first element");
  expect(!gap || memcmp(address(&p.o, DV - 1) + 4, untouched, (size_t)gap * 4) == 0, what,
         "wrote between rows");
}

static void withoutStates(void) {
  makeProblem(&p, 1, 5, 1, 1, 1, kDLFloat, 32, 0);
  rule_forward_args args = forwardArgs(&p);
  args.initial_S = NULL;
  forward(&args, "no initial state");
  compare(&p, "no initial state", 0, 0, 0, 5, 0, 0, 0, 1e-5);
  Array before = p.final;
  args.final_S = NULL;
  forward(&args, "no final state");
  expect(memcmp(&before, &p.final, sizeof before) == 0, "no final state", "was written");
}

/* Sequences of 3, 0 and 7 tokens in one row, which begin at other positions and have their states in a pool.
 */
static void packed(void) {
  static const int32_t ends[] = {0, 3, 3, 10}, firsts[] = {100, 5, 0}, slots[] = {4, 0, 2};
  Array lengths, positions, index;
  makeProblem(&p, 1, 10, 2, 1, 6, kDLFloat, 32, 0);
  integers(&lengths, 4, ends);
  integers(&positions, 3, firsts);
  integers(&index, 3, slots);
  rule_forward_args args = forwardArgs(&p);
  args.cu_seqlens = &lengths.tensor;
  args.positions = &positions.tensor;
  args.state_index = &index.tensor;
  Array before = p.final;
  forward(&args, "packed");
  for (int s = 0; s < 3; ++s)
    for (int64_t h = 0; h < 2; ++h)
      compare(&p, "packed", 0, h, ends[s], ends[s + 1], firsts[s], slots[s], 1, 1e-5);
  for (int64_t slot = 1; slot < 6; slot += 2) /* the slots of nobody: 1, 3, 5 */
    expect(memcmp(address(&p.final, slot * 2 * DV * DK), address(&before, slot * 2 * DV * DK),
                  2 * DV * DK * 4) == 0,
           "packed", "wrote a slot of nobody");
}

/* Token by token, in place, gives what forward gives. */
static void steps(int pooled) {
  static const int32_t slots[] = {3, 1};
  Array index, positions, state;
  makeProblem(&p, 2, 6, 4, 2, 4, kDLFloat, 32, 0);
  integers(&index, 2, slots);
  state = p.initial;
  state.tensor.data = state.bytes;
  state.tensor.shape = state.shape;
  if (!pooled)
    state.shape[0] = 2;
  for (int32_t t = 0; t < 6; ++t) {
    int32_t now[] = {t, t};
    integers(&positions, 2, now);
    Array *const all[] = {&p.q, &p.k, &p.v, &p.a, &p.o};
    DLTensor token[5];
    int64_t shapes[5][5];
    for (int i = 0; i < 5; ++i) { /* a window of one token */
      token[i] = all[i]->tensor;
      memcpy(shapes[i], all[i]->shape, sizeof shapes[i]);
      shapes[i][1] = 1;
      token[i].shape = shapes[i];
      token[i].strides = all[i]->strides;
      token[i].byte_offset += (uint64_t)(t * all[i]->strides[1] * 4);
    }
    rule_step_args args = {.q = &token[0],
                           .k = &token[1],
                           .v = &token[2],
                           .a = &token[3],
                           .w = &p.w.tensor,
                           .state_index = pooled ? &index.tensor : NULL,
                           .positions = &positions.tensor,
                           .o = &token[4],
                           .S = &state.tensor};
    int64_t bytes = rule_step_workspace(&args);
    expect(bytes >= 0 && bytes <= (int64_t)sizeof workspace, "step", "workspace");
    check(rule_step(&args, workspace, NULL), "step");
  }
  memcpy(p.final.bytes, state.bytes, sizeof state.bytes);
  for (int64_t b = 0; b < 2; ++b)
    for (int64_t h = 0; h < 4; ++h)
      compare(&p, pooled ? "pooled step" : "step", b, h, 0, 6, 0, pooled ? slots[b] : b, 1, 1e-5);
}

static void nothing(void) {
  makeProblem(&p, 2, 0, 2, 1, 2, kDLFloat, 32, 0);
  rule_forward_args args = forwardArgs(&p);
  forward(&args, "no tokens");
  expect(memcmp(p.final.bytes, p.initial.bytes, (size_t)count(&p.final) * 4) == 0, "no tokens",
         "the state changed");
  makeProblem(&p, 0, 4, 2, 1, 0, kDLFloat, 32, 0);
  args = forwardArgs(&p);
  forward(&args, "no sequences");
}

static void bfloat16(void) {
  makeProblem(&p, 2, 7, 4, 2, 2, kDLBfloat, 16, 0);
  rule_bf16_forward_args args = {.q = &p.q.tensor,
                                 .k = &p.k.tensor,
                                 .v = &p.v.tensor,
                                 .a = &p.a.tensor,
                                 .w = &p.w.tensor,
                                 .initial_S = &p.initial.tensor,
                                 .o = &p.o.tensor,
                                 .final_S = &p.final.tensor};
  check(rule_bf16_forward(&args, workspace, NULL), "bfloat16");
  for (int64_t b = 0; b < 2; ++b)
    for (int64_t h = 0; h < 4; ++h)
      compare(&p, "bfloat16", b, h, 0, 7, 0, b, 1, 1.0 / 128);
}

static void metadata(void) {
  const recur_metadata *about = rule_metadata();
  expect(about->abi_version == RECUR_ABI_VERSION && strcmp(about->name, "rule") == 0, "metadata",
         about->name);
  expect(strstr(about->spec, "S = a*S + (v + 1/8*t*w)*kT") != NULL, "metadata", "spec");
  expect(strlen(about->spec_sha256) == 64 && strstr(about->json, about->spec_sha256) != NULL, "metadata",
         "hash");
  expect(strstr(about->json, "\"x86-64\"") != NULL, "metadata", "variants");
  expect(about->rule_class[0] && about->form[0] && about->precision[0] && strstr(about->compiler, "recurc"),
         "metadata", "strings");
}

int main(void) {
  padded(0, "padded");
  padded(3, "strided");
  withoutStates();
  packed();
  steps(0);
  steps(1);
  nothing();
  bfloat16();
  metadata();
  return failures != 0;
}

/* Calls rule.rec wrongly in every way: a negative code, a sentence that names the argument, and no byte of
 * any output touched. */
#include "arrays.h"

static Problem p;
static _Alignas(64) unsigned char workspace[1 << 20];

static void expectError(const rule_forward_args *args, int32_t code, const char *argument) {
  Problem before = p;
  int32_t found = rule_forward(args, workspace, NULL);
  char text[1024];
  snprintf(text, sizeof text, "expected %s, got %s: %s", recur_error_name(code), recur_error_name(found),
           recur_last_error());
  expect(found == code && strstr(recur_last_error(), argument) && strstr(recur_last_error(), "rule_forward"),
         argument, text);
  expect(memcmp(before.o.bytes, p.o.bytes, sizeof p.o.bytes) == 0 &&
             memcmp(before.final.bytes, p.final.bytes, sizeof p.final.bytes) == 0,
         argument, "an output was touched");
}

/* A correct call in which one thing is then broken. */
#define WRONG(code, argument, ...)                                                                           \
  do {                                                                                                       \
    makeProblem(&p, 2, 5, 4, 2, 2, kDLFloat, 32, 1);                                                         \
    rule_forward_args args = forwardArgs(&p);                                                                \
    __VA_ARGS__;                                                                                             \
    expectError(&args, code, argument);                                                                      \
  } while (0)

static void tensors(void) {
  WRONG(RECUR_ERROR_NULL, "'k'", args.k = NULL);
  WRONG(RECUR_ERROR_NULL, "'w'", args.w = NULL);
  WRONG(RECUR_ERROR_NULL, "'o'", args.o = NULL);
  WRONG(RECUR_ERROR_NULL, "'v'", p.v.tensor.data = NULL);
  WRONG(RECUR_ERROR_NULL, "'final_S'", p.final.tensor.data = NULL);
  WRONG(RECUR_ERROR_NULL, "'q'", p.q.tensor.shape = NULL);
  WRONG(RECUR_ERROR_DTYPE, "'q'", p.q.tensor.dtype.bits = 64);
  WRONG(RECUR_ERROR_DTYPE, "'v'", p.v.tensor.dtype.code = kDLBfloat; p.v.tensor.dtype.bits = 16);
  WRONG(RECUR_ERROR_DTYPE, "'initial_S'", p.initial.tensor.dtype.code = kDLInt);
  WRONG(RECUR_ERROR_DTYPE, "'a'", p.a.tensor.dtype.lanes = 4);
  WRONG(RECUR_ERROR_DEVICE, "'k'", p.k.tensor.device.device_type = kDLCUDA);
  WRONG(RECUR_ERROR_DEVICE, "'o'", p.o.tensor.device.device_type = kDLCUDA);
  WRONG(RECUR_ERROR_SHAPE, "'q'", p.q.tensor.ndim = 3);
  WRONG(RECUR_ERROR_SHAPE, "'k'", p.k.shape[1] = 4);
  WRONG(RECUR_ERROR_SHAPE, "'k'", p.k.shape[0] = 1);
  WRONG(RECUR_ERROR_SHAPE, "'v'", p.v.shape[3] = 2);
  WRONG(RECUR_ERROR_SHAPE, "'q'", p.q.shape[3] = 3);
  WRONG(RECUR_ERROR_SHAPE, "'w'", p.w.shape[0] = 3);
  WRONG(RECUR_ERROR_SHAPE, "'initial_S'", p.initial.shape[0] = 1);
  WRONG(RECUR_ERROR_SHAPE, "'final_S'", p.final.shape[1] = 2);
  WRONG(RECUR_ERROR_SHAPE, "'v'", p.v.shape[0] = -2);
  WRONG(RECUR_ERROR_STRIDE, "'o'", p.o.strides[1] = 0);
  WRONG(RECUR_ERROR_STRIDE, "'o'", p.o.strides[3] = 0);
  WRONG(RECUR_ERROR_STRIDE, "'final_S'", p.final.strides[0] = 1);
  WRONG(RECUR_ERROR_STRIDE, "'q'", p.q.strides[0] = INT64_MAX / 2);
  WRONG(RECUR_ERROR_STRIDE, "'o'", args.o = args.v);
  WRONG(RECUR_ERROR_STRIDE, "'initial_S'", p.initial.tensor.data = p.final.tensor.data;
        p.initial.tensor.byte_offset = p.final.tensor.byte_offset; p.initial.strides[2] = p.final.strides[3];
        p.initial.strides[3] = p.final.strides[2]);
  WRONG(RECUR_ERROR_ALIGNMENT, "'v'", p.v.tensor.byte_offset += 1);
}

static void sequences(void) {
  static const int32_t down[] = {0, 3, 2, 5}, late[] = {1, 3, 4, 5}, far[] = {0, 3, 4, 6},
                       near[] = {0, 3, 4, 4};
  static const int32_t below[] = {0, -1}, past[] = {0, 2}, twice[] = {1, 1}, three[] = {0, 1, 0},
                       before[] = {0, -1};
  Array array;
  for (int i = 0; i < 4; ++i) {
    integers(&array, 4, i == 0 ? down : i == 1 ? late : i == 2 ? far : near);
    makeProblem(&p, 1, 5, 4, 2, 3, kDLFloat, 32, 0);
    rule_forward_args args = forwardArgs(&p);
    args.cu_seqlens = &array.tensor;
    expectError(&args, RECUR_ERROR_SEQUENCES, "'cu_seqlens'");
  }
  integers(&array, 4, down);
  WRONG(RECUR_ERROR_SHAPE, "cu_seqlens", args.cu_seqlens = &array.tensor); /* a batch of 2 */
  integers(&array, 2, below);
  WRONG(RECUR_ERROR_INDEX, "'state_index'", args.state_index = &array.tensor);
  integers(&array, 2, past);
  WRONG(RECUR_ERROR_INDEX, "'state_index'", args.state_index = &array.tensor);
  integers(&array, 2, twice);
  WRONG(RECUR_ERROR_INDEX, "'state_index'", args.state_index = &array.tensor);
  integers(&array, 3, three);
  WRONG(RECUR_ERROR_SHAPE, "'state_index'", args.state_index = &array.tensor);
  integers(&array, 2, before);
  WRONG(RECUR_ERROR_POSITION, "'positions'", args.positions = &array.tensor);
  array.tensor.dtype.code = kDLFloat;
  WRONG(RECUR_ERROR_DTYPE, "'positions'", args.positions = &array.tensor);
}

static void calls(void) {
  makeProblem(&p, 2, 5, 4, 2, 2, kDLFloat, 32, 0);
  rule_forward_args args = forwardArgs(&p);
  expect(rule_forward(NULL, workspace, NULL) == RECUR_ERROR_NULL, "args", "NULL");
  if (rule_forward_workspace(&args) > 0)
    expect(rule_forward(&args, NULL, NULL) == RECUR_ERROR_WORKSPACE, "workspace", recur_last_error());
  recur_stream where = {NULL, NULL, 1 << 20, NULL};
  expect(rule_forward(&args, workspace, &where) == RECUR_ERROR_THREADS, "threads", recur_last_error());
  p.k.shape[3] = 5;
  expect(rule_forward_workspace(&args) == RECUR_ERROR_SHAPE, "workspace query", recur_last_error());
  /* A step takes one token, and this rule's must be told its position. */
  makeProblem(&p, 2, 1, 4, 2, 2, kDLFloat, 32, 0);
  rule_step_args step = {.q = &p.q.tensor,
                         .k = &p.k.tensor,
                         .v = &p.v.tensor,
                         .a = &p.a.tensor,
                         .w = &p.w.tensor,
                         .o = &p.o.tensor,
                         .S = &p.final.tensor};
  expect(rule_step(&step, workspace, NULL) == RECUR_ERROR_POSITION, "positions", recur_last_error());
  static const int32_t zero[] = {0, 0};
  Array positions;
  integers(&positions, 2, zero);
  step.positions = &positions.tensor;
  step.S = NULL;
  expect(rule_step(&step, workspace, NULL) == RECUR_ERROR_NULL && strstr(recur_last_error(), "'S'"), "S",
         recur_last_error());
  step.S = &p.final.tensor;
  p.q.shape[1] = p.k.shape[1] = p.v.shape[1] = p.a.shape[1] = p.o.shape[1] = 2;
  expect(rule_step(&step, workspace, NULL) == RECUR_ERROR_SHAPE, "tokens", recur_last_error());
}

int main(void) {
  tensors();
  sequences();
  calls();
  return failures != 0;
}

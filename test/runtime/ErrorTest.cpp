//===- ErrorTest.cpp - every error of a call: its code, its text, and nothing written
//----------------------===//
#include "test/runtime/Toy.h"

#include <gtest/gtest.h>

using namespace recur::test;

namespace {

char workspace[1 << 16];

/// One call with one thing wrong.
struct Wrong : Toy {
  using Toy::Toy;
  Wrong() : Toy(2, 3, 4, 2) {}

  void expectForward(int32_t code, const std::string &text) {
    const auto before = std::pair{o.bytes(), final.bytes()};
    EXPECT_EQ(toy_forward(&args, workspace, nullptr), code);
    EXPECT_EQ(recur_last_error(), "toy_forward: " + text);
    EXPECT_TRUE(before == (std::pair{o.bytes(), final.bytes()})) << "something was written";
  }
  void expectStep(int32_t code, const std::string &text) {
    const auto before = std::pair{o.bytes(), final.bytes()};
    EXPECT_EQ(toy_step(&stepArgs, workspace, nullptr), code);
    EXPECT_EQ(recur_last_error(), "toy_step: " + text);
    EXPECT_TRUE(before == (std::pair{o.bytes(), final.bytes()})) << "something was written";
  }
};

TEST(Error, Model) {
  Wrong toy;
  recur_model model = toy_model;
  model.magic = 0x1234;
  EXPECT_EQ(recur_rt_forward(&model, &toy.args, workspace, nullptr), RECUR_ERROR_VERSION);
  EXPECT_STREQ(recur_last_error(),
               "the model must start with 0x52554352, but it starts with 0x1234: recurc did not make it");
  model.magic = RECUR_MAGIC;
  model.abi_version = RECUR_ABI_VERSION + 1;
  EXPECT_EQ(recur_rt_step(&model, &toy.stepArgs, workspace, nullptr), RECUR_ERROR_VERSION);
  EXPECT_EQ(recur_last_error(), "the model was compiled for version " +
                                    std::to_string(RECUR_ABI_VERSION + 1) +
                                    " of the binary interface, but this librecur_rt has version " +
                                    std::to_string(RECUR_ABI_VERSION) +
                                    ": compile it again, or link the librecur_rt of its compiler");
  EXPECT_EQ(recur_rt_forward_workspace(&model, &toy.args), RECUR_ERROR_VERSION);
  model = toy_model;
  model.dim_count = 65;
  EXPECT_EQ(recur_rt_forward(&model, &toy.args, workspace, nullptr), RECUR_ERROR_VERSION);
  EXPECT_STREQ(recur_last_error(),
               "toy_forward: the model has 9 tensors and 65 dimensions, but this librecur_rt "
               "takes at most 64 and 64");
  EXPECT_EQ(recur_rt_forward(nullptr, &toy.args, workspace, nullptr), RECUR_ERROR_NULL);
  EXPECT_STREQ(recur_last_error(), "the model is NULL");
}

TEST(Error, NullPointers) {
  Wrong toy;
  EXPECT_EQ(toy_forward(nullptr, workspace, nullptr), RECUR_ERROR_NULL);
  EXPECT_STREQ(recur_last_error(), "toy_forward: 'args' is NULL");
  for (const auto &[field, name] :
       {std::pair{&toy_forward_args::q, "q"}, {&toy_forward_args::p, "p"}, {&toy_forward_args::o, "o"}}) {
    Wrong other;
    other.args.*field = nullptr;
    other.expectForward(RECUR_ERROR_NULL, "'" + std::string(name) + "' is NULL, but it must be given");
  }
  Wrong step(2, 1, 1);
  step.stepArgs.S = nullptr;
  step.expectStep(RECUR_ERROR_NULL, "'S' is NULL, but it must be given");
  toy.k.tensor.shape = nullptr;
  toy.expectForward(RECUR_ERROR_NULL, "'k' has a NULL shape");
  Wrong data;
  data.initial.tensor.data = nullptr;
  data.expectForward(RECUR_ERROR_NULL, "'initial_S' has NULL data, but it is not empty");
}

TEST(Error, Workspace) {
  Wrong toy;
  recur_set_parallel_for(nullptr, nullptr, 2);
  EXPECT_EQ(toy_forward(&toy.args, nullptr, nullptr), RECUR_ERROR_WORKSPACE);
  EXPECT_STREQ(recur_last_error(),
               "toy_forward: 'workspace' is NULL, but toy_forward_workspace asks for 192 bytes");
  recur_stream where = {nullptr, nullptr, 3, nullptr};
  EXPECT_EQ(toy_forward(&toy.args, workspace, &where), RECUR_ERROR_THREADS);
  EXPECT_STREQ(recur_last_error(),
               "toy_forward: 'where->threads' must be from 0 to recur_threads(), which is 2, but it is 3");
  where.threads = -1;
  EXPECT_EQ(toy_forward(&toy.args, workspace, &where), RECUR_ERROR_THREADS);
  recur_set_parallel_for(nullptr, nullptr, 0);
}

TEST(Error, Device) {
  Wrong toy;
  toy.v.tensor.device.device_type = kDLCUDA;
  toy.expectForward(RECUR_ERROR_DEVICE,
                    "'v' must be on the CPU, as the first output, but it is on CUDA device 0");
  Wrong other;
  Indices index(i32, {0, 1});
  index.tensor.device.device_type = kDLCUDA;
  other.args.state_index = &index.tensor;
  other.expectForward(RECUR_ERROR_DEVICE,
                      "'state_index' must be on the CPU, as the first output, but it is on CUDA device 0");
}

TEST(Error, Dtype) {
  const std::pair<DLDataType, const char *> found[] = {{{kDLFloat, 64, 1}, "float64"},
                                                       {{kDLUInt, 8, 1}, "uint8"},
                                                       {{kDLFloat, 32, 4}, "float32 in 4 lanes"},
                                                       {{99, 4, 1}, "type code 99 of 4 bits"}};
  for (const auto &[type, name] : found) {
    Wrong toy;
    toy.k.tensor.dtype = type;
    toy.expectForward(RECUR_ERROR_DTYPE,
                      "'k' must be float32 or bfloat16 or float16, but it is " + std::string(name));
  }
  Wrong state;
  state.final.tensor.dtype = bf16;
  state.expectForward(RECUR_ERROR_DTYPE, "'final_S' must be float32, but it is bfloat16");
  Wrong toy;
  Indices ends(f32, {2});
  toy.args.cu_seqlens = &ends.tensor;
  toy.expectForward(RECUR_ERROR_DTYPE, "'cu_seqlens' must be int32 or int64, but it is float32");
}

TEST(Error, Rank) {
  Wrong toy;
  Array k(f32, {3, 4, 4}), S(f32, {2, 4});
  Indices index(i32, {2, 2});
  toy.args.k = &k.tensor;
  toy.expectForward(RECUR_ERROR_SHAPE, "'k' must have 4 dimensions [batch, token, head, dk], but it has 3");
  Wrong state;
  state.args.initial_S = &S.tensor;
  state.expectForward(RECUR_ERROR_SHAPE,
                      "'initial_S' must have 4 dimensions [sequence, head, dv, dk], but it has 2");
  Wrong pool;
  index.tensor.ndim = 2;
  pool.args.state_index = &index.tensor;
  pool.args.initial_S = &S.tensor;
  pool.expectForward(RECUR_ERROR_SHAPE,
                     "'initial_S' must have 4 dimensions [slot, head, dv, dk], but it has 2");
  pool.args.initial_S = nullptr;
  pool.expectForward(RECUR_ERROR_SHAPE, "'state_index' must have 1 dimension, but it has 2");
  Wrong param;
  param.args.p = &S.tensor;
  S.tensor.ndim = 1;
  param.expectForward(RECUR_ERROR_SHAPE, "'p' must have 2 dimensions [head, dv], but it has 1");
}

TEST(Error, Sizes) {
  const auto expect = [](auto field, std::vector<int64_t> shape, const char *text) {
    Wrong toy;
    Array array(f32, std::move(shape));
    toy.args.*field = &array.tensor;
    toy.expectForward(RECUR_ERROR_SHAPE, text);
  };
  expect(&toy_forward_args::k, {3, 3, 2, 4}, "'k' has 3 in dimension 0 (batch), but 'o' has 2");
  expect(&toy_forward_args::k, {2, 5, 2, 4}, "'k' has 5 in dimension 1 (token), but 'o' has 3");
  expect(&toy_forward_args::k, {2, 3, 3, 4},
         "'k' has 3 in dimension 2 (head), which does not divide the 4 of 'o'");
  expect(&toy_forward_args::k, {2, 3, 0, 4},
         "'k' has 0 in dimension 2 (head), which does not divide the 4 of 'o'");
  expect(&toy_forward_args::p, {8, 3}, "'p' has 8 in dimension 0 (head), which does not divide the 4 of 'o'");
  expect(&toy_forward_args::k, {2, 3, 2, 5},
         "'k' has 5 in dimension 3 (dk), but this was compiled for 4 or 8 or 16");
  expect(&toy_forward_args::k, {2, 3, 2, 8}, "'k' has 8 in dimension 3 (dk), but 'q' has 4");
  expect(&toy_forward_args::c, {2, 3, 4, 3}, "'c' has 3 in dimension 3 (2), but this was compiled for 2");
  expect(&toy_forward_args::v, {2, 3, 4, 0}, "'v' has 0 in dimension 3 (dv), but this was compiled for 3");
  expect(&toy_forward_args::initial_S, {3, 4, 3, 4},
         "'initial_S' has 3 in dimension 0 (sequence), but the number of sequences is 2");
  expect(&toy_forward_args::final_S, {2, 2, 3, 4}, "'final_S' has 2 in dimension 1 (head), but 'o' has 4");
  Wrong toy;
  toy.q.shape[1] = -3;
  toy.expectForward(RECUR_ERROR_SHAPE, "'q' has -3 in dimension 1 (token), but sizes are not negative");
  Wrong indices;
  Indices index(i32, {0, 1});
  index.shape[0] = -1;
  indices.args.positions = &index.tensor;
  indices.expectForward(RECUR_ERROR_SHAPE, "'positions' has -1 entries, but sizes are not negative");
  index.shape[0] = 1;
  indices.expectForward(RECUR_ERROR_SHAPE,
                        "'positions' has 1 in dimension 0 (sequence), but the number of sequences is 2");
}

TEST(Error, StepTakesOneToken) {
  Wrong toy(2, 2, 1);
  toy.expectStep(RECUR_ERROR_SHAPE,
                 "'o' has 2 in dimension 1 (token), but a step takes one token of each sequence");
}

TEST(Error, HugeSizes) {
  constexpr int64_t huge = int64_t(1) << 62;
  Wrong compact;
  compact.q.shape = {huge, huge, 2, 4};
  compact.q.tensor.shape = compact.q.shape.data();
  compact.expectForward(RECUR_ERROR_STRIDE, "'q' spans more bytes than there are addresses");
  Wrong strided;
  std::vector<int64_t> strides = {INT64_MIN, 0, 0, 1};
  strided.q.tensor.strides = strides.data();
  strided.expectForward(RECUR_ERROR_STRIDE, "'q' spans more bytes than there are addresses");
  strides[0] = -(INT64_MAX / 8);
  strided.expectForward(RECUR_ERROR_STRIDE, "'q' reaches past the end of the address space");
  Wrong offset;
  offset.q.tensor.byte_offset = UINT64_MAX - 3;
  offset.expectForward(RECUR_ERROR_STRIDE, "'q' reaches past the end of the address space");
  Wrong index;
  Indices positions(i64, {0, 1});
  std::vector<int64_t> far = {INT64_MAX / 4};
  positions.tensor.strides = far.data();
  index.args.positions = &positions.tensor;
  index.expectForward(RECUR_ERROR_STRIDE, "'positions' spans more bytes than there are addresses");
  // A broadcast of any size is legal by itself: what is too much is the number of tasks.
  Wrong tasks(1, 1, 1);
  Indices ends(i32, {0, 1});
  std::vector<int64_t> still = {0, 0, 0, 0};
  for (Array *array : {&tasks.q, &tasks.k, &tasks.v, &tasks.g, &tasks.c, &tasks.o})
    array->shape[0] = array->shape[2] = huge, array->tensor.strides = still.data();
  for (Array *array : {&tasks.o})
    array->shape[1] = 0;
  for (Array *array : {&tasks.q, &tasks.k, &tasks.v, &tasks.g, &tasks.c})
    array->shape[1] = 0;
  tasks.p.shape[0] = 1;
  tasks.args.initial_S = tasks.args.final_S = nullptr;
  tasks.expectForward(RECUR_ERROR_SHAPE,
                      "4611686018427387904 sequences of 4611686018427387904 heads are too many to count");
}

TEST(Error, WrittenElementsThatOverlap) {
  Wrong toy;
  std::vector<int64_t> strides = {36, 0, 3, 1};
  toy.o.tensor.strides = strides.data();
  toy.expectForward(RECUR_ERROR_STRIDE,
                    "'o' is written, so its elements must not share memory, but dimension 1 (token) "
                    "has stride 0 and the dimensions inside it reach 0");
  strides = {36, 12, -2, 1};
  toy.expectForward(RECUR_ERROR_STRIDE,
                    "'o' is written, so its elements must not share memory, but dimension 2 (head) "
                    "has stride -2 and the dimensions inside it reach 2");
  Wrong state(2, 1, 1);
  std::vector<int64_t> same = {0, 12, 4, 1};
  state.final.tensor.strides = same.data();
  state.expectForward(RECUR_ERROR_STRIDE,
                      "'final_S' is written, so its elements must not share memory, but dimension 0 "
                      "(sequence) has stride 0 and the dimensions inside it reach 0");
  state.expectStep(RECUR_ERROR_STRIDE,
                   "'S' is written, so its elements must not share memory, but dimension 0 "
                   "(sequence) has stride 0 and the dimensions inside it reach 0");
}

TEST(Error, Alignment) {
  Wrong toy;
  toy.q.tensor.byte_offset = 2;
  toy.expectForward(
      RECUR_ERROR_ALIGNMENT,
      "'q' must start at a multiple of 4 bytes (float32), but its first element is 2 bytes past one");
  Wrong index;
  Indices ends(i64, {0, 1});
  ends.tensor.byte_offset = 4;
  index.args.positions = &ends.tensor;
  index.expectForward(RECUR_ERROR_ALIGNMENT,
                      "'positions' must start at a multiple of 8 bytes (int64), but its first "
                      "element is 4 bytes past one");
}

TEST(Error, Sequences) {
  const auto expect = [](std::vector<int64_t> entries, const char *text) {
    Wrong toy(1, 6, 1);
    Indices ends(i32, entries);
    toy.args.cu_seqlens = &ends.tensor;
    toy.args.initial_S = toy.args.final_S = nullptr;
    toy.expectForward(RECUR_ERROR_SEQUENCES, text);
  };
  expect({}, "'cu_seqlens' is empty, but it has one more entry than sequences");
  expect({1, 6}, "'cu_seqlens' must start at 0, but it starts at 1");
  expect({0, 4, 3, 6}, "'cu_seqlens' must ascend, but entry 2 is 3 after 4");
  expect({0, 4, 7, 6}, "'cu_seqlens' must ascend, but entry 3 is 6 after 7");
  expect({0, 4, 5}, "'cu_seqlens' must end at the number of tokens, 6, but it ends at 5");
  expect({0}, "'cu_seqlens' must end at the number of tokens, 6, but it ends at 0");
  Wrong toy;
  Indices ends(i32, {0, 3});
  toy.args.cu_seqlens = &ends.tensor;
  toy.expectForward(RECUR_ERROR_SHAPE, "'cu_seqlens' needs a batch of 1, but 'o' has 2 in dimension 0");
}

TEST(Error, StateIndex) {
  Wrong toy;
  Indices index(i64, {0, 2}), negative(i32, {-1, 0}), twice(i32, {1, 1}), three(i32, {0, 1, 2});
  toy.args.state_index = &index.tensor;
  toy.expectForward(RECUR_ERROR_INDEX,
                    "'state_index' must be in range, but entry 1 is 2 and 'initial_S' has 2 slots");
  toy.args.state_index = &negative.tensor;
  toy.args.initial_S = nullptr;
  toy.expectForward(RECUR_ERROR_INDEX,
                    "'state_index' must be in range, but entry 0 is -1 and 'final_S' has 2 slots");
  toy.args.state_index = &twice.tensor;
  toy.expectForward(RECUR_ERROR_INDEX,
                    "'state_index' must not name a slot twice where states are written, but "
                    "entries 0 and 1 are both 1");
  toy.args.state_index = &three.tensor;
  toy.expectForward(RECUR_ERROR_SHAPE,
                    "'state_index' has 3 in dimension 0 (sequence), but the number of sequences is 2");
}

TEST(Error, StateIndexOfALargePool) {
  Wrong toy(4, 1, 1);
  Array pool(f32, {70000, 1, 3, 4});
  Indices index(i64, {3, 69999, 5, 69999}), positions(i32, {0, 0, 0, 0});
  toy.stepArgs.S = &pool.tensor;
  toy.stepArgs.state_index = &index.tensor;
  toy.stepArgs.positions = &positions.tensor;
  toy.expectStep(RECUR_ERROR_INDEX, "'state_index' must not name a slot twice where states are written, but "
                                    "entries 1 and 3 are both 69999");
}

TEST(Error, Positions) {
  Wrong toy(2, 1, 1);
  toy.expectStep(RECUR_ERROR_POSITION, "'positions' is NULL, but the rule uses the tokens' positions");
  Indices negative(i32, {0, -5}), late(i64, {0, INT64_MAX});
  toy.stepArgs.positions = &negative.tensor;
  toy.expectStep(RECUR_ERROR_POSITION, "'positions' must not be negative, but entry 1 is -5");
  toy.stepArgs.positions = &late.tensor;
  toy.expectStep(RECUR_ERROR_POSITION,
                 "'positions' must leave room for 1 tokens, but entry 1 is 9223372036854775807");
}

TEST(Error, Variants) {
  Wrong mixed(1, 1, 1, 1, 8, bf16);
  mixed.expectForward(
      RECUR_ERROR_VARIANT,
      "nothing was compiled for dk=8 dv=3 bfloat16, only for dk=4 dv=3 float32; dk=8 dv=3 float32; "
      "dk=4 dv=3 bfloat16; dk=4 dv=3 float16; dk=16 dv=3 float32");
  mixed.args.initial_S = mixed.args.final_S = nullptr;
  mixed.v.tensor.dtype = f16;
  mixed.expectForward(
      RECUR_ERROR_VARIANT,
      "nothing was compiled for dk=8 dv=3 q:bfloat16 k:bfloat16 v:float16 g:bfloat16 c:bfloat16 "
      "p:bfloat16 o:bfloat16, only for dk=4 dv=3 float32; dk=8 dv=3 float32; dk=4 dv=3 bfloat16; "
      "dk=4 dv=3 float16; dk=16 dv=3 float32");
  Wrong large(1, 1, 1, 1, 16);
  EXPECT_EQ(large.forward(), RECUR_ERROR_TARGET);
  const std::string text = recur_last_error();
  const std::string start =
      "toy_forward: this was compiled for moon-v1 or moon-v2, but this machine only has x86-64";
  EXPECT_EQ(text.substr(0, start.size()), start);
}

TEST(Error, QueriesCheckShapesToo) {
  Wrong toy;
  toy.k.shape[3] = 5;
  EXPECT_EQ(toy_forward_workspace(&toy.args), RECUR_ERROR_SHAPE);
  Wrong step(2, 1, 1);
  EXPECT_EQ(toy_step_workspace(&step.stepArgs), RECUR_ERROR_POSITION);
}

TEST(Error, HandlerIsTold) {
  static int32_t told;
  static std::string text;
  recur_set_error_handler(
      [](void *context, int32_t code, const char *words) {
        *static_cast<int32_t *>(context) = code;
        text = words;
      },
      &told);
  EXPECT_EQ(toy_forward(nullptr, nullptr, nullptr), RECUR_ERROR_NULL);
  recur_set_error_handler(nullptr, nullptr);
  EXPECT_EQ(told, RECUR_ERROR_NULL);
  EXPECT_EQ(text, "toy_forward: 'args' is NULL");
  told = 0;
  EXPECT_EQ(toy_forward(nullptr, nullptr, nullptr), RECUR_ERROR_NULL);
  EXPECT_EQ(told, 0);
}

TEST(Error, Names) {
  EXPECT_STREQ(recur_error_name(RECUR_OK), "RECUR_OK");
  EXPECT_STREQ(recur_error_name(RECUR_ERROR_SHAPE), "RECUR_ERROR_SHAPE");
  for (int32_t code = RECUR_ERROR_THREADS; code < 0; ++code)
    EXPECT_EQ(std::string(recur_error_name(code)).rfind("RECUR_ERROR_", 0), 0u);
  EXPECT_STREQ(recur_error_name(-99), "unknown");
  EXPECT_STREQ(recur_error_name(1), "unknown");
}

} // namespace

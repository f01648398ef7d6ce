//===- CallTest.cpp - calls that succeed
//-------------------------------------------------------------------===//
#include "test/runtime/Toy.h"

#include <gtest/gtest.h>

using namespace recur::test;

namespace {

/// Runs forward and compares output and final state with the rule's meaning.
void expectForward(Toy &toy, const std::vector<int64_t> &ends = {},
                   const std::vector<int64_t> &positions = {}) {
  std::vector<float> state = values(toy.initial);
  const std::vector<float> output = toy.expected(state, ends, positions);
  ASSERT_EQ(toy.forward(), RECUR_OK) << recur_last_error();
  EXPECT_EQ(values(toy.o), output);
  EXPECT_EQ(values(toy.final), state);
  EXPECT_EQ(toy_scratch_errors(), 0);
}

TEST(Call, Batch) {
  Toy toy(2, 5, 3);
  expectForward(toy);
}

TEST(Call, GroupedHeads) {
  Toy toy(2, 3, 4, 2);
  expectForward(toy);
}

TEST(Call, OtherDims) {
  Toy toy(1, 4, 2, 1, 8);
  expectForward(toy);
}

TEST(Call, HalfTypes) {
  for (const DLDataType type : {bf16, f16}) {
    Toy toy(1, 2, 2, 1, 4, type), wide(1, 2, 2, 1, 4);
    toy.initial.setBytes(0);
    wide.initial.setBytes(0);
    ASSERT_EQ(toy.forward(), RECUR_OK) << recur_last_error();
    ASSERT_EQ(wide.forward(), RECUR_OK) << recur_last_error();
    for (int64_t i = 0; i < toy.o.count(); ++i)
      EXPECT_NEAR(toy.o.get(i), wide.o.get(i), 0.01 * (1 + std::abs(wide.o.get(i))));
  }
}

TEST(Call, NoInitialAndNoFinalState) {
  Toy toy(2, 5, 3);
  toy.args.initial_S = toy.args.final_S = nullptr;
  std::vector<float> state(static_cast<size_t>(toy.initial.count()));
  const std::vector<float> output = toy.expected(state);
  ASSERT_EQ(toy.forward(), RECUR_OK) << recur_last_error();
  EXPECT_EQ(values(toy.o), output);
  EXPECT_EQ(toy.final.bytes(), std::vector<unsigned char>(toy.final.bytes().size(), 0xAB));
}

TEST(Call, Strides) {
  Toy toy(2, 3, 2);
  // Reversed tokens, a broadcast decay, transposed states, a padded output; elements between stay as they
  // were.
  Array k(f32, {2, 3, 1, 4}, {12, -4, 99, 1}), g(f32, {2, 3, 2}, {0, 0, 0}, 5);
  Array initial(f32, {2, 2, 3, 4}, {24, 12, 1, 3}), final(f32, {2, 2, 3, 4}, {1, 2, 16, 4});
  Array o(f32, {2, 3, 2, 3}, {100, 32, 8, 2}, 3);
  k.fill(7);
  g.fill(8);
  initial.fill(9);
  o.setBytes(0xCD);
  toy.args = {&toy.q.tensor,   &k.tensor, &toy.v.tensor, &g.tensor, &toy.c.tensor, &toy.p.tensor,
              &initial.tensor, nullptr,   nullptr,       nullptr,   &o.tensor,     &final.tensor};
  for (int64_t i = 0; i < k.count(); ++i)
    toy.k.set(i, k.get(i));
  for (int64_t i = 0; i < g.count(); ++i)
    toy.g.set(i, g.get(i));
  std::vector<float> state = values(initial);
  const std::vector<float> output = toy.expected(state);
  const std::vector<unsigned char> before = o.bytes();
  ASSERT_EQ(toy.forward(), RECUR_OK) << recur_last_error();
  EXPECT_EQ(values(o), output);
  EXPECT_EQ(values(final), state);
  size_t changed = 0;
  for (size_t i = 0; i < before.size(); ++i)
    changed += before[i] != o.bytes()[i];
  EXPECT_LE(changed, output.size() * 4);
}

TEST(Call, PackedSequences) {
  for (const DLDataType type : {i32, i64}) {
    Toy toy(1, 7, 2);
    Array initial(f32, {3, 2, 3, 4}), final(f32, {3, 2, 3, 4});
    Indices ends(type, {0, 3, 3, 7});
    initial.fill(3);
    toy.args.cu_seqlens = &ends.tensor;
    toy.args.initial_S = &initial.tensor;
    toy.args.final_S = &final.tensor;
    std::vector<float> state = values(initial);
    const std::vector<float> output = toy.expected(state, {0, 3, 3, 7});
    ASSERT_EQ(toy.forward(), RECUR_OK) << recur_last_error();
    EXPECT_EQ(values(toy.o), output);
    EXPECT_EQ(values(final), state);
  }
}

TEST(Call, PositionsContinueASequence) {
  Toy toy(2, 2, 1);
  Indices positions(i32, {10, 0});
  toy.args.positions = &positions.tensor;
  expectForward(toy, {}, {10, 0});
}

TEST(Call, StatePool) {
  Toy toy(2, 3, 2);
  Array pool(f32, {5, 2, 3, 4});
  Indices index(i64, {4, 1});
  pool.fill(1);
  const std::vector<float> before = values(pool);
  toy.args.initial_S = toy.args.final_S = &pool.tensor;
  toy.args.state_index = &index.tensor;
  std::vector<float> state(before.begin() + 4 * 24, before.end());
  state.insert(state.end(), before.begin() + 24, before.begin() + 2 * 24);
  const std::vector<float> output = toy.expected(state);
  ASSERT_EQ(toy.forward(), RECUR_OK) << recur_last_error();
  EXPECT_EQ(values(toy.o), output);
  const std::vector<float> after = values(pool);
  EXPECT_TRUE(std::equal(state.begin(), state.begin() + 24, after.begin() + 4 * 24));
  EXPECT_TRUE(std::equal(state.begin() + 24, state.end(), after.begin() + 24));
  EXPECT_TRUE(std::equal(before.begin() + 2 * 24, before.begin() + 4 * 24, after.begin() + 2 * 24));
}

TEST(Call, ReadOnlyPoolMayNameASlotTwice) {
  Toy toy(2, 3, 2);
  Indices index(i32, {1, 1});
  toy.args.state_index = &index.tensor;
  toy.args.final_S = nullptr;
  EXPECT_EQ(toy.forward(), RECUR_OK) << recur_last_error();
}

TEST(Call, LargePool) {
  Toy toy(3, 1, 1);
  Array pool(f32, {100000, 1, 3, 4});
  Indices index(i64, {99999, 0, 40000}), positions(i32, {0, 0, 0});
  toy.stepArgs.S = &pool.tensor;
  toy.stepArgs.state_index = &index.tensor;
  toy.stepArgs.positions = &positions.tensor;
  EXPECT_EQ(toy.step(), RECUR_OK) << recur_last_error();
}

TEST(Call, StepsEqualForward) {
  Toy all(2, 4, 3);
  ASSERT_EQ(all.forward(), RECUR_OK) << recur_last_error();
  Array state(f32, {2, 3, 3, 4});
  for (int64_t i = 0; i < state.count(); ++i)
    state.set(i, all.initial.get(i));
  for (int64_t t = 0; t < 4; ++t) {
    Toy one(2, 1, 3);
    for (const auto &[to, from] : {std::pair{&one.q, &all.q},
                                   {&one.k, &all.k},
                                   {&one.v, &all.v},
                                   {&one.g, &all.g},
                                   {&one.c, &all.c}}) {
      const int64_t inner = to->count() / 2;
      for (int64_t i = 0; i < to->count(); ++i)
        to->set(i, from->get((i / inner * 4 + t) * inner + i % inner));
    }
    Indices positions(i32, {t, t});
    one.stepArgs.S = &state.tensor;
    one.stepArgs.positions = &positions.tensor;
    ASSERT_EQ(one.step(), RECUR_OK) << recur_last_error();
    for (int64_t i = 0; i < one.o.count(); ++i)
      EXPECT_EQ(one.o.get(i), all.o.get((i / 9 * 4 + t) * 9 + i % 9));
  }
  EXPECT_EQ(values(state), values(all.final));
}

TEST(Call, NothingToDo) {
  for (const auto &[batch, tokens, heads] : {std::array<int64_t, 3>{0, 4, 2}, {2, 4, 0}, {0, 0, 0}}) {
    Toy toy(batch, tokens, heads, heads);
    EXPECT_EQ(toy_forward_workspace(&toy.args), 0);
    EXPECT_EQ(toy_forward(&toy.args, nullptr, nullptr), RECUR_OK) << recur_last_error();
  }
  Toy toy(0, 1, 2);
  Indices none(i32, {});
  for (Array *array : std::initializer_list<Array *>{&toy.q, &toy.v, &toy.o, &toy.final, &none})
    array->tensor.data = nullptr;
  toy.stepArgs.positions = &none.tensor;
  toy.stepArgs.state_index = &none.tensor;
  EXPECT_EQ(toy_step(&toy.stepArgs, nullptr, nullptr), RECUR_OK) << recur_last_error();
}

TEST(Call, NoTokensKeepTheState) {
  Toy toy(2, 0, 2);
  ASSERT_EQ(toy.forward(), RECUR_OK) << recur_last_error();
  EXPECT_EQ(values(toy.final), values(toy.initial));
}

TEST(Call, EmptyPackedBatch) {
  Toy toy(1, 0, 2);
  Array states(f32, {0, 2, 3, 4});
  Indices ends(i32, {0});
  toy.args.cu_seqlens = &ends.tensor;
  toy.args.initial_S = toy.args.final_S = &states.tensor;
  EXPECT_EQ(toy.forward(), RECUR_OK) << recur_last_error();
}

TEST(Call, WorkspaceCountsWorkers) {
  recur_set_parallel_for(nullptr, nullptr, 3);
  Toy toy(2, 1, 4);
  for (Array *array : {&toy.q, &toy.o, &toy.final})
    array->tensor.data = nullptr;
  EXPECT_EQ(toy_forward_workspace(&toy.args), 3 * 64 + 64);
  recur_set_parallel_for(nullptr, nullptr, 100);
  EXPECT_EQ(toy_forward_workspace(&toy.args), 8 * 64 + 64);
  recur_set_parallel_for(nullptr, nullptr, 0);
}

} // namespace

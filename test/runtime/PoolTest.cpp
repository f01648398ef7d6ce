//===- PoolTest.cpp - the parallel loop
//--------------------------------------------------------------------===//
#include "test/runtime/Toy.h"

#include <atomic>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>

using namespace recur::test;

#if defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define RECUR_TEST_TSAN
#endif
#endif

namespace {

/// Sets the number of workers for one test.
struct Threads {
  explicit Threads(int32_t count, recur_parallel_for loop = nullptr, void *context = nullptr) {
    recur_set_parallel_for(loop, context, count);
  }
  ~Threads() { recur_set_parallel_for(nullptr, nullptr, 0); }
};

void expectRight(int64_t batch, int64_t tokens, int64_t heads) {
  Toy toy(batch, tokens, heads);
  std::vector<float> state = values(toy.initial);
  const std::vector<float> output = toy.expected(state);
  ASSERT_EQ(toy.forward(), RECUR_OK) << recur_last_error();
  EXPECT_EQ(values(toy.o), output);
  EXPECT_EQ(values(toy.final), state);
}

std::atomic<int> inside, most;

void countInside() {
  const int now = ++inside;
  int seen = most;
  while (now > seen && !most.compare_exchange_weak(seen, now)) {
  }
  for (int i = 0; i < 200 && most < 2; ++i)
    usleep(100);
  --inside;
}

TEST(Pool, UsesItsThreads) {
  const Threads threads(4);
  most = 0;
  toy_inside = countInside;
  expectRight(4, 1, 4);
  toy_inside = nullptr;
  EXPECT_GE(most, 2);
  EXPECT_LE(most, 4);
  EXPECT_EQ(toy_scratch_errors(), 0);
}

TEST(Pool, ConcurrentCallers) {
  const Threads threads(4);
  std::vector<std::thread> callers;
  for (int caller = 0; caller < 6; ++caller)
    callers.emplace_back([caller] {
      for (int round = 0; round < 50; ++round)
        expectRight(1 + caller % 3, 3, 1 + round % 9);
    });
  for (std::thread &caller : callers)
    caller.join();
  EXPECT_EQ(toy_scratch_errors(), 0);
}

void callAgain() {
  toy_inside = nullptr;
  expectRight(2, 2, 3);
}

TEST(Pool, NestedCallsRunSerially) {
  const Threads threads(2);
  recur_stream one = {nullptr, nullptr, 1, nullptr};
  Toy toy(1, 1, 1);
  toy_inside = callAgain;
  ASSERT_EQ(toy.forward(&one), RECUR_OK);
  static std::atomic<bool> nested;
  nested = false;
  toy_inside = [] {
    static thread_local bool within;
    if (within)
      return;
    within = true;
    expectRight(2, 2, 3);
    within = false;
    nested = true;
  };
  expectRight(2, 2, 4);
  toy_inside = nullptr;
  EXPECT_TRUE(nested);
  EXPECT_EQ(toy_scratch_errors(), 0);
}

struct Seen {
  int calls = 0;
  int64_t tasks = 0;
  int32_t workers = 0;
};

/// A caller's own loop: backwards, with the workers in turn.
void backwards(void *context, int64_t tasks, int32_t workers, recur_task body, void *data) {
  *static_cast<Seen *>(context) = {static_cast<Seen *>(context)->calls + 1, tasks, workers};
  for (int64_t task = tasks; task-- > 0;)
    body(data, task, static_cast<int32_t>(task % workers));
}

TEST(Pool, HookOfOneCall) {
  const Threads threads(8);
  Seen seen;
  Toy toy(2, 3, 3);
  std::vector<float> state = values(toy.initial);
  const std::vector<float> output = toy.expected(state);
  recur_stream where = {backwards, &seen, 5, nullptr};
  ASSERT_EQ(toy.forward(&where), RECUR_OK) << recur_last_error();
  EXPECT_EQ(values(toy.o), output);
  EXPECT_EQ(seen.calls, 1);
  EXPECT_EQ(seen.tasks, 6);
  EXPECT_EQ(seen.workers, 5);
}

TEST(Pool, HookOfTheProcess) {
  Seen seen;
  const Threads threads(16, backwards, &seen);
  EXPECT_EQ(recur_threads(), 16);
  expectRight(2, 3, 3);
  EXPECT_EQ(seen.calls, 1);
  EXPECT_EQ(seen.workers, 6);
  recur_stream serial = {nullptr, nullptr, 1, nullptr};
  Toy toy(2, 1, 2);
  ASSERT_EQ(toy.forward(&serial), RECUR_OK);
  EXPECT_EQ(seen.calls, 1);
}

TEST(Pool, SurvivesAFork) {
#ifdef RECUR_TEST_TSAN
  GTEST_SKIP() << "ThreadSanitizer does not take threads started after a fork";
#endif
  const Threads threads(3);
  expectRight(2, 2, 3);
  const pid_t child = fork();
  if (child == 0) {
    alarm(20);
    expectRight(2, 2, 3);
    _exit(testing::Test::HasFailure() ? 1 : 0);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  expectRight(2, 2, 3);
}

TEST(Pool, AtLeastOneThread) { EXPECT_GE(recur_threads(), 1); }

} // namespace

// The same rule from C++17: several threads call at once, and a loop of the caller's own runs the heads.
#define _Alignas alignas
#include "arrays.h"

#include <atomic>
#include <cstddef>
#include <memory>
#include <thread>
#include <vector>

// Runs the tasks on as many threads as there are workers.
static void onThreads(void *context, int64_t tasks, int32_t workers, recur_task body, void *data) {
  std::atomic<int64_t> next{0};
  std::vector<std::thread> threads;
  for (int32_t worker = 0; worker < workers; ++worker)
    threads.emplace_back([&, worker] {
      for (int64_t task; (task = next++) < tasks;)
        body(data, task, worker);
    });
  for (std::thread &thread : threads)
    thread.join();
  ++*static_cast<std::atomic<int> *>(context);
}

static void call(recur_stream *where, const char *what) {
  auto p = std::make_unique<Problem>();
  makeProblem(p.get(), 3, 6, 8, 4, 3, kDLFloat, 32, 0);
  rule_forward_args args = forwardArgs(p.get());
  int64_t bytes = rule_forward_workspace(&args);
  expect(bytes >= 0, what, recur_last_error());
  std::vector<std::max_align_t> workspace(static_cast<size_t>(bytes) / sizeof(std::max_align_t) + 1);
  expect(rule_forward(&args, workspace.data(), where) == RECUR_OK, what, recur_last_error());
  for (int64_t b = 0; b < 3; ++b)
    for (int64_t h = 0; h < 8; ++h)
      compare(p.get(), what, b, h, 0, 6, 0, b, 1, 1e-5);
}

int main() {
  call(nullptr, "default loop");
  std::atomic<int> loops{0};
  recur_set_parallel_for(nullptr, nullptr, 3);
  recur_stream where = {onThreads, &loops, 3, nullptr};
  call(&where, "loop of the call");
  expect(loops == 1, "loop of the call", "was not used");
  recur_set_parallel_for(onThreads, &loops, 2);
  call(nullptr, "loop of the process");
  expect(loops == 2, "loop of the process", "was not used");
  recur_set_parallel_for(nullptr, nullptr, 0);
  std::vector<std::thread> callers;
  for (int i = 0; i < 4; ++i)
    callers.emplace_back([] {
      for (int j = 0; j < 8; ++j)
        call(nullptr, "several callers");
    });
  for (std::thread &caller : callers)
    caller.join();
  // Errors belong to the thread that made them.
  rule_forward(nullptr, nullptr, nullptr);
  std::thread([] { expect(!*recur_last_error(), "last error", recur_last_error()); }).join();
  expect(*recur_last_error(), "last error", "is empty");
  return failures != 0;
}

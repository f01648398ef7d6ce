// Compiles the text of a rule and calls its kernel.
#pragma once
#include "lib/Cpu/Cpu.h"
#include "mlir/IR/MLIRContext.h"
#include "llvm/ExecutionEngine/Orc/LLJIT.h"

#include <random>

namespace recur::test {

/// A tensor of one sequence and head, with the memref descriptor that kernels take.
class Tensor {
public:
  /// `gap` > 1 leaves that many places for each entry of the last dimension. With `token` there are so many
  /// bytes from one entry of the first dimension to the next, and the first begins at a line of the caches.
  Tensor(std::vector<int64_t> shape, DType dtype = DType::F32, int64_t gap = 1, int64_t token = 0);
  Tensor(Tensor &&) = default;

  /// A tensor that the caller does not give.
  static Tensor absent(int64_t rank);
  /// Entries drawn evenly from an interval.
  static Tensor random(std::vector<int64_t> shape, double lo, double hi, unsigned seed,
                       DType dtype = DType::F32, int64_t gap = 1);

  double get(std::vector<int64_t> place) const;
  void set(std::vector<int64_t> place, double value);
  void *descriptor() { return words.data(); }
  const std::vector<int64_t> &shape() const { return sizes; }

private:
  int64_t offsetOf(const std::vector<int64_t> &place) const;

  DType dtype;
  std::vector<int64_t> sizes, strides;
  int64_t begin = 0; // in `memory`
  std::vector<char> memory;
  std::vector<int64_t> words;
};

/// What a kernel is told about the part of the work it does.
struct Span {
  int64_t tokens, position = 0, head = 0, heads = 1, part = 0, parts = 1;
};

/// A compiled rule.
class Kernel {
public:
  /// Compiles the rule in `text`; on failure ok() is false and error() says why.
  explicit Kernel(llvm::StringRef text, cpu::KernelOptions options = {});

  bool ok() const { return function != nullptr; }
  const std::string &error() const { return message; }
  /// "sweep", or another.
  const std::string &form() const { return taken; }
  /// The most parts that a head can be cut into.
  int64_t parts() const { return mostParts; }
  /// Calls the kernel. Checks that it stays inside its scratch memory.
  void operator()(std::vector<Tensor *> tensors, Span span);

private:
  std::string message, taken;
  std::unique_ptr<llvm::orc::LLJIT> jit;
  void (*function)(void *const *, const Span *, void *) = nullptr;
  int64_t bytes = 0, mostParts = 1;
};

/// The largest difference of two tensors relative to the largest entry of `expected`.
double difference(const Tensor &actual, const Tensor &expected);

} // namespace recur::test

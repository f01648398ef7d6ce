// Calls the functions of a compiled object in this process.
#pragma once

#include "lib/Driver/Problem.h"
#include "llvm/Support/Error.h"
#include <recur/abi.h>

#include <memory>
#include <string>

namespace llvm::orc {
class LLJIT;
}

namespace recur {

/// An object file loaded into this process. It is called as any program would call it.
class LoadedRule {
public:
  static llvm::Expected<std::unique_ptr<LoadedRule>> load(llvm::StringRef object, llvm::StringRef name);
  ~LoadedRule();

  using Entry = int32_t (*)(const void *args, void *workspace, const recur_stream *where);
  using Query = int64_t (*)(const void *args);

  Entry forward = nullptr, step = nullptr;
  Query forwardWorkspace = nullptr, stepWorkspace = nullptr;
  const recur_metadata *metadata = nullptr;

private:
  LoadedRule();
  std::unique_ptr<llvm::orc::LLJIT> jit;
};

/// The tensors of one call, held in the types that the object was compiled for.
class Call {
public:
  /// Takes the arrays of a problem; missing initial states are left to the rule.
  Call(const LoadedRule &rule, const Problem &problem);
  ~Call();

  /// Calls another form of the same rule from now on, compiled for the same sizes and types.
  void use(const LoadedRule &rule);

  /// One call of the forward function over all tokens.
  int32_t forward(unsigned threads = 0);
  /// The same with the sequences one after the other in one batch, and their states in slots in reverse
  /// order, of which the final ones take the place of those that were given.
  int32_t forwardPacked(unsigned threads = 0);
  /// The step function for each token in turn.
  int32_t stepAll(unsigned threads = 0);
  /// One step of the token `at`, counted from the first one.
  int32_t step(int64_t at, unsigned threads = 0);
  /// Moves outputs and final states into the problem.
  void store(Problem &problem) const;
  /// Replaces a problem's inputs and params by what their types hold of them.
  void round(Problem &problem) const;
  /// Bytes of inputs, params and outputs, and of states, that one forward call reads and writes.
  int64_t tensorBytes() const, stateBytes() const;

private:
  struct Impl;
  std::unique_ptr<Impl> impl;
};

} // namespace recur

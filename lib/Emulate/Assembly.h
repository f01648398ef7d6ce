// PTX assembly, taken apart into statements that the emulator runs.
#pragma once
#include "llvm/ADT/SmallVector.h"
#include "llvm/ADT/StringRef.h"
#include "llvm/Support/Error.h"

#include <memory>
#include <string>
#include <vector>

namespace recur::emulate {

class Thread;
struct Statement;

/// The registers of one piece of assembly: its operands by number, then those it declares.
using Slots = uint64_t *;

/// A register, a number, or where a result is dropped.
struct Operand {
  enum Kind { Slot, Number, Special, Drop } kind = Drop;
  int64_t value = 0; // of Special: a SpecialRegister
};

enum SpecialRegister { ThreadIndex, BlockIndex, BlockSize, GridSize, LaneIndex, ClusterRank, SharedBase };

/// What stands between two commas: one operand; several in braces; or, in brackets, an address with an offset
/// and perhaps coordinates.
struct OperandGroup {
  llvm::SmallVector<Operand, 4> items;
  int64_t offset = 0;
};

/// What threads do together before it has an effect.
enum class Scope { Thread, Warp };

/// One instruction.
struct Statement {
  std::string text;
  llvm::SmallVector<llvm::StringRef> words; // of the mnemonic, which is in `text`
  int predicate = -1;                       // a slot
  bool negated = false;
  llvm::SmallVector<OperandGroup, 4> operands;

  Scope scope = Scope::Thread;
  /// Runs it in a thread.
  void (*run)(Thread &thread, const Statement &statement, Slots slots) = nullptr;
  /// Runs it in all lanes of a warp; `slots` has theirs.
  void (*runWarp)(Thread &thread, const Statement &statement, const Slots *slots) = nullptr;
  /// What the mnemonic says in numbers; each instruction its own.
  int64_t count = 1, bytes = 0, kind = 0;
  bool flag = false;
  unsigned outputs = 0; // of the program

  bool has(llvm::StringRef word) const { return llvm::is_contained(words, word); }
};

/// One piece of assembly.
struct Program {
  std::vector<Statement> statements;
  unsigned outputs = 0, slots = 0;
  /// Operands that begin in an output's register: (operand, output), by number.
  llvm::SmallVector<std::pair<unsigned, unsigned>> tied;
};

/// Takes assembly with LLVM's constraints apart. Fails where an instruction is not known.
llvm::Expected<std::unique_ptr<Program>> parseAssembly(llvm::StringRef text, llvm::StringRef constraints);

/// Find what an instruction does from its mnemonic and operands; false where it is not one of theirs.
bool decodeScalar(Statement &statement);
bool decodeMemory(Statement &statement);
bool decodeBarrier(Statement &statement);
bool decodeCopy(Statement &statement);
bool decodeLanes(Statement &statement);
bool decodeProduct(Statement &statement);

} // namespace recur::emulate

// From one token's update to the chunk form.
//
// Every state is unrolled over the chunk: H_t = decay * H_0 + sum over streams of key_j (payload_j)T. A
// payload that depends on reads of the state is an unknown row; substituted into each other, the unknown rows
// of a chunk solve one unit lower triangular system.
#pragma once

#include "dialect/chunk/Chunk.h"
#include "lib/Algebra/NormalForm.h"
#include "mlir/IR/OwningOpRef.h"

namespace recur {

/// One step of a derivation: "eliminate" and the equations that it gives, a line each.
struct DerivationStep {
  std::string name;
  std::vector<std::string> lines;
};

struct Derivation {
  /// The chunk program; null when the rule keeps its sequential form.
  mlir::OwningOpRef<chunk::ProgramOp> program;
  /// Why there is no chunk program, for a remark.
  std::string reason;
  /// What is wrong with a program that came out and was dropped: a defect of the compiler.
  std::string defect;
  std::vector<DerivationStep> steps;
};

/// A program with a rule's arguments, but for states of a block's start, and its initial states; its body is
/// empty.
mlir::OwningOpRef<chunk::ProgramOp> emptyProgram(RuleOp rule, mlir::StringAttr length,
                                                 mlir::ArrayAttr outputs,
                                                 llvm::ArrayRef<chunk::OutputPart> parts,
                                                 mlir::IntegerAttr block = {});

/// Derives the chunk program of a rule in normal form. Values may be appended to the rule's body.
Derivation derive(const NormalForm &nf);

/// The attribute of a rule that reads states at the starts of blocks, and whose chunks are to have so many
/// tokens: those of several blocks, or of a part of one, instead of one each.
constexpr llvm::StringLiteral startsAttr = "chunk.starts";

/// The attribute of a rule whose states are to be a cascade where diagonals couple them, key by key, instead
/// of a scan, or of none.
constexpr llvm::StringLiteral channelsAttr = "chunk.channels";

/// The attribute of a rule with inputs for what is read of states (ReadFunctions.h) that numbers the states
/// which what is written joins: they are one group, as if the rule read them itself.
constexpr llvm::StringLiteral joinedAttr = "chunk.joined";

/// Compares the program with the rule in F_p on random inputs, for several chunk sizes and ragged ends. Empty
/// when they agree; else the first difference ("output 'o', token 5, entry 2, chunks of 4"). Dimensions need
/// not be bound.
std::string prove(RuleOp rule, chunk::ProgramOp program, unsigned rounds = 1);

/// Compares a rule with a block over the whole sequence with what recur-find-recurrence made of it: in F_p,
/// on random inputs, from the new states' zeros. Empty when the outputs and the old states agree; else the
/// first difference.
std::string proveRecurrence(RuleOp sequence, RuleOp recurrence);

/// True when two rules are the same function of inputs and states, decided over F_p; else `difference` says
/// where they differ first. The rules must have arguments of the same names and shapes.
bool sameRule(RuleOp a, RuleOp b, std::string &difference);

/// Appends the program as equations: what is computed per token, the triangular system, outputs and states.
/// Values that have a name keep it.
void explainProgram(chunk::ProgramOp program, std::vector<DerivationStep> &steps, const ShortNames &names);

/// The steps as text, as `recurc explain` prints them.
std::string printDerivation(const Derivation &derivation);

} // namespace recur

// States at the start of a block of tokens: a rule that reads them as one of the tokens of a block.
//
// What a block's tokens read of its start is the same for all of them: a param. A state X is that plus what
// it has grown by since, D = X - X@n, which is zero at first; so gradients that are all taken at X@n, written
// to X, are writes to D and a function of params and the token. Where what X becomes does not look at X, as
// in S = S@n - eta*(G - G@n), there is nothing to carry: the last token's number, -eta, times what G has
// grown by. A state that decays, X = a*X + .., would leave (a - 1)*X@n: it stays as it is, and begins at its
// own param. (The mini-batches of test-time training: Sun et al., arXiv 2407.04620, section 2.4.)
#pragma once

#include "dialect/recur/Recur.h"
#include "mlir/IR/BuiltinOps.h"
#include "mlir/IR/OwningOpRef.h"

namespace recur {

/// The tokens of the blocks at whose starts a rule reads states; 0 where it reads none.
int64_t blockOf(RuleOp rule);
/// Has states be read at the starts of blocks of so many tokens.
void setBlocks(RuleOp rule, int64_t size);

/// What a state is at the end of a block.
struct BlockState {
  /// The rule's state, of the same name; what it has grown by, a state; or a sum over others.
  enum Kind { Kept, Grown, Summed } kind = Kept;
  /// The names of the param that is the state at the block's start, empty where it is not read, and of what
  /// has grown.
  std::string start, growth;
  /// Of a sum: states by number, of which the start is meant or what has grown, and the names of the outputs,
  /// behind the rule's own, whose last token's number each is times; empty for 1.
  struct Part {
    unsigned state;
    bool isStart;
    std::string number;
  };
  llvm::SmallVector<Part> parts;
};

struct BlockRule {
  mlir::OwningOpRef<mlir::ModuleOp> module; // with the rule of a block's tokens
  int64_t size = 0;                         // of a block
  llvm::SmallVector<BlockState> states;     // for each of the rule's
};

/// The rule of a block's tokens, or, `inParts`, of those of a part of one, at whose start states have grown
/// already: then each stays as it is. No module where the rule reads no state of a block's start.
BlockRule ruleOfBlock(RuleOp rule, bool inParts = false);

} // namespace recur

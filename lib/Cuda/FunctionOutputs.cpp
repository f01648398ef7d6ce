// Outputs that are functions of what is read, of which what is written is a function, too.
//
// A kernel after this one may need the value that a token writes to the state, but for a number: who applies
// the function has it. Derived on its own it is a map of what is read, for which the chain has no registers;
// here it is one more result of chunk.substitute, which writes it nowhere.
#include "lib/Cuda/EntryFunctions.h"
#include "mlir/IR/Dominance.h"
#include "mlir/IR/IRMapping.h"
#include "mlir/Transforms/CSE.h"

using namespace mlir;
using namespace recur;
using namespace recur::cuda;

// The map that gives an output of what is read, and of inputs; null where there is none.
static chunk::MapOp outputOf(chunk::SubstituteOp op) {
  for (Operation *user : op.getReads().front().getUsers()) {
    auto map = dyn_cast<chunk::MapOp>(user);
    auto isKnown = [&](Value row) { return row == op.getReads().front() || isa<BlockArgument>(row); };
    if (map && map->getNumResults() == 1 && map.getCarried().empty() &&
        llvm::all_of(map.getRows(), isKnown) && map->getResult(0).hasOneUse() &&
        isa<chunk::YieldOp>(*map->getResult(0).user_begin()) &&
        map->getResult(0).getType() == op.getWrites().front().getType())
      return map;
  }
  return {};
}

// a*(x/n) as (a*x)/n for numbers n: both have been written down in their cheapest order, which is not the
// same.
static void divideLast(Block &body, RewriterBase &rewriter) {
  for (auto product : llvm::make_early_inc_range(body.getOps<MulOp>()))
    for (unsigned i : {0, 1}) {
      auto quotient = product->getOperand(i).getDefiningOp<DivOp>();
      if (!quotient || !matType(quotient.getRhs()).isScalar() || matType(quotient.getLhs()).isScalar() ||
          matType(product->getOperand(1 - i)).isScalar())
        continue;
      rewriter.setInsertionPoint(product);
      Value whole = MulOp::create(rewriter, product.getLoc(), quotient.getLhs(), product->getOperand(1 - i));
      rewriter.replaceOpWithNewOp<DivOp>(product, whole, quotient.getRhs());
      break;
    }
}

void cuda::giveFunctions(chunk::ProgramOp program) {
  for (auto op : llvm::make_early_inc_range(program.getBody().getOps<chunk::SubstituteOp>())) {
    if (op.getReads().size() != 1 || op.getWrites().size() != 1)
      continue;
    chunk::MapOp map = outputOf(op);
    if (!map)
      continue;
    OpBuilder b(op);
    SmallVector<Value> rows(op.getRows()), shared(op.getShared());
    Block &body = op.getBody().front();
    // What each of the map's arguments is in the region.
    IRMapping known;
    auto argumentOf = [&](SmallVectorImpl<Value> &values, unsigned first, Value value, Type type) -> Value {
      auto *found = llvm::find(values, value);
      unsigned at = first + (found - values.begin());
      if (found == values.end()) {
        values.push_back(value);
        body.insertArgument(at, type, op.getLoc());
      }
      return body.getArgument(at);
    };
    Block &own = map.getBody().front();
    for (auto [row, argument] : llvm::zip(map.getRows(), own.getArguments()))
      known.map(argument, row == op.getReads().front() ? body.getArgument(0)
                                                       : argumentOf(rows, 1, row, argument.getType()));
    for (auto [value, argument] :
         llvm::zip(map.getShared(), own.getArguments().drop_front(map.getRows().size())))
      known.map(argument, argumentOf(shared, 1 + rows.size(), value, argument.getType()));
    OpBuilder inside(op.getYield());
    for (Operation &inner : own.without_terminator())
      inside.clone(inner, known);
    op.getYield()->insertOperands(1, known.lookup(own.getTerminator()->getOperand(0)));
    Value block = op.getBlocks().front();
    Value none = ConstantOp::create(b, op.getLoc(), 0.0, cast<MatType>(block.getType()));
    Type type = op.getWrites().front().getType();
    auto both = chunk::SubstituteOp::create(b, op.getLoc(), op.getReads().getTypes(), TypeRange{type, type},
                                            ValueRange{block, none}, op.getSides(), rows, shared);
    both.getBody().takeBody(op.getBody());
    map->getResult(0).replaceAllUsesWith(both.getWrites()[1]);
    map.erase();
    op.getReads().front().replaceAllUsesWith(both.getReads().front());
    op.getWrites().front().replaceAllUsesWith(both.getWrites().front());
    op.erase();
    IRRewriter rewriter(program.getContext());
    DominanceInfo dominance;
    divideLast(both.getBody().front(), rewriter);
    eliminateCommonSubExpressions(rewriter, dominance, both);
  }
}

// The part of a plan that concerns two states which numbers couple. What one token's writes are to a later
// one's state is an entry of a product of 2 x 2 matrices instead of a factor, and has no logarithm; all else
// is as with one state whose rows are those of both in turns.
#include "lib/Algebra/LinearSum.h"
#include "lib/Cuda/RolePlan.h"
#include "mlir/Analysis/SliceAnalysis.h"
#include "mlir/IR/Matchers.h"

using namespace mlir;
using namespace recur;
using namespace recur::cuda;

int RolePlan::stateOf(Value value) const {
  auto all = program.argumentsOf(ArgKind::State);
  auto *found = llvm::find(all, trace(strip(value)));
  return found == all.end() ? -1 : found - all.begin();
}

// A state's size and which of its dimensions is independent; two are of one size and one way round.
LogicalResult RolePlan::checkStates() {
  auto all = program.argumentsOf(ArgKind::State);
  states = all.size();
  if (all.empty() || states > 2)
    return failure();
  auto dimOf = [](BlockArgument state) {
    return llvm::any_of(state.getUsers(), [](Operation *user) { return isa<TransposeOp>(user); }) ? 0 : 1;
  };
  // Both ways round it is read along either of its dimensions, which the chain tells apart by their sizes
  // only.
  for (BlockArgument state : all)
    if (dimOf(state) == 0 &&
        llvm::any_of(state.getUsers(), [](Operation *user) { return isa<MatmulOp>(user); }))
      return failure();
  independentDim = dimOf(all[0]);
  // Blocks have shares of what the chain takes for independent, or none.
  if (int shared = tensors[initialTensor()].shardedDim; shared >= 0 && shared != independentDim)
    return failure();
  MatType type = matType(all[0]);
  for (auto [i, state] : llvm::enumerate(all))
    if (matType(state) != type || dimOf(state) != independentDim || !firstStateOf(program, i))
      return failure();
  independent = independentDim ? type.numCols() : type.numRows();
  keys = type.numElements() / independent;
  if ((independent != 64 && independent != 128) || !(keys == 64 || keys == 128 || keys == mostKeys))
    return failure();
  findDecay();
  if (keys > mostKeysBeside && (independent > rowsOfSlab || states > 1))
    return failure();
  refinesInverse = swings(program);
  takesCommon = states > 1 && sharesMasks(program);
  keepsRests = refinesInverse || (states > 1 && addsUp(program));
  return success(states == 1 || !(decay || rowDecay));
}

// As a memory with momentum does: where that is 0.9 and keys are alike, bf16 ends 7e-2 to 1.4e-1 off, tf32
// 2e-2 to 1e-1. Then the system has what reaches one state of writes to the other.
bool RolePlan::swings(chunk::ProgramOp program) {
  bool found = false;
  program.getBody().walk([&](chunk::TriSolveOp solve) {
    SetVector<Operation *> slice;
    (void)getBackwardSlice(solve.getOperation(), &slice);
    found |= llvm::any_of(slice, [](Operation *op) {
      auto mask = dyn_cast<chunk::MaskOp>(op);
      return mask && mask.getDecay().getDefiningOp<chunk::CascadeOp>() && mask.getTo() != mask.getFrom();
    });
  });
  return found;
}

bool RolePlan::addsUp(chunk::ProgramOp program) {
  bool found = false;
  program.getBody().walk([&](chunk::CascadeOp cascade) {
    OperandRange factors = cascade.getFactors();
    FloatAttr number;
    for (size_t i = 0, n = cascade.getType().getStates(); i < n; ++i)
      found |= matchPattern(factors[i * (n + 1)], m_Constant(&number)) && number.getValueAsDouble() == 1;
  });
  return found;
}

// With one state after the other in the rows of a product, what is read of both along the same rows is one
// product, and so is what the same rows write to both.
LogicalResult RolePlan::pairProducts() {
  if (states == 1)
    return success();
  auto pair = [&](ChainProduct &x, ChainProduct &y) {
    bool same = x.kind == y.kind && x.wave == y.wave && x.other < 0 && y.other < 0 &&
                x.kind <= ChainProduct::Depth && asTile(x.right)->input == asTile(y.right)->input;
    if (!same)
      return failure();
    x.other = &y - products.begin();
    y.other = &x - products.begin();
    (&x < &y ? y : x).isSecond = true;
    return success();
  };
  for (ChainProduct &x : products)
    if (int state = stateOf(x.left); state >= 0) {
      x.row = state;
      for (ChainProduct &y : products)
        if (&y < &x && stateOf(y.left) == 1 - state && succeeded(pair(y, x)))
          break;
    }
  // The states end with products in place.
  auto yielded = program.getBodyYield().getValues();
  auto makes = [&](Value value) {
    return llvm::find_if(products, [&](const ChainProduct &p) { return p.result == value; });
  };
  Value results[2] = {strip(yielded[0]), strip(yielded[1])};
  while (true) {
    ChainProduct *own[2] = {makes(results[0]), makes(results[1])};
    for (unsigned i : {0, 1}) {
      if (own[i] == products.end() || own[i]->kind != ChainProduct::Depth || stateOf(own[i]->left) >= 0)
        return failure();
      own[i]->row = i;
    }
    if (own[0]->chained != own[1]->chained || failed(pair(*own[0], *own[1])))
      return failure();
    if (!own[0]->chained)
      return success();
    for (unsigned i : {0, 1})
      results[i] = own[i]->start;
  }
}

// Has sums of what is read be those of the chunk's rows, where functions of a token add them.
static void takeSumsOut(chunk::MapOp map) {
  if (!map.getCarried().empty())
    return;
  Block &block = map.getBody().front();
  auto rowsOf = [&](Value value) -> Value {
    auto argument = dyn_cast<BlockArgument>(value);
    if (!argument || argument.getArgNumber() >= map.getRows().size())
      return {};
    Value rows = map.getRows()[argument.getArgNumber()];
    return isa_and_present<AddOp, SubOp, MulOp, MatmulOp>(rows.getDefiningOp()) ? rows : Value();
  };
  for (Operation &op : llvm::make_early_inc_range(block.without_terminator())) {
    Value lhs = isa<AddOp, SubOp>(op) ? rowsOf(op.getOperand(0)) : Value();
    Value rhs = lhs ? rowsOf(op.getOperand(1)) : Value();
    if (!rhs || lhs.getType() != rhs.getType())
      continue;
    OpBuilder b(map);
    Operation *sum = b.create(op.getLoc(), op.getName().getIdentifier(), {lhs, rhs}, {lhs.getType()});
    unsigned number = map.getRows().size();
    map.getRowsMutable().append(sum->getResult(0));
    op.getResult(0).replaceAllUsesWith(block.insertArgument(number, op.getResult(0).getType(), op.getLoc()));
    op.erase();
  }
  for (unsigned i = map.getRows().size(); i-- > 0;)
    if (block.getArgument(i).use_empty()) {
      map.getRowsMutable().erase(i);
      block.eraseArgument(i);
    }
}

// What one state is read along for itself and as a part of the other one is read once.
void RolePlan::readOnce(chunk::ProgramOp program) {
  if (program.argumentsOf(ArgKind::State).size() != 2)
    return;
  program.getBody().walk(takeSumsOut);
  auto isSum = [](Operation *op) { return isa<AddOp, SubOp, NegOp, MulOp>(op); };
  SmallVector<Operation *> roots;
  for (Operation &op : program.getBody().front())
    if (isa<AddOp, SubOp>(op) && !isScores(op.getResult(0)) && llvm::none_of(op.getUsers(), isSum))
      roots.push_back(&op);
  auto isNumber = [](Value value) { return isOne(matType(value).getCols()); };
  for (Operation *root : roots) {
    OpBuilder b(root);
    if (LinearSum sum(b, root->getResult(0), isNumber); sum.hasLikeTerms())
      root->getResult(0).replaceAllUsesWith(sum.build());
  }
}

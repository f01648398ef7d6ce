// The part of a plan that concerns two states which numbers couple. What one token's writes are to a later
// one's state is an entry of a product of 2 x 2 matrices instead of a factor, and has no logarithm; all else
// is as with one state whose rows are those of both in turns.
#include "lib/Algebra/AnchoredState.h"
#include "lib/Algebra/LinearSum.h"
#include "lib/Cuda/RolePlan.h"
#include "mlir/Analysis/SliceAnalysis.h"
#include "mlir/IR/Matchers.h"
#include "llvm/ADT/MapVector.h"

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
  isAnchored = program->hasAttr(anchoredAttr);
  if (all.empty() || states > 2)
    return failure();
  // What a state was is read as the state is.
  auto usersOf = [](BlockArgument state) {
    SmallVector<Operation *> users(state.getUsers());
    for (Operation *user : state.getUsers())
      if (isa<chunk::HeldOp>(user))
        llvm::append_range(users, user->getUsers());
    return users;
  };
  auto dimOf = [&](BlockArgument state) {
    return llvm::any_of(usersOf(state), [](Operation *user) { return isa<TransposeOp>(user); }) ? 0 : 1;
  };
  // Both ways round it is read along either of its dimensions, which the chain tells apart by their sizes
  // only.
  for (BlockArgument state : all)
    if (dimOf(state) == 0 &&
        llvm::any_of(usersOf(state), [](Operation *user) { return isa<MatmulOp>(user); }))
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
  if ((independent != 64 && independent != 128) || !isSizeOfTile(keys))
    return failure();
  findDecay();
  if (isa_and_present<chunk::CascadeOp>(decay ? decay.getDefiningOp() : nullptr)) {
    std::swap(states, abreast);
    spares = std::make_shared<Block>();
  }
  if (isWide() && independent > rowsOfSlab)
    return failure();
  // (Of what swings, records of chunks would need an inverse, and what it solves for, in two parts.)
  if (abreast > 1 && (abreast != 2 || keys > mostKeysBeside || isF16 || swings(program)))
    return failure();
  refinesInverse = swings(program);
  takesCommon = states > 1 && sharesMasks(program);
  keepsRests = refinesInverse || (states > 1 && addsUp(program));
  return success(states == 1 || !(decay || rowDecay));
}

// Whether what is read of one state has come, in part, of what was written to another one.
static bool readsOther(chunk::GramOp gram) {
  FloatAttr number;
  auto isZero = [&](Value value) {
    return matchPattern(value, m_Constant(&number)) && number.getValueAsDouble() == 0;
  };
  size_t states = gram.getWeights().size(), to = gram.getTo();
  auto passes = [&](size_t from, size_t to) {
    auto cascade = gram.getDecay().getDefiningOp<chunk::CascadeOp>();
    return !isZero(cascade.getFactors()[to * states + from]);
  };
  for (size_t from = 0; from < states; ++from)
    if (from != to && passes(from, to) && (!isZero(gram.getWeights()[from]) || passes(to, from)))
      return true;
  return false;
}

// As a memory with momentum does: where that is 0.9 and keys are alike, bf16 ends 7e-2 to 1.4e-1 off, tf32
// 2e-2 to 1e-1. Then the system has what reaches one state of writes to the other.
bool RolePlan::swings(chunk::ProgramOp program) {
  bool found = false;
  program.getBody().walk([&](chunk::TriSolveOp solve) {
    SetVector<Operation *> slice;
    BackwardSliceOptions options;
    options.inclusive = true;
    for (Value block : solve.getBlocks())
      (void)getBackwardSlice(block, &slice, options);
    found |= llvm::any_of(slice, [](Operation *op) {
      if (auto gram = dyn_cast<chunk::GramOp>(op))
        return readsOther(gram);
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
    // (Of a param nothing is off.)
    size_t n = cascade.getType().getStates();
    for (size_t i = 0, count = n - program->hasAttr(anchoredAttr); i < count; ++i)
      found |= matchPattern(factors[i * (n + 1)], m_Constant(&number)) && number.getValueAsDouble() == 1;
  });
  return found;
}

// What is written to one of two states alone may be known before what is written to the other; and what goes
// from one reference of a chunk to the next takes in all that is written at once (RoleScaledTiles.cpp).
void RolePlan::delayWrites() {
  if (references() > 1) {
    ChainProduct *last = nullptr;
    for (ChainProduct &product : products) {
      if (product.kind != ChainProduct::Depth)
        continue;
      product.chained |= last && product.start == last->result && last->result.hasOneUse();
      last = &product;
    }
    for (ChainProduct &product : products)
      if (product.kind == ChainProduct::Depth)
        product.wave = last->wave;
  }
  auto yielded = program.getBodyYield().getValues();
  auto makes = [&](unsigned state) {
    return llvm::find_if(products, [&](const ChainProduct &p) { return p.result == strip(yielded[state]); });
  };
  ChainProduct *own[2] = {makes(0), makes(states - 1)};
  if (own[0] != own[1] && !llvm::is_contained(own, products.end()) && !own[0]->chained && !own[1]->chained)
    own[0]->wave = own[1]->wave = std::max(own[0]->wave, own[1]->wave);
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

namespace {

/// A new state: what is not summed over tokens, and by the rows that are multiplied with them the sum of what
/// is, each of its terms times a number for each token, or null for 1.
struct Writes {
  SmallVector<Value> rest;
  llvm::MapVector<Value, SmallVector<std::pair<Value, Value>>> terms;

  explicit Writes(Value state);
};

} // namespace

Writes::Writes(Value state) {
  SmallVector<Value> work{RolePlan::strip(state)};
  while (!work.empty()) {
    Value term = work.pop_back_val();
    if (auto sum = term.getDefiningOp<AddOp>()) {
      work.append({sum.getRhs(), sum.getLhs()});
      continue;
    }
    auto product = term.getDefiningOp<MatmulOp>();
    auto turned = product ? product.getLhs().getDefiningOp<TransposeOp>() : TransposeOp();
    if (!turned) {
      rest.push_back(term);
      continue;
    }
    Value rows = turned.getOperand(), number;
    auto scaled = rows.getDefiningOp<MulOp>();
    for (unsigned i : {0, 1})
      if (scaled && !number && isOne(matType(scaled->getOperand(i)).getCols())) {
        number = scaled->getOperand(i);
        rows = scaled->getOperand(1 - i);
      }
    terms[rows].push_back({number, product.getRhs()});
  }
}

// Has two states be written to along the same rows, as one product is for both (pairProducts): to each with
// the sum of what it takes in, times 0 where that is nothing.
void RolePlan::writeBoth(chunk::ProgramOp program) {
  Operation *yield = program.getBodyYield();
  auto turned = [&](unsigned state) { return yield->getOperand(state).getDefiningOp<TransposeOp>(); };
  if (program.argumentsOf(ArgKind::State).size() != 2 || bool(turned(0)) != bool(turned(1)) ||
      yield->getOperand(0).getType() != yield->getOperand(1).getType())
    return;
  Writes both[2] = {Writes(yield->getOperand(0)), Writes(yield->getOperand(1))};
  llvm::SetVector<Value> keys;
  bool isPaired = true;
  for (auto [i, own] : llvm::enumerate(both))
    for (auto &[rows, terms] : own.terms) {
      keys.insert(rows);
      isPaired &= terms.size() == 1 && both[1 - i].terms.count(rows);
    }
  if (isPaired || both[0].rest.empty() || both[1].rest.empty())
    return;
  OpBuilder b(yield);
  auto scaled = [&](Value number, Value value) -> Value {
    return number ? MulOp::create(b, value.getLoc(), value.getType(), number, value) : value;
  };
  for (auto [i, own] : llvm::enumerate(both)) {
    Value state = own.rest.front();
    for (Value term : ArrayRef(own.rest).drop_front())
      state = AddOp::create(b, state.getLoc(), state, term);
    for (Value rows : keys) {
      ArrayRef<std::pair<Value, Value>> terms = own.terms[rows];
      Value payload, factor;
      if (terms.empty()) {
        payload = both[1 - i].terms[rows].front().second;
        factor = ConstantOp::create(b, state.getLoc(), 0.0);
      } else if (terms.size() == 1) {
        std::tie(factor, payload) = terms.front();
      }
      if (!payload)
        for (auto [number, term] : terms)
          payload = payload ? AddOp::create(b, state.getLoc(), payload, scaled(number, term))
                            : scaled(number, term);
      Value columns = TransposeOp::create(b, state.getLoc(), scaled(factor, rows));
      state = AddOp::create(b, state.getLoc(), state, MatmulOp::create(b, state.getLoc(), columns, payload));
    }
    yield->setOperand(i, turned(i) ? TransposeOp::create(b, state.getLoc(), state).getResult() : state);
  }
}

// What one state is read along for itself and as a part of the other one, or as it is and as it was at the
// start of a block, is read once.
void RolePlan::readOnce(chunk::ProgramOp program) {
  if (program.argumentsOf(ArgKind::State).size() != 2 && !program.getStarts() && !program.getBlock())
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
      root->getResult(0).replaceAllUsesWith(sum.buildSum());
  }
}

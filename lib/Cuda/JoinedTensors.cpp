// States and inputs that several of the caller's tensors are (lib/Algebra/JoinedKeys.h).
#include "lib/Algebra/JoinedKeys.h"
#include "lib/Cuda/Tensors.h"

using namespace mlir;
using namespace recur;
using namespace recur::cuda;

// The others of inputs that several are, behind all that there are.
void cuda::addJoinedInputs(SmallVectorImpl<TensorArgument> &tensors, RuleOp bound) {
  for (auto [i, input] : llvm::enumerate(bound.argumentsOf(ArgKind::Input))) {
    std::optional<JoinedNames> joined = joinedNames(bound, bound.getArg(input).getName());
    if (!joined)
      continue;
    for (auto [name, first] : llvm::zip(joined->names, joined->firsts)) {
      if (name.empty())
        continue;
      bool isOwn = tensors[i].parts.empty();
      tensors[i].parts.push_back({isOwn ? unsigned(i) : unsigned(tensors.size()), first});
      if (!isOwn) {
        TensorArgument other = tensors[i];
        other.argument = {};
        other.parts.clear();
        tensors.push_back(other);
      }
    }
  }
}

// The same of states, before and after all tokens. Returns the parts of those after.
SmallVector<SmallVector<TensorArgument::Part, 2>>
cuda::addJoinedStates(SmallVectorImpl<TensorArgument> &tensors, RuleOp symbolic, RuleOp bound) {
  auto states = bound.argumentsOf(ArgKind::State);
  size_t initial = bound.argumentsOf(ArgKind::Input).size() + bound.argumentsOf(ArgKind::Param).size();
  SmallVector<SmallVector<TensorArgument::Part, 2>> ofFinal(states.size());
  for (auto [i, state] : llvm::enumerate(states)) {
    std::optional<JoinedNames> joined = joinedNames(bound, bound.getArg(state).getName());
    if (!joined)
      continue;
    for (auto [k, name] : llvm::enumerate(joined->names)) {
      BlockArgument own = symbolic.findArgument(ArgKind::State, name);
      TensorArgument::Part part{unsigned(initial + i), joined->firsts[k], joined->keys[k]};
      part.isVector = isOne(matType(own).getCols());
      if (joined->params[k]) {
        part.otherwise = bound.argumentsOf(ArgKind::Input).size() + *joined->params[k];
        int shared = tensors[initial + i].shardedDim;
        tensors[*part.otherwise].shardedDim = part.isVector ? std::min(shared, 0) : shared;
      }
      if (k)
        part.tensor = tensors.size();
      tensors[initial + i].parts.push_back(part);
      tensors[initial + i].hasKeysInRows = joined->isTurned;
      part.tensor += k ? 1 : 0;
      ofFinal[i].push_back(part);
      if (!k)
        continue;
      TensorArgument other = tensors[initial + i];
      other.argument = {};
      other.parts.clear();
      other.inMemory[!joined->isTurned] = 0;
      if (part.isVector) {
        other.own[2] = false;
        other.inMemory[0] = other.inMemory[joined->isTurned];
        other.shardedDim = std::min(other.shardedDim, 0);
      }
      tensors.append(2, other);
    }
  }
  return ofFinal;
}

// An entry of a state that several are, of each part of it: whether it is one of that part, and where it lies
// in a tensor of its shape.
std::tuple<Value, Value, Value> TensorAccess::placeInPart(bool inRows, const TensorArgument::Part &part,
                                                          Value row, Value col) {
  Value none = threads.constant(0), key = inRows ? row : col, other = inRows ? col : row;
  Value own = arith::SubIOp::create(b, key, threads.constant(part.first));
  Value isOwn = arith::CmpIOp::create(b, arith::CmpIPredicate::ult, own, threads.constant(part.keys));
  own = arith::SelectOp::create(b, isOwn, own, none);
  if (part.isVector)
    return {isOwn, other, none};
  return {isOwn, inRows ? own : other, inRows ? other : own};
}

Value TensorAccess::isAnyGiven(const TensorArgument &tensor) {
  Value given = threads.constant(0, 1);
  for (const TensorArgument::Part &part : tensor.parts) {
    if (part.otherwise && tensor.argument) // before all tokens
      return threads.constant(1, 1);
    given = arith::OrIOp::create(b, given, isGivenAlone(part.tensor));
  }
  return given;
}

// The same entry of the part that has it, or what it is where that is not given.
Value TensorAccess::loadFromParts(const TensorArgument &tensor, Value row, Value col) {
  Value entry = threads.number(0);
  for (const TensorArgument::Part &part : tensor.parts) {
    auto [isOwn, r, c] = placeInPart(tensor.hasKeysInRows, part, row, col);
    auto given = scf::IfOp::create(b, b.getF32Type(), threads.both(isOwn, isGivenAlone(part.tensor)), true);
    OpBuilder::InsertionGuard guard(b);
    b.setInsertionPointToStart(given.thenBlock());
    scf::YieldOp::create(b,
                         LLVM::LoadOp::create(b, b.getF32Type(), this->entry(part.tensor, r, c)).getResult());
    b.setInsertionPointToStart(given.elseBlock());
    scf::YieldOp::create(b, part.otherwise ? loadEntry(*part.otherwise, r, c) : threads.number(0));
    b.setInsertionPointAfter(given);
    Value own =
        arith::MulFOp::create(b, given.getResult(0), threads.number(part.isVector ? entryOfVector : 1));
    entry = arith::SelectOp::create(b, isOwn, own, entry);
  }
  return entry;
}

void TensorAccess::storeToParts(unsigned tensor, Value row, Value col, Value value) {
  bool inRows = tensors[tensor].hasKeysInRows;
  for (const TensorArgument::Part &part : tensors[tensor].parts) {
    auto [isOwn, r, c] = placeInPart(inRows, part, row, col);
    if (part.isVector) // the first of its keys speaks for all
      isOwn = arith::CmpIOp::create(b, arith::CmpIPredicate::eq, inRows ? row : col,
                                    threads.constant(part.first));
    isOwn = threads.both(threads.both(isOwn, isGivenAlone(part.tensor)), exists(tensor, row, col));
    threads.when(isOwn, [&, r = r, c = c] {
      Value own = arith::DivFOp::create(b, value, threads.number(part.isVector ? entryOfVector : 1));
      LLVM::StoreOp::create(b, own, entry(part.tensor, r, c));
    });
  }
}

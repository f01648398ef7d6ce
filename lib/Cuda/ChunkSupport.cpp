// Which chunk programs the emitter takes, and how it divides them among warps.
#include "lib/Cuda/ChunkEmitter.h"
#include "lib/Cuda/EntryFunctions.h"
#include "lib/Cuda/RolePlan.h"
#include "mlir/IR/Matchers.h"
#include "llvm/ADT/EquivalenceClasses.h"
#include "llvm/ADT/SetVector.h"
#include "llvm/ADT/Twine.h"

using namespace mlir;
using namespace recur;
using namespace recur::cuda;

bool ChunkEmitter::isSlab(Value state) {
  MatType type = matType(state);
  return type.numRows() != 1 && type.numCols() != 1;
}

// The states that a state is added to, entry by entry, and those that are so to it: with it they are turned.
static llvm::SetVector<Value> statesBeside(Value state) {
  auto program = cast<chunk::ProgramOp>(cast<BlockArgument>(state).getOwner()->getParentOp());
  auto states = program.argumentsOf(ArgKind::State);
  llvm::EquivalenceClasses<Value> classes;
  for (auto [next, own] : llvm::zip(program.getBodyYield().getValues(), states)) {
    classes.insert(own);
    llvm::SetVector<Value> open;
    open.insert(next);
    for (size_t i = 0; i < open.size(); ++i)
      if (llvm::is_contained(states, open[i]) && open[i].getType() == own.getType())
        classes.unionSets(own, open[i]);
      else if (Operation *op = open[i].getDefiningOp(); isa_and_present<ElementwiseOp, TransposeOp>(op))
        open.insert_range(op->getOperands());
  }
  llvm::SetVector<Value> beside;
  for (auto at = classes.findLeader(state); at != classes.member_end(); ++at)
    beside.insert(*at);
  return beside;
}

// Whether what is read of a state, or of those beside it, are its rows with a vector, and its columns with
// another: a gradient that goes through it.
static bool isReadAcross(Value state) {
  auto reads = [](Value value) {
    return llvm::any_of(value.getUses(), [](OpOperand &use) {
      return isa<MatmulOp>(use.getOwner()) && use.getOperandNumber() == 1;
    });
  };
  auto readsTurned = [&](Value state) {
    return llvm::any_of(state.getUsers(),
                        [&](Operation *user) { return isa<TransposeOp>(user) && reads(user->getResult(0)); });
  };
  llvm::SetVector<Value> states = statesBeside(state);
  return llvm::any_of(states, reads) && llvm::any_of(states, readsTurned);
}

int ChunkEmitter::stateDim(Value state) {
  MatType type = matType(state);
  // Either is a product across rows then: the longer side is shared out to the warps.
  if (isReadAcross(state))
    return type.numCols() > type.numRows() ? 1 : 0;
  return llvm::any_of(state.getUsers(), [](Operation *user) { return isa<TransposeOp>(user); }) ? 0 : 1;
}

static int64_t independent(Value state) {
  return ChunkEmitter::stateDim(state) ? matType(state).numCols() : matType(state).numRows();
}

int64_t ChunkEmitter::countWarps(chunk::ProgramOp program) {
  int64_t most = 0;
  for (Value state : program.argumentsOf(ArgKind::State))
    if (isSlab(state))
      most = std::max(most, independent(state));
  return most > 128 ? 16 : most > 64 ? 8 : 4;
}

// Numbers of the states that a thread holds.
static int64_t countEntries(chunk::ProgramOp program) {
  int64_t count = 0;
  for (Value state : program.argumentsOf(ArgKind::State))
    if (ChunkEmitter::isSlab(state))
      count += padded(matType(state).numElements() / independent(state)) / 2;
  return count;
}

// The arguments of a program that a value is computed from.
static llvm::SetVector<BlockArgument> sourcesOf(ValueRange values) {
  llvm::SetVector<BlockArgument> sources;
  llvm::SetVector<Value> open(values.begin(), values.end());
  for (size_t i = 0; i < open.size(); ++i) {
    if (auto argument = dyn_cast<BlockArgument>(open[i]))
      sources.insert(argument);
    else
      open.insert_range(open[i].getDefiningOp()->getOperands());
  }
  return sources;
}

// Whether something is divided by a sum of products that may cancel: by a normaliser, a state of its own,
// read with vectors that are not known to have one sign.
static bool dividesByDifferences(chunk::ProgramOp program) {
  bool result = false;
  program.getBody().walk([&](chunk::MapOp map) {
    map.getBody().walk([&](DivOp div) {
      SmallVector<Value> divisors;
      for (BlockArgument argument : sourcesOf(div.getRhs()))
        divisors.push_back(map->getOperand(argument.getArgNumber()));
      bool readsState = false, readsMatrix = false, mayCancel = false;
      for (BlockArgument source : sourcesOf(divisors)) {
        ArgAttr arg = program.getArg(source.getArgNumber());
        auto type = dyn_cast<MatType>(source.getType());
        bool isState = arg.getKind() == ArgKind::State;
        readsState |= isState && !type.isScalar();
        readsMatrix |= isState && ChunkEmitter::isSlab(source);
        bool isVector = arg.getKind() == ArgKind::Input && type && !isOne(type.getCols());
        mayCancel |= isVector && !(arg.getRange() && arg.getRange().getLo() >= 0);
      }
      result |= readsState && !readsMatrix && mayCancel;
    });
  });
  return result;
}

// Products read no fewer digits than the inputs that they take directly, and the outputs, have. Where errors
// of bf16 grow, they read more.
Precision ChunkEmitter::findPrecision(chunk::ProgramOp program, ArrayRef<TensorArgument> tensors) {
  bool grows = dividesByDifferences(program) || RolePlan::addsUp(program);
  program.getBody().walk([&](chunk::ConjugateGradientsOp) { grows = true; }); // with each iteration
  // What a gradient sums over a state's rows are what its own steps have made small.
  bool goesBack = llvm::any_of(program.argumentsOf(ArgKind::State),
                               [](Value state) { return isSlab(state) && isReadAcross(state); });
  Precision most = RolePlan::swings(program) ? Precision::Split
                   : grows || goesBack       ? Precision::Tf32
                                             : Precision::Bf16;
  auto take = [&](const TensorArgument &tensor) {
    FloatType element = tensor.element;
    Precision needed = element.isF32()   ? Precision::Split
                       : element.isF16() ? (goesBack ? Precision::Split : Precision::Tf32)
                                         : Precision::Bf16;
    if (tensor.own[1])
      most = std::max(most, needed);
  };
  for (auto [tensor, argument] : llvm::zip(tensors, program.argumentsOf(ArgKind::Input)))
    if (llvm::any_of(argument.getUsers(),
                     [](Operation *user) { return !isa<chunk::MapOp, chunk::DecayOp>(user); }))
      take(tensor);
  unsigned states = program.argumentsOf(ArgKind::State).size();
  for (const TensorArgument &tensor : tensors.drop_back(states).take_back(chunk::numOutputs(program)))
    take(tensor);
  return most;
}

// Why a map is not taken.
static std::optional<std::string> mapRefusal(chunk::MapOp map) {
  for (Value carried : map.getCarried())
    if (!matType(carried).isScalar())
      return std::string("a vector or matrix is carried from token to token, and chunks carry numbers so");
  for (Type type : map->getResultTypes())
    if (!isa<MatType>(type))
      return std::string("a function of one token makes a matrix");
  std::optional<std::string> reason;
  auto check = [&](ValueRange values) {
    for (Value value : values) {
      auto type = dyn_cast<MatType>(value.getType());
      if (type && !isOne(type.getRows()) && !isOne(type.getCols()))
        reason = "a function of one token computes with a matrix";
    }
  };
  map.getBody().walk([&](Operation *op) {
    check(op->getOperands()); // such as a param
    check(op->getResults());
    if (isa<ForOp, SolveOp, InverseOp>(op))
      reason = "a function of one token holds '" + op->getName().getStringRef().str() + "'";
  });
  return reason;
}

std::optional<std::string> ChunkEmitter::refusal(chunk::ProgramOp program, ArrayRef<TensorArgument> tensors) {
  std::optional<std::string> reason;
  auto refuse = [&](const llvm::Twine &why) {
    if (!reason)
      reason = why.str();
  };
  auto states = program.argumentsOf(ArgKind::State);
  if (llvm::none_of(states, isSlab))
    refuse("no state is a matrix");
  constexpr int64_t mostOfBlock = 64;
  if (std::optional<int64_t> block = program.getBlock(); block && *block > mostOfBlock)
    refuse("a block has " + llvm::Twine(*block) + " tokens, and a chunk " + llvm::Twine(mostOfBlock) +
           " at most");
  for (auto [i, state] : llvm::enumerate(states)) {
    if (!firstStateOf(program, i))
      refuse("a state begins with more than a number or a param");
    if (!isSlab(state))
      continue;
    int64_t rows = independent(state), keys = matType(state).numElements() / rows;
    constexpr int64_t most = 256, mostNumbers = 96;
    if (rows > most)
      refuse("a state has " + llvm::Twine(rows) + " independent rows that go together, and " +
             llvm::Twine(most) + " are the most");
    if (int64_t numbers = countEntries(program); rows > 128 && numbers > mostNumbers)
      refuse("a state has " + llvm::Twine(rows) + " independent rows that go together, and a thread " +
             llvm::Twine(numbers) + " numbers of all states, where " + llvm::Twine(mostNumbers) +
             " are the most");
    if (keys > 256)
      refuse("a state has " + llvm::Twine(keys) + " keys, and 256 are the most");
  }
  // A matrix of few columns is some outputs of the program.
  for (const TensorArgument &tensor : tensors)
    if (tensor.hasToken && tensor.own[2] && tensor.argument)
      refuse("a tensor holds a matrix for each token");
  program.getBody().walk([&](Operation *op) {
    if (auto map = dyn_cast<chunk::MapOp>(op))
      if (std::optional<std::string> why = mapRefusal(map))
        refuse(*why);
    if (auto substitute = dyn_cast<chunk::SubstituteOp>(op))
      if (std::optional<std::string> why = refusalOf(substitute))
        refuse(*why);
    if (isa<chunk::ScanOp>(op))
      refuse("an elementwise recurrence has no matrix products");
    if (isa<chunk::LdlOp>(op))
      refuse("the factors of an inverse need f64");
    if (auto solve = dyn_cast<chunk::TriSolveOp>(op);
        solve && solve.isByColumn() && solve.getRhs().size() > 1)
      refuse("each value has a system of its own, and in it several reads of a token");
    for (Value operand : op->getOperands())
      if (isa<chunk::TokensType>(operand.getType()) && !isa<chunk::MapOp>(op))
        refuse("'" + op->getName().getStringRef() + "' reads a matrix for each token");
  });
  return reason;
}

#include "lib/Cuda/Cores.h"
#include "lib/Cuda/ParamProducts.h"

using namespace mlir;
using namespace recur;
using namespace recur::cuda;

Value cuda::stripOrientation(Value value) {
  while (Operation *op = value.getDefiningOp()) {
    if (!isa<TransposeOp, AssumeOp>(op))
      break;
    value = op->getOperand(0);
  }
  return value;
}

bool cuda::isNumber(Value value) {
  return isOne(matType(value).getRows()) && isOne(matType(value).getCols());
}

bool cuda::isMatrix(Value value) {
  return !isOne(matType(value).getRows()) && !isOne(matType(value).getCols());
}

SmallVector<Value> cuda::sourcesOf(Operation *op) {
  SmallVector<Value> sources(op->getOperands());
  if (op->getNumRegions())
    op->walk([&](Operation *inner) {
      for (Value operand : inner->getOperands())
        if (isa<MatType>(operand.getType()) && !op->isAncestor(operand.getParentBlock()->getParentOp()))
          sources.push_back(operand);
    });
  return sources;
}

// The states that a value depends on, by what each argument says.
static llvm::DenseMap<Value, uint64_t> findReach(RuleOp rule, uint64_t but) {
  llvm::DenseMap<Value, uint64_t> reach;
  for (auto [i, state] : llvm::enumerate(rule.argumentsOf(ArgKind::State))) {
    if (but >> i & 1)
      continue;
    reach[state] = uint64_t(1) << i;
    if (Value stale = rule.findArgument(ArgKind::Stale, rule.getArg(state).getName()))
      reach[stale] = reach[state];
  }
  for (Operation &op : rule.getBody().front()) {
    uint64_t sources = 0;
    for (Value operand : sourcesOf(&op))
      sources |= reach.lookup(operand);
    for (Value result : op.getResults())
      reach[result] = sources;
  }
  return reach;
}

PassingStates cuda::passingStates(RuleOp rule) {
  constexpr unsigned most = 8;
  auto states = rule.argumentsOf(ArgKind::State);
  if (states.size() > 64 || !rule.argumentsOf(ArgKind::Stale).empty())
    return {};
  llvm::DenseMap<Value, uint64_t> reach = findReach(rule, 0);
  auto updates = rule.yieldedStates();
  // Those that follow from inputs, then those that follow from these, and so on.
  PassingStates passing;
  for (bool more = true; more && passing.memory < most;) {
    uint64_t known = passing.states;
    for (auto [i, state] : llvm::enumerate(states))
      if (!isMatrix(state) && !(reach.lookup(updates[i]) & ~known))
        passing.states |= uint64_t(1) << i;
    more = passing.states != known;
    passing.memory += more;
  }
  return passing;
}

SmallVector<Delay> cuda::delaysOf(RuleOp rule) {
  auto inputs = rule.argumentsOf(ArgKind::Input), states = rule.argumentsOf(ArgKind::State);
  auto updates = rule.yieldedStates();
  SmallVector<Delay> delays(states.size());
  // Those of inputs, then those of these, and so on.
  for (bool more = true; std::exchange(more, false);)
    for (auto [delay, update] : llvm::zip(delays, updates)) {
      auto *input = llvm::find(inputs, update);
      size_t from = llvm::find(states, update) - states.begin();
      bool isInput = input != inputs.end();
      if (delay.tokens || (!isInput && (from == states.size() || !delays[from].tokens)))
        continue;
      delay = isInput ? Delay{unsigned(input - inputs.begin()), 1}
                      : Delay{delays[from].input, delays[from].tokens + 1, unsigned(from)};
      more = true;
    }
  return delays;
}

uint64_t cuda::delayedWrites(RuleOp rule) {
  auto states = rule.argumentsOf(ArgKind::State);
  if (states.size() > 64)
    return 0;
  llvm::DenseMap<Value, uint64_t> reach = findReach(rule, 0);
  // A vector, turned and times numbers, as a factor of a matrix.
  std::function<bool(Value)> isFactor = [&](Value value) {
    return llvm::all_of(value.getUsers(), [&](Operation *user) {
      if (isa<TransposeOp>(user))
        return isFactor(user->getResult(0));
      if (isa<MulOp, DivOp>(user) && isNumber(user->getOperand(user->getOperand(0) == value ? 1 : 0)))
        return user->getOperand(0) != user->getOperand(1) && isFactor(user->getResult(0));
      return isa<MatmulOp>(user) && isMatrix(user->getResult(0)) && !isMatrix(user->getOperand(0)) &&
             !isMatrix(user->getOperand(1));
    });
  };
  uint64_t found = 0;
  for (auto [i, state, update] : llvm::enumerate(states, rule.yieldedStates()))
    if (!isMatrix(state) && !isNumber(state) && !reach.lookup(update) && isFactor(state))
      found |= uint64_t(1) << i;
  return found;
}

bool Cores::isPassing(Value value) const {
  auto *found = llvm::find(states, value);
  return found != states.end() && (passing >> (found - states.begin()) & 1);
}

uint64_t Cores::passingOf(ArrayRef<Value> values, const llvm::DenseSet<Value> &given) const {
  uint64_t found = 0;
  SmallVector<Value> work(values);
  llvm::DenseSet<Value> seen;
  while (!work.empty()) {
    Value value = work.pop_back_val();
    if (given.contains(value) || !seen.insert(value).second)
      continue;
    if (Operation *op = value.getDefiningOp()) {
      llvm::append_range(work, sourcesOf(op));
    } else if (isPassing(value)) {
      size_t number = llvm::find(states, value) - states.begin();
      found |= uint64_t(1) << number;
      work.push_back(RuleOp(rule).yieldedStates()[number]);
    }
  }
  return found;
}

Cores::Cores(RuleOp rule, bool keepsDelayed, bool keepsSums)
    : rule(rule), states(rule.argumentsOf(ArgKind::State)), passing(passingStates(rule).states),
      delayed(keepsDelayed ? delayedWrites(rule) : 0) {
  passing &= ~delayed;
  findReach();
  for (auto [i, state] : llvm::enumerate(states)) {
    if (passing >> i & 1)
      continue;
    cores.emplace_back();
    cores.back().states = uint64_t(1) << i;
    cores.back().isVector = !isMatrix(state);
  }
  while (joinOnce())
    ;
  if (keepsSums)
    joinSums();
}

// Whether a core is one vector that numbers alone make less.
bool Cores::isSum(const Core &core) {
  if (!core.isVector || llvm::popcount(core.states) != 1 || isNumber(states[llvm::countr_zero(core.states)]))
    return false;
  return llvm::all_of(opsOf(core), [&](Operation *op) {
    if (isa<MulOp, DivOp>(op))
      return isNumber(op->getOperand(1)) || (isa<MulOp>(op) && isNumber(op->getOperand(0)));
    return isa<AddOp, TransposeOp, AssumeOp>(op);
  });
}

// The core of the only matrix takes in such a vector.
void Cores::joinSums() {
  auto isOfMatrix = [](const Core &core) { return !core.isVector; };
  auto *matrix = llvm::find_if(cores, isOfMatrix);
  if (llvm::count_if(cores, isOfMatrix) != 1 || llvm::popcount(matrix->states) != 1)
    return;
  for (const Core &core : cores)
    if (isSum(core) && !(matrix->needs & core.states) && !(core.needs & matrix->states)) {
      sums = core.states;
      return join(matrix - cores.begin(), core.states);
    }
}

void Cores::findReach() { reach = ::findReach(rule, passing); }

llvm::SetVector<Operation *> Cores::opsOf(const Core &core) {
  llvm::SetVector<Operation *> ops;
  SmallVector<Value> work(core.products.begin(), core.products.end());
  for (auto [i, update] : llvm::enumerate(rule.yieldedStates()))
    if (core.states >> i & 1)
      work.push_back(update);
  for (unsigned output : core.outputs)
    work.push_back(rule.yieldedOutputs()[output]);
  while (!work.empty()) {
    Value value = work.pop_back_val();
    if (Operation *op = value.getDefiningOp(); op && reachOf(value) & core.states && ops.insert(op))
      llvm::append_range(work, sourcesOf(op));
  }
  return ops;
}

void Cores::join(unsigned core, uint64_t more) {
  Core joined = cores[core];
  for (const Core &other : cores)
    if (other.states & more) {
      joined.states |= other.states;
      joined.isVector &= other.isVector;
    }
  llvm::erase_if(cores, [&](const Core &other) { return (other.states & joined.states) != 0; });
  cores.push_back(joined);
}

// Joins cores of which one needs a matrix of the other, or that need each other.
bool Cores::joinOnce() {
  for (unsigned i = 0; i < cores.size(); ++i) {
    Core &core = cores[i];
    core.needs = 0;
    SmallVector<Value> work;
    for (Operation *op : opsOf(core))
      llvm::append_range(work, sourcesOf(op));
    for (auto [k, update] : llvm::enumerate(rule.yieldedStates()))
      if (core.states >> k & 1)
        work.push_back(update);
    while (!work.empty()) {
      Value value = work.pop_back_val();
      uint64_t others = reachOf(value);
      if (!others || others & core.states)
        continue;
      Operation *op = value.getDefiningOp();
      if (others & delayed && !core.isVector) {
        join(i, others & delayed);
        return true;
      }
      if (!isMatrix(value)) {
        // Of states that are vectors a scan goes on with all at once.
        for (const Core &other : cores)
          if (core.isVector && other.isVector && other.states & others && hasTypeOf(value, core) &&
              hasTypeOf(value, other) && isEntrywise(value, other, /*orSums=*/false)) {
            join(i, other.states);
            return true;
          }
        core.needs |= others;
      } else if (op) {
        llvm::append_range(work, op->getOperands());
      } else {
        join(i, others);
        return true;
      }
    }
  }
  for (unsigned i = 0; i < cores.size(); ++i)
    for (const Core &other : cores)
      if (cores[i].needs & other.states && other.needs & cores[i].states) {
        join(i, other.states);
        return true;
      }
  return false;
}

Core *Cores::coreOf(Value matrix) {
  uint64_t found = 0;
  SmallVector<Value> work{matrix};
  llvm::DenseSet<Value> seen;
  while (!work.empty()) {
    Value value = work.pop_back_val();
    if (!isMatrix(value) || !reachOf(value) || !seen.insert(value).second)
      continue;
    if (Operation *op = value.getDefiningOp())
      llvm::append_range(work, op->getOperands());
    else
      found |= reachOf(value);
  }
  for (Core &core : cores)
    if (found && !(found & ~core.states))
      return &core;
  return nullptr;
}

Core *Cores::coreOfSums() {
  auto *found = llvm::find_if(cores, [&](const Core &core) { return (core.states & sums) != 0; });
  return found == cores.end() ? nullptr : found;
}

// Whether a value follows from vectors of a core and others entry by entry or, `orSums`, from sums over such.
bool Cores::isEntrywise(Value value, const Core &core, bool orSums) const {
  if (!(reachOf(value) & core.states) || core.made.contains(value))
    return true;
  Operation *op = value.getDefiningOp();
  if (!op)
    return true;
  bool isSum =
      orSums && isNumber(value) && isa<ReduceOp, MatmulOp>(op) && llvm::none_of(op->getOperands(), isMatrix);
  return (isSum || isa<ElementwiseOp, AssumeOp, TransposeOp>(op)) &&
         llvm::all_of(op->getOperands(), [&](Value operand) { return isEntrywise(operand, core, orSums); });
}

bool Cores::hasTypeOf(Value value, const Core &core) const {
  return value.getType() == states[llvm::countr_zero(core.states)].getType();
}

Core *Cores::entrywiseCoreOf(Value value) {
  for (Core &core : cores)
    if (core.isVector && reachOf(value) & core.states && !(reachOf(value) & ~core.states & ~core.needs) &&
        (core.made.contains(value) || hasTypeOf(value, core) || isNumber(value)) &&
        isEntrywise(value, core, /*orSums=*/core.made.empty()))
      return &core;
  return nullptr;
}

// What a core's updates are made of, if there are products of its states and matrices among it.
llvm::DenseSet<Value> Cores::madeBy(const Core &core) {
  SmallVector<Value> work;
  bool multiplies = false;
  for (auto [i, update] : llvm::enumerate(rule.yieldedStates()))
    if (core.states >> i & 1)
      work.push_back(update);
  llvm::DenseSet<Value> seen;
  while (!work.empty()) {
    Value value = work.pop_back_val();
    Operation *op = value.getDefiningOp();
    if (!op || !(reachOf(value) & core.states) || !seen.insert(value).second)
      continue;
    multiplies |= isProduct(op);
    llvm::append_range(work, op->getOperands());
  }
  return multiplies ? seen : llvm::DenseSet<Value>();
}

// What is read of a core's states by a vector of others comes after those.
void Cores::needForReads() {
  for (auto product : rule.getBody().front().getOps<MatmulOp>())
    for (unsigned i : {0, 1})
      if (Value matrix = product->getOperand(i), other = product->getOperand(1 - i);
          isMatrix(matrix) && reachOf(matrix))
        if (Core *core = coreOf(matrix))
          core->needs |= reachOf(other) & ~core->states;
}

bool Cores::order() {
  needForReads();
  // Those of vectors first, then small ones, as vectors that are matrices (WidenedVectors.h): what they give,
  // kernels of others take on the way.
  auto sizeOf = [&](const Core &core) {
    int64_t size = 0;
    for (auto [i, state] : llvm::enumerate(rule.argumentsOf(ArgKind::State)))
      if (core.states >> i & 1 && !core.isVector)
        size += matType(state).numElements();
    return size;
  };
  SmallVector<Core> ordered;
  for (uint64_t known = 0; !cores.empty();) {
    Core *next = nullptr;
    for (Core &core : cores)
      if (!(core.needs & ~known) && (!next || sizeOf(core) < sizeOf(*next)))
        next = &core;
    if (!next)
      return false;
    known |= next->states;
    ordered.push_back(*next);
    cores.erase(next);
  }
  cores = std::move(ordered);
  for (Core &core : cores)
    if (core.isVector)
      core.made = madeBy(core);
  return true;
}

unsigned Cores::levelOf(Value value) const {
  unsigned level = 0;
  for (auto [i, core] : llvm::enumerate(cores))
    if (core.states & reachOf(value))
      level = i + 1;
  return level;
}

// Rules that write what the token before gave, rotated (RotatedUpdate.h): the numbers of the next token, and
// states that the rule has and the rotated one has not, or not in the same way.
#include "lib/Cuda/RoleRowState.h"

using namespace mlir;
using namespace recur;
using namespace recur::cuda;

// The part's tokens, and those of the sequence after them.
static Value tokensAfter(ImplicitLocOpBuilder &b, const Part &part) {
  return part.all ? arith::SubIOp::create(b, part.all, part.before).getResult() : part.tokens;
}

static unsigned nextNumberOf(const RolePlan &plan, BlockArgument input) {
  auto inputs = plan.program.argumentsOf(ArgKind::Input);
  return llvm::find(inputs, input) - inputs.end() + plan.rotated->numbers.size();
}

std::array<Value, 2> RoleEmitter::numberOfNext(RowState &state, BlockArgument number) {
  RowState next(state.access, state.stage);
  next.known = std::move(state.knownOfNext);
  Value end = tokensAfter(b, part), exists[2];
  for (int i : {0, 1}) {
    Value after = ptx.add(state.tokens[i], ptx.constant(1, 64));
    exists[i] = ptx.compare(arith::CmpIPredicate::slt, after, end);
    next.tokens[i] = ptx.choose(exists[i], after, state.tokens[i]);
  }
  std::array<Value, 2> result = row(next, plan.ofToken(number));
  Value past = ptx.number(plan.rotated->numbers[nextNumberOf(plan, number)].past);
  for (int i : {0, 1})
    result[i] = ptx.choose(exists[i], result[i], past);
  state.knownOfNext = std::move(next.known);
  return result;
}

// What the first token's numbers make of the states that were given, if any was.
Values RoleEmitter::rotatedStates(ValueRange given) {
  const RotatedUpdate &update = *plan.rotated;
  TensorAccess access(threads, call, plan.tensors, /*packed=*/true);
  find(access);
  auto initial = [&](unsigned state) { return plan.initialTensor() + state; };
  Value isAny = ptx.constant(0, 1);
  for (unsigned state = 0; state < update.statesOfRule; ++state)
    isAny = arith::OrIOp::create(b, isAny, access.isGiven(initial(state)));
  for (unsigned state = 0; state < update.states.size(); ++state)
    if (FirstState first = *firstStateOf(plan.program, state); first.param || first.number != 0)
      isAny = ptx.constant(1, 1);
  Value zero = ptx.constant(0, 64);
  isAny = arith::AndIOp::create(b, isAny, ptx.compare(arith::CmpIPredicate::sgt, tokensAfter(b, part), zero));
  SmallVector<Type> types(given.size(), b.getF32Type());
  auto choice = scf::IfOp::create(b, types, isAny, true);
  OpBuilder::InsertionGuard guard(b);
  b.setInsertionPointToStart(choice.elseBlock());
  scf::YieldOp::create(b, given);
  b.setInsertionPointToStart(choice.thenBlock());
  RowState before(access, {});
  for (Value &token : before.tokens)
    token = ptx.constant(-1, 64);
  auto inputs = plan.program.argumentsOf(ArgKind::Input);
  auto firstNumber = [&](int number) {
    if (number < 0)
      return ptx.number(1);
    BlockArgument input = inputs[inputs.size() - update.numbers.size() + number];
    Value x = numberOfNext(before, input)[0];
    return update.numbers[number].isLog ? ptx.exp2(ptx.multiply(x, ptx.number(llvm::numbers::log2e))) : x;
  };
  Values sums(given.size(), ptx.number(0));
  int64_t each = entriesOfState();
  for (const RotatedUpdate::Old &old : update.old) {
    Value number = firstNumber(old.number);
    for (int64_t e = 0; e < each; ++e)
      sums[old.to * each + e] =
          ptx.sum(sums[old.to * each + e], ptx.multiply(number, given[old.from * each + e]));
  }
  for (const RotatedUpdate::Write &write : update.writes) {
    unsigned column = initial(update.delays[write.column].state),
             row = initial(update.delays[write.row].state);
    Value number = firstNumber(write.number);
    Value areGiven = arith::AndIOp::create(b, access.isGiven(column), access.isGiven(row));
    auto written = scf::IfOp::create(b, SmallVector<Type>(each, b.getF32Type()), areGiven, true);
    OpBuilder::InsertionGuard inner(b);
    ValueRange own = ArrayRef(sums).slice(write.to * each, each);
    Values others(own);
    b.setInsertionPointToStart(written.elseBlock());
    scf::YieldOp::create(b, others);
    b.setInsertionPointToStart(written.thenBlock());
    Values entries;
    forStateEntries([&](Value i, Value j) {
      auto load = [&](unsigned tensor, Value at) -> Value { return access.loadEntry(tensor, at, at); };
      Value outer = ptx.multiply(load(column, i), load(row, j));
      entries.push_back(ptx.sum(others[entries.size()], ptx.multiply(number, outer)));
    });
    scf::YieldOp::create(b, entries);
    b.setInsertionPointAfter(written);
    llvm::copy(written.getResults(), sums.begin() + write.to * each);
  }
  scf::YieldOp::create(b, sums);
  return Values(choice.getResults());
}

// States that are the last token's inputs.
void RoleEmitter::storeDelayed(TensorAccess &access, const Part &own) {
  for (const RotatedUpdate::Delay &delay : plan.rotated->delays) {
    unsigned final = plan.finalTensor(delay.state), initial = plan.initialTensor() + delay.state;
    Value isWanted = arith::AndIOp::create(b, access.isGiven(final), ptx.equal(slabIndex, 0));
    if (own.isLast)
      isWanted = arith::AndIOp::create(b, isWanted, own.isLast);
    Value none = ptx.constant(0, 64);
    if (plan.tensors[final].shardedDim < 0)
      isWanted = arith::AndIOp::create(b, isWanted, ptx.compare(arith::CmpIPredicate::eq, own.shard, none));
    auto choose = [&](Value condition, llvm::function_ref<Value()> one, llvm::function_ref<Value()> other) {
      auto choice = scf::IfOp::create(b, b.getF32Type(), condition, true);
      OpBuilder::InsertionGuard guard(b);
      b.setInsertionPointToStart(choice.thenBlock());
      scf::YieldOp::create(b, one());
      b.setInsertionPointToStart(choice.elseBlock());
      scf::YieldOp::create(b, other());
      return choice.getResult(0);
    };
    threads.when(isWanted, [&] {
      Value entries = ptx.constant(plan.tensors[final].entry().numElements());
      Value isAny = ptx.compare(arith::CmpIPredicate::sgt, own.tokens, none);
      threads.forLoop(thread, entries, ptx.constant(128), {}, [&](Value at, ValueRange) {
        auto ofInput = [&] {
          Value address = access.entryOfToken(delay.input, ptx.add(own.tokens, ptx.constant(-1, 64)), at);
          Value entry = LLVM::LoadOp::create(b, plan.tensors[delay.input].element, address);
          return entry.getType().isF32() ? entry
                                         : arith::ExtFOp::create(b, b.getF32Type(), entry).getResult();
        };
        auto ofState = [&] {
          return choose(
              access.isGiven(initial), [&] { return access.loadEntry(initial, at, at); },
              [&] { return ptx.number(0); });
        };
        threads.when(access.exists(final, at, at), [&] {
          LLVM::StoreOp::create(b, choose(isAny, ofInput, ofState), access.entry(final, at, at));
        });
        return Values();
      });
    });
  }
}

// Which states run ahead, what is read out, and the class of a rule.
#include "lib/Algebra/Expander.h"
#include "lib/Algebra/Passes.h"
#include "mlir/IR/IRMapping.h"
#include "mlir/IR/OwningOpRef.h"

using namespace mlir;
using namespace recur;

bool OldTerm::isDiagonal() const {
  auto diagonal = [](const Factor &f) { return f.diagonal; };
  return !transposed && llvm::all_of(left, diagonal) && llvm::all_of(right, diagonal);
}

std::optional<Decay> NormalForm::decay(unsigned state) const {
  const OldTerm *own = nullptr;
  for (const OldTerm &term : update(state).old)
    if (term.state == state) {
      if (own || !term.isDiagonal())
        return std::nullopt;
      own = &term;
    }
  Decay decay;
  if (!own) {
    decay.c.number = 0; // the old state is forgotten
    return decay;
  }
  decay.c = own->c;
  for (const Factor &factor : own->left)
    decay.left.push_back(factor.value);
  for (const Factor &factor : own->right)
    decay.right.push_back(factor.value);
  decay.elementwise.assign(own->elementwise.begin(), own->elementwise.end());
  return decay;
}

StringRef recur::className(RuleClass ruleClass) {
  static constexpr const char *names[] = {"C0", "C1", "C2", "C3", "C4", "C5", "C6",
                                          "C7", "C8", "I",  "S",  "Q",  "N"};
  return names[unsigned(ruleClass)];
}

StringRef recur::classMeaning(RuleClass ruleClass) {
  static constexpr const char *meanings[] = {
      "the state only gathers writes: masked matrix products",
      "the state decays by one number a token: masked matrix products",
      "the state decays by rows or columns: masked matrix products",
      "what is read from the state is written back to it, on one side: a triangular solve per chunk",
      "states that are coupled by numbers: products of masks",
      "coupled states, and reads that are written back: products of masks and a triangular solve per chunk",
      "every entry of the state goes on by itself: an associative scan, or token by token",
      "a state is multiplied by a full matrix: token by token",
      "a running maximum scales the state: it is computed ahead, the rest are masked matrix products",
      "the readout solves a system with the state: iterations over chunk products, or token by token",
      "the update looks at the state of a block's start: a graph per block",
      "an attention form: the outputs are written over the whole sequence",
      "the update or an output is not linear in the states: token by token, if not in reads alone",
  };
  return meanings[unsigned(ruleClass)];
}

void recur::unroll(ForOp loop, int64_t count) {
  OpBuilder builder(loop);
  SmallVector<Value> carried(loop.getInits());
  for (int64_t j = 1; j <= count; ++j) {
    IRMapping map;
    map.map(loop.getCounter(), ConstantOp::create(builder, loop.getLoc(), double(j)).getResult());
    map.map(loop.getCarried(), carried);
    for (Operation &op : loop.getBody().front().without_terminator())
      builder.clone(op, map);
    for (auto [value, yielded] : llvm::zip(carried, loop.getYield().getValues()))
      value = map.lookupOrDefault(yielded);
  }
  loop.replaceAllUsesWith(carried);
  loop.erase();
}

LogicalResult recur::unrollSteps(RuleOp rule) {
  SmallVector<ForOp> loops;
  rule.getBody().walk([&](ForOp loop) { loops.push_back(loop); });
  for (ForOp loop : loops) { // inner loops come first
    auto count = dyn_cast<IntegerAttr>(loop.getCount());
    if (!count)
      return loop.emitError() << "the number of micro-steps '" << dimText(loop.getCount())
                              << "' is not bound";
    unroll(loop, count.getInt());
  }
  return success();
}

namespace {
using StateSet = llvm::SmallBitVector;

class Normaliser {
public:
  Normaliser(RuleOp rule, bool withStarts) : rule(rule), tokens(rule), withStarts(withStarts) {
    nf.rule = rule;
    nf.states = rule.argumentsOf(ArgKind::State);
    if (withStarts)
      llvm::append_range(nf.states, rule.argumentsOf(ArgKind::Stale));
    nf.ahead.assign(nf.states.size(), false);
  }

  NormalForm run() {
    for (BlockOp block : rule.getBody().getOps<BlockOp>()) {
      if (block.getSize())
        return refuse(RuleClass::S, block.getLoc(), "a state is computed once per block of tokens");
      OwningOpRef<RuleOp> trial(rule.clone());
      return refuse(RuleClass::Q, block.getLoc(),
                    "the outputs are written over the whole sequence: " + findRecurrence(*trial));
    }
    if (auto stale = rule.argumentsOf(ArgKind::Stale); !withStarts && !stale.empty())
      return refuse(RuleClass::S, stale[0].getLoc(), "a state at the start of a block is read");
    findDependences();
    while (true) {
      nf.reads.clear();
      nf.rows.clear();
      nf.versions.clear();
      nf.stateDependent.clear();
      for (auto &[value, states] : dependences)
        if (dependsOnRest(value))
          nf.stateDependent.insert(value);
      Expander expander(nf, tokens);
      std::optional<unsigned> failed = expandUpdates(expander);
      if (!failed && moveKeysAhead())
        continue;
      if (!failed) {
        for (Value output : rule.yieldedOutputs())
          if (!readOut(expander, output))
            return refuse(implicit ? RuleClass::I : RuleClass::N, expander.blame);
        nf.ruleClass = classify();
        return std::move(nf);
      }
      if (!moveAhead(*failed))
        return refuse(RuleClass::N, expander.blame);
    }
  }

private:
  NormalForm refuse(RuleClass ruleClass, std::optional<Location> loc, std::string text) {
    return refuse(ruleClass, Blame{loc, std::move(text)});
  }
  NormalForm refuse(RuleClass ruleClass, Blame blame) {
    nf.affine = false;
    nf.ahead.assign(nf.states.size(), false);
    nf.ruleClass = ruleClass;
    nf.blame.push_back(std::move(blame));
    return std::move(nf);
  }

  // For every value the states that it was computed from, in this token.
  void findDependences() {
    for (auto [index, state] : llvm::enumerate(nf.states))
      dependences[state] = StateSet(nf.states.size()), dependences[state].set(index);
    for (Operation &op : rule.getBody().front().without_terminator()) {
      StateSet set(nf.states.size());
      for (Value operand : op.getOperands())
        if (auto known = dependences.find(operand); known != dependences.end())
          set |= known->second;
      if (set.any())
        for (Value result : op.getResults())
          dependences[result] = set;
    }
    // The states that a state depends on through any number of tokens.
    closure.assign(nf.states.size(), StateSet(nf.states.size()));
    for (auto [set, yielded] : llvm::zip(closure, rule.yieldedStates()))
      if (auto known = dependences.find(yielded); known != dependences.end())
        set = known->second;
    for (unsigned k = 0; k < closure.size(); ++k)
      for (StateSet &set : closure)
        if (set.test(k))
          set |= closure[k];
  }

  bool dependsOnRest(Value value) {
    const StateSet &set = dependences[value];
    return llvm::any_of(set.set_bits(), [&](unsigned state) { return !nf.ahead[state]; });
  }

  // Expands the new states; the one that is not affine, least entangled first.
  std::optional<unsigned> expandUpdates(Expander &expander) {
    SmallVector<unsigned> order = llvm::to_vector(llvm::seq<unsigned>(0, nf.states.size()));
    llvm::sort(order, [&](unsigned a, unsigned b) {
      return std::pair(closure[a].count(), a) < std::pair(closure[b].count(), b);
    });
    nf.updates.assign(nf.states.size(), Row::none);
    for (unsigned state : order) {
      if (nf.ahead[state])
        continue;
      bool isStart = state >= rule.yieldedStates().size();
      std::optional<unsigned> version =
          expander.versionOf(isStart ? Value(nf.states[state]) : rule.yieldedStates()[state]);
      if (!version)
        return state;
      nf.updates[state] = *version;
    }
    return std::nullopt;
  }

  // A state that is not affine can still be computed ahead of others, or what it depends on can. False when
  // neither leaves a state that is not ahead.
  bool moveAhead(unsigned failed) {
    StateSet others = closure[failed];
    for (unsigned state = 0; state < nf.states.size(); ++state)
      if (nf.ahead[state] || closure[state].test(failed))
        others.reset(state);
    others.reset(failed);
    StateSet moved = others.any() ? others : closure[failed];
    if (others.none())
      moved.set(failed);
    for (unsigned state : moved.set_bits())
      nf.ahead[state] = true;
    return !llvm::all_of(nf.ahead, [](bool ahead) { return ahead; });
  }

  // A vector that the updates of other states read (the last token's key, a running mean) costs little token
  // by token, and then it is like an input. True when there was one.
  bool moveKeysAhead() {
    StateSet moved(nf.states.size());
    auto isVector = [&](unsigned state) { return !isMatrix(matType(nf.states[state])); };
    for (auto [state, version] : llvm::enumerate(nf.updates)) {
      if (version == Row::none)
        continue;
      for (const Write &write : nf.versions[version].writes)
        for (const Column *column : {&write.column, &write.row}) {
          SmallVector<unsigned> rows;
          if (column->kind == Column::RowOf)
            rows.push_back(column->index);
          while (!rows.empty())
            for (const RowTerm &term : nf.rows[rows.pop_back_val()].terms) {
              if (term.column.kind == Column::RowOf)
                rows.push_back(term.column.index);
              if (term.column.kind != Column::OldRead)
                continue;
              unsigned read = nf.reads[term.column.index].state;
              if (!closure[read].test(state) && isVector(read) &&
                  llvm::all_of(closure[read].set_bits(), isVector))
                moved |= closure[read], moved.set(read);
            }
        }
    }
    for (unsigned state : moved.set_bits())
      nf.ahead[state] = true;
    return moved.any();
  }

  // Whether a column is, as it is, what a state is written: then it is known with what is solved for.
  static bool isWritten(Value column) {
    if (!isOne(matType(column).getCols()))
      return false;
    auto isOuter = [](Operation *user) {
      return isa<MatmulOp>(user) && isMatrix(matType(user->getResult(0)));
    };
    return llvm::any_of(column.getUsers(), [&](Operation *user) {
      return isOuter(user) || (isa<TransposeOp>(user) && llvm::any_of(user->getUsers(), isOuter));
    });
  }

  // Finds the rows that an output is computed from. False, with the expander's blame set, when there are
  // none.
  bool readOut(Expander &expander, Value value) {
    if (nf.isTokenOnly(value) || llvm::is_contained(visited, value))
      return true;
    visited.push_back(value);
    expander.blame = Blame();
    Operation *op = value.getDefiningOp();
    auto transpose = dyn_cast_if_present<TransposeOp>(op);
    if (auto join = (transpose ? transpose.getOperand() : value).getDefiningOp<JoinOp>())
      return llvm::all_of(join.getColumns(), [&](Value column) { return readOut(expander, column); });
    bool newState = llvm::is_contained(rule.yieldedStates(), value);
    MatType type = matType(value);
    bool isVector = !isMatrix(type), flipped = isOne(type.getRows()) && !type.isScalar(); // a row
    bool readsState = !op || newState;
    if (op)
      for (Value operand : op->getOperands())
        readsState |= !nf.isTokenOnly(operand) && isMatrix(matType(operand));
    // What is read as a vector anyway, is summed up after that.
    auto isVectorToo = [](Value operand) {
      return llvm::any_of(operand.getUsers(), [](Operation *user) { return !isa<ReduceOp>(user); });
    };
    if (isa_and_nonnull<MatmulOp, ReduceOp>(op) && isVector &&
        !(isa<ReduceOp>(op) && isVectorToo(op->getOperand(0))))
      for (Value operand :
           op->getOperands()) // a vector state is read by inner products; a matrix maps what was read
        readsState |= !nf.isTokenOnly(operand) &&
                      (isa<ReduceOp>(op) || type.isScalar() || isMatrix(matType(operand))) &&
                      expander.carriesState(operand);
    if (auto solve = dyn_cast_or_null<SolveOp>(op); solve && !nf.isTokenOnly(solve.getMatrix())) {
      implicit = true;
      return readSolution(expander, solve);
    }
    if (!readsState && isVector && !type.isScalar() && isWritten(value))
      if (const Sum *sum = expander.expand(value))
        if (std::optional<unsigned> row = expander.rowOf(Sum(*sum), false, type, value.getLoc())) {
          nf.readouts.push_back({value, *row});
          return true;
        }
    if (!readsState || !isVector) {
      if (!op || isMatrix(type)) {
        auto product = dyn_cast_if_present<MatmulOp>(op);
        bool isRead = product && (nf.isTokenOnly(product.getLhs()) || nf.isTokenOnly(product.getRhs()));
        expander.blame = {value.getLoc(), "'" + notation(value) + "' is read as a whole" +
                                              (isRead ? ", many vectors for each token: those read the state "
                                                        "in chunks that are outputs of their own"
                                                      : "")};
        return false;
      }
      return llvm::all_of(op->getOperands(), [&](Value operand) { return readOut(expander, operand); });
    }
    if (!op || newState) { // a vector state is its version read with the scalar 1
      std::optional<unsigned> row = expander.rowOf(value, flipped ? Side::Left : Side::Right,
                                                   tokens.one(value.getLoc()), value.getLoc());
      if (!row)
        return false;
      nf.readouts.push_back({value, *row, flipped});
      return true;
    }
    if (auto product = dyn_cast_or_null<MatmulOp>(op); product && expander.carriesState(product.getLhs()) &&
                                                       !nf.isTokenOnly(product.getRhs()) &&
                                                       matType(value).isVector()) {
      // A function of what was read reads another state.
      if (!readOut(expander, product.getRhs()))
        return false;
      expander.blame = Blame();
      std::optional<unsigned> row = expander.laterRow(product.getLhs(), product.getRhs(), value.getLoc());
      if (row)
        nf.readouts.push_back({value, *row});
      return row.has_value();
    }
    const Sum *sum = expander.expand(value);
    if (!sum)
      return false;
    std::optional<unsigned> row = expander.rowOf(Sum(*sum), flipped, type, value.getLoc());
    if (!row)
      return false;
    nf.readouts.push_back({value, *row, flipped});
    return true;
  }

  // A system whose matrix is a state and something token-only: iterations need products with it, nothing
  // more.
  bool readSolution(Expander &expander, SolveOp solve) {
    expander.blame = {solve.getLoc(), "'" + notation(solve) +
                                          "' needs the state itself; conjugate gradients "
                                          "(iterations=..) need products with it only"};
    if (!solve.getIterations() || !readOut(expander, solve.getRhs()))
      return false;
    expander.blame = Blame();
    std::optional<unsigned> row =
        expander.laterRow(solve.getMatrix(), solve.getRhs(), solve.getLoc(), solve.getResult());
    if (row)
      nf.readouts.push_back({solve, *row});
    return row.has_value();
  }

  // Whether a column reads a state, or one that depends on it.
  bool feedsBack(const Column &column, unsigned state) {
    auto depends = [&](unsigned read) { return read == state || closure[read].test(state); };
    if (column.kind == Column::OldRead)
      return depends(nf.reads[column.index].state);
    if (column.kind == Column::Known)
      return false;
    const Row &row = nf.rows[column.index];
    return (row.version != Row::none && !row.inOldReads &&
            llvm::any_of(nf.versions[row.version].old,
                         [&](const OldTerm &term) { return depends(term.state); })) ||
           llvm::any_of(row.terms, [&](const RowTerm &term) { return feedsBack(term.column, state); });
  }

  RuleClass classify() {
    if (implicit)
      return RuleClass::I;
    bool scalar = false, diagonal = false, coupled = false, erase = false, elementwise = false, dense = false;
    for (auto [state, index] : llvm::enumerate(nf.updates)) {
      if (index == Row::none)
        continue;
      for (const OldTerm &term : nf.versions[index].old) {
        elementwise |= !term.elementwise.empty() || (term.state != state && !term.isScalar());
        dense |= !term.isDiagonal();
        coupled |= term.state != state;
        diagonal |= !term.left.empty() || !term.right.empty();
        scalar |= !term.c.isOne();
      }
      for (const Write &write : nf.versions[index].writes)
        for (const Column *column : {&write.column, &write.row})
          erase |= column->kind != Column::Known && feedsBack(*column, state);
      for (const Write &write : nf.versions[index].writes)
        elementwise |= write.matrix && isMatrix(matType(write.matrix));
    }
    for (auto [state, ahead] : llvm::enumerate(nf.ahead))
      if (ahead && state < rule.yieldedStates().size() && usesMaximum(rule.yieldedStates()[state]))
        return RuleClass::C8;
    if (dense)
      return RuleClass::C7;
    if (elementwise)
      return RuleClass::C6;
    if (coupled)
      return erase ? RuleClass::C5 : RuleClass::C4;
    return erase ? RuleClass::C3 : diagonal ? RuleClass::C2 : scalar ? RuleClass::C1 : RuleClass::C0;
  }

  bool usesMaximum(Value value) {
    Operation *op = value.getDefiningOp();
    if (!op || !dependences.contains(value))
      return false;
    return isa<MaxOp, MinOp>(op) || llvm::any_of(op->getOperands(), [&](Value v) { return usesMaximum(v); });
  }

  RuleOp rule;
  TokenBuilder tokens;
  bool withStarts;
  NormalForm nf;
  llvm::MapVector<Value, StateSet> dependences;
  SmallVector<StateSet> closure;
  SmallVector<Value> visited;
  bool implicit = false;
};
} // namespace

NormalForm recur::normalise(RuleOp rule, bool withStarts) { return Normaliser(rule, withStarts).run(); }

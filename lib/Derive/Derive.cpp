// The chunk program of a rule: its frame, the groups of states in order, outputs and final states.
#include "lib/Derive/Derive.h"
#include "lib/Algebra/BlockStates.h"
#include "lib/Algebra/Bounds.h"
#include "lib/Algebra/ColumnRows.h"
#include "lib/Algebra/Spectral.h"
#include "lib/Derive/Blocks.h"
#include "lib/Derive/Functions.h"
#include "lib/Derive/Inverse.h"
#include "mlir/Pass/PassManager.h"
#include "mlir/Transforms/Passes.h"

using namespace mlir;
using namespace recur;

namespace {
class Deriver {
public:
  Deriver(const NormalForm &nf, bool inverts) : nf(nf), rule(nf.rule), inverts(inverts) {}

  Derivation run() {
    if (!nf.affine) {
      derivation.reason = nf.blame.empty() ? "the update is not affine" : nf.blame.front().text;
      return std::move(derivation);
    }
    ShortNames names = shortNames(nf);
    std::string text = printNormalForm(nf, &names);
    derivation.program = makeProgram();
    TokenRows tokens(nf, *derivation.program);
    if (!names.lines.empty())
      derivation.steps.push_back({"where", names.lines});
    DerivationStep &affinise = derivation.steps.emplace_back(DerivationStep{"affinise", {}});
    for (StringRef rest = text; !rest.empty();) {
      auto [line, tail] = rest.split('\n');
      affinise.lines.push_back(line.trim().str());
      rest = tail;
    }
    DeriveContext context{nf, tokens, rule.getLoc(), derivation.steps, names, {}, {}};
    cx = &context;
    if (failed(build())) {
      derivation.program = nullptr;
      derivation.reason = context.reason;
      // More is read of an inverse than its factors give: token by token it gives all.
      return tokens.isMissing() ? Deriver(nf, /*inverts=*/false).run() : std::move(derivation);
    }
    PassManager pm(rule.getContext(), chunk::ProgramOp::getOperationName());
    pm.addPass(createCanonicalizerPass());
    pm.addPass(createCSEPass());
    std::string complaint;
    ScopedDiagnosticHandler quiet(rule.getContext(), [&](Diagnostic &diagnostic) {
      complaint = complaint.empty() ? diagnostic.str() : complaint;
      return success();
    });
    if (failed(pm.run(*derivation.program))) {
      derivation.defect = complaint;
      derivation.program = nullptr;
      return std::move(derivation);
    }
    explainProgram(*derivation.program, derivation.steps, names);
    return std::move(derivation);
  }

private:
  // A symbol that no dimension of the rule has.
  StringAttr lengthSymbol() {
    SmallVector<StringAttr> symbols = rule.symbols();
    StringAttr length = StringAttr::get(rule.getContext(), "C");
    for (unsigned n = 1; llvm::is_contained(symbols, length); ++n)
      length = StringAttr::get(rule.getContext(), "C" + Twine(n));
    return length;
  }

  OwningOpRef<chunk::ProgramOp> makeProgram() {
    OpBuilder b(rule.getContext());
    StringAttr length = lengthSymbol();
    findOutputs();
    OwningOpRef<chunk::ProgramOp> program =
        emptyProgram(rule, length, b.getArrayAttr(outputNames), outputParts);
    if (int64_t block = blockOf(rule))
      program->setStarts(block);
    return program;
  }

  // The program's outputs: the columns of one that is joined each by itself.
  void findOutputs() {
    for (auto [i, value] : llvm::enumerate(rule.yieldedOutputs())) {
      auto name = cast<StringAttr>(rule.getOutputs()[i]);
      JoinOp join = columnsOf(value);
      if (!join) {
        outputs.push_back(value), outputNames.push_back(name), outputParts.push_back({unsigned(i)});
        continue;
      }
      int64_t count = join.getColumns().size();
      for (auto [j, column] : llvm::enumerate(join.getColumns())) {
        outputs.push_back(column);
        outputNames.push_back(StringAttr::get(rule.getContext(), name.getValue() + "[" + Twine(j + 1) + "]"));
        outputParts.push_back({unsigned(i), int64_t(j), count, /*isRow=*/value != join.getResult()});
      }
    }
  }

  LogicalResult build() {
    for (auto [name, value] : llvm::zip(outputNames, outputs))
      if (!isOne(matType(value).getCols()))
        return cx->fail("the output '" + cast<StringAttr>(name).str() +
                        "' is a matrix for each token, not a vector");
    if (failed(checkStarts()))
      return failure();
    buildInverses();
    if (failed(makeGroups()))
      return failure();
    for (auto &group : groups)
      if (failed(group->prepare()) || failed(group->eliminate([&](unsigned row) { return rowValue(row); })))
        return failure();
    SmallVector<std::pair<Readout, Value>> known;
    for (const Readout &readout : nf.readouts) {
      // What reads a state may itself come from earlier rows.
      if (Value vector = nf.rows[readout.row].vector; vector && !nf.isTokenOnly(vector))
        cx->tokens.define(vector, cx->tokens.epilogue(vector, known)[0]);
      Value rows = nf.rows[readout.row].solution ? solution(nf.rows[readout.row]) : rowValue(readout.row);
      if (!rows)
        return failure();
      known.push_back({readout, rows});
    }
    SmallVector<Value> yields;
    for (unsigned index = 0; index < rule.yieldedStates().size(); ++index) {
      if (nf.ahead[index]) {
        yields.push_back(inverseOf[index] ? inverseOf[index]->last() : cx->tokens.aheadState(index));
        continue;
      }
      for (auto &group : groups)
        if (group->contains(index))
          yields.push_back(group->finalState(index));
    }
    llvm::append_range(yields, cx->tokens.epilogue(outputs, known));
    if (cx->tokens.isMissing())
      return failure();
    chunk::YieldOp::create(cx->b(), rule.getLoc(), yields);
    cx->tokens.finish();
    return success();
  }

  // The state that one at the start of a block was, by number; or none.
  std::optional<unsigned> startOf(unsigned state) const {
    RuleOp own = nf.rule;
    ArgAttr arg = own.getArg(nf.states[state]);
    if (arg.getKind() != ArgKind::Stale)
      return std::nullopt;
    return llvm::find(nf.states, own.findArgument(ArgKind::State, arg.getName())) - nf.states.begin();
  }

  // What a chunk's tokens read at the starts of its blocks is read of states that go on in chunks, and by
  // vectors.
  LogicalResult checkStarts() {
    for (unsigned state = 0; state < nf.states.size(); ++state) {
      std::optional<unsigned> start = startOf(state);
      std::string name = notation(nf.states[state]);
      if (start && (nf.ahead[state] || nf.ahead[*start]))
        return cx->fail("'" + name + "' is read of a state that goes on token by token");
      for (const OldTerm &term : nf.ahead[state] ? std::vector<OldTerm>() : nf.update(state).old)
        if (!start && startOf(term.state))
          return cx->fail("'" + name + "' becomes '" + notation(nf.states[term.state]) + "' times a number");
    }
    return success();
  }

  // States that run ahead because they are divided by their own reads: those whose inverse is affine need
  // not.
  void buildInverses() {
    inverseOf.assign(nf.states.size(), nullptr);
    for (unsigned state = 0; state < nf.states.size(); ++state) {
      if (!inverts || !nf.ahead[state])
        continue;
      auto inverse = std::make_unique<Inverse>(*cx, state);
      bool others = false; // states that run ahead and need it
      for (unsigned other = 0; other < nf.states.size(); ++other)
        others |= other != state && nf.ahead[other] && inverse->governs(rule.yieldedStates()[other]);
      if (others || !inverse->recognise())
        continue;
      inverseOf[state] = inverse.get();
      inverses.push_back(std::move(inverse));
    }
    cx->inverses = inverses;
    for (unsigned state = 0; state < nf.states.size(); ++state)
      if (Inverse *inverse = inverseOf[state])
        cx->tokens.solve(
            state, [=](Value value) { return inverse->governs(value); },
            [=](Value value) { return inverse->rows(value); });
    for (auto &inverse : inverses)
      inverse->build();
  }

  // States that are coupled form a group, as do those that read each other; groups come in the order in which
  // they read earlier ones.
  LogicalResult makeGroups() {
    unsigned count = nf.states.size();
    SmallVector<unsigned> leader = llvm::to_vector(llvm::seq<unsigned>(0, count));
    auto couple = [&](unsigned state, unsigned other) {
      unsigned from = leader[other], to = leader[state];
      for (unsigned &l : leader)
        l = l == from ? to : l;
    };
    for (unsigned state = 0; state < count; ++state)
      if (!nf.ahead[state])
        for (const OldTerm &term : nf.update(state).old)
          couple(state, term.state);
    if (auto joined = rule->getAttrOfType<DenseI32ArrayAttr>(joinedAttr))
      for (int32_t state : joined.asArrayRef())
        couple(joined[0], state);
    SmallVector<SmallVector<unsigned>> members;
    for (unsigned l = 0; l < count; ++l) {
      SmallVector<unsigned> group;
      for (unsigned state = 0; state < count; ++state)
        if (leader[state] == l && !nf.ahead[state] && !startOf(state))
          group.push_back(state);
      if (!group.empty())
        members.push_back(group);
    }
    SmallVector<std::unique_ptr<Group>> waiting;
    for (auto &group : members)
      waiting.push_back(makeGroup(group));
    while (!waiting.empty()) {
      auto readBy = [&](const std::unique_ptr<Group> &group) {
        return llvm::find_if(waiting, [&](const std::unique_ptr<Group> &other) {
          return other != group && updateReads(*group, *other);
        });
      };
      auto ready = llvm::find_if(waiting, [&](const auto &group) { return readBy(group) == waiting.end(); });
      if (ready != waiting.end()) {
        groups.push_back(std::move(*ready));
        waiting.erase(ready);
        continue;
      }
      // From each to one that it reads, so often that what follows is a circle.
      auto *at = waiting.begin();
      llvm::SmallBitVector states(count);
      for (size_t step = 0; step < 2 * waiting.size(); ++step) {
        at = readBy(*at);
        for (unsigned state = 0; step >= waiting.size() && state < count; ++state)
          if ((*at)->contains(state))
            states.set(state);
      }
      if (failed(join(waiting, llvm::to_vector(states.set_bits()))))
        return failure();
    }
    return success();
  }

  // Makes the groups of some states, which read each other, one.
  LogicalResult join(SmallVectorImpl<std::unique_ptr<Group>> &waiting, ArrayRef<unsigned> states) {
    for (unsigned state : states)
      if (nf.states[state].getType() != nf.states[states[0]].getType())
        return cx->fail("'" + notation(nf.states[states[0]]) + "' and '" + notation(nf.states[state]) +
                        "' read each other, but their shapes differ");
    llvm::erase_if(waiting, [&](const auto &group) {
      return llvm::any_of(states, [&](unsigned state) { return group->contains(state); });
    });
    waiting.push_back(makeGroup(
        llvm::to_vector(llvm::make_filter_range(states, [&](unsigned state) { return !startOf(state); }))));
    return success();
  }

  // A group of states, and of what they were at the starts of blocks.
  std::unique_ptr<Group> makeGroup(ArrayRef<unsigned> states) {
    SmallVector<std::pair<unsigned, unsigned>> starts;
    for (unsigned state = 0; state < nf.states.size(); ++state)
      if (std::optional<unsigned> start = startOf(state); start && llvm::is_contained(states, *start))
        starts.push_back({state, *start});
    return std::make_unique<Group>(*cx, states, starts);
  }

  bool updateReads(const Group &group, const Group &other) {
    for (unsigned state = 0; state < nf.states.size(); ++state)
      if (group.contains(state))
        for (const Write &write : nf.update(state).writes)
          for (const Column *column : {&write.column, &write.row})
            if (column->kind == Column::RowOf && other.reads(column->index))
              return true;
    return false;
  }

  // The rows of the chunk for a row of the normal form.
  Value rowValue(unsigned index) {
    if (Value cached = rows.lookup(index))
      return cached;
    for (auto &group : groups)
      if (group->reads(index))
        if (Value value = group->finalRow(index))
          return rows[index] = value;
    for (auto &group : groups)
      if (Value value = group->writtenRow(index))
        return rows[index] = value;
    const Row row = nf.rows[index];
    if (!row.inOldReads) {
      (void)cx->fail("a state that goes on entry by entry is read by more than a vector");
      return {};
    }
    if (row.terms.empty()) { // of a state that is none
      OpBuilder atToken(rule.getBody().front().getTerminator());
      return rows[index] = cx->tokens.rows(ConstantOp::create(atToken, row.loc, 0.0, row.type));
    }
    Value sum;
    for (const RowTerm &term : row.terms) {
      Value value = mapped(term.map, columnValue(term.column));
      if (!value)
        return {};
      sum = cx->add(sum, cx->scale(term.c, value));
    }
    return rows[index] = sum;
  }

  // Conjugate gradients for all tokens at once: each product with the state is a readout.
  Value solution(const Row &row) {
    auto solve = row.solution.getDefiningOp<SolveOp>();
    Value rhs = cx->tokens.rows(row.vector);
    auto op = chunk::ConjugateGradientsOp::create(cx->b(), cx->loc, rhs.getType(), rhs,
                                                  *solve.getIterations(), solve.getEps());
    OpBuilder::InsertionGuard guard(cx->b());
    Block *block = cx->b().createBlock(&op.getProduct(), {}, rhs.getType(), cx->loc);
    Value product;
    for (auto &group : groups)
      if (!product)
        product = group->multiplyRows(nf.versions[row.version], block->getArgument(0));
    if (!product) {
      (void)cx->fail("the matrix of '" + notation(row.solution) + "' is no state with token-only terms");
      return {};
    }
    chunk::YieldOp::create(cx->b(), cx->loc, product);
    return op.getResult();
  }

  Value columnValue(const Column &column) {
    if (column.kind == Column::Known)
      return cx->tokens.rows(column.value);
    if (column.kind == Column::RowOf)
      return rowValue(column.index);
    const Read &read = nf.reads[column.index];
    for (auto &group : groups)
      if (group->contains(read.state))
        return group->finalRead(read);
    return {};
  }

  // Token-only factors on the left of a column act on rows from the right.
  Value mapped(ArrayRef<Factor> map, Value value) {
    for (const Factor &factor : llvm::reverse(map)) {
      if (!value)
        return {};
      if (factor.diagonal) {
        auto transposed = factor.value.getDefiningOp<TransposeOp>();
        value = cx->mul(value, cx->tokens.rows(transposed ? transposed.getOperand() : factor.value));
      } else if (cx->tokens.isShared(factor.value)) {
        Value matrix = cx->tokens.shared(factor.value);
        value = cx->matmul(value, factor.transposed ? matrix : cx->transpose(matrix));
      } else if (factor.transposed && isOne(matType(factor.value).getCols())) { // an inner product
        Value product = cx->mul(cx->tokens.rows(factor.value), value);
        value = ReduceOp::create(cx->b(), cx->loc, Reduction::Sum, product, false, true);
      } else if (isOne(matType(value).getCols()) &&
                 isOne(matType(factor.value).getCols())) { // a scalar scales it
        value = cx->mul(value, cx->tokens.rows(factor.value));
      } else {
        (void)cx->fail("'" + notation(factor.value) + "' multiplies what was read from a state");
        return {};
      }
    }
    return value;
  }

  const NormalForm &nf;
  RuleOp rule;
  SmallVector<Value> outputs; // the program's
  SmallVector<Attribute> outputNames;
  SmallVector<chunk::OutputPart> outputParts;
  bool inverts;
  Derivation derivation;
  DeriveContext *cx = nullptr;
  SmallVector<std::unique_ptr<Inverse>> inverses;
  SmallVector<Inverse *> inverseOf; // by state; null: none
  SmallVector<std::unique_ptr<Group>> groups;
  DenseMap<unsigned, Value> rows;
};
} // namespace

OwningOpRef<chunk::ProgramOp> recur::emptyProgram(RuleOp rule, StringAttr length, ArrayAttr outputs,
                                                  ArrayRef<chunk::OutputPart> parts, IntegerAttr block) {
  OpBuilder b(rule.getContext());
  SmallVector<BlockArgument> arguments(rule.getBody().getArguments());
  llvm::erase_if(arguments, [&](BlockArgument x) { return rule.getArg(x).getKind() == ArgKind::Stale; });
  auto args = llvm::map_to_vector(arguments, [&](BlockArgument x) -> Attribute { return rule.getArg(x); });
  auto program = chunk::ProgramOp::create(b, rule.getLoc(), rule.getSymNameAttr(), length,
                                          b.getArrayAttr(args), outputs, block, /*starts=*/IntegerAttr());
  chunk::setOutputParts(program, parts);
  IRMapping map;
  rule.getInit().cloneInto(&program.getInit(), map);
  Operation *end = program.getInit().front().getTerminator();
  b.setInsertionPoint(end);
  chunk::YieldOp::create(b, end->getLoc(), end->getOperands());
  end->erase();
  Block *body = b.createBlock(&program.getBody());
  for (BlockArgument argument : arguments) {
    ArgKind kind = rule.getArg(argument).getKind();
    bool perToken = kind == ArgKind::Input || kind == ArgKind::Position;
    body->addArgument(perToken ? chunk::MapOp::rowsType(argument.getType(), length) : argument.getType(),
                      argument.getLoc());
  }
  return OwningOpRef<chunk::ProgramOp>(program);
}

// Of a rule that reads states at the starts of blocks of so many tokens. Chunks are blocks; or of the length
// that is asked for, where one function of what is read is a substitution.
static Derivation deriveStarts(RuleOp rule, int64_t block) {
  auto asked = rule->getAttrOfType<IntegerAttr>(startsAttr);
  if (!asked)
    return deriveBlocks(rule, /*inParts=*/false);
  int64_t length = asked.getInt();
  NormalForm withStarts = normalise(rule, /*withStarts=*/true);
  Derivation derivation = Deriver(withStarts, /*inverts=*/true).run();
  if (!derivation.program) {
    Derivation functions = deriveFunctions(rule);
    auto isOfOne = [](chunk::SubstituteOp op) { return op.getReads().size() == 1; };
    bool isTaken =
        functions.program &&
        (length > block || llvm::all_of(functions.program->getBody().getOps<chunk::SubstituteOp>(), isOfOne));
    if (isTaken || !functions.defect.empty())
      return functions;
  }
  return length > block ? std::move(derivation) : deriveBlocks(rule, /*inParts=*/length < block);
}

Derivation recur::derive(const NormalForm &nf) {
  if (int64_t block = blockOf(nf.rule); block && nf.ruleClass == RuleClass::S)
    return deriveStarts(nf.rule, block);
  Derivation derivation = Deriver(nf, /*inverts=*/true).run();
  if (nf.ruleClass == RuleClass::N)
    if (Derivation functions = deriveFunctions(nf.rule); functions.program || !functions.defect.empty())
      return functions;
  if (derivation.program && isContraction(nf))
    (*derivation.program)->setAttr(contractionAttr, UnitAttr::get(nf.rule->getContext()));
  if (Attribute norms = nf.rule->getAttr(normsAttr); norms && derivation.program)
    (*derivation.program)->setAttr(normsAttr, norms);
  return derivation;
}

// The chunk programs of a rule that roles may take: of its tokens as they are, of their rows, or of the rule
// in other words; each as a plan reads it.
#include "lib/Cuda/RolePrograms.h"
#include "lib/Algebra/AnchoredState.h"
#include "lib/Algebra/MicroSteps.h"
#include "lib/Algebra/NormalForm.h"
#include "lib/Algebra/Spectral.h"
#include "lib/Algebra/StackedSteps.h"
#include "lib/Algebra/Terms.h"
#include "lib/Cuda/Cores.h"
#include "lib/Cuda/EntryFunctions.h"
#include "lib/Derive/Derive.h"
#include "lib/Derive/ProveRewritten.h"
#include "mlir/Analysis/SliceAnalysis.h"
#include "mlir/Transforms/GreedyPatternRewriteDriver.h"

using namespace mlir;
using namespace recur;
using namespace recur::cuda;

bool cuda::areStacked(RowKind rows) {
  return rows == RowKind::Read || rows == RowKind::Reads || rows == RowKind::Column;
}

// The chunk program of a rule whose rows are a token's reads, or columns, if there is one.
static chunk::ProgramOp deriveRows(DeriveFunction derive, RuleOp rule, RowKind rows, bool outputsInRows) {
  constexpr size_t most = 8;
  bool ofColumns = rows == RowKind::Column;
  auto stack = [&](bool inLogs) {
    auto stacked = stackReads(rule, inLogs, rows == RowKind::Read ? 2 : most, outputsInRows);
    return !stacked && rows == RowKind::Reads ? stackSteps(rule, inLogs, most) : std::move(stacked);
  };
  OwningOpRef<ModuleOp> module = ofColumns ? ruleOfColumn(rule) : stack(/*inLogs=*/true);
  if (!module)
    return {};
  if (ofColumns && !areColumnsAlike(rule))
    return {};
  RuleOp stacked = *module->getOps<RuleOp>().begin();
  auto defectOfReads = [&] {
    OwningOpRef<ModuleOp> plain = stack(/*inLogs=*/false);
    return proveStacked(rule, *plain->getOps<RuleOp>().begin());
  };
  if (std::string defect = ofColumns ? proveColumns(rule, stacked) : defectOfReads(); !defect.empty()) {
    mlir::emitWarning(rule.getLoc()) << "internal error: the rule of one " << (ofColumns ? "column" : "read")
                                     << " is not the rule: " << defect;
    return {};
  }
  chunk::ProgramOp program = derive(stacked, /*ofMicroStep=*/false);
  if (!program)
    return {};
  if (!ofColumns)
    setStackedInputs(program, stackedInputs(stacked), [&](unsigned argument) {
      auto isStale = [](Attribute arg) { return cast<ArgAttr>(arg).getKind() == ArgKind::Stale; };
      return argument - llvm::count_if(stacked.getArgs().getValue().take_front(argument), isStale);
    });
  for (StringRef name : {inTurnAttr, readsFirstAttr, rowsAttr})
    if (Attribute own = stacked->getAttr(name))
      program->setAttr(name, own);
  // Several rows at one time may make a state larger where one does not.
  if (!program->hasAttr(inTurnAttr)) {
    OwningOpRef<RuleOp> copy(rule.clone());
    program->removeAttr(contractionAttr);
    if (isContraction(normalise(*copy)))
      program->setAttr(contractionAttr, UnitAttr::get(rule.getContext()));
  }
  return program;
}

// The rule with what its outputs read along a vector that is divided by a number divided after, where it has
// two matrices; else null. What the chain reads of each is times a number of its own, an entry of the token's
// transitions, and it has no registers for a product of that with another one, as the norm of a query is.
static OwningOpRef<ModuleOp> divideReads(RuleOp rule) {
  auto states = rule.argumentsOf(ArgKind::State);
  if (states.size() != 2 || !llvm::all_of(states, [](Value state) { return isMatrix(state); }))
    return {};
  OwningOpRef<ModuleOp> module = ModuleOp::create(rule.getLoc());
  OpBuilder b = OpBuilder::atBlockEnd(module->getBody());
  auto divided = cast<RuleOp>(b.clone(*rule));
  bool any = false;
  for (auto read : llvm::make_early_inc_range(divided.getBody().getOps<MatmulOp>())) {
    SetVector<Operation *> users;
    getForwardSlice(read.getOperation(), &users);
    bool isWritten = llvm::any_of(divided.yieldedStates(),
                                  [&](Value state) { return users.contains(state.getDefiningOp()); });
    for (unsigned side : {0, 1}) {
      auto turned = read->getOperand(side).getDefiningOp<TransposeOp>();
      auto quotient = (turned ? turned.getOperand() : read->getOperand(side)).getDefiningOp<DivOp>();
      if (isWritten || !quotient || !matType(quotient.getRhs()).isScalar() || dependsOnState(quotient) ||
          !dependsOnState(read->getOperand(1 - side)))
        continue;
      // A number that it is times is one with it.
      auto scaled = read->hasOneUse() ? dyn_cast<MulOp>(*read->user_begin()) : MulOp();
      if (Value by = scaled ? scaled->getOperand(scaled.getLhs() == read.getResult()) : Value();
          by && matType(by).isScalar()) {
        b.setInsertionPoint(scaled);
        scaled->setOperand(scaled.getLhs() == read.getResult(),
                           DivOp::create(b, read.getLoc(), by, quotient.getRhs()));
      } else {
        b.setInsertionPointAfter(read);
        auto after = DivOp::create(b, read.getLoc(), read, quotient.getRhs());
        read->getResult(0).replaceAllUsesExcept(after, after);
      }
      b.setInsertionPoint(read);
      read->setOperand(side,
                       turned ? TransposeOp::create(b, read.getLoc(), quotient.getLhs()) : quotient.getLhs());
      any = true;
    }
  }
  if (!any)
    return {};
  if (std::string defect = proveSame(rule, divided); !defect.empty()) {
    mlir::emitWarning(rule.getLoc()) << "internal error: the rule of divided reads: " << defect;
    return {};
  }
  return module;
}

// The rule with one output more, a number that bounds what a token leaves of the state, where its decay does
// not tell; else null.
static OwningOpRef<ModuleOp> withNormBound(RuleOp rule, bool evenIfDecayTells = false) {
  auto states = rule.argumentsOf(ArgKind::State);
  if (states.empty() || states.size() > 2 ||
      !llvm::all_of(states, [](Value state) { return isMatrix(state); }))
    return {};
  OwningOpRef<ModuleOp> module = ModuleOp::create(rule.getLoc());
  auto copy = cast<RuleOp>(OpBuilder::atBlockEnd(module->getBody()).clone(*rule));
  NormalForm nf = normalise(copy);
  Value bound;
  if (states.size() > 1)
    bound = buildCoupledNormBound(nf);
  else if (evenIfDecayTells || !isContraction(nf))
    bound = buildNormBound(nf);
  if (!bound)
    return {};
  SmallVector<Attribute> names(copy.getOutputs().begin(), copy.getOutputs().end());
  // No name of the language's.
  names.push_back(StringAttr::get(rule.getContext(), "norm bound"));
  copy.setOutputsAttr(ArrayAttr::get(rule.getContext(), names));
  YieldOp yield = copy.getBodyYield();
  yield->insertOperands(yield->getNumOperands(), bound);
  // A bound that is a constant of 1 or more forgets nothing.
  (void)applyPatternsGreedily(copy, FrozenRewritePatternSet());
  if (auto constant = yield->getOperands().back().getDefiningOp<ConstantOp>();
      constant && constant.getValue().convertToDouble() >= 1)
    return {};
  return module;
}

// The program of such a rule without that output: an attribute says which number it was.
static void takeNormBound(chunk::ProgramOp program) {
  Operation *yield = program.getBodyYield();
  Value bound = RolePlan::trace(yield->getOperands().back());
  if (Operation *op = bound.getDefiningOp())
    op->setAttr(normBoundAttr, UnitAttr::get(program.getContext()));
  yield->eraseOperand(yield->getNumOperands() - 1);
  program.setOutputsAttr(ArrayAttr::get(program.getContext(), program.getOutputs().getValue().drop_back()));
}

// The chunk program of a rule that writes what the token before gave, rotated, if it is one.
static chunk::ProgramOp deriveRotated(DeriveFunction derive, RuleOp rule) {
  OwningOpRef<ModuleOp> plain = rotateUpdate(rule, /*inLogs=*/false),
                        module = plain ? rotateUpdate(rule, /*inLogs=*/true) : nullptr;
  if (!module)
    return {};
  if (std::string defect = proveRotated(rule, *plain->getOps<RuleOp>().begin()); !defect.empty()) {
    mlir::emitWarning(rule.getLoc()) << "internal error: the rotated rule is not the rule: " << defect;
    return {};
  }
  RuleOp rotated = *module->getOps<RuleOp>().begin();
  chunk::ProgramOp program = derive(rotated, /*ofMicroStep=*/false);
  if (program)
    program->setAttr(rotatedAttr, rotated->getAttr(rotatedAttr));
  return program;
}

// The chunk program of a rule with a state that is a param, if it is one. The state that it keeps forgets
// what it was before as if there were no such.
static chunk::ProgramOp deriveAnchored(DeriveFunction derive, RuleOp rule) {
  OwningOpRef<ModuleOp> bounded = withNormBound(rule, /*evenIfDecayTells=*/true);
  OwningOpRef<ModuleOp> module = anchorState(bounded ? *bounded->getOps<RuleOp>().begin() : rule);
  chunk::ProgramOp program =
      module ? derive(*module->getOps<RuleOp>().begin(), /*ofMicroStep=*/false) : chunk::ProgramOp();
  if (!program)
    return {};
  program->setAttr(anchoredAttr, UnitAttr::get(rule.getContext()));
  if (bounded)
    takeNormBound(program);
  return program;
}

static chunk::ProgramOp derivedAs(DeriveFunction derive, RuleOp rule, RowKind rows, bool isF16,
                                  bool outputsInRows) {
  chunk::ProgramOp program = rows == RowKind::Token ? deriveRotated(derive, rule) : chunk::ProgramOp();
  if (blockOf(rule)) // a chunk is a block, or has several, or is a part of one
    rule->setAttr(startsAttr, Builder(rule.getContext()).getI64IntegerAttr(tokensOfChunk));
  if (!program) {
    bool isBounded = rows != RowKind::MicroStep && rows != RowKind::Column;
    OwningOpRef<ModuleOp> bounded = isBounded ? withNormBound(rule) : nullptr;
    RuleOp own = bounded ? *bounded->getOps<RuleOp>().begin() : rule;
    program = areStacked(rows) ? deriveRows(derive, own, rows, outputsInRows)
                               : derive(own, rows == RowKind::MicroStep);
    if (program && bounded)
      takeNormBound(program);
    // A scan goes entry by entry.
    bool multiplies = program && program.getBody().getOps<chunk::ScanOp>().empty();
    if (!multiplies && rows == RowKind::Token && !blockOf(rule))
      if (chunk::ProgramOp anchored = deriveAnchored(derive, rule))
        program = anchored;
  }
  if (program) {
    RolePlan::takeNormaliser(program, rule);
    writeSums(program);
    RolePlan::readOnce(program);
    RolePlan::writeBoth(program);
    RolePlan::findMasks(program);
    RolePlan::splitSigns(program);
    giveFunctions(program);
    for (auto op : program.getBody().getOps<chunk::SubstituteOp>())
      takeSumsEarlier(op);
    RolePlan::takeLogs(program);
    // (What a block's start was has not decayed with the values that are written meanwhile.)
    if (!isF16 && !blockOf(rule))
      RolePlan::rescaleRows(program);
    for (StringRef name : {magnifiedAttr, followedAttr})
      if (rule->hasAttr(name))
        program->setAttr(name, UnitAttr::get(rule.getContext()));
  }
  return program;
}

// What reads before values decay has outputs by rows.
chunk::ProgramOp cuda::deriveForRoles(DeriveFunction derive, RuleOp rule, RowKind rows, bool isF16) {
  // (f16 may not hold scores of longer queries.)
  OwningOpRef<ModuleOp> divided = rows == RowKind::Token && !isF16 ? divideReads(rule) : nullptr;
  if (divided)
    rule = *divided->getOps<RuleOp>().begin();
  chunk::ProgramOp program = derivedAs(derive, rule, rows, isF16, /*outputsInRows=*/false);
  bool isMixed = program && rows == RowKind::Read && RolePlan::mixesRows(program);
  return isMixed ? derivedAs(derive, rule, rows, isF16, /*outputsInRows=*/true) : program;
}

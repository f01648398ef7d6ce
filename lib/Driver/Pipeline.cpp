// Runs the stages.
#include "lib/Driver/Pipeline.h"
#include "lib/Algebra/Passes.h"
#include "lib/Algebra/SplitColumns.h"
#include "lib/Driver/Output.h"
#include "lib/Support/LineTables.h"
#include "mlir/Pass/PassManager.h"
#include "mlir/Transforms/Passes.h"
#include "llvm/Support/FormatVariadic.h"

using namespace mlir;
using namespace recur;

namespace {
struct StageText {
  llvm::StringLiteral name, postcondition;
};
// The stages before those of the target.
constexpr StageText ruleStages[] = {
    {"recur", "the spec is one rule, with the text's order of evaluation"},
    {"differentiate", "no gradient is left, and declared ranges hold as far as they can be seen"},
    {"bind", "every dimension has a size"},
    {"simplify",
     "products stand in their cheapest order, vectors are columns, and nothing is computed twice"},
    {"chunk", "where chunks are the form, the rule's chunk program, proved, stands beside it"},
};
} // namespace

void recur::printStages(raw_ostream &os) {
  for (const StageText &stage : ruleStages)
    os << llvm::formatv("{0,-16}{1}\n", stage.name, stage.postcondition);
  for (const cpu::Stage &stage : cpu::stages())
    os << llvm::formatv("{0,-16}{1}\n", stage.name, stage.postcondition);
}

bool recur::isStage(StringRef name) {
  return llvm::any_of(ruleStages, [&](const StageText &stage) { return stage.name == name; }) ||
         llvm::any_of(cpu::stages(), [&](const cpu::Stage &stage) { return stage.name == name; });
}

bool StageWatcher::after(StringRef stage, Operation *ir) {
  auto printed = [&] {
    std::string result;
    llvm::raw_string_ostream os(result);
    ir->print(os, OpPrintingFlags().elideLargeElementsAttrs());
    return result + "\n";
  };
  if (llvm::is_contained(options.printAfter, stage) || llvm::is_contained(options.printAfter, "all")) {
    llvm::errs() << "// IR after '" << stage << "'\n" << printed();
  }
  std::string error; // a file for debugging that cannot be written is no reason to stop
  if (options.saveTemps && !writeFile(stem + "." + stage.str() + ".mlir", printed(), error))
    llvm::errs() << "warning: " << error << "\n";
  if (stage == cpu::stages().back().name && llvm::is_contained(options.emit, "mlir"))
    loweredText += (loweredText.empty() ? "" : "// -----\n") + printed();
  if (options.untilAfter != stage)
    return false;
  text = printed();
  return true;
}

LogicalResult recur::differentiateRule(ModuleOp module) {
  PassManager pm(module.getContext());
  pm.addNestedPass<RuleOp>(createRecurDifferentiate());
  pm.addNestedPass<RuleOp>(createRecurCheckRanges());
  return pm.run(module);
}

LogicalResult recur::bindRule(RuleOp rule, const llvm::StringMap<int64_t> &sizes) {
  if (failed(bindDimensions(rule, sizes)))
    return failure();
  SmallVector<StringAttr> left = rule.symbols();
  if (left.empty())
    return success();
  std::string names, example;
  for (StringAttr symbol : left) {
    names += (names.empty() ? "'" : "', '") + symbol.str();
    example += (example.empty() ? "" : ",") + symbol.str() + "=" + (symbol.size() > 1 ? "128" : "4");
  }
  InFlightDiagnostic error = emitError(rule.getLoc())
                             << (left.size() == 1 ? "dimension " : "dimensions ") << names << "' "
                             << (left.size() == 1 ? "has" : "have") << " no size";
  error.attachNote() << "give it on the command line, such as --bind " << example;
  return error;
}

LogicalResult recur::bindOpenColumns(RuleOp rule, std::vector<std::string> &shown) {
  llvm::StringMap<int64_t> columns;
  for (StringAttr symbol : openColumns(rule))
    if (columns.try_emplace(symbol.getValue(), 2).second)
      shown.push_back(symbol.str());
  return bindDimensions(rule, columns);
}

LogicalResult recur::bindOpenSteps(RuleOp rule, std::vector<std::string> &shown) {
  llvm::StringMap<int64_t> steps;
  rule.walk([&](ForOp loop) {
    if (auto symbol = dyn_cast<StringAttr>(loop.getCount()))
      if (steps.try_emplace(symbol.getValue(), 2).second)
        shown.push_back(symbol.str());
  });
  return bindDimensions(rule, steps);
}

LogicalResult recur::simplifyRule(ModuleOp module) {
  PassManager pm(module.getContext());
  OpPassManager &rule = pm.nest<RuleOp>();
  rule.addPass(createRecurSplitColumns());
  rule.addPass(createRecurDropAssumptions());
  rule.addPass(createCanonicalizerPass());
  rule.addPass(createRecurReassociate());
  rule.addPass(createRecurOrient());
  rule.addPass(createCanonicalizerPass());
  rule.addPass(createCSEPass());
  return pm.run(module);
}

FailureOr<cpu::Kernel> recur::lowerToKernel(ModuleOp module, const cpu::KernelOptions &options,
                                            llvm::LLVMContext &context, StageWatcher &watcher, bool lines) {
  for (const cpu::Stage &stage : cpu::stages()) {
    if (failed(cpu::runStage(stage, module, options)))
      return failure();
    if (watcher.after(stage.name, module))
      return cpu::Kernel();
  }
  if (lines && failed(addLineTables(module, LLVM::DIEmissionKind::LineTablesOnly)))
    return failure();
  return cpu::translateKernel(module, context);
}

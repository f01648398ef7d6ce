// The way from a spec to a kernel, stage by stage, on one page.
#pragma once

#include "dialect/recur/Recur.h"
#include "lib/Cpu/Cpu.h"
#include "lib/Driver/Options.h"
#include "mlir/IR/OwningOpRef.h"
#include "llvm/ADT/StringMap.h"

namespace recur {

/// Prints the names of the stages, in order, with what holds after each.
void printStages(llvm::raw_ostream &os);

/// True when there is a stage of that name.
bool isStage(llvm::StringRef name);

/// Shows the IR after stages, as --print-ir-after, --save-temps and --until-after ask.
class StageWatcher {
public:
  /// `stem` is the path of --save-temps' files up to the stage's name.
  StageWatcher(const Options &options, std::string stem) : options(options), stem(std::move(stem)) {}
  /// To be called after each stage. Returns true when the stage is the last that is wanted.
  bool after(llvm::StringRef stage, mlir::Operation *ir);
  /// The text of the IR after --until-after's stage.
  const std::string &result() const { return text; }
  /// The modules of --emit=mlir: those of all targets after the last stage.
  const std::string &lowered() const { return loweredText; }

private:
  const Options &options;
  std::string stem, text, loweredText;
};

/// Stages that every path shares: gradients become expressions, and ranges are checked. Fails after a
/// diagnostic.
mlir::LogicalResult differentiateRule(mlir::ModuleOp module);

/// Binds dimensions; reports those that have no size. Fails after a diagnostic.
mlir::LogicalResult bindRule(RuleOp rule, const llvm::StringMap<int64_t> &sizes);

/// Gives the dimensions of matrices of few columns that have no size yet the size 2: they are taken apart
/// before a rule is sorted into its class. `shown` gets their names. Fails after a diagnostic.
mlir::LogicalResult bindOpenColumns(RuleOp rule, std::vector<std::string> &shown);

/// Gives each number of micro-steps that has no size yet the size 2: loops over them are unrolled before a
/// rule is sorted into its class, and two show how they follow each other. `shown` gets their names. Fails
/// after a diagnostic.
mlir::LogicalResult bindOpenSteps(RuleOp rule, std::vector<std::string> &shown);

/// Drops assumptions, orders products, simplifies: what code is generated from.
mlir::LogicalResult simplifyRule(mlir::ModuleOp module);

/// A kernel from a module with one bound and simplified rule, which it consumes. Null without an error when
/// the watcher stopped. `lines` keeps line tables.
mlir::FailureOr<cpu::Kernel> lowerToKernel(mlir::ModuleOp module, const cpu::KernelOptions &options,
                                           llvm::LLVMContext &context, StageWatcher &watcher, bool lines);

} // namespace recur

// From a rule to an object.
#pragma once

#include "lib/Artifact/ModelInfo.h"
#include "lib/Cuda/Cuda.h"
#include "lib/Derive/Derive.h"
#include "lib/Driver/Jit.h"
#include "lib/Driver/Pipeline.h"
#include "lib/Driver/Session.h"

namespace recur {

/// A compiled rule.
struct Compiled {
  ModelInfo info;
  std::string object;   // bytes of the relocatable object
  std::string assembly; // only where --emit asks
  std::string llvmText;
};

/// Sorts the loaded rule into its class and derives its chunk form, which is proved; both on a copy. `module`
/// owns the copy and has its sizes bound. A derivation whose proof fails is an internal error. Fails after a
/// diagnostic.
struct Analysis {
  mlir::OwningOpRef<mlir::ModuleOp> module;
  NormalForm normalForm;
  Derivation derivation;
};
mlir::FailureOr<std::unique_ptr<Analysis>> analyse(Session &session, mlir::ModuleOp simplified);

/// Every derivation is proved. One that is not the rule is dropped, and the user told: the rule's other forms
/// are right.
void dropUnproved(Session &session, RuleOp rule, Derivation &derivation);
void warnOfDefect(Session &session, const std::string &defect);

/// Reports an error of LLVM's, where it is one.
mlir::LogicalResult report(Session &session, llvm::Error error);

/// Warns of terms by which a state may grow without bound (-Wspectral), and of linear systems that are not
/// seen to be symmetric (-Wnumerics).
void warnOfTerms(Session &session, const NormalForm &form);

/// What is known about the loaded rule before it is compiled: everything but the variants.
ModelInfo describe(Session &session);

/// The type of each tensor, from --dtype: one for all but states, or NAME=TYPE. Fails after a diagnostic.
mlir::FailureOr<std::vector<DType>> readTypes(Session &session, const ModelInfo &info);

/// How a CPU's kernel of the rule is made.
cpu::KernelOptions cpuOptions(RuleOp rule, const ModelInfo &info, llvm::ArrayRef<DType> types,
                              const Target &target, llvm::StringRef form);

/// Compiles the loaded rule for every target that the options name, to a form that --form may name. Null
/// without an error when the watcher stopped, and, where `missing` is given, when the rule has no such form:
/// it then says why.
mlir::FailureOr<std::unique_ptr<Compiled>> compileRule(Session &session,
                                                       const llvm::StringMap<int64_t> &sizes,
                                                       StageWatcher &watcher, llvm::StringRef form,
                                                       std::string *missing = nullptr);

/// Compiles the loaded rule and brings it into this process; `missing` as in compileRule.
mlir::FailureOr<std::unique_ptr<LoadedRule>> compileAndLoad(Session &session,
                                                            const llvm::StringMap<int64_t> &sizes,
                                                            llvm::StringRef form,
                                                            std::string *missing = nullptr);

/// A copy of the loaded rule with its sizes bound, as the oracle runs it: in the text's order of evaluation.
mlir::FailureOr<mlir::OwningOpRef<mlir::ModuleOp>> oracleModule(Session &session,
                                                                const llvm::StringMap<int64_t> &sizes);

} // namespace recur

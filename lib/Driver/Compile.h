// From a rule to an object.
#pragma once

#include "lib/Artifact/ModelInfo.h"
#include "lib/Derive/Derive.h"
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

/// Sorts the loaded rule into its class and derives its chunk form, which is proved; both on a copy. `module` owns the copy
/// and has its sizes bound. A derivation whose proof fails is dropped. Fails after a diagnostic.
struct Analysis {
  mlir::OwningOpRef<mlir::ModuleOp> module;
  NormalForm normalForm;
  Derivation derivation;
};
mlir::FailureOr<std::unique_ptr<Analysis>> analyse(Session &session, mlir::ModuleOp simplified);

/// What is known about the loaded rule before it is compiled: everything but the variants.
ModelInfo describe(Session &session);

/// Compiles the loaded rule for every target that the options name. Null without an error when the watcher stopped.
mlir::FailureOr<std::unique_ptr<Compiled>> compileRule(Session &session, const llvm::StringMap<int64_t> &sizes,
                                                       StageWatcher &watcher);

} // namespace recur

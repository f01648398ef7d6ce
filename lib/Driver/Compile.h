// From a rule to an object.
#pragma once

#include "lib/Artifact/ModelInfo.h"
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

/// What is known about the loaded rule before it is compiled: everything but the variants.
ModelInfo describe(Session &session);

/// Compiles the loaded rule for every target that the options name. Null without an error when the watcher stopped.
mlir::FailureOr<std::unique_ptr<Compiled>> compileRule(Session &session, const llvm::StringMap<int64_t> &sizes,
                                                       StageWatcher &watcher);

} // namespace recur

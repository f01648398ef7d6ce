//===- Object.h - from LLVM modules to machine code
//--------------------------------------------------------===//
//
// Each variant's kernel comes in a module of its own, made for one target. prepareModule marks its functions
// with that target, linkModules puts the variants together, emitDescriptor makes them callable, and emitCode
// optimises and assembles the whole: every function for the machine it is marked with.
//
//===-------------------------------------------------------------------------------------------------------===//
#pragma once

#include "lib/Artifact/Target.h"
#include "llvm/ADT/SmallString.h"
#include "llvm/IR/Module.h"

#include <memory>

namespace recur {

/// Sets triple, data layout and names of a module, and marks its functions for `target`. Everything but the
/// functions in `exported` becomes internal, so that modules with equal helpers can be linked.
llvm::Error prepareModule(llvm::Module &module, const Target &target,
                          llvm::ArrayRef<llvm::StringRef> exported);

/// Moves the content of `from` into `into`; both prepared, in one context.
llvm::Error linkModules(llvm::Module &into, std::unique_ptr<llvm::Module> from);

/// What emitCode writes.
enum class CodeKind { Object, Assembly };

/// Runs LLVM's passes at -O`level`, 0 to 3, vectorisers included from 2 on.
llvm::Error optimizeModule(llvm::Module &module, unsigned level);

/// Position-independent code for a module as it is; consumes it. Equal modules give equal bytes.
llvm::Expected<llvm::SmallString<0>> emitCode(llvm::Module &module, CodeKind kind, unsigned level);

} // namespace recur

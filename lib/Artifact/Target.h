//===- Target.h - the machines that code can be made for
//---------------------------------------------------===//
//
// One table of names. Each row says what LLVM is told and what the machine must have at run time.
//
//===-------------------------------------------------------------------------------------------------------===//
#pragma once

#include "llvm/ADT/SmallVector.h"
#include "llvm/ADT/StringRef.h"
#include "llvm/Support/Error.h"
#include "llvm/Support/raw_ostream.h"

namespace recur {

/// A machine to compile for.
struct Target {
  /// Name on the command line, in the metadata and in run-time errors: "x86-64-v4+bf16".
  std::string name;
  /// LLVM's target-cpu.
  std::string cpu;
  /// LLVM's target-features beyond those of `cpu`: "+avx512bf16" or nothing.
  std::string features;
  /// LLVM's tune-cpu: the host for "native", else nothing.
  std::string tuneCpu;
  /// RECUR_CPU_* bits that the run-time checks.
  uint64_t required = 0;
  /// How many f32 fill a vector register.
  unsigned vectorWidth = 4;
  /// A GPU's chip, known by `name` to lib/Cuda; what goes into the host's part of the object is for any
  /// x86-64.
  bool gpu = false;
  /// Position in the table: of two targets that fit, the one of higher rank is better.
  unsigned rank = 0;
};

/// Finds a target by name. "native" is the best target that this machine can run, tuned for it. The error
/// names what there is.
llvm::Expected<Target> lookupTarget(llvm::StringRef name);

/// Parses "x86-64-v3,x86-64-v4": at least one, none twice.
llvm::Expected<llvm::SmallVector<Target>> parseTargets(llvm::StringRef list);

/// Prints the names of all targets, one per line, with what they need.
void printTargets(llvm::raw_ostream &os);

} // namespace recur

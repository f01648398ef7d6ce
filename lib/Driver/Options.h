// The command line of recurc.
#pragma once

#include "llvm/ADT/ArrayRef.h"
#include "llvm/ADT/StringMap.h"
#include "llvm/Support/raw_ostream.h"

#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace recur {

enum class Command { Compile, Check, Run, Verify, Bench, Explain, Diff };

/// What the command line says; names and defaults are those of Options.td.
struct Options {
  Command command = Command::Compile;
  std::vector<std::string> specs; // one, or two for diff
  std::string output;
  std::vector<std::string> emit; // empty: obj and header
  std::string name;
  llvm::StringMap<double> bindings;
  std::vector<std::string> dtypes; // TYPE or NAME=TYPE
  std::string targets = "native";
  std::string form = "auto";
  int64_t chunk = 16;
  unsigned optLevel = 2;
  bool lines = false;

  std::string untilAfter;
  std::vector<std::string> printAfter;
  bool saveTemps = false;
  bool dependencies = false;
  std::string dependencyFile, dependencyTarget;

  std::string inputs, outputs;
  std::optional<uint64_t> seed;
  std::optional<int64_t> tokens;
  std::optional<int64_t> batch; // 1, and enough for cold states where steps are timed
  std::optional<int64_t> heads; // 1, and 96 where a GPU is explained
  bool emulate = false;
  int64_t processors = 0; // of the emulated GPU; 0: the chip's
  bool oracle = false, step = false, forward = false;
  bool threadTime = false, progress = false;
  unsigned rounds = 1, proofs = 20, repeat = 0, threads = 0;
  bool json = false, html = false;

  std::vector<std::string> warnings; // what follows -W
  unsigned errorLimit = 20;
  bool jsonDiagnostics = false;

  const std::string &spec() const { return specs.front(); }
};

/// Reads the command line without the program's name. Where it asks for nothing but help, a version or a
/// list, prints that; where it is wrong, prints why: in both cases `exitCode` is set.
Options parseOptions(llvm::ArrayRef<const char *> arguments, std::optional<int> &exitCode);

/// The version of the compiler, such as "recurc 0.1.0 (LLVM 22.1.8)".
std::string compilerVersion();

} // namespace recur

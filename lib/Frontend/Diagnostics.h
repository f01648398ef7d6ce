// Errors, warnings and notes that point into a spec, and their rendering.
#pragma once
#include "lib/Frontend/SourceFile.h"
#include "llvm/ADT/SmallVector.h"
#include "llvm/ADT/Twine.h"
#include <array>
#include <deque>
#include <optional>

namespace llvm {
class raw_ostream;
} // namespace llvm

namespace recur::frontend {

enum class Severity { Error, Warning, Remark, Note };

/// The classes of warnings, each with a flag -W<name>; the table is in Diagnostics.cpp.
enum class WarningClass { Unused, Perf, Numerics, Spectral };
constexpr unsigned numWarningClasses = 4;

/// The flag's name of a class, such as "perf".
llvm::StringRef warningName(WarningClass warning);

/// A text edit that mends what was reported.
struct FixIt {
  SourceRange range;
  std::string replacement;
};

/// One message, the place it speaks of, and what belongs to it.
struct Diagnostic {
  Severity severity = Severity::Error;
  std::string message;
  const SourceFile *file = nullptr; // null: the message is about no place in a text
  SourceRange range;
  std::optional<WarningClass> warning;
  llvm::SmallVector<SourceRange, 1> highlights; // more ranges of the same line to underline
  llvm::SmallVector<FixIt, 1> fixIts;
  std::vector<Diagnostic> notes;

  /// Adds a note at another place of the same file.
  Diagnostic &note(SourceRange at, const llvm::Twine &text);
  /// Adds a note that speaks of no place.
  Diagnostic &note(const llvm::Twine &text);
  Diagnostic &fix(SourceRange at, const llvm::Twine &replacement);
  Diagnostic &highlight(SourceRange at);
};

/// Collects the diagnostics of one run and renders them in the order of the text.
class DiagnosticEngine {
public:
  enum class Format { Text, Json };

  /// How many errors are kept; 0 keeps all. The others are counted and mentioned.
  unsigned errorLimit = 20;
  bool colors = false;

  /// The file that ranges without a file speak of.
  void setFile(const SourceFile *file) { current = file; }
  const SourceFile *file() const { return current; }

  /// The returned diagnostic can be given notes and fixes; it stays valid until the engine goes.
  Diagnostic &error(SourceRange at, const llvm::Twine &message);
  /// An error without a place.
  Diagnostic &error(const llvm::Twine &message);
  /// An empty range at the file's start is no place.
  Diagnostic &warning(WarningClass warning, SourceRange at, const llvm::Twine &message);
  Diagnostic &remark(SourceRange at, const llvm::Twine &message);
  /// A diagnostic whose place is given as lines and columns, as locations of the IR give it.
  Diagnostic &report(Severity severity, LineColumn begin, LineColumn end, const llvm::Twine &message);

  /// The same without a place.
  Diagnostic &report(Severity severity, const llvm::Twine &message);

  /// Applies what follows -W: "perf", "no-perf", "error", "error=perf", "no-error=perf". False: no such flag.
  bool setWarningFlag(llvm::StringRef flag);

  unsigned numErrors() const { return errors; }
  unsigned numWarnings() const { return warnings; }
  bool hasErrors() const { return errors != 0; }
  const std::deque<Diagnostic> &diagnostics() const { return all; }

  void render(llvm::raw_ostream &os, Format format = Format::Text) const;

private:
  enum class Level { Ignored, Warning, Error };

  Diagnostic &add(Diagnostic diagnostic);

  const SourceFile *current = nullptr;
  std::deque<Diagnostic> all;
  std::deque<Diagnostic> dropped; // what the limit or a flag suppresses, so that callers may still add notes
  std::array<Level, numWarningClasses> levels = {Level::Warning, Level::Warning, Level::Warning,
                                                 Level::Warning};
  unsigned errors = 0;
  unsigned warnings = 0;
};

} // namespace recur::frontend

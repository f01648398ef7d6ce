// The text of one spec, and the map between byte offsets and lines.
#pragma once
#include "llvm/ADT/StringRef.h"
#include "llvm/Support/MemoryBuffer.h"
#include <memory>
#include <string>
#include <vector>

namespace recur::frontend {

class DiagnosticEngine;

/// Half-open range of byte offsets in a source file.
struct SourceRange {
  uint32_t begin = 0;
  uint32_t end = 0;

  bool operator==(SourceRange other) const { return begin == other.begin && end == other.end; }
};

/// The smallest range that covers both.
inline SourceRange cover(SourceRange a, SourceRange b) {
  return {std::min(a.begin, b.begin), std::max(a.end, b.end)};
}

/// A position as people count: line and column from 1, the column in bytes.
struct LineColumn {
  unsigned line = 1;
  unsigned column = 1;
};

class SourceFile {
public:
  /// The largest text that is taken for a spec.
  static constexpr size_t maxBytes = 1 << 20;

  /// Reads a file, or standard input for "-". Reports a missing or too large file and returns null.
  static std::unique_ptr<SourceFile> open(llvm::StringRef path, DiagnosticEngine &diags);

  /// A file from text in memory; the text is not checked until it is parsed.
  SourceFile(llvm::StringRef name, llvm::StringRef text);

  /// Reports what no spec may contain: too many bytes, control bytes, broken UTF-8. One error at most.
  bool checkText(DiagnosticEngine &diags) const;

  llvm::StringRef name() const { return fileName; }
  llvm::StringRef text() const { return buffer->getBuffer(); }
  llvm::StringRef text(SourceRange range) const { return text().slice(range.begin, range.end); }

  /// The name of a rule that does not say its own: the file's stem, made an identifier.
  std::string ruleName() const;

  LineColumn lineColumn(uint32_t offset) const;
  /// The inverse of lineColumn, clamped to the text.
  uint32_t offset(LineColumn position) const;
  /// The text of a line, counted from 1, without its end.
  llvm::StringRef line(unsigned number) const;

private:
  SourceFile(std::string name, std::unique_ptr<llvm::MemoryBuffer> buffer);

  std::string fileName;
  std::unique_ptr<llvm::MemoryBuffer> buffer;
  std::vector<uint32_t> lineStarts;
};

} // namespace recur::frontend

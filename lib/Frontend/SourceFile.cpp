#include "lib/Frontend/SourceFile.h"
#include "lib/Frontend/Diagnostics.h"
#include "llvm/ADT/StringExtras.h"
#include "llvm/Support/ConvertUTF.h"
#include "llvm/Support/Path.h"
#include <algorithm>

using namespace llvm;

namespace recur::frontend {

SourceFile::SourceFile(std::string name, std::unique_ptr<MemoryBuffer> memory)
    : fileName(std::move(name)), buffer(std::move(memory)) {
  lineStarts.push_back(0);
  StringRef all = text();
  for (size_t at = all.find('\n'); at != StringRef::npos; at = all.find('\n', at + 1))
    lineStarts.push_back(at + 1);
}

SourceFile::SourceFile(StringRef name, StringRef text)
    : SourceFile(name.str(), MemoryBuffer::getMemBufferCopy(text, name)) {}

std::unique_ptr<SourceFile> SourceFile::open(StringRef path, DiagnosticEngine &diags) {
  ErrorOr<std::unique_ptr<MemoryBuffer>> memory = MemoryBuffer::getFileOrSTDIN(path);
  if (!memory) {
    diags.error("cannot read '" + path + "': " + memory.getError().message());
    return nullptr;
  }
  // Offsets are 32 bits wide; whatever is near that size is refused before it is indexed.
  if ((*memory)->getBufferSize() > maxBytes) {
    diags.error("'" + path + "' is no spec: it has " + Twine((*memory)->getBufferSize()) +
                " bytes, the limit is " + Twine(maxBytes));
    return nullptr;
  }
  return std::unique_ptr<SourceFile>(
      new SourceFile(path == "-" ? "<stdin>" : path.str(), std::move(*memory)));
}

bool SourceFile::checkText(DiagnosticEngine &diags) const {
  StringRef all = text();
  if (all.size() > maxBytes) {
    diags.error("'" + name() + "' is no spec: it has " + Twine(all.size()) + " bytes, the limit is " +
                Twine(maxBytes));
    return false;
  }
  for (size_t i = 0; i < all.size();) {
    unsigned char c = all[i];
    if (c >= 0x80) {
      const auto *from = reinterpret_cast<const UTF8 *>(all.data() + i);
      const auto *end = reinterpret_cast<const UTF8 *>(all.data() + all.size());
      unsigned length = getUTF8SequenceSize(from, end);
      if (length == 0) {
        diags.error("'" + name() + "' is no text: byte " + Twine(i) + " is 0x" + utohexstr(c, true) +
                    ", which is not UTF-8");
        return false;
      }
      i += length;
      continue;
    }
    if ((c < 0x20 && c != '\n' && c != '\t' && c != '\r') || c == 0x7f) {
      diags.error("'" + name() + "' is no text: byte " + Twine(i) + " is the control byte 0x" +
                  utohexstr(c, true, 2));
      return false;
    }
    ++i;
  }
  return true;
}

std::string SourceFile::ruleName() const {
  std::string stem = fileName == "<stdin>" ? "rule" : sys::path::stem(fileName).str();
  for (char &c : stem)
    if (!isAlnum(c) && c != '_')
      c = '_';
  if (stem.empty() || isDigit(stem[0]))
    stem = "rule_" + stem;
  return stem;
}

LineColumn SourceFile::lineColumn(uint32_t offset) const {
  auto next = std::upper_bound(lineStarts.begin(), lineStarts.end(), offset);
  unsigned line = next - lineStarts.begin();
  return {line, offset - lineStarts[line - 1] + 1};
}

uint32_t SourceFile::offset(LineColumn position) const {
  unsigned line = std::clamp<unsigned>(position.line, 1, lineStarts.size());
  uint32_t start = lineStarts[line - 1];
  uint32_t columns = this->line(line).size();
  return start + std::min(columns, std::max(position.column, 1u) - 1);
}

StringRef SourceFile::line(unsigned number) const {
  if (number == 0 || number > lineStarts.size())
    return {};
  StringRef rest = text().drop_front(lineStarts[number - 1]);
  return rest.take_until([](char c) { return c == '\n'; }).rtrim('\r');
}

} // namespace recur::frontend

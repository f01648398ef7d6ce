#include "lib/Frontend/Diagnostics.h"
#include "llvm/ADT/STLExtras.h"
#include "llvm/Support/JSON.h"
#include "llvm/Support/Unicode.h"
#include "llvm/Support/raw_ostream.h"

using namespace llvm;

namespace recur::frontend {

static constexpr StringLiteral warningNames[numWarningClasses] = {"unused", "perf", "numerics", "spectral"};

StringRef warningName(WarningClass warning) { return warningNames[static_cast<unsigned>(warning)]; }

static StringRef severityName(Severity severity) {
  switch (severity) {
  case Severity::Error:
    return "error";
  case Severity::Warning:
    return "warning";
  case Severity::Remark:
    return "remark";
  case Severity::Note:
    return "note";
  }
  llvm_unreachable("all severities are named");
}

Diagnostic &Diagnostic::note(SourceRange at, const Twine &text) {
  Diagnostic added;
  added.severity = Severity::Note;
  added.message = text.str();
  added.file = file;
  added.range = at;
  notes.push_back(std::move(added));
  return *this;
}

Diagnostic &Diagnostic::note(const Twine &text) {
  note(SourceRange(), text);
  notes.back().file = nullptr;
  return *this;
}

Diagnostic &Diagnostic::fix(SourceRange at, const Twine &replacement) {
  fixIts.push_back({at, replacement.str()});
  return *this;
}

Diagnostic &Diagnostic::highlight(SourceRange at) {
  highlights.push_back(at);
  return *this;
}

//===----------------------------------------------------------------------===//
// Collecting
//===----------------------------------------------------------------------===//

Diagnostic &DiagnosticEngine::add(Diagnostic diagnostic) {
  // The same message at the same place says nothing new: inlined functions would repeat it.
  for (Diagnostic &earlier : all)
    if (earlier.file == diagnostic.file && earlier.range == diagnostic.range &&
        earlier.message == diagnostic.message)
      return dropped.emplace_back(std::move(diagnostic));
  bool keep = true;
  if (diagnostic.severity == Severity::Error)
    keep = errors++ < errorLimit || errorLimit == 0;
  else if (diagnostic.severity == Severity::Warning)
    ++warnings;
  return (keep ? all : dropped).emplace_back(std::move(diagnostic));
}

static Diagnostic make(Severity severity, const SourceFile *file, SourceRange at, const Twine &message) {
  Diagnostic made;
  made.severity = severity;
  made.file = file;
  made.range = at;
  made.message = message.str();
  return made;
}

Diagnostic &DiagnosticEngine::error(SourceRange at, const Twine &message) {
  return add(make(Severity::Error, current, at, message));
}

Diagnostic &DiagnosticEngine::error(const Twine &message) {
  return add(make(Severity::Error, nullptr, {}, message));
}

Diagnostic &DiagnosticEngine::remark(SourceRange at, const Twine &message) {
  return add(make(Severity::Remark, current, at, message));
}

Diagnostic &DiagnosticEngine::warning(WarningClass warning, SourceRange at, const Twine &message) {
  Level level = levels[static_cast<unsigned>(warning)];
  bool isPlaced = !(at == SourceRange());
  Diagnostic made = make(level == Level::Error ? Severity::Error : Severity::Warning,
                         isPlaced ? current : nullptr, at, message);
  made.warning = warning;
  if (level == Level::Ignored)
    return dropped.emplace_back(std::move(made));
  return add(std::move(made));
}

Diagnostic &DiagnosticEngine::report(Severity severity, LineColumn begin, LineColumn end,
                                     const Twine &message) {
  SourceRange at;
  if (current)
    at = {current->offset(begin), current->offset(end)};
  return add(make(severity, current, at, message));
}

Diagnostic &DiagnosticEngine::report(Severity severity, const Twine &message) {
  return add(make(severity, nullptr, {}, message));
}

bool DiagnosticEngine::setWarningFlag(StringRef flag) {
  Level level = Level::Warning;
  if (flag.consume_front("error=") || flag == "error")
    level = Level::Error;
  else if (!flag.consume_front("no-error=") && flag.consume_front("no-"))
    level = Level::Ignored;
  if (flag == "error") {
    levels.fill(Level::Error);
    return true;
  }
  const auto *found = find(warningNames, flag);
  if (found == std::end(warningNames))
    return false;
  levels[found - std::begin(warningNames)] = level;
  return true;
}

//===----------------------------------------------------------------------===//
// Rendering
//===----------------------------------------------------------------------===//

/// The source line with its caret and underlines; what lies on other lines is not marked.
static void renderSnippet(raw_ostream &os, const Diagnostic &d) {
  LineColumn at = d.file->lineColumn(d.range.begin);
  StringRef line = d.file->line(at.line);
  uint32_t lineBegin = d.range.begin - (at.column - 1);
  std::string marks(line.size() + 1, ' ');
  auto underline = [&](SourceRange range) {
    for (uint32_t i = std::max(range.begin, lineBegin); i < range.end && i - lineBegin < line.size(); ++i)
      marks[i - lineBegin] = '~';
  };
  underline(d.range);
  for (SourceRange range : d.highlights)
    underline(range);
  marks[std::min<size_t>(at.column - 1, line.size())] = '^';

  // A very long line is cut to a window around the caret.
  size_t from = 0, length = line.size();
  if (length > 160) {
    from = at.column > 80 ? at.column - 80 : 0;
    while (from > 0 && (static_cast<unsigned char>(line[from]) & 0xc0) == 0x80)
      --from;
    length = 160;
  }
  // Columns are bytes; on the screen a character may take several bytes or a tab's width.
  std::string shown, carets;
  for (size_t i = from; i < line.size() && i < from + length;) {
    size_t size = 1;
    while (i + size < line.size() && (static_cast<unsigned char>(line[i + size]) & 0xc0) == 0x80)
      ++size;
    StringRef character = line.substr(i, size);
    int width = character == "\t" ? 1 : std::max(1, sys::unicode::columnWidthUTF8(character));
    shown += character == "\t" ? " " : character.str();
    carets += marks[i];
    carets.append(width - 1, marks[i] == ' ' ? ' ' : '~');
    i += size;
  }
  if (at.column - 1 >= line.size())
    carets += '^';
  os << "    " << shown << "\n    " << StringRef(carets).rtrim() << '\n';
  for (const FixIt &fix : d.fixIts) {
    LineColumn where = d.file->lineColumn(fix.range.begin);
    if (where.line != at.line || where.column - 1 < from || fix.replacement.empty())
      continue;
    os.indent(4 + where.column - 1 - from) << fix.replacement << '\n';
  }
}

static void renderText(raw_ostream &os, const Diagnostic &d, bool colors) {
  auto color = [&](raw_ostream::Colors color, StringRef text) {
    if (colors)
      os.changeColor(color, /*Bold=*/true);
    os << text;
    if (colors)
      os.resetColor();
  };
  if (d.file) {
    LineColumn at = d.file->lineColumn(d.range.begin);
    os << d.file->name() << ':' << at.line << ':' << at.column << ": ";
  }
  color(d.severity == Severity::Error     ? raw_ostream::RED
        : d.severity == Severity::Warning ? raw_ostream::MAGENTA
                                          : raw_ostream::CYAN,
        severityName(d.severity));
  os << ": " << d.message;
  if (d.warning)
    os << (d.severity == Severity::Error ? " [-Werror=" : " [-W") << warningName(*d.warning) << ']';
  os << '\n';
  if (d.file)
    renderSnippet(os, d);
  for (const Diagnostic &note : d.notes)
    renderText(os, note, colors);
}

static void renderJson(json::OStream &json, const Diagnostic &d) {
  auto place = [&](SourceRange range) {
    LineColumn begin = d.file->lineColumn(range.begin), end = d.file->lineColumn(range.end);
    json.attribute("line", begin.line);
    json.attribute("column", begin.column);
    json.attribute("endLine", end.line);
    json.attribute("endColumn", end.column);
  };
  json.object([&] {
    json.attribute("severity", severityName(d.severity));
    json.attribute("message", d.message);
    if (d.warning)
      json.attribute("flag", ("-W" + warningName(*d.warning)).str());
    if (d.file) {
      json.attribute("file", d.file->name());
      place(d.range);
    }
    json.attributeArray("fixits", [&] {
      for (const FixIt &fix : d.fixIts)
        json.object([&] {
          place(fix.range);
          json.attribute("replacement", fix.replacement);
        });
    });
    json.attributeArray("notes", [&] {
      for (const Diagnostic &note : d.notes)
        renderJson(json, note);
    });
  });
}

void DiagnosticEngine::render(raw_ostream &os, Format format) const {
  // In the order of the text; what speaks of no place comes first.
  SmallVector<std::tuple<bool, uint32_t, size_t>> order;
  for (auto [i, d] : enumerate(all))
    order.emplace_back(d.file != nullptr, d.range.begin, i);
  sort(order);
  auto sorted = map_range(order, [&](const auto &entry) { return &all[std::get<2>(entry)]; });
  if (format == Format::Json) {
    json::OStream json(os, 2);
    json.array([&] {
      for (const Diagnostic *d : sorted)
        renderJson(json, *d);
    });
    os << '\n';
    return;
  }
  for (const Diagnostic *d : sorted)
    renderText(os, *d, colors);
  if (errorLimit != 0 && errors > errorLimit)
    os << "error: " << errors - errorLimit << " more errors are not shown, the limit is " << errorLimit
       << '\n';
}

} // namespace recur::frontend

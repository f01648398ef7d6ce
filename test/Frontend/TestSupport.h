// What the front end's tests share.
#pragma once
#include "lib/Frontend/Diagnostics.h"
#include "lib/Frontend/Parser.h"
#include "lib/Frontend/Program.h"
#include "llvm/ADT/STLExtras.h"
#include "llvm/Support/FileSystem.h"
#include "llvm/Support/Path.h"
#include "llvm/Support/raw_ostream.h"
#include "gtest/gtest.h"
#include <string>
#include <vector>

namespace recur::frontend {

/// All diagnostics as text.
inline std::string rendered(const DiagnosticEngine &diags,
                            DiagnosticEngine::Format format = DiagnosticEngine::Format::Text) {
  std::string text;
  llvm::raw_string_ostream os(text);
  diags.render(os, format);
  return text;
}

/// The symbols of a spec, one per line, or its diagnostics where it is not well formed.
inline std::string checked(llvm::StringRef text) {
  SourceFile file("t.rec", text);
  DiagnosticEngine diags;
  std::unique_ptr<Program> program = check(file, diags);
  if (!program)
    return rendered(diags);
  std::string symbols;
  llvm::raw_string_ostream os(symbols);
  printSymbols(*program, os);
  return symbols;
}

template <typename T>
std::string dumped(const T &tree) {
  std::string text;
  llvm::raw_string_ostream os(text);
  dump(tree, os);
  return text;
}

template <typename T>
std::string printed(const T &tree) {
  std::string text;
  llvm::raw_string_ostream os(text);
  print(tree, os);
  return text;
}

/// The spec files of a folder of test/.
inline std::vector<std::string> specFiles(llvm::StringRef folder) {
  std::vector<std::string> files;
  std::error_code error;
  llvm::SmallString<128> path(RECUR_TEST_DIR);
  llvm::sys::path::append(path, folder);
  for (llvm::sys::fs::directory_iterator it(path, error), end; it != end && !error; it.increment(error))
    if (llvm::StringRef(it->path()).ends_with(".rec"))
      files.push_back(it->path());
  llvm::sort(files);
  return files;
}

/// The text of a file.
inline std::string textOf(llvm::StringRef path) {
  DiagnosticEngine diags;
  std::unique_ptr<SourceFile> file = SourceFile::open(path, diags);
  return file ? file->text().str() : std::string();
}

} // namespace recur::frontend

// Any bytes are a program or a list of errors, and what is a program is one again when it is printed.
#include "lib/Frontend/Diagnostics.h"
#include "lib/Frontend/Parser.h"
#include "lib/Frontend/Program.h"
#include "llvm/Support/raw_ostream.h"

#include <cstdlib>

using namespace recur::frontend;

static std::string printed(const Spec &spec) {
  std::string text;
  llvm::raw_string_ostream os(text);
  print(spec, os);
  return text;
}

static void require(bool condition, const char *what, llvm::StringRef text) {
  if (condition)
    return;
  llvm::errs() << what << ":\n" << text << "\n";
  std::abort();
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  SourceFile file("fuzz.rec", llvm::StringRef(reinterpret_cast<const char *>(data), size));
  DiagnosticEngine diags;
  Spec spec = parse(file, diags);
  bool parsed = !diags.hasErrors();
  std::string once = parsed ? printed(spec) : std::string();
  std::unique_ptr<Program> program = check(std::move(spec), diags);
  require((program != nullptr) == !diags.hasErrors(), "a program with errors, or none without", file.text());
  std::string rendered;
  llvm::raw_string_ostream os(rendered);
  diags.render(os, DiagnosticEngine::Format::Text);
  diags.render(os, DiagnosticEngine::Format::Json);
  if (!parsed)
    return 0;
  SourceFile copy("copy.rec", once);
  DiagnosticEngine none;
  Spec second = parse(copy, none);
  require(!none.hasErrors() && printed(second) == once, "is not read as it was printed", once);
  require((check(std::move(second), none) != nullptr) == (program != nullptr),
          "means something else when printed", once);
  return 0;
}

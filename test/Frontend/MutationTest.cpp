// Broken text never crashes the front end, and what it takes gives valid IR: specs with characters and words
// changed at random.
#include "TestSupport.h"
#include "lib/Frontend/IRGen.h"
#include "mlir/IR/Verifier.h"
#include <cstdlib>
#include <random>

using namespace recur::frontend;

TEST(Mutation, ErrorsButNeverCrashes) {
  static const char *const words[] = {
      "S",  "k",  "kT", "*", "+",     "(",     ")",        "[",         "]",      "{",
      "}",  "|",  ".T", "@", "16",    "\n",    ";",        "for j",     " in ",   "1..n",
      "=",  ":",  ",",  "I", "grad(", "M",     "input ",   "fn f(x)=",  "state ", "vector(",
      "^2", ".*", "./", "/", "-",     "diag(", "softmax(", "block 4 {", "Q",      "decay("};
  std::vector<std::string> texts;
  for (const std::string &path : specFiles("language"))
    texts.push_back(textOf(path));
  for (const std::string &path : specFiles("../specs"))
    texts.push_back(textOf(path));
  mlir::MLIRContext context;
  unsigned wellFormed = 0;
  std::mt19937 random(1);
  auto below = [&](size_t n) { return static_cast<size_t>(random() % n); };
  // RECUR_MUTATIONS=1000000 makes a longer run by hand.
  const char *longer = std::getenv("RECUR_MUTATIONS");
  for (int run = 0, runs = longer ? std::atoi(longer) : 20000; run < runs; ++run) {
    std::string text = texts[below(texts.size())];
    for (size_t i = below(6) + 1; i > 0; --i) {
      size_t at = below(text.size() + 1), length = std::min(below(4), text.size() - at);
      switch (below(3)) {
      case 0:
        text.insert(at, words[below(std::size(words))]);
        break;
      case 1:
        text.erase(at, length);
        break;
      case 2:
        text.replace(at, length, words[below(std::size(words))]);
        break;
      }
    }
    SourceFile file("t.rec", text);
    DiagnosticEngine diags;
    Spec spec = parse(file, diags);
    if (!diags.hasErrors()) {
      std::string once = printed(spec);
      SourceFile again("t.rec", once);
      Spec second = parse(again, diags);
      ASSERT_EQ(dumped(spec), dumped(second)) << text;
    }
    std::unique_ptr<Program> program = check(std::move(spec), diags);
    ASSERT_EQ(program != nullptr, !diags.hasErrors()) << text << rendered(diags);
    if (!program)
      continue;
    ++wellFormed;
    mlir::OwningOpRef<mlir::ModuleOp> module = emitIR(*program, context, diags);
    ASSERT_TRUE(mlir::succeeded(mlir::verify(*module))) << text;
  }
  EXPECT_GT(wellFormed, 100u);
}

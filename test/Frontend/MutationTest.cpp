// Broken text never crashes the front end: specs of the language with characters and words changed at random.
#include "TestSupport.h"
#include <random>

using namespace recur::frontend;

TEST(Mutation, ErrorsButNeverCrashes) {
  static const char *const words[] = {"S",  "k",   "kT", "*",  "+",    "(",     ")",        "[",     "]",   "{",
                                      "}",  "|",   ".T", "@",  "16",   "\n",    ";",        "for j", " in ", "1..n",
                                      "=",  ":",   ",",  "I",  "grad(", "M",    "input ",   "fn f(x)=", "state ", "vector(",
                                      "^2", ".*",  "./", "/",  "-",    "diag(", "softmax(", "block 4 {", "Q", "decay("};
  std::vector<std::string> texts;
  for (const std::string &path : specFiles("language"))
    texts.push_back(textOf(path));
  std::mt19937 random(1);
  auto below = [&](size_t n) { return static_cast<size_t>(random() % n); };
  for (int run = 0; run < 4000; ++run) {
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
    bool fine = check(std::move(spec), diags) != nullptr;
    ASSERT_EQ(fine, !diags.hasErrors()) << text << rendered(diags);
  }
}

#include "TestSupport.h"
#include "lib/Frontend/Lexer.h"

using namespace recur::frontend;

static std::string tokens(llvm::StringRef text) {
  SourceFile file("t.rec", text);
  DiagnosticEngine diags;
  diags.setFile(&file);
  std::string out;
  for (const Token &token : lex(file, diags))
    if (token.kind != TokenKind::End)
      out += (token.kind == TokenKind::Newline ? "$" : file.text(token.range).str()) + " ";
  return out + rendered(diags);
}

/// Parses, prints and parses again: both trees are the same.
static std::string roundTrip(llvm::StringRef text) {
  SourceFile file("t.rec", text);
  DiagnosticEngine diags;
  Spec spec = parse(file, diags);
  EXPECT_EQ(rendered(diags), "");
  std::string once = printed(spec);
  SourceFile again("t.rec", once);
  Spec second = parse(again, diags);
  EXPECT_EQ(rendered(diags), "");
  EXPECT_EQ(dumped(spec), dumped(second));
  return once;
}

static std::string errorsOf(llvm::StringRef text) {
  SourceFile file("t.rec", text);
  DiagnosticEngine diags;
  parse(file, diags);
  std::string all;
  for (const Diagnostic &d : diags.diagnostics())
    all += std::to_string(file.lineColumn(d.range.begin).line) + ":" +
           std::to_string(file.lineColumn(d.range.begin).column) + " " + d.message + "\n";
  return all;
}

TEST(Lexer, SplitsNumbersFromOperators) {
  EXPECT_EQ(tokens("1..n 1.*x 1./x 1.5.*x 1e-6 .5 2.T"), "1 .. n 1 .* x 1 ./ x 1.5 .* x 1e-6 .5 2 . T $ ");
  EXPECT_EQ(tokens("k[j]T"), "k [ j ] T $ ");
}

TEST(Lexer, EndsStatements) {
  EXPECT_EQ(tokens("a = b # c\n\n\nd = e; ; f = g // h"), "a = b $ d = e $ f = g $ ");
  EXPECT_EQ(tokens("a = b +\n  c"), "a = b + c $ ");
  EXPECT_EQ(tokens("a = 1e999"), "a = 1e999 $ t.rec:1:5: error: number '1e999' is out of range\n"
                                 "    a = 1e999\n        ^~~~~\n");
}

TEST(Parser, RoundTripsTheLanguage) {
  std::vector<std::string> files = specFiles("language");
  EXPECT_GE(files.size(), 13u);
  for (const std::string &file : files)
    roundTrip(textOf(file));
}

TEST(Parser, KeepsStructure) {
  EXPECT_EQ(roundTrip("o = a*(b*c) - (d - e) + (-f)^2 - -g"), "o = a*(b*c) - (d - e) + (-f)^2 - -g\n");
  EXPECT_EQ(roundTrip("o = ||x| - |y||^2 + (a + b)T.T + k[j]T"),
            "o = ||x| - |y||^2 + (a + b).T.T + k[j].T\n");
  EXPECT_EQ(roundTrip("o = a^b^-c + (a^b)^c"), "o = a^b^-c + (a^b)^c\n");
  EXPECT_EQ(roundTrip("o = a.^b.^-c.*2.^(a.*b)"), "o = a.^b.^-c.*2.^(a.*b)\n");
  EXPECT_EQ(roundTrip("o = S@16*k + solve(A, x, iterations=30, eps=1e-5)"),
            "o = S@16*k + solve(A, x, iterations=30, eps=1e-5)\n");
  EXPECT_EQ(roundTrip("input a, b : diag(n)[3] in (-inf, 2*c] unit"),
            "input a, b : diag(n)[3] in (-inf, 2*c] unit\n");
  EXPECT_EQ(roundTrip("fn f(x, e=1e-6) in [0, 1) unit = x./(x + e)"),
            "fn f(x, e=1e-6) in [0, 1) unit = x./(x + e)\n");
  EXPECT_EQ(roundTrip("for j in 1..n {block 2 { a = b; c = d }}"),
            "for j in 1..n {\n  block 2 {\n    a = b\n    c = d\n  }\n}\n");
  EXPECT_EQ(roundTrip("o = (a\n + b\n)"), "o = a + b\n");
  EXPECT_EQ(roundTrip("input = 1; o = input.*1.5"), "input = 1\no = input.*1.5\n");
}

TEST(Parser, ReportsEveryError) {
  EXPECT_EQ(errorsOf("a = (b\nc = d e\nf = * g\ninput h : vektor(n)\ni = 1\nj += 2\nfoo bar = 3\n"),
            "1:7 expected ')', got the end of the line\n"
            "2:7 expected an operator or the end of the statement, got 'e'\n"
            "3:5 expected an operand, got '*'\n"
            "4:11 expected a shape: scalar, vector(n), matrix(m, n) or diag(n), got 'vektor'\n"
            "6:3 expected '=' after 'j', got '+'\n"
            "7:5 expected '=' after 'foo', got 'bar'\n");
  EXPECT_EQ(errorsOf("for j in 1..2 {\n a = )\n b = c\n"
                     "}\n}\nd = |x\n"),
            "2:6 expected an operand, got ')'\n"
            "5:1 '}' closes nothing\n"
            "6:7 expected '|', got the end of the statement\n");
  EXPECT_EQ(errorsOf("a = f(x=1, 2)"), "1:12 an argument without a name cannot follow one with a name\n");
  EXPECT_EQ(errorsOf("a = b \xe2\x88\x92 c"), "1:7 character '\xe2\x88\x92' has no meaning here\n");
  EXPECT_EQ(errorsOf("input a : vector(0)"),
            "1:18 expected a dimension: a name or an integer from 1 to 16777216, got '0'\n");
  EXPECT_EQ(errorsOf("input q, k : vector(n) unit unit"),
            "1:29 expected the end of the statement, got 'unit'\n");
  EXPECT_EQ(errorsOf("a = b**2"), "1:7 expected an operand, got '*'\n");
  EXPECT_EQ(errorsOf("a = (b c)"), "1:8 expected an operator or ')', got 'c'\n");
  EXPECT_EQ(errorsOf("a = f(b\nc)"),
            "1:8 expected ')', got the end of the line\n2:2 expected '=' after 'c', got ')'\n");
  EXPECT_EQ(errorsOf("input a : matrix(n)"), "1:19 expected ',': a matrix has 2 dimensions, got ')'\n");
}

TEST(Parser, LimitsNesting) {
  auto repeated = [](const char *what, int n) {
    std::string all;
    for (int i = 0; i < n; ++i)
      all += what;
    return all;
  };
  EXPECT_EQ(errorsOf("o = " + repeated("(", 10000) + "q" + repeated(")", 10000)),
            "1:261 this is nested deeper than 256 levels\n");
  EXPECT_EQ(errorsOf("o = " + repeated("-", 10000) + "q"), "1:261 this is nested deeper than 256 levels\n");
  EXPECT_EQ(errorsOf(repeated("for j in 1..2 {", 10000)), "1:3850 this is nested deeper than 256 levels\n");
  EXPECT_EQ(errorsOf("o = q" + repeated(" + q", 10000)),
            "1:4003 this expression has more than 1000 operations inside each other\n");
}

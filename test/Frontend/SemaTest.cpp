#include "TestSupport.h"

using namespace recur::frontend;

static bool contains(const std::string &text, llvm::StringRef part) {
  return llvm::StringRef(text).contains(part);
}

// Specs and what must be found in the symbols, or in the errors.
struct Case {
  const char *spec;
  std::vector<const char *> expected;
};

static void expectAll(const std::vector<Case> &cases) {
  for (const Case &c : cases) {
    std::string found = checked(c.spec);
    for (const char *expected : c.expected)
      EXPECT_TRUE(contains(found, expected)) << c.spec << "\nexpected: " << expected << "\ngot:\n" << found;
  }
}

TEST(Sema, InfersTheCard) {
  EXPECT_EQ(checked("S = a*S*(I - b*k*kT) + b*v*kT; o = S*q"), "rule t\n"
                                                               "input a : scalar\n"
                                                               "input b : scalar\n"
                                                               "input k : vector(dk)\n"
                                                               "input v : vector(dv)\n"
                                                               "input q : vector(dk)\n"
                                                               "state S : matrix(dv, dk)\n"
                                                               "local o : vector(dv)\n"
                                                               "output o : vector(dv)\n"
                                                               "dims dk dv\n");
}

TEST(Sema, ChecksTheLanguage) {
  for (const std::string &path : specFiles("language")) {
    std::string found = checked(textOf(path));
    EXPECT_EQ(llvm::StringRef(path).ends_with("deltanet.rec"), contains(found, "error")) << path << "\n"
                                                                                         << found;
  }
}

TEST(Sema, ReportsTheErrorOfTheLanguage) {
  SourceFile file("deltanet.rec", textOf(std::string(RECUR_TEST_DIR) + "/language/deltanet.rec"));
  DiagnosticEngine diags;
  EXPECT_EQ(check(file, diags), nullptr);
  EXPECT_EQ(rendered(diags), "deltanet.rec:4:18: error: 'kT' needs a vector, but 'k' is a scalar\n"
                             "    S = a*S*(I - b*k*kT) + b*v*kT\n"
                             "                     ^~\n"
                             "deltanet.rec:1:7: note: 'k' was declared here\n"
                             "    input k : scalar\n"
                             "          ^\n");
}

TEST(Sema, WarnsOfStatesThatStayZero) {
  auto warnings = [](const char *spec) {
    SourceFile file("t.rec", spec);
    DiagnosticEngine diags;
    EXPECT_NE(check(file, diags), nullptr) << rendered(diags);
    return rendered(diags);
  };
  for (const char *update : {"k = l2norm(k)", "k = silu(k)", "k = rope(2*k)", "k = -k/3 + tanh(k)"}) {
    std::string found = warnings((std::string(update) + "\nS = S + v*kT; o = S*q").c_str());
    EXPECT_TRUE(
        contains(found, "'k' is read before it is assigned, which makes it a state, and this one stays zero"))
        << found;
    EXPECT_TRUE(contains(found, "'input k : vector(dk)'")) << found;
  }
  for (const char *update : {"k = l2norm(k) + p", "k = exp(k)", "state k : vector(dk)\nk = 2*k",
                             "input k : vector(dk)\nk = l2norm(k)"})
    EXPECT_EQ(warnings((std::string(update) + "\nS = S + v*kT; o = S*q").c_str()), "");
}

TEST(Sema, InfersShapes) {
  expectAll({
      {"z = f*z + i*k; o = dot(z, q)", {"state z : vector(dk)", "input f : scalar", "output o : scalar"}},
      {"S = S + x*yT; o = S*y", {"state S : matrix(d1, d2)", "input x : vector(d1)", "input y : vector(d2)"}},
      {"input x : vector(d)\no = x + D.*x", {"input D : vector(d)"}},
      {"input a : diag(dk)\nS = S*a + v*kT; o = S*q", {"input a : diag(dk)", "state S : matrix(dv, dk)"}},
      {"input g : diag(dk)\na = exp(g)\nS = S*a*(I - k*kT) + v*kT; o = S*q", {"local a : diag(dk)"}},
      {"input x : vector(8)\nparam W : matrix(4, 8)\no = W*x", {"output o : vector(4)"}},
      {"for j in 1..n { S = S + v[j]*k[j]T }; o = S*q",
       {"input v : vector(dv)[n]", "input k : vector(dk)[n]"}},
      {"x = 0; for j in 1..3 { x = x + k }; o = x", {"local x : vector(dk)"}},
      {"input q : vector(dk)\nq = softmax(q); o = q*sum(q)", {"input q : vector(dk)"}},
      {"S = S + k*vT; o = qT*S", {"local o : matrix(1, dv)", "output o : vector(dv)"}},
      {"O = ((Q*K.T).*decay(a))*V", {"input a : scalar", "output O : vector(dv)"}},
      {"S = S + v*kT; u = S*q; O = softmax(U*U.T + log(M))*V",
       {"local u : vector(dv)", "local O : matrix(T, dv)"}},
      {"S = S + v*kT; o = S*l2norm(k)", {"input k : vector(dk)", "state S : matrix(dv, dk)"}},
      {"const c = 1/2; input g : scalar in [-c, log(1)]; o = g*v", {"in [-0.5, 0]"}},
      {"fn f(x, s=2) in [0, 1] = s*sigmoid(x)\no = f(v) + f(v, s=3)", {"output o : vector(dv)"}},
      {"state W : matrix(dv, dk)\no = W*q\nblock 8 { W = W - grad(1/2*|K*W.T - V|^2, W) }",
       {"output o : vector(dv)"}},
      {"param A : matrix(d, n)\ninput x : vector(n)\ny = A*x; y = y*yT; o = y*A*x",
       {"local y : matrix(d, d)"}},
  });
}

TEST(Sema, FindsWhatNamesAre) {
  expectAll({
      {"S = S + v; o = S; p = o", {"state S", "output p"}},
      {"S = S + v; o = S; p = o; output o", {"output o"}},
      {"o = dot(kT, v); kT = v", {"state kT"}},
      {"I = v*kT; o = I*q", {"local I : matrix(dv, dk)"}},
      {"const gamma = 1 - 2^(-5 - head)\nS = gamma*S + v*kT; o = S*rope(q)", {"const gamma : scalar"}},
      {"rule r\no = q", {"rule r"}},
      {"fn silu(x) = 2*silu(x)\no = silu(q)", {"output o : vector(dk)"}},
  });
}

TEST(Sema, ExplainsErrors) {
  expectAll({
      {"", {"this rule reads nothing out", "assign an output"}},
      {"S = S + v*kT", {"this rule reads nothing out"}},
      {"o = silo(q)", {"1:5: error: unknown function 'silo'", "did you mean 'silu'?"}},
      {"o = q(v)", {"unknown function 'q'"}},
      {"S[t] = a*S[t-1] + v*kT", {"expected '=' after 'S', got '['", "names have no indices of tokens"}},
      {"a = 1; o = a(v)", {"'a' is no function", "a product needs '*'"}},
      {"o = dot(q)", {"'dot' needs an argument 'y'", "dot(x, y)"}},
      {"o = exp(q, q)", {"'exp' takes 1 argument, got: 2"}},
      {"o = clamp(q, 0, 1, 2)", {"'clamp' takes 3 arguments, got: 4"}},
      {"o = l2norm(q, foo=1)", {"'l2norm' has no argument named 'foo'"}},
      {"o = rope(q, base=v)", {"unknown name 'v'; a constant may use"}},
      {"const c = 1\nc = 2; o = q", {"'c' is a const and cannot be assigned", "'c' was declared here"}},
      {"param A : scalar\nA = 2; o = q", {"'A' is a param and cannot be assigned"}},
      {"input a : scalar\ninput a : scalar\no = a", {"'a' is declared twice"}},
      {"rule a\nrule b\no = q", {"a spec holds one rule"}},
      {"output p\no = q", {"output 'p' is never assigned"}},
      {"S = S + v*kT; o = S*q\noutput S", {"'S' is a state and cannot be written as an output"}},
      {"S = S + v*kT; o = grad(S*q, S)", {"'grad' differentiates a scalar, but 'S*q' is a vector(dv)"}},
      {"o = grad(|q|^2, q)", {"'grad' differentiates by a state, but 'q' is none"}},
      {"S = S + v*kT; o = grad(|S*q|^2, S*q)",
       {"'grad' differentiates by a state, but 'S*q' is an expression"}},
      {"o = q@16", {"'@' needs a state, but 'q' is none", "a product is written '*'"}},
      {"o = norm(q)", {"unknown function 'norm'", "here that is |x|, and |x|^2 its square"}},
      {"S = S + v*k; o = S*q", {"no shape of 'k' fits all that is done with it", "x*yT, a matrix"}},
      {"S = S@0 + v*kT; o = S*q", {"a block has a positive number of tokens, got: '0'"}},
      {"S = S@2 + S@3 + v*kT; o = S*q", {"all blocks of a rule have one size, but this one has 3 tokens"}},
      {"input a : scalar in [1, 0]\no = a", {"range [1, 0] is empty"}},
      {"input a : scalar in [0, 1/0]\no = a",
       {"a bound of a range is a finite number or 'inf', but '1/0' is not"}},
      {"input a : scalar in [inf - inf, 1]\no = a", {"but 'inf - inf' is not"}},
      {"input a : scalar in [0, 2*sqrt(-1)]\no = a", {"but 'sqrt(-1)' is not"}},
      {"input a : scalar in [v, 0]\no = a", {"unknown name 'v'; a constant may use"}},
      {"input q : vector(dk)\ninput v : vector(dv)\no = q + v",
       {"'+' needs operands of one shape, but 'q' is a vector(dk) and 'v' is a vector(dv)",
        "1:7: note: 'q' was declared", "2:7: note: 'v' was declared"}},
      {"state S : matrix(dv, dk)\nS = k*vT; o = S*k + S*v",
       {"needs as many columns on the left as rows on the right, but 'S' is a matrix(dv, dk)"}},
      {"state S : matrix(dv, dk)\ninput q : vector(dv)\nS = S + q; o = S*q", {"'*' needs as many columns"}},
      {"input q : vector(dk)\no = q*q",
       {"'*' needs as many columns",
        "note: a product of operands of one shape is written '.*', entry by entry"}},
      {"input v : vector(dv)\nstate S : matrix(dv, dk)\nS = exp(v); o = S*q",
       {"'S' is a matrix(dv, dk), but it is assigned a vector(dv)"}},
      {"o = q/v", {"'/' divides by a scalar ('./' entry by entry), but 'v' is a vector(dv)"}},
      {"o = q^2",
       {"'^' is the power of a scalar ('.^' entry by entry, '.T' transposes), but 'q' is a vector(dk)"}},
      {"o = rope(1)", {"'rope(1)' needs a vector, but '1' is a scalar"}},
      {"o = l2norm(1)", {"needs a vector or a matrix of rows, but its argument is a scalar"}},
      {"input k : vector(dk)[n]\no = k", {"'k' has n values per token: write k[j] in a loop"}},
      {"input k : vector(dk)\no = k[1]",
       {"'k' has one value per token, so it has no index", "kept by a state"}},
      {"input k : vector(dk)[2]\no = k[3]", {"micro-steps count from 1 to 2, got: 3"}},
      {"input k : vector(dk)[2]\nfor j in 1..3 { o = k[j] }",
       {"'j' counts to 3, but 'k' has 2 values per token"}},
      {"for j in 0..3 { o = q }", {"a loop counts from 1, got: '0'"}},
      {"for j in 1..2.5 { o = q }", {"a loop ends at a dimension or an integer from 1 to 1000000"}},
      {"O = softmax(q*K.T + log(M))*V", {"'q' is one value per token", "write 'Q' for the matrix"}},
      {"S = S + v*kT; O = softmax(Q*K.T + log(M))*V*S", {"cannot read the state 'S'"}},
      {"block 4 { o = k }", {"'k' is one value per token, but a statement of a block is about all tokens"}},
      {"S = S + v*kT; o = S*q; block 4 { S = 2*S }", {"assigned both for each token and once per block"}},
      {"h = h*a + x; o = h",
       {"the shape of 'a' is ambiguous: declare it", "one reading: 'input a : scalar'"}},
      {"S = S*a + v*kT; o = S*q", {"one reading: 'input a : scalar'", "another: 'input a : diag(dk)'"}},
      {"input a : diag(dk)\no = a.*k",
       {"'.*' works entry by entry, but 'a' is a diag(dk)", "'*' scales the vector"}},
      {"o = dk*v", {"this rule has no dimension 'dk'"}},
      {"o = I", {"nothing says how large this 'I' is"}},
      {"fn f(x) = x + y\no = f(q)", {"unknown name 'y'; function 'f' may use its parameters"}},
      {"fn f(x) = f(x)\no = f(q)",
       {"function 'f' is not known here", "1:4: note: functions may use those above"}},
      {"fn f(x, x) = x\no = f(q, q)", {"two parameters are called 'x'"}},
      {"O = Q*K.T.*M", {"output 'O' needs one row for each token"}},
  });
}

TEST(Sema, ReportsAllErrorsOfARun) {
  std::string found =
      checked("input q : vector(dk)\ninput v : vector(dv)\na = (q\nb = silo(v)\nc = q + v\no = a + b\n");
  for (const char *expected : {"expected ')'", "unknown function 'silo'", "'+' needs operands of one shape"})
    EXPECT_TRUE(contains(found, expected)) << found;
  EXPECT_FALSE(contains(found, "6:")) << found; // what follows from an error is none
}

TEST(Sema, WarnsOfWhatIsUnused) {
  SourceFile file("t.rec", "input x : scalar\nu = q\no = q\n");
  DiagnosticEngine diags;
  EXPECT_NE(check(file, diags), nullptr);
  EXPECT_TRUE(contains(rendered(diags), "warning: input 'x' is never read [-Wunused]"));
  EXPECT_TRUE(contains(rendered(diags), "warning: 'u' is assigned but never read [-Wunused]"));
  EXPECT_TRUE(contains(rendered(diags), "'output u, ..'"));
}

TEST(Sema, InlinesWithinLimits) {
  std::string chain = "fn f0(x) = x + x\n";
  for (int i = 1; i < 80; ++i)
    chain += "fn f" + std::to_string(i) + "(x) = f" + std::to_string(i - 1) + "(x) + f" +
             std::to_string(i - 1) + "(x)\n";
  EXPECT_TRUE(
      contains(checked(chain + "o = f79(q)"), "functions call each other too often to be inlined here"));
}

#include "lib/Frontend/Builtins.h"
#include "lib/Frontend/Diagnostics.h"
#include "lib/Frontend/Parser.h"
#include "llvm/ADT/STLExtras.h"
#include "llvm/ADT/StringMap.h"

using namespace llvm;

namespace recur::frontend {

static constexpr StringLiteral ropeOptions[] = {"base"};
static constexpr StringLiteral solveOptions[] = {"iterations", "eps"};

static constexpr Primitive primitives[] = {
    {"exp", PrimitiveOp::Exp, PrimitiveShape::Elementwise, 1},
    {"log", PrimitiveOp::Log, PrimitiveShape::Elementwise, 1},
    {"sqrt", PrimitiveOp::Sqrt, PrimitiveShape::Elementwise, 1},
    {"abs", PrimitiveOp::Abs, PrimitiveShape::Elementwise, 1},
    {"sign", PrimitiveOp::Sign, PrimitiveShape::Elementwise, 1},
    {"sigmoid", PrimitiveOp::Sigmoid, PrimitiveShape::Elementwise, 1},
    {"tanh", PrimitiveOp::Tanh, PrimitiveShape::Elementwise, 1},
    {"softplus", PrimitiveOp::Softplus, PrimitiveShape::Elementwise, 1},
    {"erf", PrimitiveOp::Erf, PrimitiveShape::Elementwise, 1},
    {"sin", PrimitiveOp::Sin, PrimitiveShape::Elementwise, 1},
    {"cos", PrimitiveOp::Cos, PrimitiveShape::Elementwise, 1},
    {"max", PrimitiveOp::Max, PrimitiveShape::Elementwise, 2},
    {"min", PrimitiveOp::Min, PrimitiveShape::Elementwise, 2},
    {"sum", PrimitiveOp::Sum, PrimitiveShape::SumAll, 1},
    {"vsum", PrimitiveOp::VectorSum, PrimitiveShape::Reduce, 1},
    {"vmax", PrimitiveOp::VectorMax, PrimitiveShape::Reduce, 1},
    {"vlen", PrimitiveOp::VectorLength, PrimitiveShape::Count, 1},
    {"count", PrimitiveOp::Count, PrimitiveShape::Count, 1},
    {"rope", PrimitiveOp::Rope, PrimitiveShape::Vector, 1, ropeOptions},
    {"diag", PrimitiveOp::Diag, PrimitiveShape::MakeDiag, 1},
    {"inv", PrimitiveOp::Inverse, PrimitiveShape::Square, 1},
    {"solve", PrimitiveOp::Solve, PrimitiveShape::Solve, 2, solveOptions},
    {"decay", PrimitiveOp::Decay, PrimitiveShape::Decay, 1},
    {"grad", PrimitiveOp::Gradient, PrimitiveShape::Gradient, 2},
};

// "Of a vector" means: over the entries of a vector, and over each row of a matrix. vsum and vmax keep the
// reduced dimension as 1, so their results broadcast; vlen is the number of entries they run over, and count
// that of all entries.
static constexpr StringLiteral preludeText = R"(
fn relu(x) in [0, inf) = max(x, 0)
fn elu(x) in [-1, inf) = max(x, 0) + exp(min(x, 0)) - 1
fn silu(x) = x.*sigmoid(x)
fn gelu(x) = 1/2*x.*(1 + erf(x/sqrt(2)))
fn logsigmoid(x) in (-inf, 0] = -softplus(-x)
fn clamp(x, lo, hi) = min(max(x, lo), hi)
fn dot(x, y) = sum(x.*y)
fn mean(x) = sum(x)/count(x)
fn vmean(x) = vsum(x)/vlen(x)
fn centered(x) = x - vmean(x)
fn l2norm(x, eps=1e-6) unit = x./sqrt(vsum(x.*x) + eps)
fn rmsnorm(x, eps=1e-6) = x./sqrt(vmean(x.*x) + eps)
fn layernorm(x, eps=1e-6) = rmsnorm(centered(x), eps)
fn softmax(x) in [0, 1] = exp(x - max(vmax(x), -1e38))./max(vsum(exp(x - max(vmax(x), -1e38))), 1e-30)
)";

ArrayRef<Primitive> allPrimitives() { return primitives; }

const Primitive *findPrimitive(StringRef name) {
  const auto *found = find_if(primitives, [&](const Primitive &p) { return p.name == name; });
  return found == std::end(primitives) ? nullptr : found;
}

const Spec &prelude() {
  struct Parsed {
    SourceFile file{"<prelude>", preludeText};
    Spec spec;
    Parsed() {
      DiagnosticEngine diags;
      spec = parse(file, diags);
      assert(!diags.hasErrors() && "the prelude must parse");
    }
  };
  static const Parsed parsed;
  return parsed.spec;
}

const Stmt *findPreludeFunction(StringRef name) {
  auto found = find_if(prelude().items, [&](const Stmt *item) { return item->name().name == name; });
  return found == prelude().items.end() ? nullptr : *found;
}

} // namespace recur::frontend

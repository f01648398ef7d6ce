#include "lib/Derive/Inverse.h"

using namespace mlir;
using namespace recur;

bool Inverse::recognise() {
  std::optional<InverseUpdate> found = algebra.recognise();
  if (found)
    update = *found;
  return found.has_value();
}

void Inverse::build() {
  std::string name = notation(cx.nf.states[state]), key = notation(update.key, cx.names.names);
  auto text = [&](const Ratio &ratio) { return notation(algebra.build(ratio), cx.names.names); };
  std::string offset;
  Value sum;
  for (const Ratio &part : update.offset) {
    offset += (offset.empty() ? "" : " + ") + text(part);
    Value rows = cx.tokens.rows(algebra.build(part));
    sum = cx.add(sum, rows);
  }
  cx.note("invert", name + " loses its own read by " + key + ": its inverse is affine,");
  cx.note("invert", name + "'^-1 = " + text(update.decay) + " (" + name + "^-1 + w/e " + key + " " + key +
                        "ᵀ), w = " + text(update.weight) + ", e = " + offset);
  cx.note("invert", name + " is symmetric: it starts so, and what it loses is");
  keys = cx.tokens.rows(update.key);
  weights = cx.tokens.rows(algebra.build(update.weight));
  MatType type = matType(keys), square = MatType::get(type.getContext(), type.getRows(), type.getRows());
  Value stored = cx.tokens.shared(cx.nf.states[state]);
  factors = chunk::LdlOp::create(cx.b(), cx.loc, {square, type, type, weights.getType(), stored.getType()}, stored, keys,
                                 cx.tokens.rows(algebra.build(update.decay)), weights, sum);
}

Value Inverse::scaled(const Ratio &c, Value rows) {
  Coefficient coefficient;
  coefficient.number = c.number;
  Ratio rest = c;
  rest.number = 1;
  if (!rest.up.empty() || !rest.down.empty())
    coefficient.factors.push_back(algebra.build(rest));
  return cx.scale(coefficient, rows);
}

Value Inverse::rows(Value value) {
  std::optional<std::vector<InverseTerm>> terms = algebra.terms(value);
  if (!terms)
    return {};
  Value sum;
  for (const InverseTerm &term : *terms) {
    Ratio c = term.c, perWeight = term.c;
    unsigned over = term.over;
    algebra.multiply(perWeight, update.weight, /*inverse=*/true);
    bool isGain = term.reads && over && perWeight.down.size() <= c.down.size();
    Value rows = term.reads ? (isGain ? factors.getGains() : factors.getReads())
                 : term.column ? cx.tokens.rows(term.column)
                               : Value();
    if (isGain) {
      c = perWeight;
      --over;
    }
    for (unsigned i = 0; i < term.inner; ++i) {
      Value quadratic = ReduceOp::create(cx.b(), cx.loc, Reduction::Sum, cx.mul(keys, factors.getReads()),
                                         /*rows=*/false, /*cols=*/true);
      rows = rows ? cx.mul(quadratic, rows) : quadratic;
    }
    if (!rows)
      rows = ConstantOp::create(cx.b(), cx.loc, 1.0, cast<MatType>(weights.getType()));
    for (; over; --over)
      rows = DivOp::create(cx.b(), cx.loc, rows, factors.getDenominators());
    sum = cx.add(sum, scaled(c, rows));
  }
  return sum;
}

Value Inverse::gram(Value vectors, Value others) {
  return factors && vectors == keys && others == factors.getGains() ? factors.getLower() : Value();
}

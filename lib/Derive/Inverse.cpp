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
  cx.note("invert", name + " is symmetric: it starts so, and what it loses is too");
  keys = cx.tokens.rows(update.key);
  weights = cx.tokens.rows(algebra.build(update.weight));
  MatType type = matType(keys), square = MatType::get(type.getContext(), type.getRows(), type.getRows());
  Value stored = cx.tokens.shared(cx.nf.states[state]);
  factors = chunk::LdlOp::create(cx.b(), cx.loc, {square, type, type, weights.getType(), stored.getType()},
                                 stored, keys, cx.tokens.rows(algebra.build(update.decay)), weights, sum);
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
    Value rows = term.reads    ? (isGain ? factors.getGains() : factors.getReads())
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

Value Inverse::absorb(Value key, MutableArrayRef<std::pair<Coefficient, Column>> payload) {
  if (!governs(key) || payload.empty())
    return key;
  auto take = [&](function_ref<bool(Value)> isWanted) -> Ratio {
    Ratio taken;
    for (Value factor : payload.front().first.factors)
      if (isWanted(factor) && llvm::all_of(payload, [&](const std::pair<Coefficient, Column> &part) {
            return llvm::count(part.first.factors, factor) == 1;
          }))
        taken.up.push_back(factor);
    return taken;
  };
  auto isNeeded = [&](Value factor) {
    return governs(factor) || llvm::is_contained(update.weight.up, factor);
  };
  Ratio best;
  Value scaledKey = key;
  for (const Ratio &taken : {take([](Value) { return true; }), take(isNeeded)}) {
    if (taken.up.empty())
      continue;
    OpBuilder b(RuleOp(cx.nf.rule).getBody().front().getTerminator());
    best = taken;
    scaledKey = MulOp::create(b, cx.loc, algebra.build(taken), key);
    if (rows(scaledKey) == factors.getGains())
      break;
  }
  for (auto &[coefficient, column] : payload)
    llvm::erase_if(coefficient.factors, [&](Value factor) { return llvm::is_contained(best.up, factor); });
  return scaledKey;
}

Value Inverse::gram(Value vectors, Value others) {
  return factors && vectors == keys && others == factors.getGains() ? factors.getLower() : Value();
}

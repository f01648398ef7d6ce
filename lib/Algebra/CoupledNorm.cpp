// A bound of what a token does to two states that numbers couple and that are read and written along one key.
// Beside the key the states of a row are multiplied with a matrix of 2 x 2, along it with that matrix and
// what is erased together; the norm of the larger of the two bounds the map. It is convex in the key's
// squared norm, so that its ends tell.
#include "lib/Algebra/Bounds.h"
#include "lib/Algebra/Spectral.h"

#include <cmath>

using namespace mlir;
using namespace recur;

namespace {

class CoupledNorm {
public:
  explicit CoupledNorm(const NormalForm &nf)
      : nf(nf), b(RuleOp(nf.rule).getBody().front().getTerminator()), loc(RuleOp(nf.rule).getLoc()) {}

  Value bound() {
    Matrix kept, erased;
    for (unsigned state : {0, 1}) {
      const Version &update = nf.update(state);
      for (const OldTerm &term : update.old) {
        if (!term.isScalar())
          return {};
        add(kept[state][term.state], buildCoefficient(b, loc, term.c));
      }
      for (const Write &write : update.writes)
        if (write.isErase() && !addErased(erased[state], write))
          return {};
    }
    if (!erases)
      return normOf(kept);
    double longest = recur::normOf(key, 8).hi;
    if (std::isinf(longest))
      return {};
    Value square = number(longest * longest);
    for (unsigned i : {0, 1})
      for (unsigned j : {0, 1})
        if (Value all = kept[i][j], more = erased[i][j]; more)
          erased[i][j] = all ? sum(all, multiply(square, more)) : multiply(square, more);
        else
          erased[i][j] = all;
    return MaxOp::create(b, loc, normOf(kept), normOf(erased));
  }

private:
  using Matrix = std::array<std::array<Value, 2>, 2>; // a null entry is zero

  Value number(double x) { return ConstantOp::create(b, loc, x); }
  Value multiply(Value x, Value y) { return MulOp::create(b, loc, x, y); }
  Value sum(Value x, Value y) { return AddOp::create(b, loc, x, y); }
  // A null coefficient is 1.
  void add(Value &entry, Value coefficient) {
    Value more = coefficient ? coefficient : number(1);
    entry = entry ? sum(entry, more) : more;
  }

  // The larger singular value: half of the lengths of the matrix's parts that turn and that mirror.
  Value normOf(const Matrix &x) {
    auto known = [&](Value entry) { return entry ? entry : number(0); };
    Value diagonal[] = {known(x[0][0]), known(x[1][1])}, others[] = {known(x[0][1]), known(x[1][0])};
    auto length = [&](Value u, Value v) -> Value {
      return SqrtOp::create(b, loc, sum(multiply(u, u), multiply(v, v)));
    };
    auto less = [&](Value u, Value v) -> Value { return SubOp::create(b, loc, u, v); };
    Value turns = length(sum(diagonal[0], diagonal[1]), less(others[0], others[1]));
    Value mirrors = length(less(diagonal[0], diagonal[1]), sum(others[0], others[1]));
    return multiply(number(0.5), sum(turns, mirrors));
  }

  // What a write takes of each state along the key; whether it does that and no more.
  bool addErased(std::array<Value, 2> &row, const Write &write) {
    bool isRight = write.column.kind != Column::Known;
    const Column &known = isRight ? write.row : write.column, &read = isRight ? write.column : write.row;
    if (known.kind != Column::Known || (erases && (known.value != key || isRight != right)))
      return false;
    key = known.value;
    right = isRight;
    erases = true;
    return addReads(row, read, write.c, 0);
  }

  bool addReads(std::array<Value, 2> &row, const Column &column, Coefficient c, unsigned depth) {
    constexpr unsigned deepest = 4;
    if (column.kind == Column::Known)
      return true;
    if (column.kind == Column::RowOf)
      return depth < deepest && llvm::all_of(
                                    nf.rows[column.index].terms,
                                    [&](const RowTerm &term) {
                                      Coefficient product = c;
                                      product.number *= term.c.number;
                                      llvm::append_range(product.factors, term.c.factors);
                                      return term.map.empty() &&
                                             addReads(row, term.column, product, depth + 1);
                                    });
    const Read &read = nf.reads[column.index];
    if ((read.side == Side::Right) != right)
      return false;
    // Numbers times the key.
    SmallVector<Value> factors, vectors, wanted;
    flattenProduct(read.vector, factors);
    for (Value factor : factors)
      if (matType(factor).isScalar())
        c.factors.push_back(factor);
      else
        vectors.push_back(factor);
    flattenProduct(key, wanted);
    if (!std::is_permutation(vectors.begin(), vectors.end(), wanted.begin(), wanted.end()))
      return false;
    add(row[read.state], buildCoefficient(b, loc, c));
    return true;
  }

  const NormalForm &nf;
  OpBuilder b;
  Location loc;
  Value key;
  bool erases = false, right = false;
};

} // namespace

Value recur::buildCoupledNormBound(const NormalForm &nf) {
  bool isPair = nf.affine && nf.states.size() == 2 && llvm::all_of(llvm::seq(0u, 2u), [&](unsigned state) {
                  return nf.updates[state] != Row::none && isMatrix(matType(nf.states[state]));
                });
  return isPair && matType(nf.states[0]) == matType(nf.states[1]) ? CoupledNorm(nf).bound() : Value();
}

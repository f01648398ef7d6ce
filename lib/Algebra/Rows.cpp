// Rows (a version of a state read with a vector) and versions (what a state has become) from sums.
#include "lib/Algebra/Expander.h"

using namespace mlir;
using namespace recur;

unsigned Expander::readOf(unsigned state, Side side, Value vector) {
  for (auto [index, read] : llvm::enumerate(nf.reads))
    if (read.state == state && read.side == side && read.vector == vector)
      return index;
  nf.reads.push_back({state, side, vector});
  return nf.reads.size() - 1;
}

// Sums the coefficients of equal terms.
template <typename TermT, typename EqualFn>
void Expander::mergeEqual(std::vector<TermT> &terms, EqualFn equal) {
  std::vector<TermT> merged;
  for (TermT &term : terms) {
    auto same = llvm::find_if(merged, [&](const TermT &other) { return equal(term, other); });
    if (same == merged.end()) {
      merged.push_back(std::move(term));
    } else if (double number = same->c.number + term.c.number;
               same->c.factors == term.c.factors && number - same->c.number == term.c.number &&
               number - term.c.number == same->c.number) { // what rounds is left to the tokens
      same->c.number = number;
    } else {
      Location loc = nf.rule.getLoc();
      Value one = tokens.one(loc), sum = tokens.sum(loc, {{same->c, one}, {term.c, one}});
      same->c = Coefficient();
      tokens.multiply(same->c, sum);
    }
  }
  llvm::erase_if(merged, [](const TermT &term) { return term.c.number == 0; });
  terms = std::move(merged);
}

static bool sameColumn(const Column &a, const Column &b) {
  return a.kind == b.kind && a.value == b.value && a.index == b.index;
}
static bool sameRowTerm(const RowTerm &a, const RowTerm &b) {
  return a.map == b.map && sameColumn(a.column, b.column);
}

std::optional<unsigned> Expander::rowOf(Value version, Side side, Value vector, Location loc) {
  if (auto transposed = version.getDefiningOp<TransposeOp>())
    return rowOf(transposed.getOperand(), side == Side::Right ? Side::Left : Side::Right, vector, loc);
  auto key = std::make_tuple(version, unsigned(side), vector);
  if (auto known = rowIndex.find(key); known != rowIndex.end())
    return known->second;
  std::optional<unsigned> read = versionOf(version);
  if (!read)
    return std::nullopt;
  MatType type = side == Side::Right ? matType(version) : matType(version).transposed();
  Attribute one = MatType::scalar(loc.getContext()).getRows();
  Row row{*read, side, vector, MatType::get(loc.getContext(), type.getRows(), one), {}, loc, true, {}};
  for (const Monomial &m : Sum(*expand(version)))
    if (!addTo(row, side == Side::Right ? m : transpose(m), vector))
      return std::nullopt;
  mergeEqual(row.terms, sameRowTerm);
  nf.rows.push_back(std::move(row));
  return rowIndex[key] = nf.rows.size() - 1;
}

std::optional<unsigned> Expander::laterRow(Value version, Value vector, Location loc, Value solution) {
  MatType type = MatType::get(loc.getContext(), matType(version).getRows(), matType(vector).getCols());
  auto transposed = version.getDefiningOp<TransposeOp>();
  bool onLeft = transposed && !solution;
  std::optional<unsigned> read = versionOf(onLeft ? transposed.getOperand() : version);
  if (!read)
    return std::nullopt;
  nf.rows.push_back(Row{*read, onLeft ? Side::Left : Side::Right, vector, type, {}, loc, false, solution});
  return nf.rows.size() - 1;
}

bool Expander::addTo(Row &row, const Monomial &m, Value vector) {
  RowTerm term{m.c, {}, {}};
  bool unit = vector == tokens.one(m.loc); // an entry of a column: the column itself
  SmallVector<Factor, 2> right = m.leaf == Monomial::None ? m.left : m.right;
  if (!unit)
    right.push_back({vector});
  switch (m.leaf) {
  case Monomial::None: {
    simplify(right, term.c, m.loc);
    term.column.value = column(right, term.c, m.loc);
    break;
  }
  case Monomial::State:
    if (!m.elementwise.empty()) {
      row.inOldReads = false;
      return true;
    }
    term.map.assign(m.left.begin(), m.left.end());
    term.column.kind = Column::OldRead;
    term.column.index =
        readOf(m.index, m.transposed ? Side::Left : Side::Right, column(right, term.c, m.loc));
    break;
  case Monomial::RowOf:
    row.inOldReads &= nf.rows[m.index].inOldReads;
    term.map.assign(m.left.begin(), m.left.end());
    term.column.kind = Column::RowOf;
    term.column.index = m.index;
    if (!m.transposed) {
      simplify(right, term.c, m.loc);
    } else { // left * rowT * right: the inner product of the row with `right`
      Value inner = column(right, term.c, m.loc);
      if (!matType(inner).isScalar())
        term.map.push_back({inner, true});
    }
    break;
  }
  row.terms.push_back(std::move(term));
  return true;
}

std::optional<unsigned> Expander::rowOf(const Sum &sum, bool flipped, MatType type, Location loc) {
  Row row{Row::none, Side::Right, {}, flipped ? type.transposed() : type, {}, loc, true, {}};
  Value one = tokens.one(loc);
  for (Monomial m : sum)
    if (failed(cutReads(m)) || !addTo(row, flipped ? transpose(m) : m, one))
      return std::nullopt;
  mergeEqual(row.terms, sameRowTerm);
  // A row that is another one needs no second.
  if (row.terms.size() == 1 && row.terms[0].c.isOne() && row.terms[0].map.empty() &&
      row.terms[0].column.kind == Column::RowOf)
    return row.terms[0].column.index;
  for (auto [index, other] : llvm::enumerate(nf.rows))
    if (other.version == Row::none &&
        llvm::equal(other.terms, row.terms,
                    [](const RowTerm &a, const RowTerm &b) { return a.c == b.c && sameRowTerm(a, b); }))
      return index;
  nf.rows.push_back(std::move(row));
  return nf.rows.size() - 1;
}

// A state between vectors, such as u*(zT*q)*wT written without brackets, is read by its neighbour.
LogicalResult Expander::cutReads(Monomial &m) {
  if (m.leaf != Monomial::State)
    return success();
  auto cutAt = [](ArrayRef<Factor> chain, auto rows, auto cols) -> std::optional<size_t> {
    for (size_t p = 0; p < chain.size(); ++p)
      if (isOne(rows(chain[p])))
        return p;
    return !chain.empty() && isOne(cols(chain.back())) ? std::optional(chain.size()) : std::nullopt;
  };
  auto rows = [](const Factor &f) { return f.rows(); };
  auto cols = [](const Factor &f) { return f.cols(); };
  SmallVector<Factor> left(llvm::reverse(m.left));
  std::optional<size_t> right = cutAt(m.right, rows, cols), before = cutAt(left, cols, rows);
  if (!right && !before)
    return success();
  if (!m.elementwise.empty())
    return failure();
  bool onRight = right.has_value();
  Side side = onRight != m.transposed ? Side::Right : Side::Left;
  Value vector = onRight ? column(ArrayRef(m.right).take_front(*right), m.c, m.loc)
                         : columnOfRow(ArrayRef(m.left).take_back(*before), m.c, m.loc);
  std::optional<unsigned> row = rowOf(nf.states[m.index], side, vector, m.loc);
  if (!row)
    return failure();
  if (onRight)
    m.right.erase(m.right.begin(), m.right.begin() + *right);
  else
    m.left.truncate(m.left.size() - *before);
  m.leaf = Monomial::RowOf;
  m.index = *row;
  m.transposed = !onRight;
  simplify(m);
  return success();
}

std::optional<unsigned> Expander::versionOf(Value value) {
  if (auto known = versionIndex.find(value); known != versionIndex.end())
    return known->second;
  const Sum *sum = expand(value);
  if (!sum)
    return std::nullopt;
  Version version{value, {}, {}};
  for (const Monomial &m : Sum(*sum))
    if (!addTo(version, m)) {
      fail(value.getDefiningOp(),
           "'" + notation(value) + "' multiplies what was read from a state by a matrix");
      return std::nullopt;
    }
  mergeEqual(version.writes, [](const Write &a, const Write &b) {
    return !a.matrix && !b.matrix && sameColumn(a.column, b.column) && sameColumn(a.row, b.row);
  });
  mergeEqual(version.old, [](const OldTerm &a, const OldTerm &b) {
    return a.state == b.state && a.transposed == b.transposed && a.left == b.left && a.right == b.right &&
           a.elementwise == b.elementwise;
  });
  mergeDiagonals(version);
  nf.versions.push_back(std::move(version));
  return versionIndex[value] = nf.versions.size() - 1;
}

Column Expander::mapped(ArrayRef<Factor> left, unsigned row, Location loc) {
  if (left.empty())
    return {Column::RowOf, {}, row};
  Monomial m{{}, SmallVector<Factor, 2>(left), {}, Monomial::RowOf, row, false, {}, loc};
  MatType type = MatType::get(loc.getContext(), left.front().rows(), nf.rows[row].type.getCols());
  return {Column::RowOf, {}, *rowOf(Sum{m}, false, type, loc)};
}

bool Expander::addTo(Version &version, Monomial m) {
  if (failed(cutReads(m)))
    return false;
  if (m.leaf == Monomial::State) {
    version.old.push_back({m.c, m.index, m.transposed, {}, {}, m.elementwise, m.loc});
    version.old.back().left.assign(m.left.begin(), m.left.end());
    version.old.back().right.assign(m.right.begin(), m.right.end());
    return true;
  }
  Write write{m.c, {}, {}, {}, m.loc};
  // A number times a column, of a state that is a vector: the column is known.
  if (m.leaf == Monomial::RowOf && m.right.empty() && !m.left.empty() && nf.rows[m.index].type.isScalar())
    m.transposed = true;
  if (m.leaf == Monomial::RowOf) {
    if (!m.transposed) {
      write.column = mapped(m.left, m.index, m.loc);
      write.row.value = columnOfRow(m.right, write.c, m.loc);
    } else {
      write.column.value = column(m.left, write.c, m.loc);
      Monomial flipped = transpose(m);
      write.row = mapped(flipped.left, m.index, m.loc);
    }
    version.writes.push_back(std::move(write));
    return true;
  }
  // Both token-only: cut where the chain has one row.
  ArrayRef<Factor> chain = m.left;
  size_t cut = 0;
  while (cut < chain.size() && !isOne(chain[cut].rows()))
    ++cut;
  if (chain.empty() && !matType(version.value).isScalar()) {
    write.matrix = tokens.chain(m.loc, matType(version.value), {});
  } else if (cut == chain.size() && !chain.empty() && !isOne(chain.back().cols())) {
    write.matrix = tokens.chain(m.loc, matType(version.value), chain);
  } else {
    write.column.value = column(chain.take_front(cut), write.c, m.loc);
    write.row.value = columnOfRow(chain.drop_front(cut), write.c, m.loc);
  }
  version.writes.push_back(std::move(write));
  return true;
}

// Old parts of one state that are all diagonal on the same side are one diagonal: S - S*diag(a) is S*diag(1 -
// a).
void Expander::mergeDiagonals(Version &version) {
  Location loc = nf.rule.getLoc();
  for (bool onLeft : {true, false}) {
    std::vector<OldTerm> kept;
    for (OldTerm &term : version.old) {
      auto fits = [&](const OldTerm &t) {
        return t.isDiagonal() && t.elementwise.empty() && !t.transposed &&
               (onLeft ? t.right : t.left).empty();
      };
      auto same = llvm::find_if(
          kept, [&](const OldTerm &t) { return t.state == term.state && fits(t) && fits(term); });
      if (same == kept.end()) {
        kept.push_back(std::move(term));
        continue;
      }
      MatType type = matType(nf.states[term.state]);
      Value ones = tokens.ones(loc, onLeft ? type.getRows() : type.getCols());
      auto diagonal = [&](const OldTerm &t) {
        Value value = ones;
        for (const Factor &factor : onLeft ? t.left : t.right) {
          Value column =
              isOne(matType(factor.value).getCols()) ? factor.value : tokens.transpose(loc, factor.value);
          value = value == ones ? column : tokens.multiply(loc, value, column);
        }
        return value;
      };
      Value sum = tokens.sum(loc, {{same->c, diagonal(*same)}, {term.c, diagonal(term)}});
      same->c = Coefficient();
      (onLeft ? same->left : same->right).assign(1, Factor{sum, false, true});
    }
    version.old = std::move(kept);
  }
}

// States whose entries decay on their own: an associative scan instead of scores between tokens.
#include "lib/Derive/Group.h"

using namespace mlir;
using namespace recur;

// The factor that multiplies a state's entries, in the state's shape where anything but the coefficient does.
static Value factorOf(OpBuilder &b, Location loc, const OldTerm &term, MatType type) {
  Value factor;
  auto times = [&](Value x) { factor = factor ? MulOp::create(b, loc, factor, x).getResult() : x; };
  auto oriented = [&](Value x, bool column) {
    return isOne(column ? matType(x).getCols() : matType(x).getRows()) ? x
                                                                       : b.createOrFold<TransposeOp>(loc, x);
  };
  for (Value value : term.elementwise)
    times(value);
  for (const Factor &diagonal : term.left)
    times(oriented(diagonal.value, true));
  for (const Factor &diagonal : term.right)
    times(oriented(diagonal.value, false));
  if (Value scalar = buildCoefficient(b, loc, term.c))
    times(scalar);
  if (!factor)
    return ConstantOp::create(b, loc, 1.0, type);
  return factor.getType() == type ? factor : BroadcastOp::create(b, loc, type, factor).getResult();
}

// Decays and writes of full rank, states that are coupled by channel, and vector states that decay so: there
// each token has one write per entry, and products of matrices would only repeat it, or do not exist.
bool Group::wantsScan() const {
  MatType type = matType(cx.nf.states[states[0]]);
  bool fullRank = false, byChannel = false, hasNoProducts = false;
  for (unsigned state : states) {
    for (const OldTerm &term : cx.nf.update(state).old) {
      if (!term.isDiagonal() || matType(cx.nf.states[state]) != type)
        return false;
      fullRank |= !term.elementwise.empty();
      byChannel |= !term.left.empty();
      hasNoProducts |= term.state != state && !term.isScalar();
    }
    for (const Write &write : cx.nf.update(state).writes) {
      if (write.isErase())
        return false;
      hasNoProducts |= bool(write.matrix);
    }
  }
  bool vectors = isOne(type.getCols()) && !type.isScalar() && keySide == Side::Right;
  return (fullRank && states.size() == 1) || (vectors && byChannel) || hasNoProducts;
}

void Group::prepareScan() {
  OpBuilder b(RuleOp(cx.nf.rule).getBody().front().getTerminator());
  MatType type = matType(cx.nf.states[states[0]]);
  for (unsigned to : states) {
    const Version &update = cx.nf.update(to);
    for (unsigned from : states) {
      Value factor;
      for (const OldTerm &term : update.old)
        if (term.state == from) {
          Value part = factorOf(b, cx.loc, term, type);
          factor = factor ? AddOp::create(b, cx.loc, factor, part).getResult() : part;
        }
      scanFactors.push_back(cx.tokens.rows(factor ? factor : ConstantOp::create(b, cx.loc, 0.0, type)));
    }
    Value write;
    for (const Write &term : update.writes) {
      Value value = term.matrix;
      if (!value)
        value = isOne(type.getCols())
                    ? MulOp::create(b, cx.loc, term.row.value, term.column.value).getResult()
                    : MatmulOp::create(b, cx.loc, term.column.value,
                                       b.createOrFold<TransposeOp>(cx.loc, term.row.value))
                          .getResult();
      if (Value scale = buildCoefficient(b, cx.loc, term.c))
        value = MulOp::create(b, cx.loc, scale, value);
      write = write ? AddOp::create(b, cx.loc, write, value).getResult() : value;
    }
    scanWrites.push_back(cx.tokens.rows(write ? write : ConstantOp::create(b, cx.loc, 0.0, type)));
    initial.push_back(cx.tokens.shared(cx.nf.states[to]));
    cx.note("sort", notation(cx.nf.states[to]) + " decays entry by entry: a scan");
  }
}

chunk::ScanOp Group::scan(bool before) {
  chunk::ScanOp &op = scans[before];
  if (!op) {
    SmallVector<Type> types(states.size(), scanWrites[0].getType()),
        last(states.size(), initial[0].getType());
    op = chunk::ScanOp::create(cx.b(), cx.loc, types, last, scanFactors, scanWrites, initial, before);
  }
  return op;
}

Value Group::scanRow(unsigned member, bool before, Side side, Value vector) {
  Value all = scan(before).getResults()[member];
  if (isa<MatType>(all.getType())) {
    // A vector state, h x 1: read as a whole, or by an inner product.
    if (side == Side::Right)
      return all;
    Value product = cx.mul(all, cx.tokens.rows(vector));
    return ReduceOp::create(cx.b(), cx.loc, Reduction::Sum, product, false, true);
  }
  MatType state = matType(initial[0]);
  Type rowType = side == Side::Right ? state : state.transposed();
  Attribute one = MatType::scalar(rowType.getContext()).getRows();
  Type token = MatType::get(rowType.getContext(), cast<MatType>(rowType).getRows(), one);
  Value vectors = cx.tokens.rows(vector);
  auto map =
      chunk::MapOp::create(cx.b(), cx.loc, TypeRange(), chunk::MapOp::rowsType(token, cx.tokens.length),
                           ValueRange(), ValueRange{all, vectors}, ValueRange());
  OpBuilder b(rowType.getContext());
  Block *block = b.createBlock(&map.getBody(), {}, {Type(state), vector.getType()}, {cx.loc, cx.loc});
  Value matrix = block->getArgument(0);
  if (side == Side::Left)
    matrix = TransposeOp::create(b, cx.loc, matrix);
  chunk::YieldOp::create(b, cx.loc, MatmulOp::create(b, cx.loc, matrix, block->getArgument(1)).getResult());
  return map.getResults()[0];
}

// States whose entries decay on their own: an associative scan instead of scores between tokens.
#include "lib/Derive/Group.h"

using namespace mlir;
using namespace recur;

// Decays of full rank, and vector states that decay by channel: there each token has one write per entry, and products
// of matrices would only repeat it.
bool Group::wantsScan() const {
  if (states.size() != 1)
    return false;
  std::optional<Decay> decay = cx.nf.decay(states[0]);
  if (!decay)
    return false;
  MatType type = matType(cx.nf.states[states[0]]);
  bool byChannel = isOne(type.getCols()) && !type.isScalar() && !decay->left.empty();
  for (const Write &write : cx.nf.update(states[0]).writes)
    if ((write.column.kind == Column::RowOf && reads(write.column.index)) ||
        (write.row.kind == Column::RowOf && reads(write.row.index)))
      return false;
  return !decay->elementwise.empty() || (byChannel && keySide == Side::Right);
}

LogicalResult Group::prepareScan() {
  const NormalForm &nf = cx.nf;
  OpBuilder b(RuleOp(nf.rule).getBody().front().getTerminator());
  Value state = nf.states[states[0]];
  MatType type = matType(state);
  Decay decay = *nf.decay(states[0]);
  auto times = [&](Value x, Value y) { return x ? MulOp::create(b, cx.loc, x, y).getResult() : y; };
  Value factor;
  for (Value value : decay.elementwise)
    factor = times(factor, value);
  for (Value value : decay.left)
    factor = times(factor, isOne(matType(value).getCols()) ? value : b.createOrFold<TransposeOp>(cx.loc, value));
  for (Value value : decay.right)
    factor = times(factor, isOne(matType(value).getRows()) ? value : b.createOrFold<TransposeOp>(cx.loc, value));
  if (Value scalar = buildCoefficient(b, cx.loc, decay.c))
    factor = times(factor, scalar);
  Value write;
  for (const Write &term : nf.update(states[0]).writes) {
    Value value = term.matrix;
    if (!value) {
      if (term.isErase())
        return cx.fail("what is read from another state is written to '" + notation(state) + "'");
      value = isOne(type.getCols())
                  ? MulOp::create(b, cx.loc, term.row.value, term.column.value).getResult()
                  : MatmulOp::create(b, cx.loc, term.column.value,
                                     b.createOrFold<TransposeOp>(cx.loc, term.row.value)).getResult();
    }
    if (Value scale = buildCoefficient(b, cx.loc, term.c))
      value = MulOp::create(b, cx.loc, scale, value);
    write = write ? AddOp::create(b, cx.loc, write, value).getResult() : value;
  }
  if (!factor || factor.getType() != type || (write && write.getType() != type))
    return cx.fail("'" + notation(state) + "' decays by entries of another shape");
  if (!write)
    write = ConstantOp::create(b, cx.loc, 0.0, type);
  scanFactors = cx.tokens.rows(factor);
  scanWrites = cx.tokens.rows(write);
  initial.push_back(cx.tokens.shared(state));
  cx.note("sort", notation(state) + " decays entry by entry: a scan");
  return success();
}

chunk::ScanOp Group::scan(bool before) {
  chunk::ScanOp &op = scans[before];
  if (!op)
    op = chunk::ScanOp::create(cx.b(), cx.loc, scanFactors.getType(), initial[0].getType(), scanFactors, scanWrites,
                               initial[0], before);
  return op;
}

Value Group::scanRow(bool before, Side side, Value vector) {
  Value all = scan(before).getResult();
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
  auto map = chunk::MapOp::create(cx.b(), cx.loc, TypeRange(), chunk::MapOp::rowsType(token, cx.tokens.length),
                                  ValueRange(), ValueRange{all, vectors}, ValueRange());
  OpBuilder b(rowType.getContext());
  Block *block = b.createBlock(&map.getBody(), {}, {Type(state), vector.getType()}, {cx.loc, cx.loc});
  Value matrix = block->getArgument(0);
  if (side == Side::Left)
    matrix = TransposeOp::create(b, cx.loc, matrix);
  chunk::YieldOp::create(b, cx.loc, MatmulOp::create(b, cx.loc, matrix, block->getArgument(1)).getResult());
  return map.getResults()[0];
}

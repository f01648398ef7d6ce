#include "lib/Cpu/SweepRescale.h"
#include "mlir/Dialect/Math/IR/Math.h"
#include "mlir/Dialect/SCF/IR/SCF.h"

using namespace mlir;
using namespace recur;
using namespace recur::cpu;

Value SweepRescale::isSafe(Value factor) {
  Value size = math::AbsFOp::create(b, factor);
  return arith::AndIOp::create(b,
                               arith::CmpFOp::create(b, arith::CmpFPredicate::OGE, size, b.number(0x1p-40)),
                               arith::CmpFOp::create(b, arith::CmpFPredicate::OLE, size, b.number(0x1p40)));
}

// Of positive numbers the bits are in order.
Value SweepRescale::areSafe(Value factors) {
  VectorType bits = VectorType::get(b.lanes, b.getI32Type());
  auto splat = [&](int32_t x) {
    return arith::ConstantOp::create(b, DenseElementsAttr::get(bits, x)).getResult();
  };
  const int32_t least = llvm::bit_cast<int32_t>(0x1p-64f), most = llvm::bit_cast<int32_t>(0x1p64f);
  Value size = arith::AndIOp::create(b, vector::BitCastOp::create(b, bits, factors),
                                     splat(std::numeric_limits<int32_t>::max()));
  Value above = arith::SubIOp::create(b, size, splat(least));
  return arith::CmpIOp::create(b, arith::CmpIPredicate::ule, above, splat(most - least));
}

Value SweepRescale::integer(Value at) {
  return arith::BitcastOp::create(b, b.getI32Type(), b.loadScalar(scratch, at));
}

void SweepRescale::storeInteger(Value x, Value at) {
  b.storeScalar(arith::BitcastOp::create(b, b.getF32Type(), x), scratch, at);
}

Value SweepRescale::collect(Value safe, Value i, Value list, Value count) {
  Type word = b.getI32Type();
  Value bits = vector::BitCastOp::create(b, VectorType::get(1, b.getIntegerType(b.lanes)), safe);
  bits = arith::ExtUIOp::create(b, word, vector::ExtractOp::create(b, bits, 0));
  // Lanes past the last row are none.
  Value valid = this->word((1 << b.lanes) - 1);
  if (shape.rows % b.lanes) {
    Value left = arith::IndexCastOp::create(b, word, arith::SubIOp::create(b, b.index(shape.rows), i));
    left = arith::MinUIOp::create(b, left, this->word(b.lanes));
    valid = arith::SubIOp::create(b, arith::ShLIOp::create(b, this->word(1), left), this->word(1));
  }
  bits = arith::AndIOp::create(b, arith::XOrIOp::create(b, bits, this->word(-1)), valid);
  Value first = arith::IndexCastOp::create(b, word, i), places = b.add(list, 1);
  auto more = [&](OpBuilder &, Location, ValueRange carried) {
    Value any = arith::CmpIOp::create(b, arith::CmpIPredicate::ne, carried[0], this->word(0));
    scf::ConditionOp::create(b, any, carried);
  };
  auto append = [&](OpBuilder &, Location, ValueRange carried) {
    Value lane = math::CountTrailingZerosOp::create(b, carried[0]);
    storeInteger(arith::AddIOp::create(b, first, lane), b.add(places, carried[1]));
    Value rest = arith::SubIOp::create(b, carried[0], this->word(1));
    rest = arith::AndIOp::create(b, carried[0], rest);
    scf::YieldOp::create(b, ValueRange{rest, b.add(carried[1], 1)});
  };
  auto loop =
      scf::WhileOp::create(b, TypeRange{word, b.getIndexType()}, ValueRange{bits, count}, more, append);
  return loop.getResult(1);
}

void SweepRescale::end(Value list, Value count) {
  storeInteger(arith::IndexCastOp::create(b, b.getI32Type(), count), list);
}

void SweepRescale::multiplyRow(Value base, Value row, Value own) {
  Value at = b.add(base, b.scale(row, options.width()));
  for (int64_t x = 0; x < options.vectors; ++x) {
    Value place = b.add(at, x * b.lanes);
    b.store(b.mul(own, b.load(scratch, place)), scratch, place);
  }
}

void SweepRescale::multiply(Value base, Value factor) {
  Value usual = arith::CmpFOp::create(b, arith::CmpFPredicate::OEQ, factor, b.number(1));
  b.branch(
      usual, TypeRange(), [] { return VectorBuilder::Values(); },
      [&] {
        Value splat = b.splat(factor);
        b.loop(b.index(0), b.index(shape.rows), 1, [&](Value row) { multiplyRow(base, row, splat); });
        return VectorBuilder::Values();
      });
}

void SweepRescale::multiplyListed(Value base, Value list, Value factors) {
  Value count = arith::IndexCastOp::create(b, b.getIndexType(), integer(list)), places = b.add(list, 1);
  b.loop(b.index(0), count, 1, [&](Value n) {
    Value row = arith::IndexCastOp::create(b, b.getIndexType(), integer(b.add(places, n)));
    multiplyRow(base, row, b.loadSplat(scratch, b.add(factors, row)));
  });
}

#include "lib/Cuda/Fragments.h"
#include "lib/Cuda/Count.h"
#include "mlir/Dialect/LLVMIR/NVVMDialect.h"

using namespace mlir;
using namespace recur;
using namespace recur::cuda;

void Fragments::begin() {
  lane = arith::RemUIOp::create(b, threads.threadIndex(), threads.constant(32));
  warp = arith::DivUIOp::create(b, threads.threadIndex(), threads.constant(32));
}

Fragment Fragments::zero(int64_t cols) { return {cols, SmallVector<Value>(cols / 2, threads.number(0))}; }

Value Fragments::row(int64_t entry) {
  Value row = arith::DivUIOp::create(b, lane, threads.constant(4));
  return entry % 4 < 2 ? row : arith::AddIOp::create(b, row, threads.constant(8)).getResult();
}

Value Fragments::column(int64_t entry) {
  Value first =
      arith::MulIOp::create(b, arith::RemUIOp::create(b, lane, threads.constant(4)), threads.constant(2));
  return arith::AddIOp::create(b, first, threads.constant(entry / 4 * 8 + entry % 2));
}

SmallVector<Value, 4> Fragments::assembly(TypeRange results, ValueRange operands, StringRef text,
                                          StringRef constraints, bool effects) {
  Type type = results.size() == 1
                  ? results[0]
                  : LLVM::LLVMStructType::getLiteral(b.getContext(), SmallVector<Type>(results));
  Value result =
      LLVM::InlineAsmOp::create(b, type, operands, text, constraints, effects, /*is_align_stack=*/false,
                                LLVM::TailCallKind::None, LLVM::AsmDialectAttr(), ArrayAttr())
          .getResult(0);
  if (results.size() == 1)
    return {result};
  SmallVector<Value, 4> values;
  for (int64_t i = 0; i < int64_t(results.size()); ++i)
    values.push_back(LLVM::ExtractValueOp::create(b, result, i));
  return values;
}

// A place without what is constant in it (null, where all of it is), and that. LLVM would make as many sums
// of the rest as there are constants, and compare all of them with one another before it sees that they are
// the same.
static std::pair<Value, int64_t> splitConstant(Value place) {
  APInt number;
  if (matchPattern(place, m_ConstantInt(&number)))
    return {Value(), number.getSExtValue()};
  auto sum = place.getDefiningOp<arith::AddIOp>();
  if (!sum)
    return {place, 0};
  auto [x, ofX] = splitConstant(sum.getLhs());
  auto [y, ofY] = splitConstant(sum.getRhs());
  if (!ofX && !ofY)
    return {place, 0};
  OpBuilder b(sum);
  Value rest = x && y ? arith::AddIOp::create(b, sum.getLoc(), x, y).getResult() : x ? x : y;
  return {rest, ofX + ofY};
}

Value Fragments::address(const SharedTile &tile, Value row, Value col) {
  if (tile.isSwizzled) {
    auto constant = [&](int64_t n) { return threads.constant(n); };
    Value block = arith::DivUIOp::create(b, col, constant(64));
    Value line = arith::AddIOp::create(b, arith::MulIOp::create(b, block, constant(tile.rows)), row);
    Value packet = arith::XOrIOp::create(b, arith::DivUIOp::create(b, col, constant(8)), row);
    packet = arith::MulIOp::create(b, arith::RemUIOp::create(b, packet, constant(8)), constant(8));
    Value at = arith::AddIOp::create(b, arith::MulIOp::create(b, line, constant(64)), packet);
    at = arith::AddIOp::create(b, at, arith::RemUIOp::create(b, col, constant(8)));
    return LLVM::GEPOp::create(b, tile.base.getType(), narrow(), tile.base, at);
  }
  auto [line, rows] = splitConstant(row);
  auto [at, cols] = splitConstant(col);
  if (line) {
    line = arith::MulIOp::create(b, line, threads.constant(tile.pitch));
    at = at ? arith::AddIOp::create(b, line, at).getResult() : line;
  }
  Type type = tile.base.getType(), element = tile.isF32 ? b.getF32Type() : narrow();
  Value base = at ? LLVM::GEPOp::create(b, type, element, tile.base, at).getResult() : tile.base;
  LLVM::GEPArg constant(int32_t(rows * tile.pitch + cols));
  return LLVM::GEPOp::create(b, type, element, base, constant);
}

SmallVector<Value, 4> Fragments::loadMatrices(Value address, bool transposed) {
  SmallVector<Type> types(4, b.getI32Type());
  Value at = LLVM::PtrToIntOp::create(b, b.getI32Type(), address);
  return assembly(types, {at},
                  transposed ? "ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {$0,$1,$2,$3}, [$4];"
                             : "ldmatrix.sync.aligned.m8n8.x4.shared.b16 {$0,$1,$2,$3}, [$4];",
                  "=r,=r,=r,=r,r,~{memory}", /*effects=*/true);
}

SmallVector<Value, 4> Fragments::loadLeft(const SharedTile &tile, Value row, Value col) {
  if (tile.isF32) {
    SmallVector<Value, 4> operand;
    for (int64_t step : {0, 8}) {
      Value c = arith::AddIOp::create(b, arith::AddIOp::create(b, column(0), col), threads.constant(step));
      Value low = loadPair(tile, arith::AddIOp::create(b, row, this->row(0)), c);
      Value high = loadPair(tile, arith::AddIOp::create(b, row, this->row(2)), c);
      for (int64_t i : {0, 1})
        for (Value pair : {low, high})
          operand.push_back(LLVM::ExtractElementOp::create(b, pair, threads.constant(i)));
    }
    return operand;
  }
  // Lanes 0-15 name the rows, 16-31 the same rows 8 columns on.
  Value r = arith::AddIOp::create(b, row, arith::RemUIOp::create(b, lane, threads.constant(16)));
  Value half = arith::DivUIOp::create(b, lane, threads.constant(16));
  Value c = arith::AddIOp::create(b, arith::MulIOp::create(b, half, threads.constant(8)), col);
  return loadMatrices(address(tile, r, c), false);
}

SmallVector<Value, 4> Fragments::loadRight(const SharedTile &tile, Value col, Value depth, bool byDepth) {
  if (tile.isF32) {
    SmallVector<Value, 4> operand;
    for (int64_t group : {0, 8})
      for (int64_t step : {0, 8}) {
        Value n = arith::AddIOp::create(b, arith::AddIOp::create(b, col, row(0)), threads.constant(group));
        Value k =
            arith::AddIOp::create(b, arith::AddIOp::create(b, column(0), depth), threads.constant(step));
        Value pair = byDepth ? Value() : loadPair(tile, n, k);
        for (int64_t i : {0, 1}) {
          if (!byDepth) {
            operand.push_back(LLVM::ExtractElementOp::create(b, pair, threads.constant(i)));
            continue;
          }
          Value at = address(tile, arith::AddIOp::create(b, k, threads.constant(i)), n);
          operand.push_back(LLVM::LoadOp::create(b, b.getF32Type(), at));
        }
      }
    return operand;
  }
  Value eighth = arith::RemUIOp::create(b, lane, threads.constant(8));
  auto eights = [&](int64_t bit) -> Value {
    Value on = arith::AndIOp::create(b, lane, threads.constant(bit));
    return arith::DivUIOp::create(b, on, threads.constant(bit / 8));
  };
  Value n = arith::AddIOp::create(b, col, eights(16));
  Value k = arith::AddIOp::create(b, eights(8), depth);
  if (byDepth)
    return loadMatrices(address(tile, arith::AddIOp::create(b, k, eighth), n), true);
  return loadMatrices(address(tile, arith::AddIOp::create(b, n, eighth), k), false);
}

Value Fragments::loadPair(const SharedTile &tile, Value row, Value col) {
  return LLVM::LoadOp::create(b, VectorType::get(2, b.getF32Type()), address(tile, row, col), 8);
}

Fragment Fragments::loadTransposed(const SharedTile &tile, Value row) {
  // A step takes 16 of the tile's rows (columns of the fragment) and 16 of its columns.
  Fragment fragment = zero(tile.rows);
  if (tile.isF32) {
    for (auto [e, entry] : llvm::enumerate(fragment.entries))
      entry = LLVM::LoadOp::create(b, b.getF32Type(),
                                   address(tile, column(e), arith::AddIOp::create(b, row, this->row(e))));
    return fragment;
  }
  Value eighth = arith::RemUIOp::create(b, lane, threads.constant(8));
  Value columnHalf = arith::AndIOp::create(b, lane, threads.constant(8));
  Value rowHalf =
      arith::DivUIOp::create(b, arith::AndIOp::create(b, lane, threads.constant(16)), threads.constant(2));
  Value c = arith::AddIOp::create(b, row, columnHalf);
  for (int64_t k = 0; k < tile.rows; k += 16) {
    Value r = arith::AddIOp::create(b, arith::AddIOp::create(b, eighth, rowHalf), threads.constant(k));
    SmallVector<Value, 4> pairs = loadMatrices(address(tile, r, c), true);
    for (int64_t i = 0; i < 4; ++i) {
      int64_t entry = k / 16 * 8 + i / 2 * 4 + i % 2 * 2;
      llvm::copy(unpack(pairs[i], tile.isBf16), fragment.entries.begin() + entry);
    }
  }
  return fragment;
}

FloatType Fragments::narrow() {
  return precision == Precision::Bf16 ? FloatType(b.getBF16Type()) : b.getF16Type();
}

Value Fragments::pack(Value low, Value high) {
  StringRef text =
      precision == Precision::Bf16 ? "cvt.rn.bf16x2.f32 $0, $1, $2;" : "cvt.rn.f16x2.f32 $0, $1, $2;";
  return assembly({b.getI32Type()}, {high, low}, text, "=r,f,f", false)[0];
}

std::array<Value, 2> Fragments::unpack(Value pair, bool isBf16) {
  if (precision == Precision::Bf16 || isBf16) { // the upper half of an f32
    Value low = arith::ShLIOp::create(b, pair, threads.constant(16));
    Value high = arith::AndIOp::create(b, pair, threads.constant(int32_t(0xffff0000)));
    return {arith::BitcastOp::create(b, b.getF32Type(), low),
            arith::BitcastOp::create(b, b.getF32Type(), high)};
  }
  Value both = LLVM::BitcastOp::create(b, VectorType::get(2, Type(narrow())), pair);
  std::array<Value, 2> entries;
  for (int64_t i : {0, 1}) {
    Value entry = LLVM::ExtractElementOp::create(b, both, threads.constant(i));
    entries[i] = arith::ExtFOp::create(b, b.getF32Type(), entry);
  }
  return entries;
}

SmallVector<SmallVector<Value, 4>> Fragments::packed(const Fragment &f) {
  SmallVector<SmallVector<Value, 4>> result;
  for (size_t i = 0; i < f.entries.size(); i += 8) {
    ArrayRef<Value> e = ArrayRef(f.entries).slice(i, 8);
    if (!isNarrow) {
      result.push_back({e[0], e[2], e[1], e[3], e[4], e[6], e[5], e[7]});
      continue;
    }
    result.push_back({pack(f.entries[i], f.entries[i + 1]), pack(f.entries[i + 2], f.entries[i + 3]),
                      pack(f.entries[i + 4], f.entries[i + 5]), pack(f.entries[i + 6], f.entries[i + 7])});
  }
  return result;
}

// Of f32 a product of 16 x 16 x 16 is some forty instructions, of 16 bits three: unrolled, they are most of a
// kernel, and of the time to compile it. Two turns are not worth a loop.
void Fragments::forDepth(int64_t depth, ValueRange left, MutableArrayRef<Value> sums,
                         llvm::function_ref<void(Value, ValueRange, MutableArrayRef<Value>)> body) {
  const size_t share = left.size() * 16 / depth, count = sums.size();
  if (isNarrow || depth <= 32) {
    for (int64_t step = 0; step < depth / 16; ++step)
      body(threads.constant(step * 16), left.slice(step * share, share), sums);
    return;
  }
  SmallVector<Value> carried(sums);
  llvm::append_range(carried, left);
  auto loop = threads.forLoop(threads.constant(0), threads.constant(depth), threads.constant(16), carried,
                              [&](Value at, ValueRange values) {
                                SmallVector<Value> next(values);
                                body(at, values.slice(count, share), MutableArrayRef(next).take_front(count));
                                std::rotate(next.begin() + count, next.begin() + count + share, next.end());
                                return next;
                              });
  llvm::copy(loop.getResults().take_front(count), sums.begin());
}

void Fragments::multiply(MutableArrayRef<Value> sums, ValueRange left, const SharedTile &tile, Value col,
                         Value depth, bool byDepth) {
  SmallVector<Value, 4> right = loadRight(tile, col, depth, byDepth);
  for (size_t i : {0, 1})
    multiply(sums.slice(4 * i, 4), left, ArrayRef(right).slice(i * right.size() / 2, right.size() / 2));
}

void Fragments::multiply(MutableArrayRef<Value> sum, ValueRange left, ValueRange right) {
  if (left.size() == 8) { // two steps of f32
    for (int64_t step : {0, 1})
      multiplyF32(sum, left.slice(4 * step, 4), right.slice(2 * step, 2));
    return;
  }
  SmallVector<Value> operands(left);
  llvm::append_range(operands, right);
  llvm::append_range(operands, sum);
  SmallVector<Type> types(4, b.getF32Type());
  StringRef inputs = precision == Precision::Bf16 ? "bf16.bf16" : "f16.f16";
  std::string text = ("mma.sync.aligned.m16n8k16.row.col.f32." + inputs +
                      ".f32 {$0,$1,$2,$3}, {$4,$5,$6,$7}, {$8,$9}, {$10,$11,$12,$13};")
                         .str();
  llvm::copy(assembly(types, operands, text, "=f,=f,=f,=f,r,r,r,r,r,r,f,f,f,f", false), sum.begin());
}

// The upper 11 bits of the significand, of x plus half of the last one or none.
Value Fragments::roundTf32(Value x, int64_t half) {
  Value bits = arith::BitcastOp::create(b, b.getI32Type(), x);
  if (half) {
    bits = arith::AddIOp::create(b, bits, threads.constant(half));
    describeBeside(bits.getDefiningOp());
  }
  bits = arith::AndIOp::create(b, bits, threads.constant(int32_t(0xffffe000)));
  describeBeside(bits.getDefiningOp());
  return arith::BitcastOp::create(b, b.getF32Type(), bits);
}

void Fragments::multiplyF32(MutableArrayRef<Value> sum, ValueRange left, ValueRange right) {
  if (precision == Precision::Bf16)
    return multiplyStep(sum, left, right);
  SmallVector<Value> rounded[2], rest[2];
  for (unsigned i : {0, 1})
    for (Value x : i ? right : left) {
      rounded[i].push_back(roundTf32(x, precision == Precision::Split ? 0 : 0x1000));
      if (precision != Precision::Split)
        continue;
      rest[i].push_back(arith::SubFOp::create(b, x, rounded[i].back()));
      describeBeside(rest[i].back().getDefiningOp());
    }
  if (precision == Precision::Split) {
    multiplyStep(sum, rest[0], rounded[1]);
    multiplyStep(sum, rounded[0], rest[1]);
  }
  multiplyStep(sum, rounded[0], rounded[1]);
}

void Fragments::multiplyStep(MutableArrayRef<Value> sum, ValueRange left, ValueRange right) {
  SmallVector<Value> operands;
  for (ValueRange side : {left, right})
    for (Value x : side)
      operands.push_back(arith::BitcastOp::create(b, b.getI32Type(), x));
  llvm::append_range(operands, sum);
  SmallVector<Type> types(4, b.getF32Type());
  llvm::copy(
      assembly(types, operands,
               "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {$0,$1,$2,$3}, {$4,$5,$6,$7}, {$8,$9}, "
               "{$10,$11,$12,$13};",
               "=f,=f,=f,=f,r,r,r,r,r,r,f,f,f,f", false),
      sum.begin());
}

Value Fragments::exp2(Value x) {
  return assembly({b.getF32Type()}, {x}, "ex2.approx.ftz.f32 $0, $1;", "=f,f", false)[0];
}

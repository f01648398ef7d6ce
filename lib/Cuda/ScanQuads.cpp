// Operands of a scan by products: vectors of a warp's tokens, and of the state.
#include "lib/Cuda/ScanQuads.h"
#include "lib/Cuda/Cores.h"

using namespace mlir;
using namespace recur;
using namespace recur::cuda;

ScaledVector::ScaledVector(Value value) : vector(value) {
  while (Operation *op = vector.getDefiningOp()) {
    unsigned at = isa<MulOp>(op) && isNumber(op->getOperand(0)) ? 0 : 1;
    if (!isa<MulOp, DivOp>(op) || !isNumber(op->getOperand(at)))
      break;
    numbers.push_back({op->getOperand(at), isa<DivOp>(op)});
    vector = op->getOperand(1 - at);
  }
}

ScanEmitter::Quads::Quads(ScanEmitter &scan, const TensorAccess &access)
    : scan(scan), b(scan.b), grid(gridOfTiles()), placement(scan.rule, grid), threads(scan.b, grid),
      access(threads, access), bodies{{threads, placement}, {threads, placement}}, fragments(threads),
      ofF16(threads, Precision::Tf32) {
  threads.begin(scan.threads.sharedAt(0), scan.threads.sharedAt(0));
  fragments.begin();
  lane = fragments.lane;
  column = arith::RemUIOp::create(b, lane, constant(4));
  row = arith::DivUIOp::create(b, lane, constant(4));
  Value first = arith::MulIOp::create(b, scan.group, constant(tokensOfWarp));
  ofWarp = arith::ExtUIOp::create(b, b.getI64Type(), arith::AddIOp::create(b, first, row));
  last = arith::SubIOp::create(b, scan.tokens, scan.i64(1));
  // Of a segment's map reads are no part.
  const SumReads &sums = *scan.shape.sums;
  SmallVector<Value> roots{sums.written};
  if (sums.factor)
    roots.push_back(sums.factor);
  if (scan.task != ScanTask::Gather)
    llvm::append_range(roots, scan.rule.getBodyYield().getOperands());
  while (!roots.empty()) {
    Value value = roots.pop_back_val();
    if (Operation *op = value.getDefiningOp(); needed.insert(value).second && op)
      llvm::append_range(roots, op->getOperands());
  }
}

Value ScanEmitter::Quads::scaleOf(const ScaledVector &scaled, int64_t which) {
  Value product = threads.number(1);
  for (auto [factor, divides] : scaled.numbers)
    product = divides ? arith::DivFOp::create(b, product, number(factor, which)).getResult()
                      : arith::MulFOp::create(b, product, number(factor, which)).getResult();
  return product;
}

SmallVector<Value> ScanEmitter::Quads::entriesOf(Value vector, int64_t which) {
  const Tile &tile = bodies[which].get(vector, 1);
  SmallVector<Value> entries(tile.entries);
  for (auto [i, entry] : llvm::enumerate(entries)) {
    bool isColumn = tile.rows > 1;
    if (Value exists = threads.valid(tile, isColumn ? i : 0, isColumn ? 0 : i))
      entry = arith::SelectOp::create(b, exists, entry, threads.number(0));
  }
  return entries;
}

FloatType ScanEmitter::Quads::elementOf(Value vector) const {
  auto *tensor = llvm::find_if(scan.tensors, [&](const auto &t) { return t.argument == vector; });
  return tensor == scan.tensors.end() || tensor->element.isF32() ? FloatType() : tensor->element;
}

Value ScanEmitter::Quads::exchange(Value x, int64_t distance) {
  return NVVM::ShflOp::create(b, b.getF32Type(), constant(-1), x, constant(distance), constant(31),
                              NVVM::ShflKind::bfly, UnitAttr());
}

Value ScanEmitter::Quads::packPair(FloatType element, Value low, Value high) {
  Value pair = LLVM::PoisonOp::create(b, VectorType::get(2, Type(element)));
  for (int64_t i : {0, 1}) {
    Value narrow = arith::TruncFOp::create(b, element, i ? high : low);
    pair = LLVM::InsertElementOp::create(b, pair, narrow, constant(i));
  }
  return LLVM::BitcastOp::create(b, b.getI32Type(), pair);
}

SmallVector<Value> ScanEmitter::Quads::digitsOf(Value low, Value high) {
  SmallVector<Value> digits;
  for (int64_t i = 0; i < 3; ++i) {
    digits.push_back(fragments.pack(low, high));
    auto [ofLow, ofHigh] = fragments.unpack(digits.back());
    low = arith::SubFOp::create(b, low, ofLow);
    high = arith::SubFOp::create(b, high, ofHigh);
  }
  return digits;
}

PairedVector ScanEmitter::Quads::paired(Value vector, FloatType element) {
  PairedVector result;
  bool isExact = elementOf(vector) == element;
  for (int64_t which : {0, 1}) {
    auto &first = result.parts[0].emplace_back(), &rest = result.parts[1].emplace_back();
    if (auto known = packets[which].find(vector); isExact && known != packets[which].end()) {
      for (Value packet : known->second) {
        Value words = LLVM::BitcastOp::create(b, VectorType::get(2, b.getI32Type()), packet);
        for (int64_t i : {0, 1})
          first.push_back(LLVM::ExtractElementOp::create(b, words, constant(i)));
      }
      continue;
    }
    SmallVector<Value> entries = entriesOf(vector, which), rests;
    for (Value entry : entries)
      if (!isExact) {
        Value rounded = arith::TruncFOp::create(b, element, entry);
        rounded = arith::ExtFOp::create(b, b.getF32Type(), rounded);
        rests.push_back(arith::SubFOp::create(b, entry, rounded));
      }
    for (size_t i = 0; i < entries.size(); i += 2) {
      first.push_back(packPair(element, entries[i], entries[i + 1]));
      if (!isExact)
        rest.push_back(packPair(element, rests[i], rests[i + 1]));
    }
  }
  return result;
}

SmallVector<Value> ScanEmitter::Quads::multiply(Value later, Value earlier) {
  if (isInPlace(later) && isInPlace(earlier))
    return multiplyInPlace(later, earlier);
  FloatType element = elementOf(later);
  if (!element || element != elementOf(earlier))
    element = b.getBF16Type();
  PairedVector left = paired(later, element), right = paired(earlier, element);
  Fragments &own = element.isF16() ? ofF16 : fragments;
  SmallVector<Value> scores(8, threads.number(0));
  for (auto [i, k] : {std::pair(0, 0), std::pair(0, 1), std::pair(1, 0)}) {
    const auto &x = left.parts[i], &y = right.parts[k];
    for (size_t word = 0; word < std::min(x[0].size(), y[0].size()); word += 2)
      for (int64_t eight : {0, 1})
        own.multiply(MutableArrayRef(scores).slice(4 * eight, 4),
                     {x[0][word], x[1][word], x[0][word + 1], x[1][word + 1]},
                     {y[eight][word], y[eight][word + 1]});
  }
  return scores;
}

// Sums of every other product, so that none waits for the one before.
SmallVector<Value> ScanEmitter::Quads::multiplyInPlace(Value later, Value earlier) {
  SmallVector<Value> sums(16, threads.number(0));
  for (auto [step, left, right] : llvm::enumerate(leftsOf(later), rightsOf(earlier)))
    for (int64_t eight : {0, 1})
      fragments.multiply(MutableArrayRef(sums).slice(8 * (step % 2) + 4 * eight, 4), left,
                         ArrayRef(right).slice(2 * eight, 2));
  for (int64_t i = 0; i < 8; ++i)
    sums[i] = arith::AddFOp::create(b, sums[i], sums[8 + i]);
  sums.truncate(8);
  return sums;
}

Value ScanEmitter::Quads::tableAt(Value row, int64_t column, Value more) {
  Value at = arith::MulIOp::create(b, row, constant(tablePitch));
  at = arith::AddIOp::create(b, at, constant(column));
  if (more)
    at = arith::AddIOp::create(b, at, more);
  return LLVM::GEPOp::create(b, table.getType(), b.getF32Type(), table, at);
}

void ScanEmitter::Quads::makeDigits() {
  constexpr int64_t rows = 4;
  Ptx ptx(b);
  int64_t entries = matType(scan.states[0]).numElements();
  digitPitch = pitchOf(entries);
  Staged all = scan.threads.allocate(scan.shape.grid.groups * rows * digitPitch / 4, 1);
  digits = LLVM::GEPOp::create(b, all.base.getType(), b.getI8Type(), all.base,
                               ptx.mul(scan.group, rows * digitPitch));
  Value zero = LLVM::ZeroOp::create(b, VectorType::get(4, Type(b.getBF16Type())));
  for (int64_t first = 0; first < entries; first += 32 * entriesOfPacket) {
    Value entry = ptx.add(ptx.mul(lane, entriesOfPacket), first);
    threads.when(ptx.below(entry, constant(entries)),
                 [&] { LLVM::StoreOp::create(b, zero, digitsAt(constant(rows - 1), entry), 8); });
  }
}

Value ScanEmitter::Quads::digitsAt(Value part, Value entry) {
  Ptx ptx(b);
  Value at = ptx.add(ptx.mul(part, digitPitch), ptx.mul(entry, 2));
  return LLVM::GEPOp::create(b, digits.getType(), b.getI8Type(), digits, at);
}

void ScanEmitter::Quads::storeDigits(Value entry, ValueRange entries) {
  SmallVector<Value> pairs[2];
  for (int64_t i : {0, 1})
    pairs[i] = digitsOf(entries[2 * i], entries[2 * i + 1]);
  for (int64_t part = 0; part < 3; ++part) {
    Value words = LLVM::PoisonOp::create(b, VectorType::get(2, b.getI32Type()));
    for (int64_t i : {0, 1})
      words = LLVM::InsertElementOp::create(b, words, pairs[i][part], constant(i));
    LLVM::StoreOp::create(b, words, digitsAt(constant(part), entry), 8);
  }
}

Values ScanEmitter::Quads::loadDigits(int64_t step) {
  Value part = arith::MinUIOp::create(b, row, constant(3));
  Values words;
  for (int64_t half : {0, 8}) {
    Value entry = Ptx(b).add(Ptx(b).mul(column, 2), step * entriesOfStep + half);
    words.push_back(LLVM::LoadOp::create(b, b.getI32Type(), digitsAt(part, entry), 4));
  }
  return words;
}

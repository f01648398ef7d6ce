// The products of a projected scan: each warp's rows of them, columns being tokens.
#include "lib/Cuda/ProjectedScan.h"
#include "mlir/Dialect/LLVMIR/NVVMDialect.h"

using namespace mlir;
using namespace recur;
using namespace recur::cuda;

constexpr int64_t depthOfStep = 16, bytesOfLane = 16, bytesOfStep = 32 * bytesOfLane, rowsOfGroup = 64;

int64_t ProjectedScan::Weights::bytes(int64_t warps, bool byWarpgroups) const {
  return byWarpgroups ? warps / 4 * tiles * blocks() * rowsOfGroup * bytesOfLine
                      : warps * tiles * steps * bytesOfStep;
}

// What a lane reads of 16 rows and 16 of depth: pairs of entries, of its two rows in turn.
Values ProjectedScan::loadWeight(TensorAccess &access, const Weights &weights, int64_t tile, Value step) {
  const ParamProduct &product = weights.of;
  Value depth = arith::AddIOp::create(b, arith::MulIOp::create(b, step, threads.constant(depthOfStep)),
                                      arith::MulIOp::create(b, turn, threads.constant(2)));
  Type pair = VectorType::get(2, Type(product.element));
  Value none = arith::ConstantOp::create(b, b.getFloatAttr(product.element, 0));
  bool inPairs = !product.isTransposed && product.depth % 4 == 0;
  Values words;
  for (int64_t half : {0, 8})
    for (int64_t i : {0, 1}) {
      Value row = threads.index(1, product.rows, 2 * tile + i);
      Value isRow = arith::CmpIOp::create(b, arith::CmpIPredicate::ult, row, threads.constant(product.rows));
      auto read = [&](Type type, int64_t more, int64_t bytes) -> Value {
        Value at = arith::AddIOp::create(b, depth, threads.constant(half + more));
        Value exists = arith::AndIOp::create(
            b, isRow,
            arith::CmpIOp::create(b, arith::CmpIPredicate::ult, at, threads.constant(product.depth)));
        Value r = arith::SelectOp::create(b, exists, row, threads.constant(0));
        Value c = arith::SelectOp::create(b, exists, at, threads.constant(0));
        if (product.isTransposed)
          std::swap(r, c);
        Value found = LLVM::LoadOp::create(b, type, access.entry(product.tensor, r, c), bytes);
        Value otherwise = type == pair ? LLVM::ZeroOp::create(b, pair).getResult() : none;
        return arith::SelectOp::create(b, exists, found, otherwise);
      };
      Value both;
      if (inPairs) {
        both = read(pair, 0, 4);
      } else {
        both = LLVM::PoisonOp::create(b, pair);
        for (int64_t k : {0, 1})
          both = LLVM::InsertElementOp::create(b, both, read(product.element, k, 2), threads.constant(k));
      }
      words.push_back(LLVM::BitcastOp::create(b, b.getI32Type(), both));
    }
  return words;
}

// Lays it where products read it: for the lane itself, or as rows of a warpgroup.
void ProjectedScan::storeWeight(const Weights &weights, int64_t tile, Value step, ValueRange words) {
  Ptx ptx(b);
  auto store = [&](Value at, Value stored, int64_t bytes) {
    LLVM::StoreOp::create(b, stored, sharedAt(at, weights.at), bytes);
  };
  if (!shape.byWarpgroups) {
    Value packet = LLVM::PoisonOp::create(b, VectorType::get(4, b.getI32Type()));
    for (auto [i, word] : llvm::enumerate(words))
      packet = LLVM::InsertElementOp::create(b, packet, word, threads.constant(i));
    Value at = ptx.add(ptx.mul(ptx.add(ptx.mul(warp, weights.tiles), tile), weights.steps), step);
    return store(ptx.add(ptx.mul(at, bytesOfStep), ptx.mul(lane, bytesOfLane)), packet, bytesOfLane);
  }
  Value group = ptx.shiftRight(warp, 2), line = ptx.shiftRight(lane, 2);
  Value block = ptx.add(ptx.mul(ptx.add(ptx.mul(group, weights.tiles), tile), weights.blocks()),
                        ptx.shiftRight(step, 2));
  for (auto [i, word] : llvm::enumerate(words)) {
    Value row = ptx.add(ptx.add(ptx.mul(ptx.bits(warp, 3), 16), line), 8 * (i % 2));
    Value chunk = ptx.exclusiveOr(ptx.add(ptx.mul(ptx.bits(step, 3), 2), i / 2), line);
    Value at =
        ptx.add(ptx.mul(ptx.add(ptx.mul(block, rowsOfGroup), row), bytesOfLine), ptx.mul(chunk, bytesOfLane));
    store(ptx.add(at, ptx.mul(turn, 4)), word, 4);
  }
}

void ProjectedScan::loadWeights(TensorAccess &access) {
  for (Weights &own : weights)
    for (int64_t tile = 0; tile < own.tiles; ++tile) {
      if (shape.inRegisters) {
        for (int64_t step = 0; step < own.steps; ++step)
          own.fragments.push_back(loadWeight(access, own, tile, threads.constant(step)));
        continue;
      }
      threads.forLoop(threads.constant(0), threads.constant(own.steps), threads.constant(1), {},
                      [&](Value step, ValueRange) -> SmallVector<Value> {
                        storeWeight(own, tile, step, loadWeight(access, own, tile, step));
                        return {};
                      });
    }
}

// A step of a product's left operand: in registers, or where a warpgroup finds it.
Values ProjectedScan::weight(const Weights &weights, int64_t tile, int64_t step) {
  if (shape.inRegisters)
    return weights.fragments[tile * weights.steps + step];
  Ptx ptx(b);
  if (shape.byWarpgroups) {
    Value base = LLVM::PtrToIntOp::create(b, b.getI32Type(), threads.sharedAt(weights.at));
    int64_t ofBlock = rowsOfGroup * bytesOfLine;
    Value own = ptx.mul(ptx.shiftRight(warp, 2), weights.tiles * weights.blocks() * ofBlock);
    Value first = ptx.descriptor(ptx.add(base, own), 0);
    return {ptx.advance(first, (tile * weights.blocks() + step / 4) * ofBlock + step % 4 * 32)};
  }
  Value at = ptx.add(ptx.mul(warp, weights.tiles * weights.steps * bytesOfStep), ptx.mul(lane, bytesOfLane));
  Value base = sharedAt(at, weights.at + (tile * weights.steps + step) * bytesOfStep);
  Value packet = LLVM::LoadOp::create(b, VectorType::get(4, b.getI32Type()), base, bytesOfLane);
  Values words;
  for (int64_t i = 0; i < 4; ++i)
    words.push_back(LLVM::ExtractElementOp::create(b, packet, threads.constant(i)));
  return words;
}

const ProjectedScan::Weights &ProjectedScan::weightsOf(MatmulOp op) const {
  ParamProduct product = *paramProductOf(op, tensors);
  return *llvm::find_if(weights, [&](const Weights &own) { return own.of.hasMatrixOf(product); });
}

// Whether a product finds its vector among inputs as they are.
bool ProjectedScan::isOfInput(MatmulOp op) const {
  ParamProduct product = *paramProductOf(op, tensors);
  auto *input = llvm::find_if(tensors, [&](const auto &t) { return t.argument == product.vector; });
  return input != tensors.end() && input->hasToken && input->element == product.element;
}

const ProjectedScan::Rows &ProjectedScan::rowsOf(MatmulOp op) const {
  Value vector = paramProductOf(op, tensors)->vector;
  auto own = handed.find(vector);
  if (own != handed.end())
    return own->second;
  auto *input = llvm::find_if(tensors, [&](const auto &t) { return t.argument == vector; });
  return ringed.find(input - tensors.begin())->second;
}

// Where a tile's rows begin.
Value ProjectedScan::addressOf(const Rows &rows, Value tile) {
  Ptx ptx(b);
  Value at = LLVM::PtrToIntOp::create(b, b.getI32Type(), threads.sharedAt(rows.at));
  return ptx.add(at, copyOf(rows, tile));
}

// Of a fragment's rows the second ones are the thread's next entries, and its two columns two tokens. There
// are sums of each tile of rows.
void ProjectedScan::setResult(MatmulOp op, Tokens tokens, ArrayRef<Values> sums) {
  for (auto [t, token] : llvm::enumerate(tokens)) {
    Tile result = threads.shape(op.getType(), 1);
    for (const Values &sum : sums)
      for (int64_t second : {0, 1})
        result.entries.push_back(sum[t / 2 * 4 + 2 * second + t % 2]);
    token.set(op, std::move(result));
  }
}

// A barrier of all who walk, behind what products read, or they themselves.
void ProjectedScan::meet(bool isRead) {
  if (!shape.byWarpgroups) {
    NVVM::Barrier0Op::create(b);
    return;
  }
  Ptx ptx(b);
  if (isRead)
    ptx.fenceProxy();
  ptx.meet(ptx.constant(1), shape.walkers());
}

// Products of warpgroups, all of them at once.
SmallVector<Pending> ProjectedScan::startProducts(ArrayRef<MatmulOp> products, Value tile) {
  Ptx ptx(b);
  SmallVector<Pending> pending;
  for (MatmulOp op : products) {
    const Rows &rows = rowsOf(op);
    const Weights &own = weightsOf(op);
    Value right = ptx.descriptor(addressOf(rows, tile), 0);
    for (int64_t i = 0; i < own.tiles; ++i) {
      SmallVector<Step> steps;
      for (int64_t step = 0; step < own.steps; ++step)
        steps.push_back(
            {weight(own, i, step), ptx.advance(right, step / 4 * rows.ofBlock(shape) + step % 4 * 32)});
      pending.push_back(ptx.product(shape.tokens(), {}, steps, /*leftByDepth=*/false, /*rightByDepth=*/false,
                                    own.of.element.isF16() ? "f16" : "bf16"));
    }
  }
  return pending;
}

// All products of a level.
void ProjectedScan::multiply(ArrayRef<MatmulOp> products, Tokens tokens, Value tile) {
  llvm::SmallSetVector<Value, 2> vectors;
  for (MatmulOp op : products)
    if (Value vector = paramProductOf(op, tensors)->vector; handed.contains(vector))
      vectors.insert(vector);
  for (Value vector : vectors)
    handOver(vector, tokens, tile);
  if (!vectors.empty())
    meet();
  if (!shape.byWarpgroups)
    return multiplyByWarps(products, tokens, tile);
  SmallVector<MatmulOp> own;
  llvm::copy_if(products, std::back_inserter(own),
                [&](MatmulOp op) { return !llvm::is_contained(ahead, op); });
  SmallVector<Values> sums;
  if (!own.empty())
    sums = Ptx(b).await(0, startProducts(own, tile));
  auto set = [&](ArrayRef<MatmulOp> ops, ArrayRef<Values> all) {
    for (MatmulOp op : ops) {
      size_t tiles = weightsOf(op).tiles;
      if (llvm::is_contained(products, op))
        setResult(op, tokens, all.take_front(tiles));
      all = all.drop_front(tiles);
    }
  };
  set(own, sums);
  set(ahead, aheadSums);
}

// The same, 16 x 8 at a time. Those of one vector share what is read of it.
void ProjectedScan::multiplyByWarps(ArrayRef<MatmulOp> products, Tokens tokens, Value tile) {
  Ptx ptx(b);
  llvm::SmallMapVector<Value, SmallVector<MatmulOp>, 2> byVector;
  for (MatmulOp op : products)
    byVector[paramProductOf(op, tensors)->vector].push_back(op);
  // Four matrices of eight tokens and eight entries: two of depth, of two tiles of tokens.
  auto bit = [&](int64_t of, int64_t worth) {
    return ptx.mul(ptx.shiftRight(ptx.bits(lane, of), llvm::Log2_64(of)), worth);
  };
  int64_t tiles = shape.run / 2;
  for (auto &entry : byVector) {
    ArrayRef<MatmulOp> ops = entry.second;
    const Rows &rows = rowsOf(ops.front());
    Value at = ptx.add(addressOf(rows, tile), ptx.add(bit(8, depthOfStep), bit(16, 2 * rows.pitch())));
    int64_t ofRun = rows.ofRun(shape.run);
    at = ptx.add(at, ptx.add(bit(1, rows.pitch()), ptx.add(bit(2, ofRun), bit(4, 2 * ofRun))));
    SmallVector<const Weights *> of;
    SmallVector<SmallVector<Values>> sums; // of each op and tile of rows, then tiles of tokens
    for (MatmulOp op : ops) {
      of.push_back(&weightsOf(op));
      sums.emplace_back(of.back()->tiles, Values(tiles * 4, threads.number(0)));
    }
    for (int64_t step = 0; step < of.front()->steps; ++step) {
      SmallVector<Values> right;
      for (int64_t n = 0; n < tiles; n += 2)
        right.push_back(ptx.loadMatrices(at, 2 * n * rows.pitch() + step * depthOfStep * 2, false));
      for (auto [matrix, sum] : llvm::zip(of, sums))
        for (int64_t i = 0; i < matrix->tiles; ++i) {
          Values left = weight(*matrix, i, step);
          for (int64_t n = 0; n < tiles; ++n) {
            MutableArrayRef<Value> part = MutableArrayRef(sum[i]).slice(n * 4, 4);
            Values pair{right[n / 2][n % 2 * 2], right[n / 2][n % 2 * 2 + 1]};
            llvm::copy(ptx.multiply16By8(matrix->of.element.isF16() ? "f16" : "bf16", part, left, pair),
                       part.begin());
          }
        }
    }
    for (auto [op, sum] : llvm::zip(ops, sums))
      setResult(op, tokens, sum);
  }
}

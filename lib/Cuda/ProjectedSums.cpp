// Sums over entries in a projected scan, of all of a tile's tokens at once.
#include "lib/Cuda/ProjectedScan.h"
#include "mlir/Dialect/LLVMIR/NVVMDialect.h"

using namespace mlir;
using namespace recur;
using namespace recur::cuda;

static Reduction kindOf(Operation *op) {
  auto reduce = dyn_cast<ReduceOp>(op);
  return reduce ? reduce.getKind() : Reduction::Sum;
}

// Eight lanes of a warp have parts of the same tokens' sums. By halves they take over some tokens each; then
// warps leave their sums for all.
void ProjectedScan::sumUp(ArrayRef<Operation *> sums, Tokens tokens, Value tile) {
  constexpr int64_t lanesOfToken = 32 / ProjectedShape::turns;
  if (sums.empty())
    return;
  Ptx ptx(b);
  int64_t warps = shape.walkers() / 32;
  Value parity = ptx.mul(ptx.bits(tile, 1), sumsBytes);
  // Of each warp, tokens in a row.
  auto place = [&](Operation *op, Value token, int64_t ofWarp) {
    return sharedAt(ptx.add(parity, ptx.mul(token, 4)), sumPlaces.lookup(op) + ofWarp * shape.tokens() * 4);
  };
  Value ofRun = ptx.mul(turn, shape.run);
  for (Operation *op : sums) {
    Reduction kind = kindOf(op);
    Axis axis = placement.commonAxis(op->getOperands());
    SmallVector<Value> parts;
    for (BodyEmitter &token : tokens) {
      Value part;
      const Tile &first = token.get(op->getOperand(0), axis);
      for (int64_t r = 0; r < first.rows; ++r)
        for (int64_t c = 0; c < first.cols; ++c) {
          Value entry = first.at(r, c);
          if (op->getNumOperands() == 2)
            entry = ptx.multiply(entry, token.get(op->getOperand(1), axis).at(c, r));
          if (Value exists = threads.valid(first, r, c))
            entry = ptx.choose(exists, entry, threads.identity(kind));
          part = part ? threads.combine(part, entry, kind) : entry;
        }
      parts.push_back(part);
    }
    Value own = ofRun; // the first token that is left to the lane
    for (int64_t bit = 1; bit < lanesOfToken; bit *= 2) {
      Value isUpper = ptx.equal(ptx.bits(lane, bit * ProjectedShape::turns), bit * ProjectedShape::turns);
      size_t half = parts.size() / 2;
      for (size_t i = 0; i < half; ++i) {
        Value given = ptx.choose(isUpper, parts[i], parts[half + i]);
        Value kept = ptx.choose(isUpper, parts[half + i], parts[i]);
        Value other = NVVM::ShflOp::create(b, b.getF32Type(), threads.constant(-1), given,
                                           threads.constant(bit * ProjectedShape::turns),
                                           threads.constant(31), NVVM::ShflKind::bfly, UnitAttr());
        parts[i] = threads.combine(kept, other, kind);
      }
      parts.truncate(half);
      own = ptx.add(own, ptx.choose(isUpper, ptx.constant(half), ptx.constant(0)));
    }
    own = ptx.add(own, ptx.mul(warp, shape.tokens()));
    for (auto [i, part] : llvm::enumerate(parts))
      LLVM::StoreOp::create(b, part, place(op, ptx.add(own, i), 0));
  }
  meet(/*isRead=*/false);
  constexpr int64_t width = 4;
  for (Operation *op : sums) {
    SmallVector<Value> all(shape.run);
    for (int64_t w = 0; w < warps; ++w)
      for (int64_t t = 0; t < shape.run; t += width) {
        Value some = LLVM::LoadOp::create(b, VectorType::get(width, Type(b.getF32Type())),
                                          place(op, ptx.add(ofRun, t), w), width * 4);
        for (int64_t i = 0; i < width; ++i) {
          Value one = LLVM::ExtractElementOp::create(b, some, threads.constant(i));
          all[t + i] = w ? threads.combine(all[t + i], one, kindOf(op)) : one;
        }
      }
    for (auto [token, sum] : llvm::zip(tokens, all)) {
      Tile result = threads.shape(matType(op->getResult(0)), 0);
      result.entries.push_back(sum);
      token.set(op->getResult(0), std::move(result));
    }
  }
}

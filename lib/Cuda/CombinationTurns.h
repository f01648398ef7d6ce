// What one warp does for a block of tokens whose writes are combinations (RoleCombinations.cpp).
#pragma once
#include "lib/Cuda/EntryCombinations.h"
#include "lib/Cuda/Ptx.h"
#include "lib/Cuda/RoleTypes.h"

namespace recur::cuda {

/// Where a block's inner products are: parts that each warp adds, and a row for each vector; what lanes tell
/// others; how much of each token's own writes are in what tokens write, and their numbers.
struct CombinationLayout {
  explicit CombinationLayout(const Combination &of, int64_t warps)
      : count(of.vectors.size()), hasOnes(of.hasOnes), pitch(count > 1 ? 144 : 80),
        ofWarp(4 * (256 * blocks() + (hasOnes ? 16 * count : 0))), productsAt(warps * ofWarp),
        toldAt(productsAt + (16 * count + hasOnes) * pitch), scoresAt(toldAt + 64 * (count + hasOnes)),
        sharesAt(scoresAt + (of.factor ? 0 : RoleTypes::ownLeafBytes)), numbersAt(sharesAt + 16 * sharePitch),
        bytes(numbersAt + 64 * (count + hasOnes)) {}

  int64_t blocks() const { return count * (count + 1) / 2; }
  int64_t block(int64_t row, int64_t column) const { return row * (row + 1) / 2 + column; }
  int64_t at(int64_t row, int64_t column) const { return productsAt + row * pitch + 4 * column; }
  // Kinds of columns: inner products with each vector, and shares.
  int64_t shares() const { return count + hasOnes; }
  // Whether each token has a vector of its own, as all but that of ones.
  bool isOfToken(size_t vector) const { return int64_t(vector) < count; }

  static constexpr int64_t sharePitch = 80;
  int64_t count, hasOnes, pitch, ofWarp, productsAt, toldAt, scoresAt, sharesAt, numbersAt, bytes;
};

/// Where a token's number is among 16, those of every second token together, the first ones those of the two
/// tokens from an even one, `since`, on.
mlir::Value placeInTurns(Ptx &ptx, mlir::Value token, mlir::Value since = {});

/// Takes a block's tokens in turn, by one warp. `at` is where the layout begins, `scores` are those of the
/// block between its tokens, and a lane has the `numbers` of one of 16 tokens, those of the region's scalar
/// arguments; `pairs` of tokens are 8. Functions are of so many binary digits.
void emitTurns(Ptx &ptx, chunk::SubstituteOp op, const Combination &combination,
               const CombinationLayout &layout, int64_t digits, mlir::Value at, mlir::Value lane,
               mlir::Value scores, const llvm::DenseMap<mlir::Value, mlir::Value> &numbers,
               mlir::Value pairs);

} // namespace recur::cuda

// Products on the matrix units: 16 x 8 x 16 bf16 or f16 and 16 x 8 x 8 tf32, sums in f32, for one warp.
// Operands are 16 bits wide, or f32 that are rounded to tf32 or split into two of them.
//
// A fragment holds the rows of 16 x n results: for each 8 columns four values of a thread, at rows lane/4
// (twice) and lane/4 + 8 (twice), columns 2*(lane%4) and the next. Packed in pairs it is the left operand of
// a further product.
#pragma once
#include "lib/Cuda/Threads.h"

#include <memory>

namespace recur::cuda {

/// A matrix of 16 bits or f32 in shared memory, `pitch` entries from a row to the next.
struct SharedTile {
  mlir::Value base;
  int64_t rows = 0, cols = 0, pitch = 0;
  bool isF32 = false;
  /// In blocks of 64 columns, 128 bytes a row, swizzled as products of warpgroups read them.
  bool isSwizzled = false;
  /// Of bf16, whatever else products read.
  bool isBf16 = false;
  /// Keeps the memory; null where it is never used again for anything else.
  std::shared_ptr<const void> owner = nullptr;
  int64_t bytes() const { return rows * pitch * (isF32 ? 4 : 2); }
};

/// 16 rows of a warp by `cols` columns.
struct Fragment {
  int64_t cols = 0;
  llvm::SmallVector<mlir::Value> entries; // 4 for each 8 columns
};

/// How products read what is kept in f32.
enum class Precision {
  Bf16, // operands are kept in bf16
  Tf32, // rounded to 11 bits: as many as f16 has, with the range of f32
  Split // in two parts each: three products
};

/// Builds the code of products.
class Fragments {
public:
  explicit Fragments(Threads &threads, Precision precision = Precision::Bf16)
      : precision(precision), isNarrow(precision == Precision::Bf16), threads(threads), b(threads.b) {}
  /// Emits what the others use.
  void begin();

  Fragment zero(int64_t cols);
  /// The row (0 or 8 more) and column offset of an entry within 8 columns of a fragment, for this thread.
  mlir::Value row(int64_t entry);
  mlir::Value column(int64_t entry);

  /// 16 x 16 values of a tile as a left operand: rows from `row`, columns from `col`. Of an f32 tile in two
  /// steps of depth of 8, of which a thread has neighbouring columns.
  llvm::SmallVector<mlir::Value, 4> loadLeft(const SharedTile &tile, mlir::Value row, mlir::Value col);
  /// Right operands of two neighbouring products: 16 deep from `depth`, 16 columns from `col`. The tile holds
  /// a row for each column of the operand or, `byDepth`, for each step of depth.
  llvm::SmallVector<mlir::Value, 4> loadRight(const SharedTile &tile, mlir::Value col, mlir::Value depth,
                                              bool byDepth);
  /// The transposed tile as a fragment: rows from `row` among the tile's columns, a column for each of its
  /// rows.
  Fragment loadTransposed(const SharedTile &tile, mlir::Value row);

  /// What operands of 16 bits are: bf16, or f16 in kernels whose other operands are f32.
  mlir::FloatType narrow();
  /// Two f32 as two of those in 32 bits.
  mlir::Value pack(mlir::Value low, mlir::Value high);
  /// And back.
  std::array<mlir::Value, 2> unpack(mlir::Value pair, bool isBf16 = false);
  /// A fragment as left operands, 16 columns each.
  llvm::SmallVector<llvm::SmallVector<mlir::Value, 4>> packed(const Fragment &fragment);
  /// Runs the body for each 16 of the depth of products, with as many of the left operands (of none, where
  /// they are not in registers): unrolled or, where products of 16 bits are not all there is to do, in a
  /// loop, whose turns bring the next operands to the registers that come first.
  void forDepth(
      int64_t depth, mlir::ValueRange left, llvm::MutableArrayRef<mlir::Value> sums,
      llvm::function_ref<void(mlir::Value at, mlir::ValueRange left, llvm::MutableArrayRef<mlir::Value> sums)>
          body);
  /// sums += left * right for 16 columns of a tile, 16 deep: those of loadRight.
  void multiply(llvm::MutableArrayRef<mlir::Value> sums, mlir::ValueRange left, const SharedTile &tile,
                mlir::Value col, mlir::Value depth, bool byDepth);
  /// sum += left * right for 8 columns.
  void multiply(llvm::MutableArrayRef<mlir::Value> sum, mlir::ValueRange left, mlir::ValueRange right);
  /// The same in tf32, 8 deep.
  void multiplyF32(llvm::MutableArrayRef<mlir::Value> sum, mlir::ValueRange left, mlir::ValueRange right);
  /// 2 to a power.
  mlir::Value exp2(mlir::Value x);

  mlir::Value address(const SharedTile &tile, mlir::Value row, mlir::Value col);
  mlir::Value warp, lane;
  const Precision precision;
  /// Whether products read 16 bits. Where `precision` says otherwise that is so for a while.
  bool isNarrow;

private:
  void multiplyStep(llvm::MutableArrayRef<mlir::Value> sum, mlir::ValueRange left, mlir::ValueRange right);
  mlir::Value roundTf32(mlir::Value x, int64_t half);
  mlir::Value loadPair(const SharedTile &tile, mlir::Value row, mlir::Value col);
  llvm::SmallVector<mlir::Value, 4> loadMatrices(mlir::Value address, bool transposed);
  llvm::SmallVector<mlir::Value, 4> assembly(mlir::TypeRange results, mlir::ValueRange operands,
                                             llvm::StringRef text, llvm::StringRef constraints, bool effects);

  Threads &threads;
  mlir::ImplicitLocOpBuilder &b;
};

} // namespace recur::cuda

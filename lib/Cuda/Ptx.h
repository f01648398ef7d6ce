// Hopper's instructions as ops: barriers in shared memory, bulk tensor copies, products of a warpgroup.
//
// Addresses in shared memory are i32 values; what an instruction's address adds to them is a number in its
// text. All that reads or writes memory is assembly with side effects, so that its order is the order of the
// calls.
#pragma once
#include "mlir/Dialect/Arith/IR/Arith.h"
#include "mlir/Dialect/LLVMIR/LLVMDialect.h"
#include "mlir/IR/ImplicitLocOpBuilder.h"

namespace recur::cuda {

using Values = llvm::SmallVector<mlir::Value>;

/// A product in flight: its entries may be read, or its operands' registers written, only after a wait.
struct Pending {
  Values entries;
};

/// 16 steps of depth of a product: the left operand in four registers or by one descriptor, the right by
/// descriptor.
struct Step {
  Values left;
  mlir::Value right;
};

/// While it lives, ops come from the place in the spec that an op of the rule's comes from, if it is one.
class SpecPlace {
public:
  SpecPlace(mlir::ImplicitLocOpBuilder &b, mlir::Operation *op) : b(b), before(b.getLoc()) {
    if (op)
      b.setLoc(op->getLoc());
  }
  SpecPlace(const SpecPlace &) = delete;
  ~SpecPlace() { b.setLoc(before); }

private:
  mlir::ImplicitLocOpBuilder &b;
  mlir::Location before;
};

/// Builds the instructions.
class Ptx {
public:
  /// `isF16`: what is packed is f16, and not bf16.
  explicit Ptx(mlir::ImplicitLocOpBuilder &b, bool isF16 = false) : b(b), isF16(isF16) {}

  mlir::Value constant(int64_t value, unsigned bits = 32) {
    return mlir::arith::ConstantIntOp::create(b, value, bits);
  }
  mlir::Value number(double value) {
    return mlir::arith::ConstantOp::create(b, b.getF32FloatAttr(float(value)));
  }
  mlir::Value add(mlir::Value x, mlir::Value y) { return mlir::arith::AddIOp::create(b, x, y); }
  mlir::Value add(mlir::Value x, int64_t y) { return y ? add(x, like(x, y)) : x; }
  mlir::Value mul(mlir::Value x, mlir::Value y) { return mlir::arith::MulIOp::create(b, x, y); }
  mlir::Value mul(mlir::Value x, int64_t y) { return mul(x, like(x, y)); }
  mlir::Value bits(mlir::Value x, int64_t mask) { return mlir::arith::AndIOp::create(b, x, like(x, mask)); }
  mlir::Value shiftRight(mlir::Value x, int64_t n) { return mlir::arith::ShRUIOp::create(b, x, like(x, n)); }
  mlir::Value exclusiveOr(mlir::Value x, mlir::Value y) { return mlir::arith::XOrIOp::create(b, x, y); }
  mlir::Value compare(mlir::arith::CmpIPredicate how, mlir::Value x, mlir::Value y) {
    return mlir::arith::CmpIOp::create(b, how, x, y);
  }
  mlir::Value equal(mlir::Value x, int64_t y) {
    return compare(mlir::arith::CmpIPredicate::eq, x, like(x, y));
  }
  mlir::Value below(mlir::Value x, mlir::Value y) { return compare(mlir::arith::CmpIPredicate::ult, x, y); }
  mlir::Value choose(mlir::Value condition, mlir::Value x, mlir::Value y) {
    return mlir::arith::SelectOp::create(b, condition, x, y);
  }
  mlir::Value multiply(mlir::Value x, mlir::Value y) { return mlir::arith::MulFOp::create(b, x, y); }
  mlir::Value sum(mlir::Value x, mlir::Value y) { return mlir::arith::AddFOp::create(b, x, y); }
  mlir::Value difference(mlir::Value x, mlir::Value y) { return mlir::arith::SubFOp::create(b, x, y); }
  /// 2 to a power; a binary logarithm; a reciprocal, and that of a square root; that root: all to about f32's
  /// precision.
  mlir::Value exp2(mlir::Value x);
  mlir::Value log2(mlir::Value x);
  mlir::Value reciprocal(mlir::Value x);
  mlir::Value reciprocalRoot(mlir::Value x);
  mlir::Value root(mlir::Value x);
  /// To about 11 binary digits.
  mlir::Value tanh(mlir::Value x);
  /// -x as the assembler knows it to be part of a product or sum; the optimiser would turn bits.
  mlir::Value negative(mlir::Value x);

  /// One block of assembly. Results are $0.., operands follow; the first `tied` operands lie where the
  /// results do.
  Values assembly(llvm::StringRef text, mlir::TypeRange results, mlir::ValueRange operands,
                  bool effects = true, unsigned tied = 0);
  /// The values, computed by here and not later.
  Values pin(mlir::ValueRange values);

  // Barriers.
  void initBarrier(mlir::Value barrier, int64_t arrivals);
  void fenceBarrierInit();
  void arrive(mlir::Value barrier);
  void arriveExpecting(mlir::Value barrier, int64_t bytes);
  void await(mlir::Value barrier, mlir::Value phase);
  /// A barrier of some warps among themselves.
  void meet(mlir::Value id, int64_t threads) { meet(id, constant(threads)); }
  void meet(mlir::Value id, mlir::Value threads);
  /// Counts as having come to it, without waiting for the others.
  void announce(mlir::Value id, mlir::Value threads);
  /// A barrier of all threads of a cluster's blocks.
  void meetCluster();
  /// Where what lies at an address of this block lies in one of its cluster.
  mlir::Value inBlock(mlir::Value address, mlir::Value rank);
  /// A word of another block's shared memory.
  mlir::Value loadThere(mlir::Value address, int64_t offset);
  void storeThere(mlir::Value address, mlir::Value word);
  /// As above, at a barrier that may be another block's.
  void arriveThere(mlir::Value barrier);
  void arriveThereExpecting(mlir::Value barrier, int64_t bytes);
  /// Makes what threads wrote to shared memory visible to products and copies.
  void fenceProxy();
  void setRegisters(int64_t count, bool more);

  // Copies of boxes of a tensor, and of whole lines.
  void loadBox(mlir::Value to, mlir::Value map, mlir::Value barrier, mlir::ValueRange coordinates);
  void prefetchBox(mlir::Value map, mlir::ValueRange coordinates, mlir::Value condition);
  void storeBox(mlir::Value map, mlir::Value from, mlir::ValueRange coordinates, mlir::Value condition);
  /// Copies bytes that lie together, from device memory and, as part of a group, to it.
  void loadBytes(mlir::Value to, mlir::Value from, int64_t bytes, mlir::Value barrier);
  void storeBytes(mlir::Value to, mlir::Value from, int64_t bytes);
  void commitStores();
  /// Copies 4, 8 or 16 bytes from device memory, which the thread itself waits for, all that it has asked
  /// for, or but for those of the last `left` groups.
  void copyPacket(mlir::Value to, int64_t offset, mlir::Value from, int64_t bytes);
  void commitPackets();
  void awaitPackets(std::optional<int64_t> left = std::nullopt);
  /// Copies shared memory to where it may be another block's, for that block's barrier.
  void copyThere(mlir::Value to, mlir::Value from, int64_t bytes, mlir::Value barrier);
  /// Waits until the stores' reads are done or, `written`, the stores, but for those of the last `left`
  /// groups.
  void awaitStores(bool written, int64_t left = 0);

  // Shared memory.
  Values load(mlir::Value address, int64_t offset, unsigned count, mlir::Type type);
  Values loadFloats(mlir::Value address, int64_t offset, unsigned count) {
    return load(address, offset, count, b.getF32Type());
  }
  /// `relaxed`: others may read it meanwhile, and do not mind what they get. `condition`: only where that
  /// holds.
  void store(mlir::Value address, int64_t offset, mlir::ValueRange values, bool relaxed = false,
             mlir::Value condition = {});
  /// Four 8 x 8 matrices of 16-bit entries.
  Values loadMatrices(mlir::Value address, int64_t offset, bool transposed);
  /// `condition`: only where that holds, which is the same in a warp.
  void storeMatrices(mlir::Value address, int64_t offset, mlir::ValueRange registers, bool transposed,
                     mlir::Value condition = {});

  /// An 8 x 8 matrix that a warp holds, transposed.
  mlir::Value transpose(mlir::Value registers);

  // Conversions of pairs; the first is the low half. `saturates`: what is beyond f16's range is its largest
  // number.
  mlir::Value pack(mlir::Value low, mlir::Value high, bool saturates = true);
  /// The same, with the largest there are for what is larger.
  mlir::Value packFinite(mlir::Value low, mlir::Value high);
  mlir::Value packF16(mlir::Value low, mlir::Value high);
  /// What is packed, as products name it; and the bits of a number.
  llvm::StringRef half() const { return isF16 ? "f16" : "bf16"; }
  uint32_t bitsOf(double number) const;
  Values unpack(mlir::Value pair);
  Values unpackF16(mlir::Value pair);
  /// Products of pairs of f16, and sums with them.
  mlir::Value multiplyPairs(mlir::Value x, mlir::Value y);
  mlir::Value addProducts(mlir::Value sum, mlir::Value x, mlir::Value y);
  /// The greater of each two.
  mlir::Value greater(mlir::Value x, mlir::Value y);

  // What the threads of a block, or of a warp, do together.
  /// A barrier of all threads. Whether a condition holds for any of them.
  mlir::Value meetForAny(mlir::Value condition);
  /// The same of so many threads at a barrier that has a number.
  mlir::Value meetForAny(mlir::Value id, mlir::Value threads, mlir::Value condition);
  void syncWarp();
  /// Whether a condition holds for any of them.
  mlir::Value any(mlir::Value condition);
  mlir::Value shuffle(mlir::Value x, mlir::Value lane);
  /// That of the lane whose number differs by the bits of `distance`.
  mlir::Value exchange(mlir::Value x, int64_t distance);
  /// That of the lane whose number has the same last two bits, and else is `lane`.
  mlir::Value shuffleByFours(mlir::Value x, int64_t lane);
  /// Whether the lane is one that is elected of its warp, which is here as a whole. What copy engines are
  /// told has to be the same for all lanes: of one that is lane 0 by its number the assembler does not see
  /// that, and asks lane by lane, in a loop for each copy.
  mlir::Value isElected();

  // Products.
  /// The descriptor of an operand in swizzled rows of 128 bytes, or 64; `leading` bytes lie between blocks of
  /// as many columns as a row has.
  mlir::Value descriptor(mlir::Value address, int64_t leading, int64_t rowBytes = 128);
  /// The descriptor of what lies `bytes` further.
  mlir::Value advance(mlir::Value descriptor, int64_t bytes) { return add(descriptor, bytes >> 4); }
  /// Issues 64 x `columns` sums of products as a group of its own, onto `start` or, where that is empty,
  /// zero. `type` is f16 or bf16, or what is packed.
  Pending product(int64_t columns, mlir::ValueRange start, llvm::ArrayRef<Step> steps, bool leftByDepth,
                  bool rightByDepth, llvm::StringRef type = {});
  /// Waits until at most `left` groups are in flight and gives the entries of those that have landed.
  llvm::SmallVector<Values> await(int64_t left, llvm::ArrayRef<Pending> landed);
  /// sum + left * right, 16 x 8 by one warp, 16 deep; `type` is f16 or bf16.
  Values multiply16By8(llvm::StringRef type, mlir::ValueRange sum, mlir::ValueRange left,
                       mlir::ValueRange right);
  /// The same, 16 x 16 of what is packed; the right operand is laid out like a left one, transposed.
  Values multiplyPacked(mlir::ValueRange sum, mlir::ValueRange left, mlir::ValueRange right);
  /// The same of f32 entries, of which tf32 keeps 10 bits: the others are cut off. And 16 x 8, eight deep.
  Values multiply16By8Tf32(mlir::ValueRange sum, mlir::ValueRange left, mlir::ValueRange right);
  Values multiplyTf32(mlir::ValueRange sum, mlir::ValueRange left, mlir::ValueRange right);
  /// Entries as the nearest numbers that tf32 holds.
  Values roundTf32(mlir::ValueRange entries);

  mlir::ImplicitLocOpBuilder &b;
  bool isF16;

private:
  mlir::Value like(mlir::Value x, int64_t value) {
    return constant(value, x.getType().getIntOrFloatBitWidth());
  }
};

} // namespace recur::cuda

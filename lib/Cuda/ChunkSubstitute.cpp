// Systems that are not linear, row by row of the state: what is read of it, token by token, and functions of
// that, which are written to it. What blocks of 16 tokens before a block give to it are products; within a
// block the tokens of a row are in four threads, each of which sums what its own give.
#include "lib/Cuda/ChunkEmitter.h"
#include "lib/Cuda/EntryFunctions.h"

using namespace mlir;
using namespace recur;
using namespace recur::cuda;

LogicalResult ChunkEmitter::prepareSubstitute(chunk::SubstituteOp op) {
  System system;
  for (Value block : op.getBlocks()) {
    FailureOr<ChunkValue> scores = need(block);
    if (failed(scores) || (scores->kind != ChunkValue::Scores && scores->kind != ChunkValue::Scalar))
      return failure();
    bool isZero = scores->kind == ChunkValue::Scalar; // the only number that is strictly lower
    system.blocks.push_back(isZero ? SharedTile() : stage(*scores, /*negatedF32=*/true));
  }
  systems[op] = std::move(system);
  return success();
}

LogicalResult ChunkEmitter::emitSubstitute(chunk::SubstituteOp op) {
  if (!systems.count(op) && failed(prepareSubstitute(op)))
    return failure();
  unsigned reads = op.getReads().size(), writes = op.getWrites().size();
  SmallVector<ChunkValue> arguments; // of the region
  for (Value operand : llvm::concat<Value>(llvm::to_vector(op.getSides()), llvm::to_vector(op.getRows()))) {
    auto type = dyn_cast<MatType>(operand.getType());
    if (!type)
      return failure();
    FailureOr<ChunkValue> value = isOne(type.getCols()) ? need(operand) : asSlab(operand);
    if (failed(value))
      return failure();
    arguments.push_back(*value);
  }
  for (Value operand : op.getShared()) {
    FailureOr<ChunkValue> value = need(operand);
    if (failed(value) || (value->kind != ChunkValue::Scalar && value->kind != ChunkValue::Rows))
      return failure();
    arguments.push_back(*value);
  }
  syncFor(arguments);
  sync();
  const System &system = systems[op];
  int64_t rows = arguments.front().rows;
  Value g = fragments.row(0), pair = fragments.column(0), first = slabRow(rows), zero = threads.number(0);
  size_t entries = arguments.front().entries.size();
  int64_t digits = fragments.precision == Precision::Bf16   ? 8
                   : fragments.precision == Precision::Tf32 ? 11
                                                            : 24;
  SmallVector<SmallVector<Value>> read(reads), written(writes, SmallVector<Value>(entries, zero));
  for (unsigned i = 0; i < reads; ++i)
    read[i] = arguments[i].entries;
  for (int64_t block = 0; block < blocks(); ++block) {
    for (unsigned i = 0; i < reads; ++i) {
      SmallVector<Value> earlier(8, zero);
      for (unsigned s = 0; s < writes; ++s)
        if (const SharedTile &n = system.blocks[i * writes + s]; n.base)
          for (int64_t half : {0, 1})
            for (int64_t j = 0; j < 2 * block; ++j) {
              // The pair of columns that a thread holds are two steps of depth.
              ArrayRef<Value> left = ArrayRef(written[s]).slice(4 * j, 4);
              std::array<Value, 2> right = loadPair(n, add(g, block * 16 + half * 8), add(pair, j * 8));
              fragments.multiplyF32(MutableArrayRef(earlier).slice(4 * half, 4),
                                    {left[0], left[2], left[1], left[3]}, right);
            }
      for (size_t e = 0; e < 8; ++e)
        read[i][8 * block + e] = arith::SubFOp::create(b, read[i][8 * block + e], earlier[e]);
    }
    for (int64_t token = 0; token < 16; ++token) {
      Value row = threads.constant(block * 16 + token);
      Value isOwner = equal(modulo(fragments.lane, 4), token % 8 / 2), exists = isValid(row);
      for (int64_t column : {0, 1}) { // a thread's two rows of the state
        size_t at = 8 * block + token / 8 * 4 + 2 * column + token % 2;
        for (unsigned i = 0; i < reads; ++i) {
          Value sum = zero;
          for (unsigned s = 0; s < writes; ++s)
            if (const SharedTile &n = system.blocks[i * writes + s]; n.base)
              for (int64_t half = 0; half <= token / 8; ++half) {
                std::array<Value, 2> scores = loadPair(n, row, add(pair, block * 16 + 8 * half));
                for (size_t odd : {0, 1})
                  sum = plus(sum, multiply(scores[odd], written[s][8 * block + 4 * half + 2 * column + odd]));
              }
          for (int64_t distance : {1, 2})
            sum = plus(sum, shuffle(sum, distance));
          Value &entry = read[i][at];
          entry = choose(isOwner, arith::SubFOp::create(b, entry, sum), entry);
        }
        auto entryAt = [&](BlockArgument argument, size_t) {
          unsigned number = argument.getArgNumber();
          const ChunkValue &value = arguments[number];
          if (number < reads)
            return read[number][at];
          if (value.kind == ChunkValue::Slab)
            return value.entries[at];
          bool isOfRows = number >= reads + op.getRows().size();
          return entryOf(value, isOfRows ? add(first, fragments.row(2 * column)) : row);
        };
        for (auto [s, value] : llvm::enumerate(op.getYield().getValues())) {
          Value found = choose(exists, lowerEntries(b, op, value, digits, 1, entryAt).front(), zero);
          written[s][at] = choose(isOwner, found, written[s][at]);
        }
      }
    }
  }
  for (auto [result, own] : llvm::zip(op.getReads(), read))
    set(result, ChunkValue::slab(own, rows));
  for (auto [result, own] : llvm::zip(op.getWrites(), written))
    set(result, ChunkValue::slab(own, rows));
  systems.erase(op);
  return success();
}

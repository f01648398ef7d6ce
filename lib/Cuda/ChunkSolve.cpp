// Unit lower triangular systems, their unknowns ordered by token first and then by stream.
#include "lib/Cuda/ChunkEmitter.h"

using namespace mlir;
using namespace recur;
using namespace recur::cuda;

// The inverses of the diagonal blocks of I + N: 16 tokens of every stream, a column a lane. The tile of
// inverses has 16 rows for each block of tokens and stream, and 16 columns for each stream.
LogicalResult ChunkEmitter::prepareSolve(chunk::TriSolveOp op) {
  int64_t streams = op.getRhs().size(), size = 16 * streams;
  System system;
  for (Value block : op.getBlocks()) {
    FailureOr<ChunkValue> scores = need(block);
    if (failed(scores) || (scores->kind != ChunkValue::Scores && scores->kind != ChunkValue::Scalar))
      return failure();
    bool isZero = scores->kind == ChunkValue::Scalar && matchPattern(scores->entries[0], m_AnyZeroFloat());
    if (scores->kind == ChunkValue::Scalar && !isZero)
      return failure();
    system.blocks.push_back(isZero ? SharedTile() : stage(*scores, /*negatedF32=*/true));
  }
  if (op.isByColumn()) { // no inverse serves all
    systems[op] = std::move(system);
    return success();
  }
  system.inverse = allocate(blocks() * size, size, size + 8, true);
  sync();
  Value block = modulo(fragments.warp, blocks());
  for (int64_t left = 0; left < size; left += 32) {
    // Where there are fewer warps than rounds they take turns; else rounds run side by side.
    Value column = add(fragments.lane, left);
    Value isTurn = equal(over(fragments.warp, blocks()), left / 32 % (warps / blocks()));
    threads.when(arith::AndIOp::create(b, isTurn, below(column, size)), [&] {
      Value begin = times(block, 16), top = times(block, size);
      Value stream = over(column, 16), token = modulo(column, 16);
      SmallVector<Value> x(size); // by stream, then by token
      for (int64_t r = 0; r < 16; ++r)
        for (int64_t s = 0; s < streams; ++s) {
          Value isDiagonal = arith::AndIOp::create(b, equal(stream, s), equal(token, r));
          Value sum = choose(isDiagonal, threads.number(1), threads.number(0)), row = add(begin, r);
          for (int64_t other = 0; other < streams; ++other) {
            const SharedTile &n = system.blocks[s * streams + other];
            if (!n.base)
              continue;
            for (int64_t j = 0; j < r + (other < s); ++j)
              sum = plus(sum, multiply(load(n, row, add(begin, j)), x[other * 16 + j]));
          }
          x[s * 16 + r] = sum;
          store(system.inverse, add(top, s * 16 + r), column, sum);
        }
    });
  }
  dirty = true;
  systems[op] = std::move(system);
  return success();
}

// The pair of columns that a thread holds are two steps of depth: any order of depth will do, if both sides
// have it.
static SmallVector<Value, 4> leftOf(ArrayRef<Value> tile) { return {tile[0], tile[2], tile[1], tile[3]}; }

// (I + N) U = R by blocks of 16 tokens: U_b = (I + N_bb)^-1 (R_b - sum of N_bj U_j). All in one warp's
// registers; tf32 keeps U's range and three more bits.
LogicalResult ChunkEmitter::emitSolve(chunk::TriSolveOp op) {
  if (!systems.count(op) && failed(prepareSolve(op)))
    return failure();
  if (op.isByColumn())
    return emitSubstitution(op);
  int64_t streams = op.getRhs().size(), rows = 0;
  SmallVector<SmallVector<Value>> u;
  for (Value side : op.getRhs()) {
    FailureOr<ChunkValue> rhs = asSlab(side);
    if (failed(rhs))
      return failure();
    rows = rhs->rows;
    u.push_back(rhs->entries);
  }
  sync();
  const System &system = systems[op];
  Value g = fragments.row(0), pair = fragments.column(0);
  auto rightOf = [&](const SharedTile &tile, int64_t row, int64_t col) {
    std::array<Value, 2> both = loadPair(tile, add(g, row), add(pair, col));
    return SmallVector<Value, 2>{both[0], both[1]};
  };
  for (int64_t block = 0; block < blocks(); ++block) {
    for (int64_t s = 0; s < streams; ++s)
      for (int64_t half : {0, 1}) {
        MutableArrayRef<Value> sum = MutableArrayRef(u[s]).slice(block * 8 + half * 4, 4);
        for (int64_t other = 0; other < streams; ++other)
          if (const SharedTile &n = system.blocks[s * streams + other]; n.base)
            for (int64_t j = 0; j < block * 2; ++j)
              fragments.multiplyF32(sum, leftOf(ArrayRef(u[other]).slice(j * 4, 4)),
                                    rightOf(n, block * 16 + half * 8, j * 8));
      }
    SmallVector<SmallVector<Value>> solved(streams, SmallVector<Value>(8, threads.number(0)));
    for (int64_t s = 0; s < streams; ++s)
      for (int64_t half : {0, 1})
        for (int64_t other = 0; other < streams; ++other)
          for (int64_t j = 0; j <= half; ++j)
            fragments.multiplyF32(
                MutableArrayRef(solved[s]).slice(half * 4, 4),
                leftOf(ArrayRef(u[other]).slice(block * 8 + j * 4, 4)),
                rightOf(system.inverse, (block * streams + s) * 16 + half * 8, other * 16 + j * 8));
    for (int64_t s = 0; s < streams; ++s)
      llvm::copy(solved[s], u[s].begin() + block * 8);
  }
  for (auto [result, entries] : llvm::zip(op.getResults(), u))
    set(result, ChunkValue::slab(entries, rows));
  systems.erase(op);
  return success();
}

// The same where each column has factors or decays of its own, so that no inverse serves all: what blocks
// before a block give to it are products for all columns at once; within a block it is substitution, token by
// token. The 16 tokens of a column are in four threads, each of which sums what its own give.
LogicalResult ChunkEmitter::emitSubstitution(chunk::TriSolveOp op) {
  FailureOr<ChunkValue> rhs = asSlab(op.getRhs()[0]);
  if (op.getRhs().size() != 1 || failed(rhs) || (op.getDecay() && failed(emitDecayOf(op.getDecay()))))
    return failure();
  SmallVector<Value> u = rhs->entries, factors;
  if (!op.getFactors().empty()) {
    FailureOr<ChunkValue> slab = asSlab(op.getFactors()[0]);
    if (failed(slab))
      return failure();
    factors = slab->entries;
  }
  sync();
  const SharedTile &n = systems[op].blocks[0];
  const Decay *decay = op.getDecay() ? &decays[op.getDecay()] : nullptr;
  bool isBefore = op.getReach() == chunk::Reach::Before;
  Value g = fragments.row(0), pair = fragments.column(0), first = slabRow(rhs->rows);
  Value zero = threads.number(0);
  // Which of a thread's two columns an entry is of.
  auto columnOf = [](size_t entry) { return entry / 2 % 2; };
  auto channelOf = [&](int64_t column) { return add(first, fragments.row(2 * column)); };
  SmallVector<Value> decayed(u.size(), zero); // to the end of each block, or as far as it has come
  for (int64_t block = 0; block < blocks(); ++block) {
    SmallVector<Value> earlier(8, zero);
    for (int64_t from = 0; from < block; ++from) {
      Value row = threads.constant((from + 1) * (blocks() + 1) + from);
      for (size_t e = 0; decay && from && e < 8; ++e)
        earlier[e] = multiply(earlier[e], load(decay->between, row, channelOf(columnOf(e))));
      for (int64_t half : {0, 1})
        for (int64_t j : {2 * from, 2 * from + 1}) {
          std::array<Value, 2> right = loadPair(n, add(g, block * 16 + half * 8), add(pair, j * 8));
          fragments.multiplyF32(MutableArrayRef(earlier).slice(4 * half, 4),
                                leftOf(ArrayRef(decayed).slice(4 * j, 4)), right);
        }
    }
    MutableArrayRef<Value> own = MutableArrayRef(decayed).slice(8 * block, 8);
    Value since[2] = {threads.number(1), threads.number(1)};
    for (int64_t token = 0; token < 16; ++token) {
      Value row = threads.constant(block * 16 + token);
      auto pass = [&] { // the token's own decay
        for (int64_t column = 0; decay && column < 2; ++column) {
          Value factor = load(decay->factors, row, channelOf(column));
          since[column] = multiply(since[column], factor);
          for (size_t e = 0; e < 8; ++e)
            if (columnOf(e) == size_t(column))
              own[e] = multiply(own[e], factor);
        }
      };
      if (!isBefore)
        pass();
      std::array<Value, 2> low = loadPair(n, row, add(pair, block * 16)),
                           high = loadPair(n, row, add(pair, block * 16 + 8));
      Value isOwner = equal(modulo(fragments.lane, 4), token % 8 / 2);
      SmallVector<std::pair<size_t, Value>> solved;
      for (int64_t column : {0, 1}) {
        Value sum = zero;
        for (size_t odd : {0, 1}) {
          sum = plus(sum, multiply(low[odd], own[2 * column + odd]));
          if (token >= 8)
            sum = plus(sum, multiply(high[odd], own[4 + 2 * column + odd]));
        }
        for (int64_t distance : {1, 2})
          sum = plus(sum, shuffle(sum, distance));
        size_t e = token / 8 * 4 + 2 * column + token % 2, at = 8 * block + e;
        sum = plus(sum, decay ? multiply(earlier[e], since[column]) : earlier[e]);
        if (!factors.empty())
          sum = multiply(sum, factors[at]);
        u[at] = choose(isOwner, plus(u[at], sum), u[at]);
        solved.push_back({e, u[at]});
      }
      if (isBefore)
        pass();
      for (auto [e, entry] : solved)
        own[e] = choose(isOwner, entry, own[e]);
    }
  }
  set(op.getResult(0), ChunkValue::slab(u, rhs->rows));
  systems.erase(op);
  return success();
}

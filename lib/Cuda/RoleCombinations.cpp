// Functions of what is read that write a sum of vectors, each times a number that inner products make, as the
// gradient of a loss that is clipped to a norm does. Warps need not meet for each token's inner products:
// those of a block's 16 tokens follow from those of what they read of the state at the block's start.
//
// With e_t what token t reads, and the vectors it knows, y_t, and w_t what it writes, each times numbers of
// its own,
//     e_u = e0_u + sum over t < u of A_ut w_t,    w_t = c_t e_t + d_t y_t.
// The warps add up the Gram matrix of all e0 and y, and one of them takes the tokens in turn, in a loop, as
// one warp alone waits for all code that it has not just run. What token t writes changes both sides of an
// inner product,
//     <e_u, e_j> += A_ut <w_t, e_j> + A_jt <e_u, w_t> + A_ut A_jt <w_t, w_t>,
// and one side of those with y. A lane has every second row, u, of a column of each kind; the rows of the
// next two tokens are the first ones, as scores lie, too. The numbers of a token are made of inner products
// that all lanes have, while columns change by what the token before has written: of the next token's, too,
// each lane makes what it needs itself. What comes out are the numbers c and d, and how much of c_j e0_j +
// d_j y_j is in w_t, column by column, in the same way; then all warps multiply their rows with that.
#include "lib/Cuda/CombinationTurns.h"
#include "lib/Cuda/EntryFunctions.h"
#include "lib/Cuda/RoleSubstitution.h"

using namespace mlir;
using namespace recur;
using namespace recur::cuda;

int64_t RoleEmitter::functionBytes() const {
  if (plan.combination)
    return CombinationLayout(*plan.combination, 4 * form.chainGroups(plan)).bytes;
  return 2 * plan.rowSums * (plan.hasNoLeaves ? tokensOfWarp : 1) * sumsOfWarps;
}

// Entries as sums of what bf16 holds, pairs of tokens, transposed: a register has two rows of a token.
using TurnedParts = std::array<std::array<Values, 2>, 2>; // by part, and by the tokens' eighth
static TurnedParts turnedParts(Ptx &ptx, ValueRange entries, size_t rows) {
  Ptx half(ptx.b);
  TurnedParts parts;
  for (int64_t eighth : {0, 1})
    for (size_t row : {0, 1}) {
      Value pair[2];
      for (size_t odd : {0, 1})
        pair[odd] = row < rows ? entries[eighth * 2 * rows + 2 * row + odd] : Value();
      for (auto &part : parts) {
        if (row >= rows) {
          part[eighth].push_back(ptx.constant(0));
          continue;
        }
        Value packed = half.pack(pair[0], pair[1]);
        for (auto [entry, rounded] : llvm::zip(pair, half.unpack(packed)))
          entry = ptx.difference(entry, rounded);
        part[eighth].push_back(ptx.transpose(packed));
      }
    }
  return parts;
}

// A warp's part of the inner products.
static void storeProducts(Ptx &ptx, const CombinationLayout &layout, ArrayRef<Values> vectors, size_t rows,
                          Value to, Value lane) {
  Value pair = ptx.bits(lane, 3), own = ptx.shiftRight(lane, 2);
  Value at = ptx.add(ptx.add(to, ptx.mul(own, 64)), ptx.mul(pair, 8));
  SmallVector<TurnedParts, 2> parts;
  for (const Values &entries : vectors)
    parts.push_back(turnedParts(ptx, entries, rows));
  auto left = [&](size_t vector, size_t part) {
    auto &of = parts[vector][part];
    return Values{of[0][0], of[1][0], of[0][1], of[1][1]};
  };
  Values zeros(4, ptx.number(0));
  for (int64_t row = 0; row < layout.count; ++row)
    for (int64_t column = 0; column <= row; ++column)
      for (int64_t eighth : {0, 1}) {
        Values sum = zeros;
        for (auto [i, j] : {std::pair{1, 0}, {0, 1}, {0, 0}})
          sum = ptx.multiply16By8("bf16", sum, left(row, i), parts[column][j][eighth]);
        for (int64_t lower : {0, 1})
          ptx.store(at, 1024 * layout.block(row, column) + 512 * lower + 32 * eighth,
                    ArrayRef(sum).slice(2 * lower, 2));
      }
  constexpr int64_t ones = 0x3f803f80;
  for (int64_t row = 0; layout.hasOnes && row < layout.count; ++row) {
    Values sum = zeros;
    for (size_t part : {1, 0})
      sum = ptx.multiply16By8("bf16", sum, left(row, part), Values(2, ptx.constant(ones)));
    // Each lane of a row has the same sums.
    for (int64_t lower : {0, 1})
      ptx.store(ptx.add(to, ptx.mul(own, 4)), 1024 * layout.blocks() + 64 * row + 32 * lower,
                {sum[2 * lower]}, false, ptx.equal(pair, 0));
  }
}

// The sums of all warps' parts, each thread some of them.
static void addProducts(Ptx &ptx, const CombinationLayout &layout, Value at, Value thread, int64_t warps,
                        int64_t size) {
  int64_t threads = 32 * warps;
  auto sumAt = [&](Value from, int64_t offset) {
    Values parts;
    for (int64_t warp = 0; warp < warps; ++warp)
      parts.push_back(ptx.loadFloats(from, offset + warp * layout.ofWarp, 1)[0]);
    while (parts.size() > 1) {
      for (size_t i = 0; i < parts.size() / 2; ++i)
        parts[i] = ptx.sum(parts[2 * i], parts[2 * i + 1]);
      parts.resize(parts.size() / 2);
    }
    return parts.front();
  };
  Value from = ptx.add(at, ptx.mul(thread, 4)), entry = ptx.bits(thread, 15);
  Value to = ptx.add(at, ptx.mul(ptx.shiftRight(thread, 4), layout.pitch));
  for (int64_t row = 0; row < layout.count; ++row)
    for (int64_t column = 0; column <= row; ++column)
      for (int64_t first = 0; first < 256; first += threads)
        ptx.store(ptx.add(to, ptx.mul(column ? entry : placeInTurns(ptx, entry), 4)),
                  layout.at(16 * row + first / 16, 16 * column),
                  {sumAt(from, 4 * (256 * layout.block(row, column) + first))});
  if (!layout.hasOnes)
    return;
  int64_t last = 16 * layout.count;
  Value hasOne = ptx.below(thread, ptx.constant(last)), own = ptx.choose(hasOne, thread, ptx.constant(0));
  Value sum = sumAt(ptx.add(at, ptx.mul(own, 4)), 1024 * layout.blocks());
  Value place = ptx.choose(ptx.below(own, ptx.constant(16)), placeInTurns(ptx, entry), own);
  ptx.store(ptx.add(at, ptx.mul(place, 4)), layout.at(last, 0), {sum}, false, hasOne);
  ptx.store(ptx.add(at, ptx.mul(own, layout.pitch)), layout.at(0, last), {sum}, false, hasOne);
  ptx.store(at, layout.at(last, last), {ptx.number(double(size))}, false, ptx.equal(thread, 0));
}

Values RoleEmitter::Substitution::combine(chunk::SubstituteOp op, int64_t block, ArrayRef<Values> entries,
                                          Value left) {
  constexpr int64_t meeting = 10;
  const Combination &of = *roles.plan.combination;
  int64_t warps = 4 * roles.form.chainGroups(roles.plan), digits = roles.plan.isF16 ? 11 : 8;
  CombinationLayout layout(of, warps);
  size_t rows = this->rows();
  auto ofToken = [&](BlockArgument argument, int64_t eighth, size_t odd, size_t row) {
    return entries[argument.getArgNumber()][eighth * 2 * rows + 2 * row + odd];
  };
  // What the state does not have counts in no sum.
  int64_t size = roles.plan.rowsInMemory();
  auto isRow = [&](Value entry, size_t row) {
    if (size == roles.plan.independent)
      return entry;
    Value own = ptx.add(ptx.mul(roles.slabIndex, 4), roles.warp);
    own = ptx.add(ptx.mul(own, 8 * rows), ptx.add(ptx.shiftRight(roles.lane, 2), 8 * row));
    return ptx.choose(ptx.below(own, ptx.constant(size)), entry, ptx.number(0));
  };
  SmallVector<Values> vectors;
  for (Value vector : of.vectors) {
    Values &own = vectors.emplace_back(4 * rows);
    for (int64_t eighth : {0, 1})
      for (size_t odd : {0, 1}) {
        auto lowered = lowerEntries(b, op, vector, digits, rows, [&](BlockArgument argument, size_t row) {
          return ofToken(argument, eighth, odd, row);
        });
        for (size_t row = 0; row < rows; ++row)
          own[eighth * 2 * rows + 2 * row + odd] = isRow(lowered[lowered.size() == 1 ? 0 : row], row);
      }
  }
  Value at = ptx.add(roles.base, roles.functionsAt), warp = ptx.add(ptx.mul(roles.slabIndex, 4), roles.warp);
  auto meet = [&] { ptx.meet(ptx.constant(meeting), 32 * warps); };
  storeProducts(ptx, layout, vectors, rows, ptx.add(at, ptx.mul(warp, layout.ofWarp)), roles.lane);
  meet();
  addProducts(ptx, layout, at, ptx.add(ptx.mul(warp, 32), roles.lane), warps, size);
  meet();
  roles.threads.when(ptx.equal(warp, 0), [&] {
    llvm::DenseMap<Value, Value> numbers;
    Value source = ptx.bits(ptx.shiftRight(roles.lane, 1), 3);
    for (BlockArgument argument : op.getBody().getArguments()) {
      if (!matType(argument).isScalar())
        continue;
      auto ofEighth = [&](int64_t eighth) {
        Value isOdd = ptx.equal(ptx.bits(roles.lane, 1), 1);
        return ptx.choose(isOdd, ptx.shuffle(ofToken(argument, eighth, 1, 0), source),
                          ptx.shuffle(ofToken(argument, eighth, 0, 0), source));
      };
      numbers[argument] = ptx.choose(ptx.equal(ptx.bits(roles.lane, 8), 0), ofEighth(0), ofEighth(1));
    }
    Value scores = ptx.add(state.scoresBase, roles.ownLeavesAt() + block * ownLeafBytes);
    emitTurns(ptx, op, of, layout, digits, at, roles.lane, scores, numbers, roles.opaque(8));
  });
  meet();

  // What tokens write of their own, and how much of it each token writes.
  Values own(4 * rows), shares;
  for (size_t vector = 0; vector < of.count(); ++vector)
    for (int64_t eighth = 0; of.isWritten[vector] && eighth < 2; ++eighth) {
      Values two =
          ptx.loadFloats(ptx.add(at, ptx.mul(pair, 8)), layout.numbersAt + 64 * vector + 32 * eighth, 2);
      for (size_t row = 0; row < rows; ++row)
        for (size_t odd : {0, 1}) {
          size_t e = eighth * 2 * rows + 2 * row + odd;
          Value term =
              vector < vectors.size() ? ptx.multiply(vectors[vector][e], two[odd]) : isRow(two[odd], row);
          own[e] = own[e] ? ptx.sum(own[e], term) : term;
        }
    }
  // What is past the end may be no number, and counts, times 0, in what is before it.
  for (auto [e, entry] : llvm::enumerate(own)) {
    int64_t token = block * 16 + e / (2 * rows) * 8 + e % 2;
    Value exists = ptx.compare(arith::CmpIPredicate::sgt, left, ptx.constant(token));
    entry = ptx.choose(exists, entry, ptx.number(0));
  }
  Value from = ptx.add(ptx.add(at, layout.sharesAt), ptx.mul(pair, 2 * layout.sharePitch));
  from = ptx.add(from, ptx.mul(placeInTurns(ptx, ptx.shiftRight(roles.lane, 2)), 4));
  for (int64_t first : {0, 8})
    for (int64_t later : {0, 16}) // eight tokens later
      for (int64_t odd : {0, 1})
        shares.push_back(ptx.loadFloats(from, (first + odd) * layout.sharePitch + later, 1)[0]);
  Values side = ptx.roundTf32(own);
  if (rows == 1) {
    side.clear();
    for (size_t e = 0; e < own.size(); e += 2) {
      llvm::append_range(side, ptx.roundTf32(ArrayRef(own).slice(e, 2)));
      side.append(2, ptx.number(0));
    }
  }
  return ownOf(ptx.multiplyTf32(Values(8, ptx.number(0)), side, ptx.roundTf32(shares)));
}

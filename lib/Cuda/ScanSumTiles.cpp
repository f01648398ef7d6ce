// What a scan by products does with a tile (ScanQuads.h).
#include "lib/Cuda/Cores.h"
#include "lib/Cuda/ScanQuads.h"

using namespace mlir;
using namespace recur;
using namespace recur::cuda;

// A lane has a column of the table: a token's, or that of the state from before.
void ScanEmitter::fillTable(Quads &quads, ArrayRef<Value> factors, ArrayRef<Value> weights) {
  Ptx ptx(b);
  Type number = b.getF32Type(), packet = VectorType::get(4, number);
  auto store = [&](Value value, Value at) { LLVM::StoreOp::create(b, value, at); };
  quads.meet();
  threads.when(ptx.equal(quads.column, 0), [&] {
    for (int64_t which : {0, 1}) {
      Value token = ptx.add(quads.row, 8 * which);
      store(factors[which], quads.tableAt(quads.constant(Quads::factorsRow), 0, token));
      store(weights[which], quads.tableAt(quads.constant(Quads::weightsRow), 0, token));
    }
  });
  quads.meet();
  SmallVector<Value> factorOf;
  for (int64_t token = 0; token < tokensOfWarp; token += 4) {
    Value four = LLVM::LoadOp::create(b, packet, quads.tableAt(quads.constant(Quads::factorsRow), token), 16);
    for (int64_t i = 0; i < 4; ++i)
      factorOf.push_back(LLVM::ExtractElementOp::create(b, four, quads.constant(i)));
  }
  Value isToken = ptx.below(quads.lane, quads.constant(tokensOfWarp)),
        isState = ptx.equal(quads.lane, tokensOfWarp);
  Value own = ptx.choose(isToken, quads.lane, quads.constant(0));
  Value weight = LLVM::LoadOp::create(b, number, quads.tableAt(quads.constant(Quads::weightsRow), 0, own));
  Value current = ptx.choose(isState, threads.number(1), threads.number(0));
  SmallVector<Value> column{current};
  for (int64_t token = 0; token < tokensOfWarp; ++token) {
    current = ptx.choose(ptx.equal(quads.lane, token), weight, ptx.multiply(current, factorOf[token]));
    column.push_back(current);
  }
  threads.when(ptx.below(quads.lane, quads.constant(tokensOfWarp + 1)), [&] {
    for (auto [i, value] : llvm::enumerate(column))
      store(value, quads.tableAt(quads.constant(i), 0, quads.lane));
  });
  quads.meet();
}

// Of one of a lane's two tokens, its part of what a read finds of the warp's tokens.
Value ScanEmitter::weightedScores(Quads &quads, const SumReads::Read &read, ArrayRef<Value> scores,
                                  int64_t which) {
  Value row = arith::AddIOp::create(b, quads.row, quads.constant(8 * which + read.isNew));
  Value twice = arith::MulIOp::create(b, quads.column, quads.constant(2)), sum = threads.number(0);
  for (int64_t eight : {0, 1}) {
    Value pair = LLVM::LoadOp::create(b, VectorType::get(2, Type(b.getF32Type())),
                                      quads.tableAt(row, 8 * eight, twice), 8);
    for (int64_t i : {0, 1}) {
      // Later tokens have no part in it, whatever they are.
      Value seen = arith::AddIOp::create(b, twice, quads.constant(8 * eight + i));
      seen = arith::CmpIOp::create(b, arith::CmpIPredicate::ult, seen, row);
      Value weight = LLVM::ExtractElementOp::create(b, pair, quads.constant(i));
      Value term = arith::MulFOp::create(b, weight, scores[4 * eight + 2 * which + i]);
      sum = arith::AddFOp::create(b, sum, arith::SelectOp::create(b, seen, term, threads.number(0)));
    }
  }
  return sum;
}

// Lays what the warp's tokens make of any state where others find it: of eight lanes with entries of a packet
// each has, by halves, those of some packets summed.
void ScanEmitter::storeRun(Quads &quads) {
  const MapBoard &board = boards[0][0];
  ScaledVector written(shape.sums->written);
  Value last = quads.constant(tokensOfWarp);
  SmallVector<Value> sums;
  for (int64_t which : {0, 1}) {
    Value at = quads.tableAt(last, 8 * which, quads.row);
    Value weight = LLVM::LoadOp::create(b, b.getF32Type(), at);
    for (auto [i, entry] : llvm::enumerate(quads.entriesOf(written.vector, which))) {
      Value term = arith::MulFOp::create(b, weight, entry);
      if (which)
        sums[i] = arith::AddFOp::create(b, sums[i], term);
      else
        sums.push_back(term);
    }
  }
  sums.resize(llvm::PowerOf2Ceil(sums.size()), threads.number(0));
  bool allExist = 4 * int64_t(sums.size()) == board.size();
  Value first = quads.constant(0); // of the packets that are left, in packets
  for (int64_t distance : {16, 8, 4}) {
    if (int64_t(sums.size()) == entriesOfPacket) {
      for (Value &sum : sums)
        sum = arith::AddFOp::create(b, sum, quads.exchange(sum, distance));
      continue;
    }
    size_t half = sums.size() / 2;
    Value isUpper = arith::AndIOp::create(b, quads.lane, quads.constant(distance));
    isUpper = arith::CmpIOp::create(b, arith::CmpIPredicate::ne, isUpper, quads.constant(0));
    for (size_t i = 0; i < half; ++i) {
      Value kept = arith::SelectOp::create(b, isUpper, sums[half + i], sums[i]);
      Value given = arith::SelectOp::create(b, isUpper, sums[i], sums[half + i]);
      sums[i] = arith::AddFOp::create(b, kept, quads.exchange(given, distance));
    }
    sums.truncate(half);
    Value more =
        arith::SelectOp::create(b, isUpper, quads.constant(half / entriesOfPacket), quads.constant(0));
    first = arith::AddIOp::create(b, first, more);
  }
  Value factor = LLVM::LoadOp::create(b, b.getF32Type(), quads.tableAt(last, tokensOfWarp));
  Value component = arith::MulIOp::create(b, group, quads.constant(board.components()));
  Value at = arith::MulIOp::create(b, first, quads.constant(entriesOfStep));
  at = arith::AddIOp::create(b, at, arith::MulIOp::create(b, quads.column, quads.constant(entriesOfPacket)));
  for (size_t i = 0; i < sums.size(); ++i) {
    Value entry = arith::AddIOp::create(
        b, at, quads.constant(int64_t(i) / entriesOfPacket * entriesOfStep + int64_t(i) % entriesOfPacket));
    Value exists;
    if (!allExist)
      exists = arith::CmpIOp::create(b, arith::CmpIPredicate::ult, entry, quads.constant(board.size()));
    threads.when(exists, [&] {
      threads.storeElement(board.maps, component, entry, factor);
      threads.storeElement(board.maps, arith::AddIOp::create(b, component, quads.constant(1)), entry,
                           sums[i]);
    });
  }
}

// What each read finds, for both tokens, of the state before the warp's tokens: parts that add up over a
// token's lanes. Vectors as they are in memory meet the state in three parts, which are columns.
SmallVector<Value> ScanEmitter::readStart(Quads &quads) {
  Ptx ptx(b);
  const MapBoard &board = boards[0][0];
  Value mine = ptx.add(ptx.mul(group, board.components()), board.group->factors.size());
  SmallVector<Value> along = llvm::map_to_vector(
      shape.sums->reads, [](const SumReads::Read &read) { return ScaledVector(read.along).vector; });
  SmallVector<Value> dots;
  if (!llvm::all_of(along, [&](Value vector) { return quads.isInPlace(vector); })) {
    Tile start = quads.threads.load(row(board.maps, mine, 0, board), board.type, 1);
    for (Value vector : along)
      for (int64_t which : {0, 1}) {
        SmallVector<Value> parts(4, threads.number(0));
        for (auto [i, entry] : llvm::enumerate(quads.entriesOf(vector, which)))
          parts[i % 4] = LLVM::FMAOp::create(b, entry, start.entries[i], parts[i % 4]);
        dots.push_back(ptx.sum(ptx.sum(parts[0], parts[1]), ptx.sum(parts[2], parts[3])));
      }
    return dots;
  }
  // Each lane makes the parts of some entries.
  for (int64_t first = 0; first < board.size(); first += 32 * entriesOfPacket) {
    Value entry = ptx.add(ptx.mul(quads.lane, entriesOfPacket), first), exists;
    if (first + 32 * entriesOfPacket > board.size())
      exists = ptx.below(entry, quads.constant(board.size()));
    threads.when(exists, [&] {
      SmallVector<Value> entries;
      for (int64_t i = 0; i < entriesOfPacket; ++i)
        entries.push_back(threads.loadElement(board.maps, mine, ptx.add(entry, i)));
      quads.storeDigits(entry, entries);
    });
  }
  quads.meet();
  for (Value vector : along) {
    SmallVector<Value> sums(16, threads.number(0)); // of every fourth product
    for (auto [step, left] : llvm::enumerate(quads.leftsOf(vector)))
      quads.fragments.multiply(MutableArrayRef(sums).slice(4 * (step % 4), 4), left, quads.loadDigits(step));
    for (int64_t which : {0, 1}) {
      Value dot = threads.number(0);
      for (int64_t i = 0; i < 4; ++i)
        dot = ptx.sum(dot, ptx.sum(sums[4 * i + 2 * which], sums[4 * i + 2 * which + 1]));
      dots.push_back(dot);
    }
  }
  return dots;
}

// A tile's tokens, whose inputs have come; those of the next one are waited for, and those of the one after
// it asked for, in the place of this one.
LogicalResult ScanEmitter::sumTile(Quads &quads, Value first, Value place) {
  Ptx ptx(b);
  Value afterNext = ptx.add(first, 2 * shape.tokens());
  const SumReads &sums = *shape.sums;
  const MapBoard &board = boards[0][0];
  Block &block = rule.getBody().front();
  SmallVector<Value> factors, weights;
  ScaledVector written(sums.written);
  for (int64_t which : {0, 1}) {
    auto isFirst = [&](Operation *op) {
      return stages.lookup(op) == 0 && quads.needed.contains(op->getResult(0));
    };
    if (failed(quads.bodies[which].emitBlock(block, {}, isFirst)))
      return failure();
    Value factor = sums.factor ? quads.number(sums.factor, which) : threads.number(sums.constant);
    factors.push_back(arith::SelectOp::create(b, quads.isToken[which], factor, threads.number(1)));
    weights.push_back(
        arith::SelectOp::create(b, quads.isToken[which], quads.scaleOf(written, which), threads.number(0)));
  }
  b.setLoc(rule.getLoc());
  fillTable(quads, factors, weights);
  bool reads = task != ScanTask::Gather;
  SmallVector<Value> found; // of each read, of both tokens
  for (const SumReads::Read &read : reads ? ArrayRef(sums.reads) : ArrayRef<SumReads::Read>()) {
    Value along = ScaledVector(read.along).vector;
    // Its place is the next tile's when the state before comes.
    if (quads.isInPlace(along))
      (void)quads.leftsOf(along);
    SmallVector<Value> scores = quads.multiply(along, written.vector);
    for (int64_t which : {0, 1})
      found.push_back(weightedScores(quads, read, scores, which));
  }
  storeRun(quads);
  ptx.awaitPackets();
  NVVM::Barrier0Op::create(b);
  quads.ask(afterNext, place);
  combineRuns(board, !reads);
  NVVM::Barrier0Op::create(b);
  if (!reads)
    return success();
  SmallVector<Value> dots = readStart(quads);
  for (auto [r, read] : llvm::enumerate(sums.reads))
    for (int64_t which : {0, 1}) {
      Value seer = arith::AddIOp::create(b, quads.row, quads.constant(8 * which + read.isNew));
      Value left = LLVM::LoadOp::create(b, b.getF32Type(), quads.tableAt(seer, tokensOfWarp));
      found[2 * r + which] = LLVM::FMAOp::create(b, left, dots[2 * r + which], found[2 * r + which]);
    }
  quads.threads.allReduce(found, 1, Reduction::Sum);
  for (int64_t which : {0, 1}) {
    BodyEmitter &own = quads.bodies[which];
    for (auto [r, read] : llvm::enumerate(sums.reads)) {
      Value result = ReduceOp(read.result);
      Tile number = quads.threads.shape(matType(result), 0);
      number.entries.push_back(
          arith::MulFOp::create(b, found[2 * r + which], quads.scaleOf(ScaledVector(read.along), which)));
      own.set(result, number);
    }
    auto isRest = [&](Operation *op) { return stages.lookup(op) > 0 && !sums.ofEntries.contains(op); };
    if (failed(own.emitBlock(block, {}, isRest)))
      return failure();
    b.setLoc(rule.getLoc());
    threads.when(quads.isToken[which], [&] {
      for (auto [i, output] : llvm::enumerate(rule.yieldedOutputs()))
        quads.access.store(outputTensor(i), own.get(output, quads.placement.anyOf(output)),
                           quads.places[which]);
    });
  }
  return success();
}

LogicalResult ScanEmitter::runSums(TensorAccess &access) {
  Quads quads(*this, access);
  Ptx ptx(b);
  Staged tables = threads.allocate(shape.grid.groups * Quads::tableRows, Quads::tablePitch);
  quads.table = threads.element(tables, ptx.mul(group, Quads::tableRows), threads.constant(0));
  quads.makeDigits();
  quads.makeRing(shape.tokens()); // of what room is left
  beginTiles();
  for (BodyEmitter &own : quads.bodies)
    setParams(quads.access, own, quads.placement);
  LogicalResult status = success();
  threads.when(ptx.compare(arith::CmpIPredicate::sgt, tokens, i64(0)), [&] {
    for (int64_t i : {0, 1})
      quads.ask(i64(i * shape.tokens()), threads.constant(i));
    ptx.awaitPackets();
    NVVM::Barrier0Op::create(b);
    SmallVector<Value> carried{threads.constant(0)};
    llvm::append_range(carried, quads.fetch(i64(0)));
    threads.forLoop(i64(0), tokens, i64(shape.tokens()), carried, [&](Value first, ValueRange values) {
      Value place = values.front();
      SmallVector<Value> next{ptx.exclusiveOr(place, threads.constant(1))};
      llvm::append_range(next, quads.fetch(ptx.add(first, shape.tokens())));
      quads.take(values.drop_front(), first, place);
      if (succeeded(status))
        status = sumTile(quads, first, place);
      return next;
    });
    ptx.awaitPackets();
  });
  endTiles();
  return status;
}

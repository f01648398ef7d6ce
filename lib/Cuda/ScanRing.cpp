// The inputs of a scan's next tiles on their way to shared memory, each of them once for the block, whose
// threads share most of them. In registers they would have to be moved from where they arrive to where the
// next round of the loop looks for them, which waits for them.
#include "lib/Cuda/Ptx.h"
#include "lib/Cuda/ScanEmitter.h"
#include "mlir/Dialect/LLVMIR/NVVMDialect.h"

using namespace mlir;
using namespace recur;
using namespace recur::cuda;

// Tiles on their way while one is worked on. A place is free as all threads have read what came before.
constexpr int64_t tilesAhead = 2, places = tilesAhead + 1;
// Entries that are copied together: as many as memory is known to have in a row at a multiple of their size.
constexpr int64_t together = 4;

// Sets up the ring, if all inputs of a token are numbers, or vectors whose entries are copied by fours.
bool ScanEmitter::makeRing(TensorAccess &access) {
  // As much as leaves a processor several blocks.
  constexpr int64_t most = 48 * 1024;
  bool canBe = true;
  ringBytes = 0;
  ringed.clear();
  for (bool areNumbers : {false, true}) // vectors are copied to multiples of what is copied together
    forFetches([&](unsigned i, Axis axis) {
      const TensorArgument &tensor = tensors[i];
      int64_t entries = tensor.entry().numElements();
      bool isNumber = !tensor.own[1] && !tensor.own[2];
      canBe &= !tensor.stepsLast && (isNumber ? shape.tokens() <= entry.threads
                                              : tensor.own[1] != tensor.own[2] && entries % together == 0);
      auto *known = llvm::find_if(ringed, [&](const Ringed &own) { return own.tensor == i; });
      if (known == ringed.end() && isNumber == areNumbers) {
        ringed.push_back({i, entries * FloatType(tensor.element).getWidth() / 8, ringBytes,
                          isNumber ? access.packetType(i, axis) : Type()});
        ringBytes += ringed.back().bytes * shape.tokens();
      }
    });
  ringBytes = llvm::alignTo(ringBytes, 16);
  if (isGrouped() || !canBe || places * ringBytes > most ||
      threads.sharedBytes + places * ringBytes > threads.sharedLimit)
    return false;
  ring = threads.allocate(places * ringBytes / 4, 1);
  // How far a thread's packets of a token are behind its first entry.
  Value start = i64(0);
  forFetches([&](unsigned i, Axis axis) {
    Value first =
        LLVM::PtrToIntOp::create(b, b.getI64Type(), access.entryOfToken(i, start, threads.constant(0)));
    SmallVector<Value> offsets;
    for (Value address : access.addresses(i, axis, start)) {
      Value at = LLVM::PtrToIntOp::create(b, b.getI64Type(), address);
      at = arith::SubIOp::create(b, at, first);
      offsets.push_back(arith::TruncIOp::create(b, b.getI32Type(), at));
    }
    ringOffsets[{i, axis}] = offsets;
  });
  return true;
}

Value ScanEmitter::inRing(Value place, int64_t offset) {
  Value at = arith::MulIOp::create(b, place, threads.constant(ringBytes));
  at = arith::AddIOp::create(b, at, threads.constant(offset));
  return LLVM::GEPOp::create(b, ring.base.getType(), b.getI8Type(), ring.base, at);
}

// Asks for the inputs of a tile's tokens.
void ScanEmitter::askTile(TensorAccess &access, Value begin, Value place) {
  Ptx ptx(b);
  for (const Ringed &own : ringed) {
    if (own.number)
      continue;
    int64_t bytes = together * FloatType(tensors[own.tensor].element).getWidth() / 8,
            perToken = own.bytes / bytes, all = perToken * shape.tokens();
    Value base = inRing(place, own.at);
    for (int64_t first = 0; first < all; first += entry.threads) {
      Value packet = arith::AddIOp::create(b, threads.threadIndex(), threads.constant(first));
      auto copy = [&] {
        Value token = arith::DivUIOp::create(b, packet, threads.constant(perToken));
        Value within = arith::RemUIOp::create(b, packet, threads.constant(perToken));
        token = arith::AddIOp::create(b, begin, arith::ExtUIOp::create(b, b.getI64Type(), token));
        Value from = access.entryOfToken(own.tensor, token,
                                         arith::MulIOp::create(b, within, threads.constant(together)));
        Value to = LLVM::GEPOp::create(b, base.getType(), b.getI8Type(), base,
                                       arith::MulIOp::create(b, packet, threads.constant(bytes)).getResult());
        ptx.copyPacket(LLVM::PtrToIntOp::create(b, b.getI32Type(), to), 0, from, bytes);
      };
      if (first + entry.threads <= all)
        copy();
      else
        threads.when(arith::CmpIOp::create(b, arith::CmpIPredicate::ult, packet, threads.constant(all)),
                     copy);
    }
  }
  ptx.commitPackets();
}

// One of a tile's tokens.
Value ScanEmitter::tokenOfThread() {
  return arith::MinUIOp::create(b, threads.threadIndex(), threads.constant(shape.tokens() - 1));
}

// Numbers of tokens are far apart in memory, and too short for copies: each thread has those of one token in
// registers for a round.
SmallVector<Value> ScanEmitter::askNumbers(TensorAccess &access, Value begin) {
  SmallVector<Value> numbers;
  Value token = arith::AddIOp::create(b, begin, arith::ExtUIOp::create(b, b.getI64Type(), tokenOfThread()));
  for (const Ringed &own : ringed)
    if (own.number)
      numbers.push_back(LLVM::LoadOp::create(
          b, own.number, access.entryOfToken(own.tensor, token, threads.constant(0)), own.bytes));
  return numbers;
}

// (Of threads with the same token the first stores it.)
void ScanEmitter::storeNumbers(ArrayRef<Value> numbers, Value place) {
  if (numbers.empty())
    return;
  Value token = threads.threadIndex();
  Value isToken =
      arith::CmpIOp::create(b, arith::CmpIPredicate::ult, token, threads.constant(shape.tokens()));
  threads.when(isToken, [&] {
    for (const Ringed &own : ringed) {
      if (!own.number)
        continue;
      Value base = inRing(place, own.at);
      Value offset = arith::MulIOp::create(b, token, threads.constant(own.bytes));
      Value to = LLVM::GEPOp::create(b, base.getType(), b.getI8Type(), base, offset);
      LLVM::StoreOp::create(b, numbers.front(), to, own.bytes);
      numbers = numbers.drop_front();
    }
  });
}

// The thread's inputs of the tile that was asked for first, in the order of fetchRun.
SmallVector<Value> ScanEmitter::takeTile(TensorAccess &access, Value place) {
  Ptx(b).awaitPackets(tilesAhead - 1);
  NVVM::Barrier0Op::create(b);
  SmallVector<Value> packets;
  forFetches([&](unsigned i, Axis axis) {
    const Ringed &own = *llvm::find_if(ringed, [&](const Ringed &own) { return own.tensor == i; });
    for (int64_t token = 0; token < shape.run; ++token)
      for (Value offset : ringOffsets[{i, axis}]) {
        Value at = inRing(place, own.at + token * own.bytes);
        at = LLVM::GEPOp::create(b, at.getType(), b.getI8Type(), at, offset);
        packets.push_back(
            LLVM::LoadOp::create(b, access.packetType(i, axis), at, access.bytesOfPacket(i, axis)));
      }
  });
  return packets;
}

SmallVector<Value> ScanEmitter::forTilesInRing(TensorAccess &access, ArrayRef<Value> inits,
                                               BeginFunction beginOf, TileBody body) {
  int64_t tile = shape.tokens();
  for (int64_t i = 0; i < tilesAhead; ++i)
    askTile(access, beginOf(i64(i * tile)), threads.constant(i));
  storeNumbers(askNumbers(access, beginOf(i64(0))), threads.constant(0));
  SmallVector<Value> numbers = askNumbers(access, beginOf(i64(tile)));
  SmallVector<Value> all{threads.constant(0)};
  llvm::append_range(all, numbers);
  llvm::append_range(all, inits);
  size_t own = 1 + numbers.size();
  auto loop = threads.forLoop(i64(0), tokens, i64(tile), all, [&](Value first, ValueRange values) {
    Value place = values.front();
    SmallVector<Value> fetched = takeTile(access, place);
    // To where the tile before this one was.
    Value isFirst = arith::CmpIOp::create(b, arith::CmpIPredicate::eq, place, threads.constant(0));
    Value before = arith::SubIOp::create(b, place, threads.constant(1));
    before = arith::SelectOp::create(b, isFirst, threads.constant(places - 1), before);
    Value ahead = beginOf(arith::AddIOp::create(b, first, i64(tilesAhead * tile)));
    askTile(access, ahead, before);
    Value next = arith::AddIOp::create(b, place, threads.constant(1));
    Value isLast = arith::CmpIOp::create(b, arith::CmpIPredicate::eq, next, threads.constant(places));
    next = arith::SelectOp::create(b, isLast, threads.constant(0), next);
    storeNumbers(SmallVector<Value>(values.slice(1, own - 1)), next);
    SmallVector<Value> results{next};
    llvm::append_range(results, askNumbers(access, ahead));
    llvm::append_range(results, body(first, values.drop_front(own), fetched));
    return results;
  });
  Ptx(b).awaitPackets();
  return SmallVector<Value>(loop.getResults().drop_front(own));
}

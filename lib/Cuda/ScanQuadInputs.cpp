// How inputs come to a scan by products (ScanQuads.h): vectors to shared memory, two tiles of them, whose
// rows are copied by threads that have neighbouring packets; numbers to registers.
#include "lib/Cuda/Cores.h"
#include "lib/Cuda/ScanQuads.h"

using namespace mlir;
using namespace recur;
using namespace recur::cuda;

bool ScanEmitter::Quads::isInPlace(Value vector) const {
  return packets[0].contains(vector) && elementOf(vector).isBF16();
}

// A lane's address of eight entries of a token, for four matrices of those at a time: the tokens' eights come
// first, or the entries'.
Value ScanEmitter::Quads::matricesOf(Value vector, bool tokensFirst) {
  Ptx ptx(b);
  auto *tensor = llvm::find_if(scan.tensors, [&](const auto &t) { return t.argument == vector; });
  const Ringed &own = *ringedOf(tensor - scan.tensors.begin());
  Value first = ptx.bits(ptx.shiftRight(lane, 3), 1), second = ptx.shiftRight(lane, 4);
  Value token = ptx.add(ptx.bits(lane, 7), ptx.mul(tokensFirst ? first : second, 8));
  token = ptx.add(ptx.mul(scan.group, tokensOfWarp), token);
  Value at = ptx.add(ptx.mul(tilePlace, placeBytes), ptx.mul(token, own.pitch));
  at = ptx.add(ptx.add(at, own.at), ptx.mul(tokensFirst ? second : first, 16));
  return ptx.add(LLVM::PtrToIntOp::create(b, b.getI32Type(), ring.base), at);
}

ArrayRef<Values> ScanEmitter::Quads::operandsOf(Value vector, bool areLeft) {
  SmallVector<Values> &steps = (areLeft ? lefts : rights)[vector];
  if (steps.empty()) {
    Value at = matricesOf(vector, /*tokensFirst=*/areLeft);
    for (int64_t first = 0; first < matType(vector).numElements(); first += entriesOfStep)
      steps.push_back(Ptx(b).loadMatrices(at, 2 * first, /*transposed=*/false));
  }
  return steps;
}

template <typename Action>
void ScanEmitter::Quads::forInputs(Action action) {
  for (unsigned i = 0; i < scan.inputs; ++i)
    for (Axis axis : {0, 1})
      if (needed.contains(scan.tensors[i].argument) && placement.needs(scan.tensors[i].argument, axis))
        action(i, axis);
}

const ScanEmitter::Quads::Ringed *ScanEmitter::Quads::ringedOf(unsigned tensor) const {
  auto *found = llvm::find_if(ringed, [&](const Ringed &own) { return own.tensor == tensor; });
  return found == ringed.end() ? nullptr : found;
}

Value ScanEmitter::Quads::placeOf(Value first, int64_t which) {
  return arith::AddIOp::create(b, arith::AddIOp::create(b, first, ofWarp), scan.i64(8 * which));
}

void ScanEmitter::Quads::makeRing(int64_t tokens) {
  constexpr int64_t places = 2;
  tileTokens = tokens;
  forInputs([&](unsigned i, Axis axis) {
    int64_t entries = scan.tensors[i].entry().numElements();
    if (entries == 1 || axis != 1 || entries % entriesOfPacket != 0 ||
        access.bytesOfPacket(i, axis) != entriesOfPacket * 2)
      return;
    ringed.push_back({i, placeBytes, pitchOf(entries)});
    placeBytes += pitchOf(entries) * tokens;
  });
  if (scan.threads.sharedBytes + places * placeBytes > scan.threads.sharedLimit)
    ringed.clear();
  if (!ringed.empty())
    ring = scan.threads.allocate(places * placeBytes / 4, 1);
}

void ScanEmitter::Quads::ask(Value first, Value place) {
  constexpr int64_t bytes = 2 * entriesOfPacket;
  Ptx ptx(b);
  if (ringed.empty())
    return;
  auto copyAll = [&](bool isFull) {
    for (const Ringed &own : ringed) {
      int64_t perToken = entriesIn(own) / entriesOfPacket, all = perToken * tileTokens,
              step = scan.entry.threads;
      Value base = ptx.add(LLVM::PtrToIntOp::create(b, b.getI32Type(), ring.base), own.at), from, to;
      base = ptx.add(base, ptx.mul(place, placeBytes));
      // Where all threads together have whole tokens, each has the same entries of all of its own.
      bool isRegular = step % perToken == 0 && all % step == 0;
      Value stride = ptx.mul(access.word(own.tensor, TensorAccess::Token), 2 * (step / perToken));
      for (int64_t i = 0; i * step < all; ++i) {
        if (isRegular && isFull && i) {
          from = LLVM::GEPOp::create(b, from.getType(), b.getI8Type(), from, stride);
          ptx.copyPacket(to, i * (step / perToken) * own.pitch, from, bytes);
          continue;
        }
        Value packet = ptx.add(threads.threadIndex(), i * step), exists;
        if ((i + 1) * step > all)
          exists = ptx.below(packet, constant(all));
        threads.when(exists, [&] {
          Value token = arith::DivUIOp::create(b, packet, constant(perToken));
          Value within = ptx.mul(arith::RemUIOp::create(b, packet, constant(perToken)), entriesOfPacket);
          Value at = ptx.add(first, arith::ExtUIOp::create(b, b.getI64Type(), token));
          from = access.entryOfToken(own.tensor, arith::MinSIOp::create(b, at, last), within);
          to = ptx.add(base, ptx.add(ptx.mul(token, own.pitch), ptx.mul(within, 2)));
          ptx.copyPacket(to, 0, from, bytes);
        });
      }
    }
  };
  Value end = ptx.add(first, tileTokens);
  auto isFull = scf::IfOp::create(b, ptx.compare(arith::CmpIPredicate::sle, end, scan.tokens), true);
  OpBuilder::InsertionGuard guard(b);
  b.setInsertionPointToStart(isFull.thenBlock());
  copyAll(true);
  b.setInsertionPointToStart(isFull.elseBlock());
  threads.when(ptx.compare(arith::CmpIPredicate::slt, first, scan.tokens), [&] { copyAll(false); });
}

SmallVector<Value> ScanEmitter::Quads::fetch(Value first) {
  SmallVector<Value> fetched;
  for (int64_t which : {0, 1}) {
    Value place = arith::MinSIOp::create(b, placeOf(first, which), last);
    forInputs([&](unsigned i, Axis axis) {
      if (!ringedOf(i))
        llvm::append_range(fetched, access.fetch(i, axis, place));
    });
  }
  return fetched;
}

void ScanEmitter::Quads::take(ValueRange fetched, Value first, Value place) {
  Ptx ptx(b);
  tilePlace = place;
  lefts.clear();
  rights.clear();
  for (int64_t which : {0, 1}) {
    Value own = placeOf(first, which);
    isToken[which] = ptx.compare(arith::CmpIPredicate::slt, own, scan.tokens);
    places[which] = arith::MinSIOp::create(b, own, last);
    Value rowOfTile = ptx.add(arith::TruncIOp::create(b, b.getI32Type(), ofWarp), 8 * which);
    forInputs([&](unsigned i, Axis axis) {
      BlockArgument argument = scan.tensors[i].argument;
      SmallVector<Value> found;
      if (const Ringed *own = ringedOf(i)) {
        Value at = ptx.add(ptx.mul(place, placeBytes), own->at);
        at = ptx.add(at, ptx.mul(rowOfTile, own->pitch));
        int64_t entries = matType(argument).numElements();
        for (int64_t p = 0; p < int64_t(access.countPackets(i, axis)); ++p) {
          Value more = ptx.add(ptx.mul(column, entriesOfPacket), p * entriesOfStep);
          if ((p + 1) * entriesOfStep > entries) // there is a place to be read
            more = ptx.choose(ptx.below(more, threads.constant(entries)), more, threads.constant(0));
          Value address = LLVM::GEPOp::create(b, ring.base.getType(), b.getI8Type(), ring.base,
                                              ptx.add(at, ptx.mul(more, 2)));
          found.push_back(
              LLVM::LoadOp::create(b, access.packetType(i, axis), address, access.bytesOfPacket(i, axis)));
        }
        if (entries % entriesOfStep == 0)
          packets[which][argument] = found;
      } else {
        size_t count = access.countPackets(i, axis);
        found.assign(fetched.begin(), fetched.begin() + count);
        fetched = fetched.drop_front(count);
      }
      bodies[which].set(argument, access.unpack(i, axis, found));
    });
    scan.setBuiltins(bodies[which], scan.rule.getBody().front(), ptx.add(scan.position, places[which]));
  }
}

// The thread that copies: inputs and records into the ring, outputs and made tiles out of it.
#include "lib/Cuda/Count.h"
#include "lib/Cuda/Roles.h"

using namespace mlir;
using namespace recur;
using namespace recur::cuda;

void RoleEmitter::emitLoader(Value chunks) {
  TensorAccess access(threads, call, plan.tensors, /*packed=*/true);
  auto narrow = [&](Value x) -> Value { return arith::TruncIOp::create(b, b.getI32Type(), x); };
  // Packed sequences lie in the one batch there is.
  Value isPacked = arith::CmpIOp::create(b, arith::CmpIPredicate::ne,
                                         access.word(TensorAccess::CuSeqlens + 2), ptx.constant(0, 64));
  Value batch = ptx.choose(isPacked, ptx.constant(0), narrow(part.sequence)), first = narrow(part.begin);
  // Outputs, or tiles, are there when their chunk's place in the ring is free, or a little before.
  Value depth = ptx.constant(valuesPlaces ? valuesPlaces : stages);
  bool leaves = phase == Phase::Prepare;
  auto whenStored = [&](Value chunk, llvm::function_ref<void()> body) {
    if (leaves || plan.countOutputs())
      threads.when(ptx.compare(arith::CmpIPredicate::uge, chunk, depth), body);
  };
  auto copyOut = [&](Value chunk, Stage stage) {
    if (leaves)
      leaveTiles(chunk, stage);
    else
      copyOutputs(chunk, stage);
  };
  auto release = [&](Value chunk, Stage stage) {
    if (leaves)
      return leaveScores(chunk, stage);
    ptx.awaitStores(/*written=*/false);
    if (!outputPlace)
      ptx.arrive(barrier(OutputsEmpty, ptx.constant(0)));
  };
  SmallVector<BlockArgument> inputs = copiedInputs(plan, phase);
  // The boxes of an input, by number, from a token on: where they go in its tile, and their coordinates.
  using BoxBody = llvm::function_ref<void(Value offset, Value map, ValueRange coordinates)>;
  // Those of a tensor, its map by number, which is the one of a token's rows: whole ones, or of eight tokens
  // each, or of one.
  auto forBoxesOf = [&](BlockArgument input, unsigned number, int64_t row, Value token, BoxBody body) {
    int64_t rows = plan.tensorsOf(input).size();
    ArrayRef<TensorArgument::Part> parts = plan.tensors[tensorOfMap(number)].parts;
    for (int64_t half = 0; half < halvesOf(input); ++half) {
      // Of what several are, zeros are where a tensor is not.
      unsigned own = number;
      int64_t ownFirst = parts.empty() ? 0 : parts.front().first;
      for (auto [i, part] : llvm::enumerate(parts))
        if (part.first <= 64 * half)
          own = number + i, ownFirst = part.first;
      Value map = LLVM::GEPOp::create(b, maps.getType(), b.getI8Type(), maps,
                                      ArrayRef<LLVM::GEPArg>{int32_t(own * 128)});
      Value head = arith::DivUIOp::create(b, narrow(part.head),
                                          narrow(access.word(tensorOfMap(own), TensorAccess::Group)));
      Value block = ptx.add(firstHalf(input, tensorOfMap(own)), half - ownFirst / 64), zero = ptx.constant(0);
      int64_t offset = half * halfStride(input);
      if (rows > 1 && plan.isStacked()) {
        for (int64_t eight = 0; eight < plan.tokens / 8; ++eight)
          body(ptx.constant(offset + 8 * (eight * rows + row) * rowBytes), map,
               {ptx.mul(block, 64), ptx.add(token, 8 * eight), zero, head, batch});
      } else if (rows > 1) {
        auto ofTokens = threads.forLoop(zero, ptx.constant(plan.tokens), ptx.constant(1), {},
                                        [&](Value own, ValueRange) -> Values {
                                          Value at = ptx.mul(own, plan.steps * rowBytes);
                                          body(ptx.add(at, offset + row * rowBytes), map,
                                               {ptx.mul(block, 64), ptx.add(token, own), zero, head, batch});
                                          return {};
                                        });
        describeTrips(ofTokens, plan.tokens);
      } else if (plan.areColumns(input)) {
        body(ptx.constant(offset), map, {zero, ptx.mul(block, plan.steps), token, head, batch});
      } else if (plan.hasSteps(input)) {
        body(ptx.constant(offset), map, {ptx.mul(block, 64), zero, token, head, batch});
      } else if (form.sharesMap(plan, input)) {
        Value row = ptx.mul(rank(), plan.tokens / team);
        body(ptx.add(ptx.mul(row, rowBytes), offset), map,
             {ptx.mul(block, 64), ptx.add(token, row), zero, head, batch});
      } else {
        body(ptx.constant(offset), map, {ptx.mul(block, 64), token, zero, head, batch});
      }
    }
  };
  SmallVector<unsigned> firstMaps; // of each input
  unsigned countMaps = 0;
  for (BlockArgument input : inputs) {
    firstMaps.push_back(countMaps);
    for (std::optional<unsigned> tensor : plan.tensorsOf(input))
      countMaps += tensor ? mapsOf(plan, *tensor).size() : 0;
  }
  auto forBoxes = [&](unsigned own, Value token, BoxBody body) {
    SmallVector<std::optional<unsigned>, 2> rows = plan.tensorsOf(inputs[own]);
    unsigned number = firstMaps[own];
    for (auto [i, tensor] : llvm::enumerate(rows))
      if (tensor) {
        forBoxesOf(inputs[own], number, i, token, body);
        number += mapsOf(plan, *tensor).size();
      }
  };
  // Where the ring has room for few chunks, those after them come to the cache meanwhile. Else the copy
  // engine has better things to do.
  constexpr int64_t muchOfRing = 48 * 1024, ahead = 2;
  auto prefetch = [&](Value chunk, Value token) {
    Value next = ptx.add(token, ahead * plan.tokens), exists = ptx.below(ptx.add(chunk, ahead), chunks);
    for (unsigned own = 0; own < inputs.size(); ++own)
      forBoxes(own, next, [&](Value, Value map, ValueRange at) { ptx.prefetchBox(map, at, exists); });
  };
  bool prefetches = plan.system && !plan.decay && stageBytes + earlyBytes > muchOfRing;
  // Inputs by number, each with how many tiles may still be on their way when it comes: those in whose places
  // tiles are made last, in the order in which they leave. A place of no input is waited for alone.
  SmallVector<std::pair<unsigned, int64_t>> order;
  for (unsigned own = 0; own < inputs.size(); ++own)
    if ((!leaves || !plan.isPlace(inputs[own])) && !isLogsAhead(inputs[own]))
      order.push_back({own, -1});
  for (size_t tile = 0; leaves && tile < plan.made.size(); ++tile)
    order.push_back(
        {llvm::find(inputs, plan.made[tile].place) - inputs.begin(), plan.made.size() - tile - 1});
  auto takeLogs = [&](Value chunk, Stage stage) {
    auto [place, phase] = ownPlace(chunk);
    Value loaded = barrier(LogsFull, place), token = ptx.add(first, ptx.mul(chunk, plan.tokens));
    ptx.await(barrier(LogsEmpty, place), ptx.exclusiveOr(phase, ptx.constant(1)));
    auto logs = cast<BlockArgument>(plan.logs());
    forBoxes(llvm::find(inputs, logs) - inputs.begin(), token, [&](Value offset, Value map, ValueRange at) {
      ptx.loadBox(ptx.add(tileAt(stage, logs), offset), map, loaded, at);
    });
    ptx.arriveExpecting(loaded, halvesOf(logs) * rowBytes * plan.filledRows(logs));
  };
  // What is walked for a team comes to where the chunk before the last one was, when the other block has done
  // with that, too.
  auto takeWalked = [&](Value chunk, Stage stage) {
    auto [place, phase] = ownPlace(chunk);
    Value loaded = barrier(WalkLoaded, place), token = ptx.add(first, ptx.mul(chunk, plan.tokens));
    ptx.await(barrier(WalkedEmpty, place), ptx.exclusiveOr(phase, ptx.constant(1)));
    for (auto [own, left] : order)
      if (BlockArgument input = inputs[own]; isWalked(input))
        forBoxes(own, token, [&](Value offset, Value map, ValueRange at) {
          ptx.loadBox(ptx.add(tileAt(stage, input), offset), map, loaded, at);
        });
    ptx.arriveExpecting(loaded, walkedLoaded);
  };
  auto whenOwn = [&](Value chunk, llvm::function_ref<void()> body) {
    threads.when(arith::AndIOp::create(b, isOwn(chunk), ptx.below(chunk, chunks)), body);
  };
  if (form.sharesWalk() && takesLogsAhead())
    whenOwn(ptx.constant(0), [&] { takeLogs(ptx.constant(0), stageOf(ptx.constant(0))); });
  // What is scaled for a team has more places than values may have.
  if (form.sharesScaled)
    whenOwn(ptx.constant(0), [&] { takeWalked(ptx.constant(0), stageOf(ptx.constant(0))); });
  forChunks(chunks, {}, [&](Value chunk, Stage stage, ValueRange) {
    Value walked = form.sharesScaled ? ptx.add(chunk, 1) : chunk;
    if (form.sharesWalk())
      whenOwn(walked, [&] { takeWalked(walked, form.sharesScaled ? stageOf(walked) : stage); });
    else if (takesLogsAhead())
      takeLogs(chunk, stage);
    // Tables need them long before the chunk's turn.
    if (form.sharesWalk() && takesLogsAhead())
      whenOwn(ptx.add(chunk, 1), [&] { takeLogs(ptx.add(chunk, 1), stageOf(ptx.add(chunk, 1))); });
    Value before = ptx.add(chunk, -stages);
    Stage old = stageAt(stage.index, ptx.exclusiveOr(stage.phase, ptx.constant(1)), before);
    if (!valuesPlaces)
      whenStored(chunk, [&] { copyOut(before, old); });
    if (!leaves || numbersHoldPlace())
      ptx.await(barrier(Empty, stage.index), ptx.exclusiveOr(stage.phase, ptx.constant(1)));
    if (form.sharesMaps(plan))
      ptx.await(barrier(MapsEmpty, stage.index), ptx.exclusiveOr(stage.phase, ptx.constant(1)));
    Value loaded = barrier(Loaded, stage.index),
          token = ptx.add(first, ptx.mul(numberOf(chunk), plan.tokens));
    auto load = [&](bool toOutputs, bool early = false) {
      for (auto [own, left] : order) {
        if (own == inputs.size()) {
          if (!toOutputs && !early)
            ptx.awaitStores(/*written=*/false, left);
          continue;
        }
        BlockArgument input = inputs[own];
        if ((input == outputPlace) != toOutputs || isEarly(input) != early || isWalked(input))
          continue;
        if (left >= 0)
          ptx.awaitStores(/*written=*/false, left);
        forBoxes(own, token, [&](Value offset, Value map, ValueRange at) {
          ptx.loadBox(ptx.add(tileAt(stage, input), offset), map, loaded, at);
        });
      }
    };
    load(false);
    if (phase == Phase::Chain) {
      takeRecord(chunk, stage);
    } else if (earlyPlaces) {
      auto [place, phase] = earlyOf(chunk);
      ptx.await(barrier(EarlyEmpty, place), ptx.exclusiveOr(phase, ptx.constant(1)));
      load(false, /*early=*/true);
    }
    auto finish = [&] { whenStored(chunk, [&] { release(before, old); }); };
    if (!leaves && !valuesPlaces)
      finish();
    // Who waits for the barrier knows by this that outputs have left their place, too.
    ptx.arriveExpecting(loaded, loadedBytes + (phase == Phase::Chain ? recordBytes() - earlyBytes : 0));
    if (valuesPlaces) {
      // What the next chunk's scores follow from is asked for before the outputs are waited for.
      whenStored(chunk, [&] {
        Value last = ptx.add(chunk, -valuesPlaces);
        Stage there = stageOf(last);
        copyOut(last, there);
        release(last, there);
      });
      loaded = barrier(ValuesFull, outputsOf(chunk, stage).first);
      load(true);
      ptx.arriveExpecting(loaded, valuesBytes);
    } else if (outputPlace) {
      load(true);
    }
    if (prefetches)
      prefetch(chunk, token);
    if (phase == Phase::Chain && earlyPlaces)
      takeEarly(chunk, stage);
    if (leaves)
      finish();
    return Values();
  });
  if (!leaves && !plan.countOutputs())
    return;
  Value rest = arith::SubIOp::create(b, chunks, arith::MinUIOp::create(b, chunks, depth));
  threads.forLoop(rest, chunks, ptx.constant(1), {}, [&](Value chunk, ValueRange) {
    Stage stage = stageOf(chunk);
    copyOut(chunk, stage);
    release(chunk, stage);
    return Values();
  });
  // The copies read this block's shared memory.
  ptx.awaitStores(/*written=*/true);
}

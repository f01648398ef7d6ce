// What holds the roles together: barriers, the ring, who does what.
#include "lib/Cuda/Count.h"
#include "lib/Cuda/Marks.h"
#include "lib/Cuda/RoleBesideScores.h"
#include "lib/Cuda/RoleKeyWalk.h"
#include "lib/Cuda/RoleScaledTiles.h"
#include "mlir/Dialect/LLVMIR/NVVMDialect.h"

using namespace mlir;
using namespace recur;
using namespace recur::cuda;

RoleEmitter::RoleEmitter(Threads &threads, const RolePlan &plan, Value call, Value maps, Value shared,
                         Entry &entry, const RoleForm &form)
    : threads(threads), b(threads.b), ptx(threads.b, plan.isF16), plan(plan), call(call), maps(maps),
      entry(entry), form(form), phase(form.phase), shards(entry.shards), team(form.team),
      scorers(scoreRoles(plan, form)),
      isRoomy(!plan.isWide() && (phase == Phase::Chain || plan.independent * plan.states == rowsOfSlab)),
      stacks(!isRoomy || plan.waves == 1), stages(form.stages), slabs(form.slabs(plan)) {
  outputPlace = plan.outputPlace;
  base = LLVM::PtrToIntOp::create(b, b.getI32Type(), shared);
  if (form.handedOver)
    slots.assign(form.handedOver->begin(), form.handedOver->end());
}

int64_t RoleEmitter::countThreads(const RolePlan &plan, const RoleForm &form) {
  bool hasOneMore = form.sumsApart(plan) || form.mapsApart(plan);
  return 128 * (1 + form.walkers() + scoreRoles(plan, form).size() + form.chainGroups(plan) + hasOneMore);
}

SmallVector<BlockArgument> cuda::copiedInputs(const RolePlan &plan, Phase phase) {
  SmallVector<BlockArgument> inputs;
  for (ArrayRef<BlockArgument> together : plan.inputs)
    llvm::copy_if(together, std::back_inserter(inputs), [&](BlockArgument input) {
      return phase == Phase::Prepare ? plan.isForScores(input)
             : phase == Phase::Chain ? plan.isForChain(input)
                                     : true;
    });
  return inputs;
}

SmallVector<unsigned> cuda::mapsOf(const RolePlan &plan, unsigned tensor) {
  SmallVector<unsigned> tensors;
  for (const TensorArgument::Part &part : plan.tensors[tensor].parts)
    tensors.push_back(part.tensor);
  return tensors.empty() ? SmallVector<unsigned>{tensor} : tensors;
}

SmallVector<int32_t> cuda::mappedTensors(const RolePlan &plan, const RoleForm &form) {
  SmallVector<int32_t> tensors;
  auto add = [&](int64_t tensor, int64_t box) { tensors.push_back(tensor + box * mapBox); };
  for (BlockArgument input : copiedInputs(plan, form.phase))
    for (std::optional<unsigned> tensor : plan.tensorsOf(input))
      for (unsigned own : tensor ? mapsOf(plan, *tensor) : SmallVector<unsigned>())
        add(own, form.sharesMap(plan, input) ? plan.tokens / form.team : plan.tokensOfBox(input));
  for (unsigned output = 0; form.phase != Phase::Prepare && output < plan.countOutputs(); ++output)
    add(plan.outputTensor(output), plan.tokensOfBox());
  return tensors;
}

SmallVector<ScoreRole> cuda::scoreRoles(const RolePlan &plan, const RoleForm &form) {
  if (form.phase == Phase::Chain || form.walksBeside)
    return {};
  auto tiles = llvm::to_vector(llvm::seq<unsigned>(0, plan.scores.size()));
  if (plan.decay)
    return {{tiles, plan.system != nullptr}};
  if (!plan.system)
    return tiles.empty() && !plan.normaliser ? SmallVector<ScoreRole>()
                                             : SmallVector<ScoreRole>{{tiles, false}};
  if (form.team == 1 || tiles.empty() || plan.states > 1 || plan.isWide())
    return {{tiles, true}};
  return {{{}, true}, {tiles, false}};
}

Value RoleEmitter::barrier(Barrier which, Value index) {
  return ptx.add(ptx.add(base, barriersAt + which * barrierPitch), ptx.mul(index, 8));
}

unsigned RoleEmitter::slotOf(const Slot &wanted) {
  for (auto [i, slot] : llvm::enumerate(slots))
    if (slot.decay == wanted.decay && (slot.before == wanted.before || chunk::isLate(slot.decay)) &&
        slot.ofTokens == wanted.ofTokens && slot.within == wanted.within && slot.atStart == wanted.atStart &&
        slot.factors.size() == wanted.factors.size() &&
        std::is_permutation(slot.factors.begin(), slot.factors.end(), wanted.factors.begin()))
      return i;
  slots.push_back(wanted);
  return slots.size() - 1;
}

RoleEmitter::Stage RoleEmitter::stageAt(Value index, Value phase, Value chunk) {
  Value place =
      rowPlaces() == stages ? index : arith::RemUIOp::create(b, chunk, ptx.constant(rowPlaces())).getResult();
  Value early;
  if (earlyPlaces)
    early = ptx.add(ptx.add(base, earlyAt), ptx.mul(earlyOf(chunk).first, earlyBytes));
  Value values;
  if (valuesPlaces)
    values = ptx.add(ptx.add(base, valuesAt), ptx.mul(ptx.bits(chunk, 1), valuesBytes));
  Value masks;
  if (rowsApart()) {
    Value own = arith::DivUIOp::create(b, chunk, ptx.constant(team));
    masks = arith::RemUIOp::create(b, own, ptx.constant(maskPitch() / slotBytes));
    masks = ptx.add(ptx.add(base, masksAt), ptx.mul(masks, slotBytes));
  }
  Value logs, walked;
  if (takesLogsAhead())
    logs = ptx.add(ptx.add(base, logsAt), ptx.mul(ownPlace(chunk).first, logsBytes));
  if (form.sharesWalk()) {
    Value place = ptx.choose(isOwn(chunk), ownPlace(chunk).first, ptx.constant(ownPlaces));
    walked = ptx.add(ptx.add(base, walkedAt), ptx.mul(place, walkedBytes));
  }
  return {index,
          phase,
          ptx.add(base, ptx.mul(index, stageBytes)),
          ptx.add(ptx.add(base, slotsAt), ptx.mul(place, slotBytes)),
          masks,
          place,
          early,
          logs,
          walked,
          values};
}

std::pair<Value, Value> RoleEmitter::ownPlace(Value chunk) {
  if (team > 1)
    chunk = arith::DivUIOp::create(b, chunk, ptx.constant(team));
  return {ptx.bits(chunk, 1), ptx.bits(ptx.shiftRight(chunk, 1), 1)};
}

RoleEmitter::Stage RoleEmitter::stageOf(Value chunk) {
  Value round = arith::DivUIOp::create(b, chunk, ptx.constant(stages));
  Value index = arith::SubIOp::create(b, chunk, ptx.mul(round, stages));
  return stageAt(index, ptx.bits(round, 1), chunk);
}

// The place, and its phase, of a chunk's tiles that are read first.
std::pair<Value, Value> RoleEmitter::earlyOf(Value chunk) {
  if (earlyPlaces == 1)
    return {ptx.constant(0), ptx.bits(chunk, 1)};
  return {ptx.bits(chunk, 1), ptx.bits(ptx.shiftRight(chunk, 1), 1)};
}

Value RoleEmitter::isOwn(Value chunk) {
  return ptx.compare(arith::CmpIPredicate::eq, ptx.bits(chunk, team - 1), rank());
}

Values RoleEmitter::forChunks(Value chunks, ValueRange carried,
                              llvm::function_ref<Values(Value, Stage, ValueRange)> body) {
  Value zero = ptx.constant(0);
  Values all{zero, zero};
  llvm::append_range(all, carried);
  auto loop = threads.forLoop(zero, chunks, ptx.constant(1), all, [&](Value chunk, ValueRange values) {
    Stage stage = stageAt(values[0], values[1], chunk);
    Values results = body(chunk, stage, values.drop_front(2));
    Value next = ptx.add(stage.index, 1), wraps = ptx.equal(next, stages);
    Values yielded{ptx.choose(wraps, zero, next),
                   ptx.choose(wraps, ptx.exclusiveOr(stage.phase, ptx.constant(1)), stage.phase)};
    llvm::append_range(yielded, results);
    return yielded;
  });
  return Values(loop.getResults().drop_front(2));
}

// Who skips chunks takes no barrier for the one before: the numbers' barriers are passed in order, and a team
// is no larger than the ring.
void RoleEmitter::forOwnChunks(Value chunks, llvm::function_ref<void(Value, Stage)> body) {
  if (team == 1) {
    forChunks(chunks, {}, [&](Value chunk, Stage stage, ValueRange) {
      body(chunk, stage);
      return Values();
    });
    return;
  }
  threads.forLoop(rank(), chunks, ptx.constant(team), {}, [&](Value chunk, ValueRange) {
    body(chunk, stageOf(chunk));
    return Values();
  });
}

void RoleEmitter::inOneThread(llvm::function_ref<void()> body) {
  threads.when(ptx.equal(warp, 0), [&] { threads.when(ptx.isElected(), body); });
}

// Gives the chunk's scores, or some of them, to this block's chain and to those of its team.
void RoleEmitter::handOver(const ScoreState &state, unsigned which, const ScoreRole &role) {
  ptx.fenceProxy();
  ptx.meet(ptx.constant(5 + which), 128);
  inOneThread([&] {
    ptx.arrive(barrier(isSystemApart(role) ? SystemFull : ScoresFull, state.index));
    giveScores(state.index, role, state.numbers);
  });
}

// To those of the team, in whose memory they have the same place.
void RoleEmitter::giveScores(Value index, const ScoreRole &role, Value numbers) {
  Value buffer = ptx.add(ptx.add(base, scoresAt), ptx.mul(index, scoreBytes));
  SmallVector<std::tuple<Value, int64_t, int64_t>> tiles; // where and how many bytes
  int64_t bytes = 0;
  auto give = [&](Value from, int64_t offset, int64_t size) {
    tiles.push_back({from, offset, size});
    bytes += size;
  };
  for (unsigned tile : role.tiles)
    give(buffer, scoreOffset(tile), scoreTileBytes(plan.scores[tile]));
  if (role.system)
    give(buffer, inverseAt - scoresAt, inverseBytes());
  // Numbers that follow from what is read beside them.
  for (unsigned i = 0; numbers && !role.tiles.empty() && i < slots.size(); ++i)
    if (RolePlan::isLate(slots[i].factors))
      give(numbers, i * slotPitch(), slotBytes);
  forPeers([&](Value rank) {
    Value there = ptx.inBlock(barrier(isSystemApart(role) ? SystemFull : ScoresFull, index), rank);
    ptx.arriveThereExpecting(there, bytes);
    for (auto [from, offset, size] : tiles) {
      Value at = ptx.add(from, offset);
      ptx.copyThere(ptx.inBlock(at, rank), at, size, there);
    }
  });
}

void RoleEmitter::emitStart() {
  Value tid = NVVM::ThreadIdXOp::create(b, b.getI32Type());
  // Read from a lane, so that the assembler sees it is the same in a warp.
  Value warpInBlock =
      NVVM::ShflOp::create(b, b.getI32Type(), ptx.constant(-1), ptx.shiftRight(tid, 5), ptx.constant(0),
                           ptx.constant(31), NVVM::ShflKind::idx, UnitAttr());
  // So is this one, as reading the number again, which the assembler prefers to keeping it, takes long.
  lane = NVVM::ShflOp::create(b, b.getI32Type(), ptx.constant(-1), ptx.bits(tid, 31), ptx.constant(0),
                              ptx.constant(31), NVVM::ShflKind::bfly, UnitAttr());
  group = ptx.shiftRight(warpInBlock, 2);
  warp = ptx.bits(warpInBlock, 3);
  thread = ptx.add(ptx.mul(warp, 32), lane);
  int64_t chains = form.chainGroups(plan);
  threads.when(ptx.equal(tid, 0), [&] {
    auto init = [&](Barrier which, int64_t count, int64_t arrivals) {
      for (int64_t i = 0; i < count && arrivals; ++i)
        ptx.initBarrier(barrier(which, ptx.constant(i)), arrivals);
    };
    init(Loaded, stages, 1);
    init(Full, stages, rowsApart() ? 96 : 32);
    init(KnownFull, walkersSum() && plan.decay && plan.haveNumbersInLogs() ? stages : 0, 32);
    init(Empty, stages, 128 * (chains + (plan.normaliser && team > 1)) + (numbersHoldPlace() ? 32 : 0));
    int64_t makers = form.sharesScaled ? 128 * scorers.size() : form.walkers() ? 1 : 0;
    init(TilesFull, form.sharesWalk() ? ownPlaces : stages, makers);
    if (form.sharesWalk()) // of what comes from the other block
      ptx.initBarrier(barrier(TilesFull, ptx.constant(ownPlaces)), 1);
    init(TablesFull, tabulatesAhead() ? 2 : 0, 32 * tableWarps());
    init(TablesEmpty, tabulatesAhead() ? 2 : 0, 128 * form.walkers());
    init(LogsFull, takesLogsAhead() ? ownPlaces : 0, 1);
    init(LogsEmpty, takesLogsAhead() ? ownPlaces : 0, 128 * form.walkers());
    init(Cleared, form.walkers() ? 1 : 0, 32);
    init(WalkLoaded, form.sharesWalk() ? ownPlaces : 0, 1);
    init(WalkedEmpty, form.sharesWalk() ? ownPlaces : 0, 4 * chains * team);
    init(PartsFull, phase == Phase::Prepare ? 1 : 0, 128 * form.walkers());
    init(PartsEmpty, phase == Phase::Prepare ? 1 : 0, 1);
    init(ScoresFull, buffers, form.walksBeside ? 1 : scorers.size());
    init(SystemFull, blocksInScores ? buffers : 0, 1);
    init(ScoresEmpty, buffers, phase == Phase::Prepare ? 1 : 4 * chains * team);
    init(EarlyFull, phase == Phase::Chain ? earlyPlaces : 0, 1);
    init(EarlyEmpty, earlyPlaces, 128 * (slabs + (team > 1 ? 0 : scorers.size())));
    init(ValuesFull, valuesPlaces, 1);
    init(Changed, changesAhead() && !form.sharesScaled ? stages : 0,
         128 * (plan.scaling ? scorers.size() : 1));
    init(RowsRead, plan.scaling && hasSums() ? stages : 0, 32 * sumWarps());
    init(MapsFull, form.sharesMaps(plan) ? stages : 0, team - 1);
    init(MapsEmpty, form.sharesMaps(plan) ? stages : 0, 4 * chains * (team - 1));
    init(OutputsFull,
         valuesPlaces  ? valuesPlaces
         : outputPlace ? stages
                       : 1,
         plan.countOutputs() ? 128 * chains : 0);
    init(OutputsEmpty, 1, plan.countOutputs() && slabs ? 1 : 0);
    init(Summed, chunksOfSums(), team > 1 && hasSums() ? team : 0);
    ptx.fenceBarrierInit();
    if (phase == Phase::Passed)
      takeNumber();
  });
  // Score tiles stay zero above the diagonal, and the inverse, which lies transposed, below; so do rows of
  // inputs that no micro-step fills.
  int64_t count = threads.grid.threads;
  Value zero = ptx.number(0);
  auto clear = [&](int64_t at, int64_t bytes) {
    Value first = ptx.add(ptx.add(base, at), ptx.mul(tid, 16));
    for (int64_t offset = 0; offset < bytes; offset += count * 16) {
      auto store = [&] { ptx.store(first, offset, {zero, zero, zero, zero}); };
      int64_t left = (bytes - offset) / 16;
      if (left >= count)
        store();
      else
        threads.when(ptx.below(tid, ptx.constant(left)), store);
    }
  };
  // What is zero of records is not copied.
  if (phase != Phase::Chain || inStrips())
    clear(scoresAt, buffers * scoreBytes);
  // Blocks of the system above the diagonal are read, too, and not used.
  if (phase != Phase::Chain && plan.system && !plan.decay && plan.invertsInHalves() && !blocksInScores)
    clear(blocksAt, plan.partsOfHalves() * tileBytes);
  // Outputs that are made piece by piece are merged with what is there.
  if (plan.comesInPieces())
    clear(outputsAt, plan.countOutputs() * slabHalves() * outputTileBytes());
  // Who sees on a level is not there to be seen, but is multiplied, too.
  if (plan.abreast > 1 && phase == Phase::Prepare)
    clear(rightsAt, KeyWalk::bytesOfLevels(plan));
  if (plan.steps > 1)
    clear(0, earlyAt + earlyPlaces * earlyBytes);
  ptx.fenceProxy();
  if (team > 1)
    ptx.meetCluster();
  else
    NVVM::Barrier0Op::create(b);
  if (phase == Phase::Passed && team > 1)
    shareNumber();
  // Here, as what the launch before leaves is read from here on.
  if (entry.overlaps)
    awaitLaunch(ptx);
  if (entry.continues)
    letNextBegin(ptx);
}

// This block's number in its team: a head's blocks stand together.
Value RoleEmitter::rank() {
  return ptx.bits(arith::TruncIOp::create(b, b.getI32Type(), part.shard), team - 1);
}

// The first block of 64 columns of a tensor that is this shard's.
Value RoleEmitter::shardHalves(unsigned tensor) {
  if (plan.tensors[tensor].shardedDim < 0)
    return ptx.constant(0);
  return ptx.mul(arith::TruncIOp::create(b, b.getI32Type(), part.shard), plan.independent / 64);
}

LogicalResult RoleEmitter::emit() {
  layOut();
  if (team > stages || !fits() || entry.maps.size() > mostMaps)
    return failure();
  if ((form.sharesWalk() && buffers < team) ||
      (plan.scaling && (scorers.size() != 2 || !ScaledTiles::canScale(plan, form))))
    return failure();
  emitStart();
  // How much that is, is known when all numbers of tokens are.
  recordPitch = ptx.constant(0, 64);
  if (form.isEarly() || (phase == Phase::Gather && !plan.forgetting().empty()))
    findBegin();
  {
    TensorAccess access(threads, call, plan.tensors, /*packed=*/true);
    part = find(access);
    firstSlab = ptx.mul(arith::TruncIOp::create(b, b.getI32Type(), part.shard), slabs);
    if (form.parts == 1)
      firstSlab = ptx.constant(0);
  }
  storeVectors();
  Value chunks = arith::TruncIOp::create(
      b, b.getI32Type(),
      arith::DivUIOp::create(b, arith::AddIOp::create(b, part.tokens, ptx.constant(plan.tokens - 1, 64)),
                             ptx.constant(plan.tokens, 64)));
  countOfChunks = chunks;
  // Nothing begins with the state after the last segment.
  if (phase == Phase::Gather)
    chunks = ptx.choose(part.isLast, ptx.constant(0), chunks);
  bool sumsApart = form.sumsApart(plan);
  std::optional<Registers> registers = shareRegisters();
  if (!registers)
    return failure();
  int64_t chains = form.chainGroups(plan), groups = entry.threads / 128;
  LogicalResult status = success();
  threads.when(part.isPresent, [&] {
    auto choice = scf::IfOp::create(b, ptx.equal(group, 0), true);
    OpBuilder::InsertionGuard guard(b);
    auto role = [&](Block *block, int64_t own, llvm::function_ref<void()> body) {
      b.setInsertionPoint(block->getTerminator());
      if (!registers->areFixed())
        ptx.setRegisters(own, own > registers->atEntry);
      body();
    };
    auto counted = [&](StringRef name, int64_t warps) {
      describeLoops(*b.getInsertionBlock(), name, plan.tokens, warps);
    };
    // The chain and the scores say which numbers per token they need, so the warp that makes those comes
    // last.
    Block *chain = choice.elseBlock();
    if (form.walkers()) {
      b.setInsertionPointToStart(chain);
      auto walks = scf::IfOp::create(b, ptx.below(group, ptx.constant(1 + form.walkers())), true);
      role(walks.thenBlock(), registers->walk, [&] {
        emitWalk(chunks);
        if (form.walksBeside || plan.abreast > 1)
          counted("channels", 4 * form.walkers());
      });
      chain = walks.elseBlock();
    }
    SmallVector<Block *> scores;
    // Who scales rows does so by the same code, which is fetched once.
    for (size_t i = 0; i < (plan.scaling ? 1 : scorers.size()); ++i) {
      b.setInsertionPointToStart(chain);
      Value isOf = plan.scaling ? ptx.below(group, ptx.constant(1 + scorers.size()))
                                : ptx.equal(group, 1 + form.walkers() + i);
      auto which = scf::IfOp::create(b, isOf, true);
      scores.push_back(which.thenBlock());
      chain = which.elseBlock();
    }
    if (sumsApart || form.mapsApart(plan)) {
      b.setInsertionPointToStart(chain);
      auto sums = scf::IfOp::create(b, ptx.equal(group, groups - 1), true);
      role(sums.thenBlock(), registers->sum, [&] {
        sumsApart ? emitSums(chunks) : emitMaps(chunks);
        counted(sumsApart ? "sums" : "functions", 4);
      });
      chain = sums.elseBlock();
    }
    if (slabs)
      role(chain, registers->many, [&] {
        status = emitChain(chunks);
        counted("chain", 4 * chains);
      });
    for (auto [i, block] : llvm::enumerate(scores))
      role(block, registers->some, [&, i = i] {
        if (plan.scaling) {
          ScaledTiles(*this).emit(chunks);
          return counted("scores", 4 * scorers.size());
        }
        emitScores(chunks, i);
        counted(scorers[i].system ? "scores and system" : "scores", 4);
      });
    role(choice.thenBlock(), registers->few, [&] {
      threads.when(ptx.equal(warp, 3), [&] {
        threads.when(ptx.isElected(), [&] {
          emitLoader(chunks);
          counted("loader", 1);
        });
      });
      auto rows = [&](int64_t ofWarp, RowPart which) {
        threads.when(ptx.equal(warp, ofWarp), [&] {
          threads.when(ptx.compare(arith::CmpIPredicate::ne, chunks, ptx.constant(0)), [&] {
            emitRows(chunks, which);
            counted("numbers", 1);
          });
        });
      };
      rows(2, RowPart::Numbers);
      if (rowsApart()) {
        rows(0, RowPart::Sides);
        rows(1, RowPart::Tables);
      } else if (tabulatesAhead()) {
        threads.when(ptx.below(warp, ptx.constant(tableWarps())), [&] {
          emitTables(chunks);
          counted("tables", tableWarps());
        });
      } else if (!sumsApart && (hasSums() || sumsChange())) {
        threads.when(ptx.below(warp, ptx.constant(2)), [&] {
          emitSums(chunks);
          counted("sums", 2);
        });
      }
    });
  });
  // Others of the team write to this block's memory, so none leaves early.
  if (team > 1)
    ptx.meetCluster();
  if (phase == Phase::Gather)
    entry.scratchBytes = slabs * gatheredBytes() + Normaliser::bytesToPass(plan);
  if (phase == Phase::Passed)
    entry.scratchBytes = passedBytes();
  if (phase == Phase::Chain)
    form.handedOver->assign(slots.begin(), slots.end());
  if (phase == Phase::Prepare)
    entry.recordBytes = recordBytes() * llvm::divideCeil(tokensOfRecord, plan.tokens);
  if (form.handedOver)
    recordPitch.getDefiningOp<arith::ConstantOp>().setValueAttr(b.getI64IntegerAttr(recordBytes()));
  entry.sharedBytes = slotsAt + std::max<int64_t>(slots.size() * slotPitch(), slotBytes);
  return status;
}

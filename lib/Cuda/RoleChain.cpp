// The chain through the state: 64 independent rows by one warpgroup, in registers. All that depends on the
// state is a slab: independent rows by tokens or keys, in the layout of a product's sums, which packed in
// pairs is that of a left operand.
#include "lib/Cuda/Roles.h"
#include "llvm/ADT/TypeSwitch.h"

using namespace mlir;
using namespace recur;
using namespace recur::cuda;

struct RoleEmitter::ChainState {
  Stage stage;
  Value chunk, buffer, bufferPhase;
  Value columns;                            // address of the stage's numbers at the thread's first column
  Value tokens;                             // left in the sequence
  llvm::DenseMap<Value, Values> slabs, raw; // raw: before the factors of their columns
  llvm::DenseMap<std::pair<Value, Value>, Values> packed;
  bool waitedForScores = false;

  // Of the role.
  Value matrixLane, scoresBase, outputs;
};

// Entries times numbers per column.
Values RoleEmitter::scaled(ChainState &state, ValueRange entries, const RowFactors &factors) {
  Values results(entries);
  if (factors.empty())
    return results;
  if (factors.size() == 1 && !factors[0].divides)
    if (auto constant = RolePlan::trace(factors[0].value).getDefiningOp<ConstantOp>()) {
      Value factor = ptx.number(constant.getValue().convertToDouble());
      for (Value &entry : results)
        entry = ptx.multiply(entry, factor);
      return results;
    }
  int64_t offset = slotOffset({factors, {}, false});
  if (llvm::all_of(factors, [](RowFactor f) { return RolePlan::isUniform(f.value); })) {
    Value factor = ptx.loadFloats(state.stage.rows, offset, 1)[0];
    for (Value &entry : results)
      entry = ptx.multiply(entry, factor);
    return results;
  }
  for (size_t e = 0; e < results.size(); e += 4) {
    Values pair = ptx.loadFloats(state.columns, offset + e / 4 * 32, 2);
    for (size_t i = 0; i < 4; ++i)
      results[e + i] = ptx.multiply(results[e + i], pair[i % 2]);
  }
  return results;
}

FailureOr<Values> RoleEmitter::slab(ChainState &state, Value value) {
  value = RolePlan::strip(value);
  auto inner = RolePlan::trace(value);
  for (Value name : {value, inner})
    if (auto known = state.slabs.find(name); known != state.slabs.end())
      return known->second;
  for (const ChainProduct &product : plan.products)
    if (product.result == inner) {
      auto known = state.raw.find(inner);
      if (known == state.raw.end())
        return failure();
      return state.slabs[inner] = scaled(state, known->second, product.resultScale);
    }
  FailureOr<Values> entries = entriesOf(state, inner);
  if (succeeded(entries))
    state.slabs[inner] = *entries;
  return entries;
}

FailureOr<Values> RoleEmitter::entriesOf(ChainState &state, Value value) {
  if (std::optional<TokenTile> tile = plan.asTile(value)) {
    Values entries;
    Value at =
        ptx.add(ptx.add(state.stage.tiles, state.matrixLane), ptx.mul(slabIndex, halfStride(tile->input)));
    for (int64_t step = 0; step < tokensOfChunk / 16; ++step)
      for (Value pair : ptx.loadMatrices(at, tileOffset(tile->input) + step * 2048, true))
        llvm::append_range(entries, ptx.unpackBf16(pair));
    return scaled(state, entries, tile->scale);
  }
  auto op = value.getDefiningOp<ElementwiseOp>();
  if (!op)
    return failure();
  for (unsigned i : {0, 1})
    if (isa<MulOp>(op) && RolePlan::isWholeOfKeys(op->getOperand(i))) {
      FailureOr<Values> entries = slab(state, op->getOperand(1 - i));
      return failed(entries) ? entries : FailureOr<Values>(decayedWhole(state.buffer, *entries));
    }
  // Factors of columns together make one number.
  if (isa<MulOp>(op)) {
    RowFactors factors;
    Value rest = value;
    while (auto product = rest.getDefiningOp<MulOp>()) {
      unsigned number = plan.isRow(product->getOperand(0)) ? 0 : 1;
      if (!plan.isRow(product->getOperand(number)))
        break;
      factors.push_back({product->getOperand(number)});
      rest = RolePlan::trace(RolePlan::strip(product->getOperand(1 - number)));
    }
    bool isNumber = factors.size() == 1 && factors[0].value.getDefiningOp<ConstantOp>();
    // Onto a sum's products, which have factors of their own.
    if (auto sum = rest.getDefiningOp<AddOp>(); sum && !factors.empty()) {
      Values sides[2];
      for (unsigned i : {0, 1})
        for (const ChainProduct &product : plan.products)
          if (Value side = RolePlan::strip(sum->getOperand(i));
              product.result == side && state.raw.count(side)) {
            RowFactors all(factors);
            llvm::append_range(all, product.resultScale);
            sides[i] = scaled(state, state.raw.lookup(side), all);
          }
      if (!sides[0].empty() && !sides[1].empty()) {
        for (auto [x, y] : llvm::zip(sides[0], sides[1]))
          x = ptx.sum(x, y);
        return sides[0];
      }
    }
    if (!factors.empty() && !isNumber) {
      for (const ChainProduct &product : plan.products)
        if (product.result == rest && state.raw.count(rest) && !state.slabs.count(rest)) {
          llvm::append_range(factors, product.resultScale);
          return scaled(state, state.raw.lookup(rest), factors);
        }
      FailureOr<Values> entries = slab(state, rest);
      return failed(entries) ? entries : FailureOr<Values>(scaled(state, *entries, factors));
    }
  }
  SmallVector<Values> operands;
  size_t count = 0;
  for (Value operand : op->getOperands()) {
    Value number = RolePlan::trace(operand);
    if (auto constant = number.getDefiningOp<ConstantOp>()) {
      operands.push_back({ptx.number(constant.getValue().convertToDouble())});
      continue;
    }
    if (plan.isRow(operand)) {
      operands.push_back({});
      continue;
    }
    FailureOr<Values> entries = slab(state, operand);
    if (failed(entries))
      return failure();
    count = entries->size();
    operands.push_back(*entries);
  }
  for (auto [operand, entries] : llvm::zip(op->getOperands(), operands))
    if (entries.empty())
      entries = scaled(state, Values(count, ptx.number(1)), {{operand}});
  Values results;
  for (size_t e = 0; e < count; ++e) {
    Values arguments;
    for (const Values &entries : operands)
      arguments.push_back(entries[entries.size() == 1 ? 0 : e]);
    results.push_back(op.lower(b, b.getLoc(), arguments));
  }
  return results;
}

FailureOr<SmallVector<Step>> RoleEmitter::leftSteps(ChainState &state, const ChainProduct &product,
                                                    bool &byDepth) {
  SmallVector<Step> steps;
  byDepth = false;
  RowFactors factors;
  if (product.kind == ChainProduct::Depth)
    factors = plan.asTile(product.right)->scale;
  std::optional<TokenTile> tile = plan.asTile(product.left);
  if (tile && tile->scale.empty() && factors.empty()) {
    // A tile as it is needs no registers.
    byDepth = true;
    Value at = ptx.add(ptx.add(state.stage.tiles, tileOffset(tile->input)),
                       ptx.mul(slabIndex, halfStride(tile->input)));
    Value descriptor = ptx.descriptor(at, 0);
    for (int64_t k = 0; k < tokensOfChunk / 16; ++k)
      steps.push_back({{ptx.advance(descriptor, k * 2048)}, {}});
    return steps;
  }
  Value scaledBy = factors.empty() ? Value() : product.right;
  Values &packed = state.packed[{product.left, scaledBy}];
  if (packed.empty()) {
    Values entries;
    if (tile) {
      // Both factors in one.
      llvm::append_range(factors, tile->scale);
      FailureOr<Values> plain = entriesOf(state, tile->input);
      if (failed(plain))
        return failure();
      entries = scaled(state, *plain, factors);
    } else {
      FailureOr<Values> plain = slab(state, product.left);
      if (failed(plain))
        return failure();
      entries = scaled(state, *plain, factors);
    }
    for (size_t e = 0; e < entries.size(); e += 2)
      packed.push_back(ptx.packBf16(entries[e], entries[e + 1]));
    packed = ptx.pin(packed);
  }
  for (size_t i = 0; i < packed.size(); i += 4)
    steps.push_back({Values(ArrayRef(packed).slice(i, 4)), {}});
  return steps;
}

void RoleEmitter::rightSteps(ChainState &state, const ChainProduct &product, SmallVectorImpl<Step> &steps) {
  Value descriptor;
  auto advance = [&](llvm::function_ref<int64_t(int64_t)> bytes) {
    for (auto [k, step] : llvm::enumerate(steps))
      step.right = ptx.advance(descriptor, bytes(k));
  };
  if (product.kind == ChainProduct::Rows || product.kind == ChainProduct::Depth) {
    BlockArgument input = placeOf(*plan.asTile(product.right));
    int64_t half = halfStride(input);
    descriptor = ptx.descriptor(ptx.add(state.stage.tiles, tileOffset(input)),
                                product.kind == ChainProduct::Depth ? half : 0);
    if (product.kind == ChainProduct::Depth)
      advance([](int64_t k) { return k * 2048; });
    else
      advance([&](int64_t k) { return k / 4 * half + k % 4 * 32; });
    return;
  }
  bool inverse = product.kind == ChainProduct::Inverse;
  int64_t place = inverse ? plan.scores.size() : product.scores;
  descriptor = ptx.descriptor(ptx.add(state.scoresBase, place * tileBytes), 0);
  // The inverse lies transposed.
  advance([&](int64_t k) { return k * (inverse ? 2048 : 32); });
}

LogicalResult RoleEmitter::emitChunk(ChainState &state) {
  auto yielded = plan.program.getBodyYield().getValues();
  for (unsigned wave = 0; wave < plan.waves; ++wave) {
    SmallVector<const ChainProduct *> products;
    for (const ChainProduct &product : plan.products)
      if (product.wave == wave)
        products.push_back(&product);
    // Left sides and what products are summed onto come first: no sum may be touched while a product is in
    // flight.
    SmallVector<SmallVector<Step>> steps;
    SmallVector<bool> byDepth;
    SmallVector<Values> starts;
    bool waited = wave > 0;
    auto wait = [&] {
      if (waited)
        return;
      ptx.await(barrier(Full, state.stage.index), state.stage.phase);
      // Tiles are made with the scores.
      if (plan.decay) {
        ptx.await(barrier(ScoresFull, state.buffer), state.bufferPhase);
        state.waitedForScores = true;
      }
      waited = true;
    };
    for (const ChainProduct *product : products) {
      if (!isa<BlockArgument>(product->left) || plan.asTile(product->left))
        wait();
      bool depth = false;
      FailureOr<SmallVector<Step>> left = leftSteps(state, *product, depth);
      if (failed(left))
        return failure();
      steps.push_back(*left);
      byDepth.push_back(depth);
    }
    wait();
    for (const ChainProduct *product : products) {
      starts.emplace_back();
      if (!product->start || product->chained)
        continue;
      FailureOr<Values> start = product->startScale
                                    ? scaled(state, state.raw.lookup(product->start), *product->startScale)
                                    : slab(state, product->start);
      if (failed(start))
        return failure();
      // A part of a product's sums, taken on as it is, makes the assembler serialise all products. It does
      // not see that this factor is 1.
      for (const ChainProduct &other : plan.products)
        if (other.result == product->start && other.stack >= 0 &&
            (product->startScale ? *product->startScale : other.resultScale).empty()) {
          Value one = ptx.loadFloats(state.stage.rows, slotOffset({}), 1)[0];
          for (Value &entry : *start)
            entry = ptx.multiply(entry, one);
        }
      starts.back() = ptx.pin(*start);
    }
    struct Issued {
      Pending pending;
      SmallVector<Value> results;
      bool forOutput;
    };
    SmallVector<Issued> issued;
    llvm::DenseMap<int, bool> stacked;
    for (size_t i = 0; i < products.size(); ++i) {
      const ChainProduct *product = products[i];
      if (product->stack >= 0 && !stacked.try_emplace(product->stack, true).second)
        continue;
      if (product->kind >= ChainProduct::Scores && !state.waitedForScores) {
        ptx.await(barrier(ScoresFull, state.buffer), state.bufferPhase);
        state.waitedForScores = true;
      }
      rightSteps(state, *product, steps[i]);
      int64_t columns = product->kind == ChainProduct::Depth
                            ? matType(plan.asTile(product->right)->input).numCols()
                            : tokensOfChunk;
      Issued next;
      if (product->stack >= 0)
        for (const ChainProduct *other : products)
          if (other->stack == product->stack)
            next.results.push_back(other->result);
      if (next.results.empty())
        next.results.push_back(product->result);
      if (product->chained) {
        auto *before = llvm::find_if(issued, [&](const Issued &x) { return x.results[0] == product->start; });
        starts[i] = before->pending.entries;
        issued.erase(before);
      }
      next.pending =
          ptx.product(columns * next.results.size(), starts[i], steps[i], byDepth[i],
                      product->kind == ChainProduct::Depth || product->kind == ChainProduct::Inverse);
      next.forOutput = product->result != RolePlan::strip(yielded[0]);
      issued.push_back(next);
    }
    auto land = [&](ArrayRef<Issued> some, int64_t left) {
      SmallVector<Pending> pending;
      for (const Issued &product : some)
        pending.push_back(product.pending);
      SmallVector<Values> landed = ptx.await(left, pending);
      for (auto [product, entries] : llvm::zip(some, landed))
        for (auto [k, result] : llvm::enumerate(product.results)) {
          size_t share = entries.size() / product.results.size();
          state.raw[result] = Values(ArrayRef(entries).slice(k * share, share));
        }
    };
    bool last = wave + 1 == plan.waves;
    size_t early = last && issued.size() > 1 && !issued.back().forOutput ? issued.size() - 1 : issued.size();
    land(ArrayRef(issued).take_front(early), issued.size() - early);
    if (!last)
      continue;
    for (unsigned output = 0; output < plan.program.getOutputs().size(); ++output)
      if (failed(storeOutput(state, output)))
        return failure();
    if (early < issued.size())
      land(ArrayRef(issued).drop_front(early), 0);
  }
  ptx.arrive(barrier(Empty, state.stage.index));
  if (state.waitedForScores)
    ptx.arrive(barrier(ScoresEmpty, state.buffer));
  return success();
}

LogicalResult RoleEmitter::storeOutput(ChainState &state, unsigned output) {
  FailureOr<Values> entries = slab(state, plan.program.getBodyYield().getValues()[1 + output]);
  if (failed(entries))
    return failure();
  Value buffer = ptx.add(state.outputs, output * slabs * tileBytes);
  Value names = ptx.add(slabIndex, 1);
  // The last chunk's copy has been read.
  ptx.awaitStores(/*written=*/false);
  ptx.meet(names, 128);
  for (int64_t step = 0; step < tokensOfChunk / 16; ++step) {
    Values packed;
    for (int64_t i = 8 * step; i < 8 * step + 8; i += 2)
      packed.push_back(ptx.packBf16((*entries)[i], (*entries)[i + 1]));
    ptx.storeMatrices(ptx.add(buffer, state.matrixLane), step * 2048, packed, true);
  }
  ptx.fenceProxy();
  ptx.meet(names, 128);
  auto narrow = [&](Value x) -> Value { return arith::TruncIOp::create(b, b.getI32Type(), x); };
  unsigned map = entry.maps.size() - plan.program.getOutputs().size() + output;
  unsigned tensor = entry.maps[map];
  TensorAccess plain(threads, call, plan.tensors, /*packed=*/true);
  Value address =
      LLVM::GEPOp::create(b, maps.getType(), b.getI8Type(), maps, ArrayRef<LLVM::GEPArg>{int32_t(map * 128)});
  Value isPacked = arith::CmpIOp::create(b, arith::CmpIPredicate::ne, plain.word(TensorAccess::CuSeqlens + 2),
                                         ptx.constant(0, 64));
  Value batch = ptx.choose(isPacked, ptx.constant(0), narrow(part.sequence));
  Value token = ptx.add(narrow(part.begin), ptx.mul(state.chunk, tokensOfChunk));
  Value whole = ptx.compare(arith::CmpIPredicate::sge, state.tokens, ptx.constant(tokensOfChunk));
  Value leads = arith::AndIOp::create(b, whole, ptx.equal(thread, 0));
  ptx.storeBox(address, buffer,
               {ptx.constant(0), token, ptx.add(shardHalves(tensor), slabIndex), narrow(part.head), batch},
               leads);
  // A box would reach past the sequence's end: rows one by one.
  threads.when(ptx.compare(arith::CmpIPredicate::slt, state.tokens, ptx.constant(tokensOfChunk)), [&] {
    Value again = launderedCall();
    TensorAccess access(threads, again, plan.tensors, /*packed=*/true);
    findPart(threads, access, shards, plan.independent);
    Value eighth = ptx.bits(thread, 7);
    threads.forLoop(
        ptx.shiftRight(thread, 3), state.tokens, ptx.constant(16), {}, [&](Value row, ValueRange) {
          Value from = ptx.add(ptx.add(buffer, ptx.mul(row, 128)),
                               ptx.mul(ptx.exclusiveOr(eighth, ptx.bits(row, 7)), 16));
          Values packet = ptx.load(from, 0, 4, b.getI32Type());
          Value at = ptx.add(ptx.mul(state.chunk, tokensOfChunk), row);
          Value column = ptx.add(ptx.mul(slabIndex, rowsOfSlab), ptx.mul(eighth, 8));
          Value to = access.entryOfToken(tensor, arith::ExtUIOp::create(b, b.getI64Type(), at), column);
          Values operands{to};
          llvm::append_range(operands, packet);
          ptx.assembly("st.global.v4.b32 [$0], {$1,$2,$3,$4};", {}, operands);
          return Values();
        });
  });
  return success();
}

// A call that the optimiser does not know for the kernel's own, so that nothing computed from it stays in
// registers during the loop.
Value RoleEmitter::launderedCall() {
  Value none = ptx.assembly("mov.b64 $0, 0;", b.getI64Type(), {})[0];
  return LLVM::GEPOp::create(b, call.getType(), b.getI8Type(), call, ValueRange{none});
}

SmallVector<Value> RoleEmitter::stateAddresses(TensorAccess &access, unsigned tensor) {
  SmallVector<Value> addresses;
  Value first = ptx.add(ptx.mul(slabIndex, rowsOfSlab), ptx.mul(warp, 16));
  Value row = ptx.add(first, ptx.shiftRight(lane, 2)), pair = ptx.mul(ptx.bits(lane, 3), 2);
  for (int64_t e = 0; e < plan.keys / 2; ++e) {
    Value own = ptx.add(row, e / 2 % 2 * 8), key = ptx.add(pair, e / 4 * 8 + e % 2);
    addresses.push_back(
        access.entry(tensor, plan.independentDim ? key : own, plan.independentDim ? own : key));
  }
  return addresses;
}

Values RoleEmitter::initialState() {
  TensorAccess access(threads, call, plan.tensors, /*packed=*/true);
  findPart(threads, access, shards, plan.independent);
  chunk::ProgramOp program = plan.program;
  unsigned initial = program.argumentsOf(ArgKind::Input).size() + program.argumentsOf(ArgKind::Param).size();
  double init = program.getInit()
                    .front()
                    .getTerminator()
                    ->getOperand(0)
                    .getDefiningOp<ConstantOp>()
                    .getValue()
                    .convertToDouble();
  SmallVector<Type> types(plan.keys / 2, b.getF32Type());
  auto given = scf::IfOp::create(b, types, access.isGiven(initial), true);
  OpBuilder::InsertionGuard guard(b);
  b.setInsertionPointToStart(given.thenBlock());
  Values entries;
  for (Value address : stateAddresses(access, initial))
    entries.push_back(LLVM::LoadOp::create(b, b.getF32Type(), address));
  scf::YieldOp::create(b, entries);
  b.setInsertionPointToStart(given.elseBlock());
  scf::YieldOp::create(b, Values(plan.keys / 2, ptx.number(init)));
  return Values(given.getResults());
}

void RoleEmitter::storeFinal(ValueRange entries) {
  TensorAccess access(threads, launderedCall(), plan.tensors, /*packed=*/true);
  findPart(threads, access, shards, plan.independent);
  unsigned final = plan.tensors.size() - 1;
  threads.when(access.isGiven(final), [&] {
    for (auto [address, entry] : llvm::zip(stateAddresses(access, final), entries))
      LLVM::StoreOp::create(b, entry, address);
  });
}

LogicalResult RoleEmitter::emitChain(Value chunks) {
  ChainState role;
  bool hasScores = !plan.scores.empty() || plan.system;
  slabIndex = arith::SubIOp::create(b, group, ptx.constant(hasScores ? 2 : 1));
  Value eighth = ptx.bits(lane, 7), row = ptx.add(eighth, ptx.mul(ptx.shiftRight(lane, 4), 8));
  Value chunkOfRow = ptx.exclusiveOr(ptx.add(ptx.mul(warp, 2), ptx.bits(ptx.shiftRight(lane, 3), 1)), eighth);
  role.matrixLane = ptx.add(ptx.mul(row, 128), ptx.mul(chunkOfRow, 16));
  role.outputs = ptx.add(ptx.add(base, outputsAt), ptx.mul(slabIndex, tileBytes));
  Value pair = ptx.mul(ptx.bits(lane, 3), 8);
  Value stateArgument = plan.program.argumentsOf(ArgKind::State).front();
  LogicalResult status = success();
  Values initial = initialState();
  Values last = forChunks(chunks, initial, [&](Value chunk, Stage stage, ValueRange entries) {
    ChainState state = role;
    state.stage = stage;
    state.chunk = chunk;
    state.columns = ptx.add(stage.rows, pair);
    state.buffer = ptx.bits(chunk, 1);
    state.bufferPhase = ptx.bits(ptx.shiftRight(chunk, 1), 1);
    state.scoresBase = ptx.add(ptx.add(base, scoresAt), ptx.mul(state.buffer, scoreBytes));
    state.tokens = arith::SubIOp::create(b, arith::TruncIOp::create(b, b.getI32Type(), part.tokens),
                                         ptx.mul(chunk, tokensOfChunk));
    state.slabs[stateArgument] = Values(entries);
    if (failed(emitChunk(state))) {
      status = failure();
      return Values(entries);
    }
    FailureOr<Values> next = slab(state, plan.program.getBodyYield().getValues()[0]);
    if (succeeded(next))
      return *next;
    status = failure();
    return Values(entries);
  });
  // The copies read this block's shared memory.
  ptx.awaitStores(/*written=*/true);
  storeFinal(last);
  return status;
}

#include "lib/Cuda/ChunkEmitter.h"
#include "mlir/Dialect/LLVMIR/NVVMDialect.h"
#include "llvm/ADT/TypeSwitch.h"

using namespace mlir;
using namespace recur;
using namespace recur::cuda;
using chunk::Reach;
using chunk::Span;

static bool isTokens(Attribute dim) { return isa<StringAttr>(dim); }
static int64_t sizeOf(Attribute dim) { return isTokens(dim) ? chunkTokens : cast<IntegerAttr>(dim).getInt(); }

ChunkEmitter::ChunkEmitter(Threads &threads, chunk::ProgramOp program, TensorAccess &access,
                           ArrayRef<TensorArgument> tensors, int64_t warps)
    : fragments(threads), threads(threads), b(threads.b), program(program), access(access), tensors(tensors),
      warps(warps), scoreColumns(chunkTokens * 4 / warps), tokenThreads(threads.b, tokenGrid) {}

void ChunkEmitter::begin(Value h, Value n, Value at) {
  head = h;
  heads = n;
  position = at;
  fragments.begin();
  tokenThreads.begin({}, {});
}

//===----------------------------------------------------------------------===//
// Memory
//===----------------------------------------------------------------------===//

void ChunkEmitter::sync() {
  if (dirty)
    threads.barrier();
  dirty = false;
}

SharedTile ChunkEmitter::allocate(int64_t rows, int64_t cols, int64_t pitch, bool isF32) {
  SharedTile tile{{}, rows, cols, pitch, isF32};
  tile.base = threads.allocate(1, tile.bytes() / 4).base;
  return tile;
}

Value ChunkEmitter::rowValue(Value base, Value at) {
  Value address = LLVM::GEPOp::create(b, base.getType(), b.getF32Type(), base, at);
  return LLVM::LoadOp::create(b, b.getF32Type(), address);
}

void ChunkEmitter::forTokens(llvm::function_ref<void(Value, Value, Value)> body) {
  int64_t groups = warps * 4;
  for (int64_t round = 0; round < chunkTokens; round += groups) {
    Value local = arith::AddIOp::create(b, tokenThreads.coordinate(0), threads.constant(round));
    Value wide = arith::ExtUIOp::create(b, b.getI64Type(), local);
    Value valid = arith::CmpIOp::create(b, arith::CmpIPredicate::slt, wide, count);
    // Past the end the first token is read, and dropped.
    Value token = arith::AddIOp::create(
        b, first, arith::SelectOp::create(b, valid, wide, threads.constant(0, 64)));
    body(local, token, valid);
  }
}

void ChunkEmitter::forRows(llvm::function_ref<void(Value)> body) {
  threads.when(arith::CmpIOp::create(b, arith::CmpIPredicate::ult, threads.threadIndex(),
                                     threads.constant(chunkTokens)),
               [&] { body(threads.threadIndex()); });
}

const ChunkValue *ChunkEmitter::find(Value value) const {
  auto it = values.find(value);
  return it == values.end() ? nullptr : &it->second;
}

void ChunkEmitter::copyTile(unsigned tensor, const SharedTile &tile) {
  int64_t n = tile.cols;
  forTokens([&](Value local, Value token, Value valid) {
    SmallVector<Value> fetched = access.fetch(tensor, 1, token);
    int64_t width = tile.cols / 8 / int64_t(fetched.size());
    for (auto [i, packet] : llvm::enumerate(fetched)) {
      Value zero = arith::ConstantOp::create(b, b.getZeroAttr(packet.getType()));
      Value kept = arith::SelectOp::create(b, valid, packet, zero);
      Value col = tokenThreads.index(1, n, i * width);
      LLVM::StoreOp::create(b, kept, fragments.address(tile, local, col), width * 2);
    }
  });
  dirty = true;
}

// Inputs that ops other than maps read, params of one number, the position.
void ChunkEmitter::emitArguments() {
  unsigned input = 0;
  for (BlockArgument argument : program.getBody().getArguments()) {
    ArgKind kind = program.getArg(argument.getArgNumber()).getKind();
    unsigned tensor = kind == ArgKind::Input ? input++ : 0;
    auto direct = [](Operation *user) { return !isa<chunk::MapOp>(user); };
    if (kind == ArgKind::Head || kind == ArgKind::Heads) {
      Value number = kind == ArgKind::Head ? head : heads;
      values[argument] = {ChunkValue::Scalar, {arith::SIToFPOp::create(b, b.getF32Type(), number)}, {}, {}, false};
    } else if (kind == ArgKind::Position) {
      ChunkValue rows{ChunkValue::Rows, {}, allocate(1, chunkTokens, chunkTokens, true), {}, false};
      forRows([&](Value local) {
        Value at = arith::AddIOp::create(b, position, arith::AddIOp::create(b, first,
                                                                          arith::ExtUIOp::create(b, b.getI64Type(), local)));
        LLVM::StoreOp::create(b, arith::SIToFPOp::create(b, b.getF32Type(), at),
                              fragments.address(rows.memory, threads.constant(0), local));
      });
      dirty = true;
      values[argument] = rows;
    } else if (kind == ArgKind::Input && llvm::any_of(argument.getUsers(), direct)) {
      auto type = cast<MatType>(argument.getType());
      if (isOne(type.getCols())) {
        ChunkValue rows{ChunkValue::Rows, {}, allocate(1, chunkTokens, chunkTokens, true), {}, false};
        forRows([&](Value local) {
          Value wide = arith::ExtUIOp::create(b, b.getI64Type(), local);
          Value valid = arith::CmpIOp::create(b, arith::CmpIPredicate::slt, wide, count);
          Value token = arith::AddIOp::create(
              b, first, arith::SelectOp::create(b, valid, wide, threads.constant(0, 64)));
          Value entry = access.load(tensor, 0, token).entries[0];
          LLVM::StoreOp::create(b, arith::SelectOp::create(b, valid, entry, threads.number(0)),
                                fragments.address(rows.memory, threads.constant(0), local));
        });
        dirty = true;
        values[argument] = rows;
      } else {
        int64_t n = sizeOf(type.getCols());
        ChunkValue tile{ChunkValue::Tile, {}, allocate(chunkTokens, n, n + 8, false), {}, false};
        copyTile(tensor, tile.memory);
        values[argument] = tile;
      }
    }
  }
}

//===----------------------------------------------------------------------===//
// Functions of one token
//===----------------------------------------------------------------------===//

SharedTile ChunkEmitter::moveSlab(const ChunkValue &slab) {
  int64_t n = warps * 16;
  SharedTile tile = allocate(chunkTokens, n, n + 4, true);
  for (auto [e, entry] : llvm::enumerate(slab.entries)) {
    Value first = arith::MulIOp::create(b, fragments.warp, threads.constant(16));
    Value row = arith::AddIOp::create(b, fragments.row(e), first);
    LLVM::StoreOp::create(b, entry, fragments.address(tile, fragments.column(e), row));
  }
  dirty = true;
  return tile;
}

// An output that no map makes.
LogicalResult ChunkEmitter::emitOutput(unsigned output, Value value) {
  FailureOr<ChunkValue> slab = asSlab(value);
  if (failed(slab))
    return failure();
  SharedTile memory = moveSlab(*slab);
  sync();
  unsigned states = 1, tensor = tensors.size() - states - program.getOutputs().size() + output;
  forTokens([&](Value local, Value token, Value valid) {
    Tile tile = tokenThreads.shape(tensors[tensor].entry(), 1);
    for (int64_t e = 0; e < tile.rows * tile.cols; ++e)
      tile.entries.push_back(LLVM::LoadOp::create(
          b, b.getF32Type(), fragments.address(memory, local, tokenThreads.index(1, memory.cols, e))));
    threads.when(valid, [&] { access.store(tensor, tile, token); });
  });
  return success();
}

LogicalResult ChunkEmitter::emitMap(chunk::MapOp op) {
  // Slabs go through shared memory.
  llvm::DenseMap<Value, SharedTile> moved;
  for (Value operand : op.getRows())
    if (const ChunkValue *value = find(operand); value && value->kind == ChunkValue::Slab)
      moved[operand] = moveSlab(*value);
  sync();

  Block &block = op.getBody().front();
  SmallVector<Value> wanted;
  SmallVector<unsigned> results;
  for (auto [i, result] : llvm::enumerate(op.getResults()))
    if (llvm::any_of(result.getUses(), [](OpOperand &use) {
          // Decays are computed from logarithms.
          auto decay = dyn_cast<chunk::DecayOp>(use.getOwner());
          return !decay || use.getOperandNumber() == 1;
        })) {
      wanted.push_back(op.getYield().getValues()[i]);
      results.push_back(i);
    }
  Placement placement(block, wanted, tokenGrid);
  for (unsigned i : results) {
    auto type = cast<MatType>(op.getResult(i).getType());
    int64_t n = sizeOf(type.getCols());
    bool isOutput = llvm::any_of(op.getResult(i).getUsers(), [](Operation *user) { return isa<chunk::YieldOp>(user); });
    if (isOutput)
      continue;
    ChunkValue value;
    value.kind = n == 1 ? ChunkValue::Rows : ChunkValue::Tile;
    value.memory = n == 1 ? allocate(1, chunkTokens, chunkTokens, true) : allocate(chunkTokens, n, n + 8, false);
    values[op.getResult(i)] = value;
  }
  LogicalResult status = success();
  auto yielded = program.getBodyYield().getValues();
  unsigned states = program.argumentsOf(ArgKind::State).size(), outputs = yielded.size() - states;
  auto inputs = program.argumentsOf(ArgKind::Input), params = program.argumentsOf(ArgKind::Param);
  forTokens([&](Value local, Value token, Value valid) {
    BodyEmitter body(tokenThreads, placement);
    unsigned next = 0;
    auto bind = [&](Value operand) {
      Value argument = block.getArgument(next++);
      if (!placement.isNeeded(argument))
        return;
      for (Axis axis : {0, 1}) {
        if (!placement.needs(argument, axis))
          continue;
        Tile tile = tokenThreads.shape(matType(argument), axis);
        const ChunkValue *value = find(operand);
        if (auto known = moved.find(operand); known != moved.end() || (value && value->kind == ChunkValue::Tile)) {
          const SharedTile &memory = known != moved.end() ? known->second : value->memory;
          for (int64_t e = 0; e < tile.rows * tile.cols; ++e) {
            Value at = fragments.address(memory, local, tokenThreads.index(axis, memory.cols, e));
            Value entry = LLVM::LoadOp::create(b, memory.isF32 ? Type(b.getF32Type()) : b.getBF16Type(), at);
            if (!memory.isF32)
              entry = arith::ExtFOp::create(b, b.getF32Type(), entry);
            tile.entries.push_back(entry);
          }
        } else if (value && value->kind == ChunkValue::Rows) {
          tile.entries.push_back(rowValue(value->memory.base, local));
        } else if (value && value->kind == ChunkValue::Scalar) {
          tile.entries.push_back(value->entries[0]);
        } else if (auto at = llvm::find(inputs, operand); at != inputs.end()) {
          tile = access.load(at - inputs.begin(), axis, token);
        } else if (auto param = llvm::find(params, operand); param != params.end()) {
          tile = access.load(inputs.size() + (param - params.begin()), axis, {});
        } else {
          status = failure();
        }
        body.set(argument, tile);
      }
    };
    llvm::for_each(op.getRows(), bind);
    llvm::for_each(op.getShared(), bind);
    if (failed(status) || failed(body.emitBlock(block, {})))
      return void(status = failure());
    for (unsigned i : results) {
      Value inner = op.getYield().getValues()[i];
      const Tile &tile = body.get(inner, placement.anyOf(inner));
      for (unsigned o = 0; o < outputs; ++o)
        if (yielded[states + o] == op.getResult(i))
          threads.when(valid, [&] { access.store(inputs.size() + params.size() + states + o, tile, token); });
      const ChunkValue *value = find(op.getResult(i));
      if (!value)
        continue;
      auto kept = [&](Value entry) { return arith::SelectOp::create(b, valid, entry, threads.number(0)).getResult(); };
      if (value->kind == ChunkValue::Rows) {
        threads.when(tokenThreads.isWriter(tile), [&] {
          LLVM::StoreOp::create(b, kept(tile.entries[0]), fragments.address(value->memory, threads.constant(0), local));
        });
      } else {
        for (size_t e = 0; e < tile.entries.size(); e += 2)
          LLVM::StoreOp::create(b, fragments.pack(kept(tile.entries[e]), kept(tile.entries[e + 1])),
                                fragments.address(value->memory, local,
                                                  tokenThreads.index(tile.axis, value->memory.cols, e)));
      }
      dirty = true;
    }
  });
  return status;
}

//===----------------------------------------------------------------------===//
// Decays and scores
//===----------------------------------------------------------------------===//

void ChunkEmitter::emitDecay(chunk::DecayOp op) {
  sync();
  SharedTile sums = allocate(1, chunkTokens + 1, chunkTokens + 4, true);
  const ChunkValue &log = *find(op.getLog());
  // One warp, two tokens a lane. A factor of 0 counts as one of 2^-200.
  Value isFirst = arith::CmpIOp::create(b, arith::CmpIPredicate::eq, fragments.warp, threads.constant(0));
  threads.when(isFirst, [&] {
    Value twice = arith::MulIOp::create(b, fragments.lane, threads.constant(2));
    Value pair[2];
    for (int64_t i : {0, 1}) {
      Value entry = rowValue(log.memory.base, arith::AddIOp::create(b, twice, threads.constant(i)));
      entry = arith::MulFOp::create(b, entry, threads.number(1.4426950408889634));
      pair[i] = arith::MaximumFOp::create(b, entry, threads.number(-200));
    }
    Value both = arith::AddFOp::create(b, pair[0], pair[1]), sum = both;
    for (int64_t distance = 1; distance < 32; distance *= 2) {
      Value other = NVVM::ShflOp::create(b, b.getF32Type(), threads.constant(-1), sum, threads.constant(distance),
                                         threads.constant(0), NVVM::ShflKind::up, UnitAttr());
      Value exists = arith::CmpIOp::create(b, arith::CmpIPredicate::uge, fragments.lane, threads.constant(distance));
      sum = arith::SelectOp::create(b, exists, arith::AddFOp::create(b, sum, other).getResult(), sum);
    }
    auto put = [&](int64_t i, Value x) {
      LLVM::StoreOp::create(b, x, fragments.address(sums, threads.constant(0),
                                                    arith::AddIOp::create(b, twice, threads.constant(i))));
    };
    Value before = arith::SubFOp::create(b, sum, both);
    put(1, arith::AddFOp::create(b, before, pair[0]));
    put(2, sum);
    threads.when(arith::CmpIOp::create(b, arith::CmpIPredicate::eq, fragments.lane, threads.constant(0)),
                 [&] { put(0, threads.number(0)); });
  });
  dirty = true;
  decays[op] = sums.base;
}

void ChunkEmitter::emitWeights(chunk::WeightsOp op) {
  sync();
  Value sums = decays.lookup(op.getDecay());
  auto at = [&](Value token, int64_t more) {
    return rowValue(sums, arith::AddIOp::create(b, token, threads.constant(more)));
  };
  Value end = rowValue(sums, threads.constant(chunkTokens));
  if (op.getSpan() == Span::Whole) {
    values[op] = {ChunkValue::Scalar, {fragments.exp2(end)}, {}, {}, false};
    return;
  }
  ChunkValue rows{ChunkValue::Rows, {}, allocate(1, chunkTokens, chunkTokens, true), {}, false};
  forRows([&](Value local) {
    Value exponent = op.getSpan() == Span::Through ? at(local, 1)
                     : op.getSpan() == Span::Until ? at(local, 0)
                                                   : arith::SubFOp::create(b, end, at(local, 1)).getResult();
    LLVM::StoreOp::create(b, fragments.exp2(exponent), fragments.address(rows.memory, threads.constant(0), local));
  });
  dirty = true;
  values[op] = rows;
}

Value ChunkEmitter::scoreRow(int64_t entry) {
  Value block = arith::RemUIOp::create(b, fragments.warp, threads.constant(4));
  return arith::AddIOp::create(b, arith::MulIOp::create(b, block, threads.constant(16)), fragments.row(entry));
}

Value ChunkEmitter::scoreColumn(int64_t entry) {
  Value part = arith::DivUIOp::create(b, fragments.warp, threads.constant(4));
  return arith::AddIOp::create(b, arith::MulIOp::create(b, part, threads.constant(scoreColumns)),
                               fragments.column(entry));
}

LogicalResult ChunkEmitter::emitGram(chunk::GramOp op) {
  const ChunkValue *lhs = find(op.getLhs()), *rhs = find(op.getRhs());
  if (!lhs || !rhs || lhs->kind != ChunkValue::Tile || rhs->kind != ChunkValue::Tile)
    return failure();
  sync();
  Value block = arith::MulIOp::create(b, arith::RemUIOp::create(b, fragments.warp, threads.constant(4)), threads.constant(16));
  Value part = arith::MulIOp::create(b, arith::DivUIOp::create(b, fragments.warp, threads.constant(4)),
                                     threads.constant(scoreColumns));
  Fragment sum = fragments.zero(scoreColumns);
  for (int64_t depth = 0; depth < lhs->memory.cols; depth += 16) {
    auto left = fragments.loadLeft(lhs->memory, block, depth);
    for (int64_t col = 0; col < scoreColumns; col += 16) {
      auto right = fragments.loadRight(rhs->memory, arith::AddIOp::create(b, part, threads.constant(col)), depth, false);
      for (int64_t i : {0, 1})
        fragments.multiply(MutableArrayRef(sum.entries).slice(col / 2 + 4 * i, 4), left,
                           ArrayRef(right).slice(2 * i, 2));
    }
  }
  Value sums = op.getDecay() ? decays.lookup(op.getDecay()) : Value();
  ChunkValue scores{ChunkValue::Scores, {}, {}, {}, false};
  for (auto [e, entry] : llvm::enumerate(sum.entries)) {
    Value t = scoreRow(e), j = scoreColumn(e), x = entry;
    if (lhs->scale)
      x = arith::MulFOp::create(b, x, rowValue(lhs->scale, t));
    if (rhs->scale)
      x = arith::MulFOp::create(b, x, rowValue(rhs->scale, j));
    if (sums) {
      Value to = op.getReach() == Reach::Before ? t : arith::AddIOp::create(b, t, threads.constant(1)).getResult();
      Value exponent = arith::SubFOp::create(
          b, rowValue(sums, to), rowValue(sums, arith::AddIOp::create(b, j, threads.constant(1))));
      x = arith::MulFOp::create(b, x, fragments.exp2(exponent));
    }
    auto order = op.getReach() == Reach::Inclusive ? arith::CmpIPredicate::ule : arith::CmpIPredicate::ult;
    Value reached = arith::CmpIOp::create(b, order, j, t);
    scores.entries.push_back(arith::SelectOp::create(b, reached, x, threads.number(0)));
  }
  values[op] = scores;
  return success();
}

SharedTile ChunkEmitter::stage(const ChunkValue &scores, bool negatedF32) {
  SharedTile tile = allocate(chunkTokens, chunkTokens, chunkTokens + 8, negatedF32);
  for (size_t e = 0; e < scores.entries.size(); e += 2) {
    Value low = scores.entries[e], high = scores.entries[e + 1];
    Value at = fragments.address(tile, scoreRow(e), scoreColumn(e));
    if (!negatedF32) {
      LLVM::StoreOp::create(b, fragments.pack(low, high), at);
      continue;
    }
    LLVM::StoreOp::create(b, arith::NegFOp::create(b, low), at);
    LLVM::StoreOp::create(b, arith::NegFOp::create(b, high), fragments.address(tile, scoreRow(e + 1), scoreColumn(e + 1)));
  }
  dirty = true;
  return tile;
}

//===----------------------------------------------------------------------===//
// The program
//===----------------------------------------------------------------------===//

LogicalResult ChunkEmitter::emitOp(Operation *op) {
  // Products that are added to something are made there.
  if (auto product = dyn_cast<MatmulOp>(op); product && product->hasOneUse() && isa<AddOp>(*product->user_begin()))
    return success();
  return TypeSwitch<Operation *, LogicalResult>(op)
      .Case([&](chunk::MapOp m) { return emitMap(m); })
      .Case([&](chunk::DecayOp d) { return emitDecay(d), success(); })
      .Case([&](chunk::WeightsOp w) { return emitWeights(w), success(); })
      .Case([&](chunk::GramOp g) { return emitGram(g); })
      .Case([&](chunk::TriSolveOp s) { return emitSolve(s); })
      .Case([&](MatmulOp m) { return emitMatmul(m, {}, m); })
      .Case([&](ElementwiseOp e) { return emitElementwise(e); })
      .Case([&](ConstantOp c) {
        if (!c.getType().isScalar())
          return failure();
        values[c] = {ChunkValue::Scalar, {threads.number(c.getValue().convertToDouble())}, {}, {}, false};
        return success();
      })
      .Case([&](TransposeOp t) {
        const ChunkValue *operand = find(t.getOperand());
        if (!operand || operand->kind == ChunkValue::Scores || operand->kind == ChunkValue::Rows)
          return failure();
        ChunkValue value = *operand;
        value.transposed = !value.transposed;
        values[t] = value;
        return success();
      })
      .Default([](Operation *) { return failure(); });
}

FailureOr<SmallVector<Value>> ChunkEmitter::emit(Value from, Value left, ValueRange state) {
  first = from;
  count = left;
  values.clear();
  staged.clear();
  solves.clear();
  values[program.argumentsOf(ArgKind::State).front()] = {ChunkValue::Slab, SmallVector<Value>(state), {}, {}, false};
  emitArguments();
  // What depends on the state comes last, in its order.
  llvm::DenseSet<Value> dependent;
  dependent.insert(program.argumentsOf(ArgKind::State).front());
  SmallVector<Operation *> ahead, after;
  for (Operation &op : program.getBody().front().without_terminator()) {
    bool depends = llvm::any_of(op.getOperands(), [&](Value operand) { return dependent.contains(operand); });
    if (depends)
      dependent.insert(op.result_begin(), op.result_end());
    (depends ? after : ahead).push_back(&op);
  }
  for (Operation *op : ahead)
    if (failed(emitOp(op)))
      return failure();
  for (Operation *op : llvm::concat<Operation *>(ahead, after))
    if (failed(prepare(op)))
      return failure();
  sync();
  for (Operation *op : after)
    if (failed(emitOp(op)))
      return failure();
  for (auto [i, output] : llvm::enumerate(program.getBodyYield().getValues().drop_front()))
    if (!output.getDefiningOp<chunk::MapOp>() && failed(emitOutput(i, output)))
      return failure();
  FailureOr<ChunkValue> last = asSlab(program.getBodyYield().getValues().front());
  if (failed(last))
    return failure();
  // The next chunk writes what this one read.
  threads.barrier();
  dirty = false;
  return last->entries;
}

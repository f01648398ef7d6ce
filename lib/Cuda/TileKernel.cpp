// The kernel of a rule that multiplies vectors by params and whose states are inputs of tokens before: by
// mma.sync, 16 tokens of a warp at a time.
//
// Four neighbouring lanes hold the vectors of a token in packets of four entries, and of the token eight
// later. So they are fragments of products as they come from memory: the order of what is summed over is
// free, if matrices have the same, and so is that of a product's rows. Matrices wait in shared memory, each
// lane's part of two steps together; a block walks many tokens with them.
#include "lib/Cuda/Chunked.h"
#include "lib/Cuda/Cores.h"
#include "lib/Cuda/Count.h"
#include "lib/Cuda/Fragments.h"
#include "lib/Cuda/ParamProducts.h"
#include "lib/Cuda/RuleFrame.h"
#include "lib/Cuda/Sequential.h"
#include "llvm/Support/MathExtras.h"

using namespace mlir;
using namespace recur;
using namespace recur::cuda;

static constexpr int64_t tokensOfTile = 16, depthOfStep = 16, bytesOfLane = 16;

namespace {
// A product whose matrix lies in shared memory.
struct Product : ParamProduct {
  int64_t tiles() const { return llvm::divideCeil(rows, 16) * 2; }           // of 8 rows
  int64_t steps() const { return llvm::divideCeil(depth, 2 * depthOfStep); } // of twice the depth
  int64_t lanes() const { return tiles() * steps() * 32; }
};

class TileEmitter : RuleFrame {
public:
  TileEmitter(ImplicitLocOpBuilder &b, RuleOp rule, ArrayRef<TensorArgument> tensors, const Grid &grid,
              const Placement &placement, Entry &entry)
      : RuleFrame(b, rule, tensors, grid, placement), entry(entry), fragments(threads),
        ofF16(threads, Precision::Tf32), later(threads, placement), memory(passingStates(rule).memory),
        delays(delaysOf(rule)) {}

  LogicalResult run(LLVM::LLVMFuncOp function);

private:
  // A matrix in shared memory.
  struct Image {
    Product of;
    int64_t offset;
  };

  void layOut();
  void fill(TensorAccess &access, const Image &image);
  LogicalResult setDelayed(TensorAccess &access, ArrayRef<BodyEmitter *> bodies, ArrayRef<Value> places,
                           bool atBegin);
  void loadParams(TensorAccess &access, Operation &op);
  LogicalResult storeFinals(TensorAccess &access, const Part &part);
  LogicalResult emitTokens(TensorAccess &access, ArrayRef<Value> places, ArrayRef<Value> wanted,
                           bool atBegin);
  void emitProduct(MatmulOp op, const Product &product);
  const Image *imageOf(const Product &product) const;

  Entry &entry;
  Fragments fragments, ofF16;
  BodyEmitter later; // of the token eight later
  int64_t memory;
  SmallVector<Delay> delays; // of each state
  Value before;              // the sequence's tokens before the block's
  SmallVector<Image> images;
};
} // namespace

Grid cuda::gridOfTiles() {
  Grid grid;
  grid.threads = grid.lanes = 4;
  grid.groups = 64;
  grid.productsApart = true;
  return grid;
}

bool cuda::hasFewNumbers(RuleOp rule) {
  constexpr int64_t most = 8;
  auto isFew = [](Value value) {
    auto type = dyn_cast<MatType>(value.getType());
    return value.use_empty() || (type && type.numElements() <= most);
  };
  return rule.argumentsOf(ArgKind::State).empty() && llvm::all_of(rule.getBody().getArguments(), isFew) &&
         llvm::all_of(rule.getBody().front(),
                      [&](Operation &op) { return llvm::all_of(op.getResults(), isFew); });
}

bool cuda::isForTiles(RuleOp rule, ArrayRef<TensorArgument> tensors) {
  bool any = hasFewNumbers(rule);
  if (!llvm::all_of(delaysOf(rule), [](const Delay &delay) { return delay.tokens != 0; }))
    return false;
  for (Operation &op : rule.getBody().front().without_terminator()) {
    if (isProduct(&op) ? !paramProductOf(cast<MatmulOp>(op), tensors) : !usesNoMatrix(op))
      return false;
    any |= isProduct(&op);
  }
  return any;
}

const TileEmitter::Image *TileEmitter::imageOf(const Product &product) const {
  return llvm::find_if(images, [&](const Image &image) { return image.of.hasMatrixOf(product); });
}

// Entries as lanes read them: a lane of the warp, for each 8 rows and 32 entries of them, has 16 bytes.
void TileEmitter::fill(TensorAccess &access, const Image &image) {
  const Product &product = image.of;
  constexpr int64_t atOnce = 4;
  auto constant = [&](int64_t n) { return threads.constant(n); };
  auto plus = [&](Value x, Value y) -> Value { return arith::AddIOp::create(b, x, y); };
  auto times = [&](Value x, int64_t n) -> Value { return arith::MulIOp::create(b, x, constant(n)); };
  auto over = [&](Value x, int64_t n) -> Value { return arith::DivUIOp::create(b, x, constant(n)); };
  auto rest = [&](Value x, int64_t n) -> Value { return arith::RemUIOp::create(b, x, constant(n)); };
  auto below = [&](Value x, int64_t n) -> Value {
    return arith::CmpIOp::create(b, arith::CmpIPredicate::ult, x, constant(n));
  };
  FloatType element = product.element;
  Value zero = arith::ConstantOp::create(b, b.getFloatAttr(element, 0));
  bool inPackets = !product.isTransposed && product.depth % 4 == 0;
  int64_t all = product.lanes();
  auto entriesOf = [&](Value item) {
    Value lane = rest(item, 32), part = over(item, 32);
    Value tile = over(part, product.steps()), group = over(lane, 4);
    Value row = plus(plus(times(over(tile, 2), 16), times(over(group, 2), 4)),
                     plus(times(rest(tile, 2), 2), rest(group, 2)));
    Value first = plus(times(rest(part, product.steps()), 32), times(rest(lane, 4), 4));
    Value isRow = below(row, product.rows);
    SmallVector<Value> entries;
    auto read = [&](Type type, Value at, int64_t bytes) -> Value {
      Value exists = arith::AndIOp::create(b, isRow, below(at, product.depth));
      Value r = arith::SelectOp::create(b, exists, row, constant(0));
      Value c = arith::SelectOp::create(b, exists, at, constant(0));
      Value address =
          product.isTransposed ? access.entry(product.tensor, c, r) : access.entry(product.tensor, r, c);
      Value found = LLVM::LoadOp::create(b, type, address, bytes);
      Value none = zero;
      if (type != element)
        none = LLVM::ZeroOp::create(b, type);
      return arith::SelectOp::create(b, exists, found, none);
    };
    for (int64_t half : {0, 16})
      if (inPackets) {
        Value packet = read(VectorType::get(4, element), plus(first, constant(half)), 8);
        for (int64_t i = 0; i < 4; ++i)
          entries.push_back(LLVM::ExtractElementOp::create(b, packet, constant(i)));
      } else {
        for (int64_t i = 0; i < 4; ++i)
          entries.push_back(read(element, plus(first, constant(half + i)), 2));
      }
    return entries;
  };
  Value base = threads.sharedAt(image.offset);
  threads.forLoop(
      threads.threadIndex(), constant(all), constant(atOnce * entry.threads), {},
      [&](Value begin, ValueRange) -> SmallVector<Value> {
        SmallVector<Value> items, packets;
        for (int64_t i = 0; i < atOnce; ++i) {
          items.push_back(plus(begin, constant(i * entry.threads)));
          Value packet = LLVM::PoisonOp::create(b, VectorType::get(8, element));
          for (auto [e, value] : llvm::enumerate(entriesOf(items.back())))
            packet = LLVM::InsertElementOp::create(b, packet, value, constant(e));
          packets.push_back(packet);
        }
        for (auto [i, item, packet] : llvm::enumerate(items, packets)) {
          Value to = LLVM::GEPOp::create(b, base.getType(), b.getI8Type(), base,
                                         ValueRange{times(item, bytesOfLane)});
          bool isWhole = all % (atOnce * entry.threads) == 0;
          Value isItem = isWhole ? Value() : below(item, all);
          threads.when(isItem, [&, packet = packet] { LLVM::StoreOp::create(b, packet, to, bytesOfLane); });
        }
        return {};
      });
}

// Finds a place in shared memory for each matrix.
void TileEmitter::layOut() {
  rule.getBody().walk([&](MatmulOp op) {
    if (!isDense(op) || !placement.isNeeded(op))
      return;
    Product product{*paramProductOf(op, tensors)};
    if (imageOf(product) != images.end())
      return;
    images.push_back({product, threads.sharedBytes});
    threads.sharedBytes += product.lanes() * bytesOfLane;
  });
}

void TileEmitter::emitProduct(MatmulOp op, const Product &product) {
  BodyEmitter *bodies[] = {&body, &later};
  // The left operands: of both tokens, 16 entries at a time.
  SmallVector<SmallVector<Value>> left;
  const Tile shape = body.get(product.vector, 1);
  auto entryOf = [&](const Tile &tile, int64_t i) -> Value {
    bool isColumn = tile.rows > 1;
    Value value = tile.entries[i];
    if (Value exists = threads.valid(tile, isColumn ? i : 0, isColumn ? 0 : i))
      value = arith::SelectOp::create(b, exists, value, threads.number(0));
    return value;
  };
  for (size_t i = 0; i < shape.entries.size(); i += 4) {
    SmallVector<Value> &step = left.emplace_back();
    for (int64_t half : {0, 2})
      for (BodyEmitter *each : bodies) {
        const Tile tile = each->get(product.vector, 1);
        Value pair = LLVM::PoisonOp::create(b, VectorType::get(2, Type(product.element)));
        for (int64_t k : {0, 1}) {
          Value narrow = arith::TruncFOp::create(b, product.element, entryOf(tile, i + half + k));
          pair = LLVM::InsertElementOp::create(b, pair, narrow, threads.constant(k));
        }
        step.push_back(LLVM::BitcastOp::create(b, b.getI32Type(), pair));
      }
  }
  Value base = threads.sharedAt(imageOf(product)->offset);
  Value ofLane = arith::MulIOp::create(b, fragments.lane, threads.constant(bytesOfLane));
  base = LLVM::GEPOp::create(b, base.getType(), b.getI8Type(), base, ValueRange{ofLane});
  SmallVector<SmallVector<Value>> sums(product.tiles(), SmallVector<Value>(4, threads.number(0)));
  Fragments &own = product.element.isF16() ? ofF16 : fragments;
  // Tiles of rows in fours, so that no sum waits for its last term.
  constexpr int64_t together = 4;
  for (int64_t first = 0; first < product.tiles(); first += together)
    for (int64_t step = 0; step < product.steps(); ++step)
      for (int64_t tile = first; tile < std::min(first + together, product.tiles()); ++tile) {
        int64_t at = (tile * product.steps() + step) * 32 * bytesOfLane;
        Value place =
            LLVM::GEPOp::create(b, base.getType(), b.getI8Type(), base, ArrayRef<LLVM::GEPArg>{int32_t(at)});
        Value right = LLVM::LoadOp::create(b, VectorType::get(4, b.getI32Type()), place, bytesOfLane);
        SmallVector<Value> words;
        for (int64_t i = 0; i < 4; ++i)
          words.push_back(LLVM::ExtractElementOp::create(b, right, threads.constant(i)));
        for (int64_t half : {0, 1})
          if (size_t(2 * step + half) < left.size())
            own.multiply(sums[tile], left[2 * step + half], ArrayRef(words).slice(2 * half, 2));
      }
  for (int64_t which : {0, 1}) {
    Tile result = threads.shape(op.getType(), 1);
    for (const SmallVector<Value> &sum : sums)
      llvm::append_range(result.entries, ArrayRef(sum).slice(2 * which, 2));
    bodies[which]->set(op, std::move(result));
  }
}

// Sets states, which are inputs of tokens before, or, where a sequence begins, what the caller gives.
LogicalResult TileEmitter::setDelayed(TensorAccess &access, ArrayRef<BodyEmitter *> bodies,
                                      ArrayRef<Value> places, bool atBegin) {
  auto i64 = [&](int64_t n) { return threads.constant(n, 64); };
  auto minus = [&](Value x, Value y) -> Value { return arith::SubIOp::create(b, x, y); };
  if (atBegin) {
    setParams(access);
    if (failed(setStates(access)))
      return failure();
  }
  llvm::DenseMap<std::pair<unsigned, Axis>, Tile> initial;
  for (unsigned i = 0; i < states.size() && atBegin; ++i)
    forLayouts(states[i], [&](Axis axis) { initial[{i, axis}] = body.get(states[i], axis); });
  for (size_t which = 0; which < bodies.size(); ++which)
    for (unsigned i = 0; i < states.size(); ++i)
      forLayouts(states[i], [&](Axis axis) {
        Value token = minus(places[which], i64(delays[i].tokens));
        token = arith::MaxSIOp::create(b, token, minus(i64(0), before));
        Tile tile = access.load(delays[i].input, axis, token);
        Value place = arith::AddIOp::create(b, before, places[which]);
        // After so many tokens it is what another state was at first.
        unsigned from = i;
        for (int64_t after = 0; atBegin && after < delays[i].tokens; ++after, from = delays[from].from) {
          Value isIt = arith::CmpIOp::create(b, arith::CmpIPredicate::eq, place, i64(after));
          for (auto [entry, first] : llvm::zip(tile.entries, initial[{from, axis}].entries))
            entry = arith::SelectOp::create(b, isIt, first, entry);
        }
        bodies[which]->set(states[i], std::move(tile));
      });
  return success();
}

// States after the last token, by the lanes of one token.
LogicalResult TileEmitter::storeFinals(TensorAccess &access, const Part &part) {
  Value isFirst = arith::CmpIOp::create(b, arith::CmpIPredicate::ult, threads.threadIndex(),
                                        threads.constant(threads.grid.lanes));
  LogicalResult status = success();
  if (states.empty())
    return status;
  threads.when(part.isLast, [&] {
    status = setDelayed(access, {&body}, {tokens}, /*atBegin=*/true);
    for (unsigned i = 0; i < states.size() && succeeded(status); ++i)
      threads.when(threads.both(isFirst, access.isGiven(finalTensor(i))), [&] { storeFinal(access, i); });
  });
  return status;
}

// Loads params where they are used, and again for each tile: there are no registers to keep them in.
void TileEmitter::loadParams(TensorAccess &access, Operation &op) {
  for (auto [i, argument] : llvm::enumerate(rule.argumentsOf(ArgKind::Param))) {
    unsigned tensor = inputs + i;
    BlockArgument param = argument;
    if (!llvm::is_contained(op.getOperands(), Value(param)))
      continue;
    forLayouts(param, [&](Axis axis) {
      body.set(param, access.load(tensor, axis, {}));
      later.set(param, body.get(param, axis));
    });
  }
}

// The body for two tokens of each lane, side by side, of which outputs are stored
// as soon as they are known.
LogicalResult TileEmitter::emitTokens(TensorAccess &access, ArrayRef<Value> places, ArrayRef<Value> wanted,
                                      bool atBegin) {
  Block &block = rule.getBody().front();
  BodyEmitter *bodies[] = {&body, &later};
  for (auto [each, place] : llvm::zip(bodies, places)) {
    setBuiltins(*each, block, arith::AddIOp::create(b, position, place));
    auto *emitter = each;
    Value token = place;
    forFetches(
        [&](unsigned i, Axis axis) { emitter->set(tensors[i].argument, access.load(i, axis, token)); });
  }
  if (failed(setDelayed(access, bodies, places, atBegin)))
    return failure();
  auto store = [&](Operation *maker) {
    if (llvm::none_of(rule.yieldedOutputs(), [&](Value output) { return output.getDefiningOp() == maker; }))
      return;
    for (int64_t which : {0, 1})
      threads.when(wanted[which], [&] {
        for (auto [i, output] : llvm::enumerate(rule.yieldedOutputs()))
          if (output.getDefiningOp() == maker)
            access.store(outputTensor(i), bodies[which]->get(output, placement.anyOf(output)), places[which]);
      });
  };
  store(nullptr);
  for (Operation &op : block.without_terminator()) {
    if (llvm::none_of(op.getResults(), [&](Value result) { return placement.isNeeded(result); }))
      continue;
    b.setLoc(op.getLoc());
    loadParams(access, op);
    if (auto product = dyn_cast<MatmulOp>(op); product && isDense(product)) {
      emitProduct(product, {*paramProductOf(product, tensors)});
    } else {
      for (BodyEmitter *each : bodies)
        if (failed(each->emitBlock(block, {}, [&](Operation *other) { return other == &op; })))
          return failure();
    }
    store(&op);
  }
  b.setLoc(rule.getLoc());
  return success();
}

LogicalResult TileEmitter::run(LLVM::LLVMFuncOp function) {
  layOut();
  TensorAccess access(threads, function.getArgument(0), tensors, entry.packed);
  access.statesApart = true;
  begin(function, access);
  fragments.begin();
  Part part = findPart(threads, access, /*shards=*/1, /*slab=*/0, /*grain=*/64);
  setPart(part);
  before = part.before;
  auto i64 = [&](int64_t n) { return threads.constant(n, 64); };
  auto plus = [&](Value x, Value y) -> Value { return arith::AddIOp::create(b, x, y); };
  LogicalResult status = success();
  threads.when(part.isPresent, [&] {
    for (const Image &image : images)
      fill(access, image);
    threads.barrier();
    Value row = arith::DivUIOp::create(b, fragments.lane, threads.constant(4));
    Value ofWarp = arith::MulIOp::create(b, fragments.warp, threads.constant(tokensOfTile));
    row = plus(row, ofWarp);
    Value own = arith::ExtUIOp::create(b, b.getI64Type(), row),
          last = arith::SubIOp::create(b, tokens, i64(1));
    int64_t stride = entry.threads / 32 * tokensOfTile;
    threads.forLoop(i64(0), tokens, i64(stride), {}, [&](Value first, ValueRange) -> SmallVector<Value> {
      SmallVector<Value> wanted, places;
      for (int64_t more : {0, 8}) {
        Value token = plus(first, plus(own, i64(more)));
        wanted.push_back(arith::CmpIOp::create(b, arith::CmpIPredicate::slt, token, tokens));
        places.push_back(arith::MinSIOp::create(b, token, last));
      }
      if (failed(status))
        return {};
      // Where a sequence begins, states are what the caller gives.
      Value tile = plus(first, arith::ExtUIOp::create(b, b.getI64Type(), ofWarp));
      Value isBegin = arith::CmpIOp::create(b, arith::CmpIPredicate::slt, plus(before, tile), i64(memory));
      if (states.empty()) {
        status = emitTokens(access, places, wanted, /*atBegin=*/false);
        return {};
      }
      auto choice = scf::IfOp::create(b, isBegin, /*withElseRegion=*/true);
      OpBuilder::InsertionGuard guard(b);
      for (bool atBegin : {true, false}) {
        b.setInsertionPointToStart(atBegin ? choice.thenBlock() : choice.elseBlock());
        if (succeeded(status))
          status = emitTokens(access, places, wanted, atBegin);
      }
      return {};
    });
    if (succeeded(status))
      status = storeFinals(access, part);
  });
  describeLoops(function.getBody(), "tokens", 1, entry.threads / 32);
  end(entry);
  return status;
}

LogicalResult cuda::emitTiles(LLVM::LLVMFuncOp function, RuleOp rule, ArrayRef<TensorArgument> tensors,
                              const Grid &grid, const Placement &placement, Entry &entry) {
  ImplicitLocOpBuilder b(rule.getLoc(), rule.getContext());
  b.setInsertionPointToStart(&function.getBody().front());
  TileEmitter emitter(b, rule, tensors, grid, placement, entry);
  if (failed(emitter.run(function)))
    return failure();
  relaxMath(function, tensors);
  return success();
}

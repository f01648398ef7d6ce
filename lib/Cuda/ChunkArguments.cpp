// What a chunk program reads: inputs, params, the position.
#include "lib/Cuda/ChunkEmitter.h"

using namespace mlir;
using namespace recur;
using namespace recur::cuda;

// A vector for each token, as rows of a tile.
void ChunkEmitter::copyTile(unsigned tensor, const SharedTile &tile) {
  int64_t n = tile.cols;
  FloatType element = tensors[tensor].element;
  bool isPlain = !tile.isF32 && (tile.isBf16 ? element.isBF16() : element == fragments.narrow());
  // All is on its way before the first is waited for.
  SmallVector<SmallVector<Value>> all;
  forTokens([&](Value, Value token, Value) { all.push_back(access.fetch(tensor, 1, token)); });
  auto round = all.begin();
  forTokens([&](Value local, Value, Value valid) {
    SmallVector<Value> fetched = *round++;
    if (!isPlain) {
      Tile entries = access.unpack(tensor, 1, fetched);
      for (auto [e, entry] : llvm::enumerate(entries.entries))
        threads.when(tokenThreads.valid(1, n, e), [&, e = e, entry = entry] {
          store(tile, local, tokenThreads.index(1, n, e), choose(valid, entry, threads.number(0)));
        });
      return;
    }
    int64_t width = 1;
    if (auto vector = dyn_cast<VectorType>(fetched.front().getType()))
      width = vector.getNumElements();
    for (auto [i, packet] : llvm::enumerate(fetched)) {
      Value zero = arith::ConstantOp::create(b, b.getZeroAttr(packet.getType()));
      Value kept = choose(valid, packet, zero);
      threads.when(tokenThreads.valid(1, n, i * width), [&, i = i] {
        Value col = tokenThreads.index(1, n, i * width);
        written.insert(tile.base);
        LLVM::StoreOp::create(b, kept, fragments.address(tile, local, col), width * 2);
      });
    }
  });
  dirty = true;
}

// Asks for the inputs of the chunk of `ahead` tokens further.
void ChunkEmitter::prefetch(int64_t ahead) {
  constexpr int64_t lineBytes = 128;
  SmallVector<BlockArgument> inputs = program.argumentsOf(ArgKind::Input);
  for (auto [tensor, argument] : llvm::enumerate(inputs)) {
    auto type = dyn_cast<MatType>(argument.getType());
    if (!type || argument.use_empty() || !isa<StringAttr>(type.getRows()))
      continue;
    int64_t entries = isOne(type.getCols()) ? 1 : cast<IntegerAttr>(type.getCols()).getInt();
    FloatType element = tensors[tensor].element;
    int64_t perLine = lineBytes * 8 / element.getWidth();
    int64_t lines = llvm::divideCeil(entries, perLine);
    forItems(tokens * lines, [&, tensor = tensor](Value item) {
      Value later = arith::ExtUIOp::create(b, b.getI64Type(), add(over(item, lines), ahead));
      threads.when(below(later, rest), [&] {
        Value at = access.entryOfToken(tensor, arith::AddIOp::create(b, first, later),
                                       times(modulo(item, lines), perLine));
        LLVM::InlineAsmOp::create(b, TypeRange(), ValueRange{at}, "prefetch.global.L2 [$0];", "l",
                                  /*has_side_effects=*/true, /*is_align_stack=*/false,
                                  LLVM::TailCallKind::None, LLVM::AsmDialectAttr(), ArrayAttr());
      });
    });
  }
}

// A number for each token.
ChunkValue ChunkEmitter::loadRows(unsigned tensor) {
  ChunkValue rows = ChunkValue::column(allocateRows(tokens));
  int64_t all = warps * 32;
  for (int64_t round = 0; round < tokens; round += all) {
    Value local = add(threads.threadIndex(), round);
    Value wide = arith::ExtUIOp::create(b, b.getI64Type(), local);
    Value isOwn = round + all > tokens ? below(local, tokens) : Value();
    Value valid = threads.both(isOwn, below(wide, count));
    // By all threads, so that it may run ahead; those past the chunk read what others do.
    Value token = arith::AddIOp::create(b, first, choose(valid, wide, threads.constant(0, 64)));
    Value entry = access.load(tensor, 0, token).entries[0];
    threads.when(isOwn, [&] { storeRow(rows.memory, local, choose(valid, entry, threads.number(0))); });
  }
  dirty = true;
  return rows;
}

// Maps read inputs by themselves, unless they run in order; what else is read lies in shared memory, but for
// one.
LogicalResult ChunkEmitter::emitArguments(ArrayRef<Value> without) {
  auto isDirect = [](Operation *user) {
    auto map = dyn_cast<chunk::MapOp>(user);
    return !map || !map.getCarried().empty();
  };
  unsigned input = 0, param = program.argumentsOf(ArgKind::Input).size();
  for (BlockArgument argument : program.getBody().getArguments()) {
    ArgKind kind = program.getArg(argument.getArgNumber()).getKind();
    unsigned tensor = kind == ArgKind::Input ? input++ : kind == ArgKind::Param ? param++ : 0;
    if (kind == ArgKind::Head || kind == ArgKind::Heads) {
      Value number = kind == ArgKind::Head ? head : heads;
      set(argument, ChunkValue::scalar(arith::SIToFPOp::create(b, b.getF32Type(), number)));
    }
    if (kind == ArgKind::Position) {
      ChunkValue rows = ChunkValue::column(allocateRows(tokens));
      forItems(tokens, [&](Value local) {
        Value wide = arith::ExtUIOp::create(b, b.getI64Type(), local);
        Value at = arith::AddIOp::create(b, position, arith::AddIOp::create(b, first, wide));
        storeRow(rows.memory, local, arith::SIToFPOp::create(b, b.getF32Type(), at));
      });
      dirty = true;
      set(argument, rows);
    }
    if ((kind != ArgKind::Input && kind != ArgKind::Param) || llvm::is_contained(without, argument) ||
        llvm::none_of(argument.getUsers(), isDirect))
      continue;
    auto type = dyn_cast<MatType>(argument.getType());
    if (!type)
      return failure();
    if (kind == ArgKind::Param) {
      int64_t n = type.numElements();
      ChunkValue rows = ChunkValue::column(allocateRows(n));
      rows.dim = isOne(type.getRows());
      forItems(n, [&](Value item) {
        Value zero = threads.constant(0);
        Value entry = LLVM::LoadOp::create(
            b, tensors[tensor].element, access.entry(tensor, rows.dim ? zero : item, rows.dim ? item : zero));
        if (!entry.getType().isF32())
          entry = arith::ExtFOp::create(b, b.getF32Type(), entry);
        storeRow(rows.memory, item, entry);
      });
      dirty = true;
      if (type.isScalar()) {
        sync();
        rows = ChunkValue::scalar(rowAt(rows.memory, threads.constant(0)));
      }
      set(argument, rows);
    } else if (isOne(type.getCols())) {
      set(argument, loadRows(tensor));
    } else {
      bool isF32 = tensors[tensor].element.isF32() || isExact(argument) || !fits(argument);
      ChunkValue tile =
          ChunkValue::tile(allocateTile(argument, cast<IntegerAttr>(type.getCols()).getInt(), isF32));
      copyTile(tensor, tile.memory);
      set(argument, tile);
    }
  }
  return success();
}

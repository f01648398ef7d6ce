#include "lib/Cuda/Threads.h"
#include "lib/Cuda/Ptx.h"
#include "mlir/Dialect/LLVMIR/NVVMDialect.h"
#include "llvm/Support/MathExtras.h"

using namespace mlir;
using namespace recur;
using namespace recur::cuda;

static constexpr int64_t warpSize = 32;

void Threads::begin(Value sharedBase, Value scratchBase) {
  shared = sharedBase;
  scratch = scratchBase;
  thread = NVVM::ThreadIdXOp::create(b, b.getI32Type());
  Value lanes = constant(grid.lanes);
  coordinates[0] = arith::DivUIOp::create(b, thread, lanes);
  if (grid.groups > 1)
    coordinates[0] = arith::RemUIOp::create(b, coordinates[0], constant(grid.extent(0)));
  if (grid.blocks > 1) {
    rank = Ptx(b).assembly("mov.u32 $0, %cluster_ctarank;", b.getI32Type(), {})[0];
    Value before = arith::MulIOp::create(b, rank, constant(grid.threads / grid.lanes));
    coordinates[0] = arith::AddIOp::create(b, coordinates[0], before);
  }
  coordinates[1] = arith::RemUIOp::create(b, thread, lanes);
  lane = arith::RemUIOp::create(b, thread, constant(warpSize));
}

Value Threads::constant(int64_t value, unsigned bits) { return arith::ConstantIntOp::create(b, value, bits); }

Value Threads::number(double value) {
  return arith::ConstantOp::create(b, b.getF32FloatAttr(static_cast<float>(value)));
}

Tile Threads::shape(MatType type, Axis axis) const {
  Layout layout = layoutOf(type, axis);
  return {type, axis, grid.owned(type.numRows(), layout.rows), grid.owned(type.numCols(), layout.cols), {}};
}

Value Threads::index(int axis, int64_t n, int64_t owned) {
  if (axis < 0)
    return constant(0);
  int64_t v = grid.packet(n, axis);
  Value first = arith::MulIOp::create(b, coordinates[axis], constant(v));
  return arith::AddIOp::create(b, first, constant(ownedOffset(axis, n, owned)));
}

int64_t Threads::ownedOffset(int axis, int64_t n, int64_t owned) const {
  int64_t v = grid.packet(n, axis);
  return owned / v * v * grid.extent(axis) + owned % v;
}

Value Threads::valid(int axis, int64_t n, int64_t owned) {
  if (axis < 0 || n % (grid.packet(n, axis) * grid.extent(axis)) == 0)
    return {};
  return arith::CmpIOp::create(b, arith::CmpIPredicate::ult, index(axis, n, owned), constant(n));
}

Value Threads::both(Value x, Value y) { return !x ? y : !y ? x : arith::AndIOp::create(b, x, y).getResult(); }

Value Threads::valid(const Tile &tile, int64_t r, int64_t c) {
  Layout layout = layoutOf(tile.type, tile.axis);
  return both(valid(layout.rows, tile.type.numRows(), r), valid(layout.cols, tile.type.numCols(), c));
}

static bool isUnused(const Grid &grid, const Tile &tile, int axis) {
  Layout layout = layoutOf(tile.type, tile.axis);
  return layout.rows != axis && layout.cols != axis && grid.extent(axis) > 1;
}

bool Threads::hasCopies(const Tile &tile) const { return isUnused(grid, tile, 0) || isUnused(grid, tile, 1); }

Value Threads::isWriter(const Tile &tile) {
  Value condition;
  for (int axis : {0, 1})
    if (isUnused(grid, tile, axis))
      condition =
          both(condition, arith::CmpIOp::create(b, arith::CmpIPredicate::eq, coordinates[axis], constant(0)));
  return condition;
}

void Threads::barrier() {
  if (grid.blocks > 1)
    Ptx(b).meetCluster();
  else if (grid.threads * grid.groups == warpSize)
    NVVM::SyncWarpOp::create(b, constant(-1));
  else
    NVVM::Barrier0Op::create(b);
}

Value Threads::combine(Value x, Value y, Reduction kind) {
  if (kind == Reduction::Sum)
    return arith::AddFOp::create(b, x, y);
  return arith::MaximumFOp::create(b, x, y);
}

Value Threads::identity(Reduction kind) {
  return number(kind == Reduction::Sum ? 0 : -std::numeric_limits<double>::infinity());
}

void Threads::allReduce(MutableArrayRef<Value> entries, int axis, Reduction kind) {
  // Partners exchange sums, so that all end with the same bits.
  auto within = [&](int64_t from, int64_t to) {
    for (int64_t distance = from; distance < to; distance *= 2)
      for (Value &entry : entries) {
        Value other = NVVM::ShflOp::create(b, b.getF32Type(), constant(-1), entry, constant(distance),
                                           constant(warpSize - 1), NVVM::ShflKind::bfly, UnitAttr());
        entry = combine(entry, other, kind);
      }
  };
  if (axis == 1)
    return within(1, grid.lanes);
  within(grid.lanes, std::min(grid.threads, warpSize));
  int64_t warps = grid.blocks * grid.threads / warpSize;
  if (warps <= 1)
    return;
  communicates = true;
  Staged partial = allocate(warps, entries.size() * grid.lanes);
  Value warp = arith::DivUIOp::create(b, thread, constant(warpSize));
  if (grid.blocks > 1)
    warp = arith::AddIOp::create(b, warp, arith::MulIOp::create(b, rank, constant(grid.threads / warpSize)));
  auto column = [&](size_t entry) {
    return arith::AddIOp::create(b, coordinates[1], constant(entry * grid.lanes));
  };
  when(arith::CmpIOp::create(b, arith::CmpIPredicate::ult, lane, constant(grid.lanes)), [&] {
    for (auto [i, entry] : llvm::enumerate(entries))
      give(element(partial, warp, column(i)), entry, /*areCopies=*/false);
  });
  barrier();
  for (auto [i, entry] : llvm::enumerate(entries)) {
    entry = loadElement(partial, constant(0), column(i));
    for (int64_t w = 1; w < warps; ++w)
      entry = combine(entry, loadElement(partial, constant(w), column(i)), kind);
  }
}

Value Threads::sharedAt(int64_t offset) {
  return LLVM::GEPOp::create(b, shared.getType(), b.getI8Type(), shared,
                             ArrayRef<LLVM::GEPArg>{int32_t(offset)});
}

Staged Threads::allocate(int64_t rows, int64_t cols) {
  int64_t bytes = llvm::alignTo(rows * cols * 4, 16);
  bool fits = sharedBytes + bytes <= sharedLimit;
  int64_t &used = fits ? sharedBytes : scratchBytes;
  Value base = fits ? shared : scratch;
  base = LLVM::GEPOp::create(b, base.getType(), b.getI8Type(), base, ArrayRef<LLVM::GEPArg>{int32_t(used)});
  used += bytes;
  return {base, rows, cols, 16};
}

Value Threads::element(const Staged &m, Value row, Value col) {
  Value at = arith::AddIOp::create(b, arith::MulIOp::create(b, row, constant(m.cols)), col);
  return LLVM::GEPOp::create(b, m.base.getType(), b.getF32Type(), m.base, at);
}

Value Threads::loadElement(const Staged &m, Value row, Value col) {
  return LLVM::LoadOp::create(b, b.getF32Type(), element(m, row, col));
}

void Threads::storeElement(const Staged &m, Value row, Value col, Value value) {
  LLVM::StoreOp::create(b, value, element(m, row, col));
}

void Threads::give(Value place, Value value, bool areCopies) {
  if (grid.blocks == 1) {
    LLVM::StoreOp::create(b, value, place);
    return;
  }
  Ptx ptx(b);
  Value address = LLVM::PtrToIntOp::create(b, b.getI32Type(), place);
  value = arith::BitcastOp::create(b, b.getI32Type(), value);
  for (int64_t block = 0; block < grid.blocks; block += areCopies ? grid.lanes : 1) {
    Value to = constant(block);
    if (areCopies) {
      to = arith::AddIOp::create(b, to, coordinates[1]);
      to = arith::RemUIOp::create(b, to, constant(grid.blocks));
    }
    ptx.storeThere(ptx.inBlock(address, to), value);
  }
}

int64_t Threads::widthIn(const Staged &m, const Tile &tile) const {
  Layout layout = layoutOf(tile.type, tile.axis);
  bool alongCols = layout.cols >= 0;
  int axis = alongCols ? layout.cols : layout.rows;
  int64_t n = alongCols ? tile.type.numCols() : tile.type.numRows();
  int64_t width = axis < 0 ? 1 : grid.packet(n, axis);
  bool areTogether = alongCols ? m.cols % width == 0 : m.cols == 1;
  return areTogether && n % width == 0 && m.alignment % (4 * width) == 0 ? width : 1;
}

// Calls `body(r, c)` for the first of each packet of a tile's entries.
static void forPackets(const Tile &tile, int64_t width, llvm::function_ref<void(int64_t, int64_t)> body) {
  bool alongCols = layoutOf(tile.type, tile.axis).cols >= 0;
  for (int64_t r = 0; r < tile.rows; r += alongCols ? 1 : width)
    for (int64_t c = 0; c < tile.cols; c += alongCols ? width : 1)
      body(r, c);
}

void Threads::store(const Staged &to, const Tile &tile) {
  communicates = true;
  Layout layout = layoutOf(tile.type, tile.axis);
  int64_t width = widthIn(to, tile);
  when(isWriter(tile), [&] {
    forPackets(tile, width, [&](int64_t r, int64_t c) {
      when(valid(tile, r, c), [&] {
        Value at = element(to, index(layout.rows, tile.type.numRows(), r),
                           index(layout.cols, tile.type.numCols(), c));
        Value stored = tile.at(r, c);
        if (width > 1) {
          stored = LLVM::PoisonOp::create(b, VectorType::get(width, Type(b.getF32Type())));
          for (int64_t i = 0; i < width; ++i)
            stored =
                LLVM::InsertElementOp::create(b, stored, tile.entries[r * tile.cols + c + i], constant(i));
        }
        LLVM::StoreOp::create(b, stored, at, 4 * width);
      });
    });
  });
}

Tile Threads::load(const Staged &from, MatType type, Axis axis) {
  Tile tile = shape(type, axis);
  Layout layout = layoutOf(type, axis);
  int64_t width = widthIn(from, tile);
  Type loaded = b.getF32Type();
  if (width > 1)
    loaded = VectorType::get(width, loaded);
  forPackets(tile, width, [&](int64_t r, int64_t c) {
    Value exists = valid(tile, r, c), row = index(layout.rows, type.numRows(), r),
          col = index(layout.cols, type.numCols(), c);
    // What is past the end reads the first entry and drops it.
    if (exists) {
      row = arith::SelectOp::create(b, exists, row, constant(0));
      col = arith::SelectOp::create(b, exists, col, constant(0));
    }
    Value packet = LLVM::LoadOp::create(b, loaded, element(from, row, col), 4 * width);
    for (int64_t i = 0; i < width; ++i) {
      Value entry = width > 1 ? LLVM::ExtractElementOp::create(b, packet, constant(i)).getResult() : packet;
      tile.entries.push_back(exists ? arith::SelectOp::create(b, exists, entry, number(0)).getResult()
                                    : entry);
    }
  });
  return tile;
}

scf::ForOp Threads::forLoop(Value begin, Value end, Value step, ValueRange carried,
                            llvm::function_ref<SmallVector<Value>(Value, ValueRange)> body) {
  auto loop = scf::ForOp::create(b, begin, end, step, carried);
  OpBuilder::InsertionGuard guard(b);
  b.setInsertionPointToStart(loop.getBody());
  SmallVector<Value> next = body(loop.getInductionVar(), loop.getRegionIterArgs());
  if (!carried.empty())
    scf::YieldOp::create(b, next);
  return loop;
}

void Threads::when(Value condition, llvm::function_ref<void()> body) {
  if (!condition)
    return body();
  auto branch = scf::IfOp::create(b, condition, /*withElseRegion=*/false);
  OpBuilder::InsertionGuard guard(b);
  b.setInsertionPoint(branch.thenBlock()->getTerminator());
  body();
}

#include "lib/Cuda/HeldProducts.h"
#include "lib/Cuda/Cores.h"
#include "lib/Cuda/ParamProducts.h"
#include "lib/Cuda/Sequential.h"
#include "mlir/Dialect/LLVMIR/NVVMDialect.h"
#include "llvm/Support/MathExtras.h"

using namespace mlir;
using namespace recur;
using namespace recur::cuda;

static constexpr int64_t columnsOfStep = 16, lanesOfQuad = 4, registersOfOperand = 4, aWarp = 32;

bool cuda::followsFromParams(Value value) {
  if (Operation *op = value.getDefiningOp())
    return op->getNumRegions() == 0 && llvm::all_of(op->getOperands(), followsFromParams);
  auto argument = cast<BlockArgument>(value);
  auto rule = dyn_cast<RuleOp>(argument.getOwner()->getParentOp());
  return rule && rule.getArg(argument).getKind() == ArgKind::Param;
}

bool cuda::isHeldProduct(Operation *op) {
  if (!isProduct(op) || !isa<RuleOp>(op->getParentOp()) || isMatrix(op->getResult(0)))
    return false;
  Value vector = HeldProducts::vectorOf(cast<MatmulOp>(op));
  Value matrix = op->getOperand(op->getOperand(0) == vector);
  return followsFromParams(matrix) && !followsFromParams(vector);
}

Value HeldProducts::vectorOf(MatmulOp op) { return isMatrix(op.getLhs()) ? op.getRhs() : op.getLhs(); }

HeldProducts::Side HeldProducts::matrixOf(MatmulOp op) {
  return isMatrix(op.getLhs()) ? Side(op.getLhs(), 1) : Side(op.getRhs(), 0);
}

int64_t cuda::partsOfMatrix(Value matrix, ArrayRef<TensorArgument> tensors) {
  bool isWide = false;
  for (const TensorArgument &tensor : tensors)
    isWide |= tensor.argument && isMatrix(tensor.argument) && !tensor.hasToken && tensor.element.isF32();
  while (auto transpose = matrix.getDefiningOp<TransposeOp>())
    matrix = transpose.getOperand();
  auto *tensor = llvm::find_if(tensors, [&](const auto &t) { return t.argument == matrix; });
  if (tensor != tensors.end())
    return tensor->element.isBF16() ? 1 : tensor->element.isF16() ? 2 : 3;
  return isWide ? 3 : 2;
}

// Registers that a rule's matrices take of a thread.
static int64_t registersOfHeld(Block &body, ArrayRef<TensorArgument> tensors, const Grid &grid) {
  llvm::SmallDenseSet<HeldProducts::Side> counted;
  int64_t registers = 0;
  for (MatmulOp op : body.getOps<MatmulOp>()) {
    if (!isHeldProduct(op) || !counted.insert(HeldProducts::matrixOf(op)).second)
      continue;
    Value matrix = HeldProducts::matrixOf(op).first;
    int64_t rows = matType(op).numElements(), depth = matType(HeldProducts::vectorOf(op)).numElements();
    registers += grid.owned(rows, 0) / 2 * llvm::divideCeil(depth, columnsOfStep) * registersOfOperand *
                 partsOfMatrix(matrix, tensors);
  }
  return registers;
}

// The distance of a vector's parts: those that are read together lie in other banks.
static int64_t strideOf(int64_t entries, const Grid &grid) {
  return llvm::alignTo(2 * grid.owned(entries, 0) * grid.extent(0), 64) + 32;
}

int64_t cuda::partsOfVectors(ArrayRef<TensorArgument> tensors) { return areNarrow(tensors) ? 2 : 3; }

// Shared memory for what follows from a batch of tokens alone, twice, one of a warp's each at least, and for
// what threads exchange of a round's two tokens and of one by itself.
static int64_t sharedOfTokens(Block &body, ArrayRef<TensorArgument> tensors, const Grid &grid) {
  constexpr int64_t ofBatches = 48 << 10, rounds = 3;
  int64_t exchanged = 0, bytes = 0;
  llvm::SmallDenseSet<Value> vectors;
  for (Operation &op : body) {
    if (isHeldProduct(&op)) {
      Value vector = HeldProducts::vectorOf(cast<MatmulOp>(op));
      if (vectors.insert(vector).second)
        exchanged += partsOfVectors(tensors) * strideOf(matType(vector).numElements(), grid);
    } else if (isa<ReduceOp, MatmulOp>(op)) { // a number of each warp and lane
      exchanged += 4 * grid.blocks * grid.threads / aWarp * grid.lanes;
    }
  }
  for (const TensorArgument &tensor : tensors)
    if (tensor.hasToken && tensor.argument && !tensor.argument.use_empty())
      bytes += llvm::alignTo(tensor.entry().numElements() * 4, 16);
  return std::max(ofBatches, 2 * grid.threads / aWarp * bytes) + rounds * exchanged;
}

// Whether blocks of a cluster that share out axis 0 can compute a rule's body: entry by entry, by such
// products and by sums.
static bool canShareOut(RuleOp rule, const Grid &grid) {
  Placement placement(rule, grid);
  auto isMoved = [&](Value value) {
    return isa<MatType>(value.getType()) && !isMatrix(value) && !isNumber(value) && placement.needs(value, 1);
  };
  return llvm::none_of(rule.getBody().front(), [&](Operation &op) {
    return op.getNumRegions() || (isProduct(&op) && !isHeldProduct(&op)) ||
           llvm::any_of(op.getResults(), isMoved) || llvm::any_of(op.getOperands(), isMoved);
  });
}

std::optional<Grid> cuda::gridOfHeld(RuleOp rule, ArrayRef<TensorArgument> tensors, const Chip &chip) {
  constexpr int64_t rowsOfThread = 2, mostThreads = 512, registersOfBlock = 65536, mostRegisters = 255;
  // For all else of a token, and of each product; with fewer some are kept in memory, with a few none are
  // left.
  constexpr int64_t ofToken = 56, ofProduct = 8, fewOthers = 48;
  const int64_t mostBlocks = chip.hasWarpgroups() ? 8 : 1;
  if (llvm::any_of(rule.argumentsOf(ArgKind::State), isMatrix))
    return std::nullopt;
  int64_t rows = 0, others = ofToken;
  for (MatmulOp op : rule.getBody().getOps<MatmulOp>())
    if (isHeldProduct(op)) {
      rows = std::max(rows, matType(op).numElements());
      others += ofProduct;
    }
  if (!rows)
    return std::nullopt;
  Grid grid;
  grid.lanes = lanesOfQuad;
  for (; grid.blocks <= mostBlocks; grid.blocks *= 2) {
    int64_t threads = llvm::divideCeil(rows, rowsOfThread * grid.blocks) * lanesOfQuad;
    grid.threads = std::min<int64_t>(llvm::alignTo(threads, aWarp), mostThreads);
    int64_t all = registersOfHeld(rule.getBody().front(), tensors, grid);
    // Each quarter of a processor has a fourth of the registers, and of the warps.
    int64_t ofThread =
        std::min<int64_t>(registersOfBlock / llvm::alignTo(grid.threads, 4 * aWarp), mostRegisters);
    int64_t inShared =
        (chip.sharedBytes - sharedOfTokens(rule.getBody().front(), tensors, grid)) / (4 * grid.threads);
    grid.heldRegisters =
        llvm::alignTo(std::max(std::min(all, ofThread - others), all - inShared), registersOfOperand);
    if (grid.blocks > 1 && !canShareOut(rule, grid))
      return std::nullopt;
    if (grid.heldRegisters <= ofThread - fewOthers)
      return grid;
  }
  return std::nullopt;
}

HeldProducts::HeldProducts(Threads &threads, ArrayRef<TensorArgument> tensors, Block &body)
    : threads(threads), b(threads.b), fragments(threads), tensors(tensors),
      all(registersOfHeld(body, tensors, threads.grid) / registersOfOperand),
      held(threads.grid.heldRegisters / registersOfOperand) {
  if (held < all)
    others = threads.allocate((all - held) * threads.grid.threads, registersOfOperand).base;
}

SmallVector<Value> cuda::partsOf(Threads &threads, Value low, Value high, int64_t parts) {
  Fragments fragments(threads);
  ImplicitLocOpBuilder &b = threads.b;
  SmallVector<Value> pairs;
  for (int64_t part = 0; part < parts; ++part) {
    pairs.push_back(fragments.pack(low, high));
    if (part + 1 == parts)
      break;
    auto [ofLow, ofHigh] = fragments.unpack(pairs.back());
    low = arith::SubFOp::create(b, low, ofLow);
    high = arith::SubFOp::create(b, high, ofHigh);
  }
  return pairs;
}

void HeldProducts::hold(MatmulOp op, const Tile &tile) {
  if (holds(op)) // as another product's
    return;
  auto [key, summed] = matrixOf(op);
  bool sumsRows = summed == 0;
  Layout layout = layoutOf(tile.type, tile.axis);
  int64_t rows = sumsRows ? tile.cols : tile.rows, depth = sumsRows ? tile.rows : tile.cols;
  auto entry = [&](int64_t row, int64_t at) -> Value {
    if (at >= depth)
      return threads.number(0);
    int64_t r = sumsRows ? at : row, c = sumsRows ? row : at;
    Value exists = threads.both(threads.valid(layout.rows, tile.type.numRows(), r),
                                threads.valid(layout.cols, tile.type.numCols(), c));
    return exists ? arith::SelectOp::create(b, exists, tile.at(r, c), threads.number(0)).getResult()
                  : tile.at(r, c);
  };
  Matrix &matrix = matrices[matrixOf(op)];
  matrix = {rows / 2, (depth + 3) / 4, partsOfMatrix(key, tensors), {}};
  for (int64_t pair = 0; pair < matrix.pairs; ++pair)
    for (int64_t step = 0; step < matrix.steps; ++step) {
      std::vector<Operand> operands(matrix.parts, Operand(registersOfOperand));
      for (int64_t i = 0; i < registersOfOperand; ++i) {
        int64_t row = 2 * pair + i % 2, at = 4 * step + i / 2 * 2;
        for (auto [part, packed] :
             llvm::enumerate(partsOf(threads, entry(row, at), entry(row, at + 1), matrix.parts)))
          operands[part][i] = packed;
      }
      llvm::append_range(matrix.operands, operands);
    }
  // Those in shared memory are spread evenly, so that they are on their way while others are multiplied.
  for (Operand &operand : matrix.operands) {
    if (others && (seen + 1) * held / all == seen * held / all)
      operand = {leave(operand)};
    ++seen;
  }
}

// Stores an operand in a place of the thread's own.
Value HeldProducts::leave(const Operand &operand) {
  constexpr int64_t bytes = 4 * registersOfOperand;
  Value own = arith::MulIOp::create(b, threads.threadIndex(), threads.constant(bytes));
  own = arith::AddIOp::create(b, own, threads.constant(left++ * threads.grid.threads * bytes));
  Value place = LLVM::GEPOp::create(b, others.getType(), b.getI8Type(), others, own);
  Value all = LLVM::PoisonOp::create(b, VectorType::get(registersOfOperand, Type(b.getI32Type())));
  for (auto [k, packed] : llvm::enumerate(operand))
    all = LLVM::InsertElementOp::create(b, all, packed, threads.constant(k));
  LLVM::StoreOp::create(b, all, place, bytes);
  return place;
}

// An operand in registers.
HeldProducts::Operand HeldProducts::fetch(const Operand &operand) {
  if (operand.size() == registersOfOperand)
    return operand;
  Type type = VectorType::get(registersOfOperand, Type(b.getI32Type()));
  Value all = LLVM::LoadOp::create(b, type, operand.front(), 4 * registersOfOperand);
  Operand fetched;
  for (int64_t k = 0; k < registersOfOperand; ++k)
    fetched.push_back(LLVM::ExtractElementOp::create(b, all, threads.constant(k)));
  return fetched;
}

void HeldProducts::share(Value value, const Tile &tile) {
  int64_t parts = partsOfVectors(tensors), n = tile.type.numElements();
  Vector &vector = vectors[value];
  vector.entries = n;
  vector.stride = strideOf(n, threads.grid);
  vector.base = threads.allocate(parts, vector.stride / 4).base;
  threads.communicates = true;
  for (size_t e = 0; e < tile.entries.size(); e += 2) {
    Value pair[2];
    for (int64_t i : {0, 1}) {
      Value exists = threads.valid(0, n, e + i);
      pair[i] = exists ? arith::SelectOp::create(b, exists, tile.entries[e + i], threads.number(0))
                       : tile.entries[e + i];
    }
    Value at = arith::MulIOp::create(b, threads.index(0, n, e), threads.constant(2));
    for (auto [part, packed] : llvm::enumerate(partsOf(threads, pair[0], pair[1], parts))) {
      Value place = arith::AddIOp::create(b, at, threads.constant(part * vector.stride));
      threads.give(LLVM::GEPOp::create(b, vector.base.getType(), b.getI8Type(), vector.base, place), packed,
                   /*areCopies=*/true);
    }
  }
}

// A lane of column g reads the part whose turn that is.
std::vector<HeldProducts::Operand> HeldProducts::read(const Vector &vector) {
  bool isNarrow = areNarrow(tensors);
  Value column = arith::RemUIOp::create(b, threads.coordinate(0), threads.constant(isNarrow ? 2 : 4));
  Value isNone;
  if (!isNarrow) {
    isNone = arith::CmpIOp::create(b, arith::CmpIPredicate::eq, column, threads.constant(3));
    column = arith::SelectOp::create(b, isNone, threads.constant(0), column);
  }
  Value base = arith::MulIOp::create(b, column, threads.constant(vector.stride));
  int64_t packet = threads.grid.packet(vector.entries, 1), owned = threads.grid.owned(vector.entries, 1);
  Type words = VectorType::get(packet / 2, b.getI32Type());
  SmallVector<Value> pairs;
  for (int64_t e = 0; e < owned; e += packet) {
    Value at = arith::MulIOp::create(b, threads.index(1, vector.entries, e), threads.constant(2));
    at = arith::AddIOp::create(b, at, base);
    at = LLVM::GEPOp::create(b, vector.base.getType(), b.getI8Type(), vector.base, at);
    Value loaded = LLVM::LoadOp::create(b, words, at, 2 * packet);
    for (int64_t i = 0; i < packet / 2; ++i) {
      Value pair = LLVM::ExtractElementOp::create(b, loaded, threads.constant(i));
      pairs.push_back(isNone ? arith::SelectOp::create(b, isNone, threads.constant(0), pair) : pair);
    }
  }
  if (pairs.size() % 2)
    pairs.push_back(threads.constant(0));
  std::vector<Operand> operands;
  for (size_t i = 0; i < pairs.size(); i += 2)
    operands.push_back({pairs[i], pairs[i + 1]});
  return operands;
}

// Step by step for all matrices, so that no sum waits for its last term, and operands are needed once.
void HeldProducts::multiply(Value vector, Block &body) {
  constexpr int64_t sumsAtATime = 4;
  SmallVector<MatmulOp> ops;
  int64_t count = 0;
  for (MatmulOp op : body.getOps<MatmulOp>())
    if (holds(op) && vectorOf(op) == vector) {
      ops.push_back(op);
      count += matrices.find(matrixOf(op))->second.pairs;
    }
  std::vector<Operand> right = read(vectors.find(vector)->second);
  int64_t steps = right.size(),
          chains = llvm::bit_floor<uint64_t>(std::clamp<int64_t>(sumsAtATime / count, 1, steps));
  std::vector<SmallVector<Value>> sums(count * chains, SmallVector<Value>(4, threads.number(0)));
  for (int64_t step = 0; step < steps; ++step) {
    int64_t first = step % chains * count;
    for (MatmulOp op : ops) {
      const Matrix &matrix = matrices.find(matrixOf(op))->second;
      for (int64_t pair = 0; pair < matrix.pairs; ++pair, ++first)
        for (int64_t part = 0; part < matrix.parts; ++part)
          fragments.multiply(sums[first], fetch(matrix.operands[(pair * steps + step) * matrix.parts + part]),
                             right[step]);
    }
  }
  int64_t first = 0;
  for (MatmulOp op : ops) {
    Tile tile = threads.shape(op.getType(), 0);
    for (int64_t pair = 0; pair < matrices.find(matrixOf(op))->second.pairs; ++pair, ++first)
      for (int64_t row : {0, 1}) {
        SmallVector<Value> all;
        for (int64_t chain = 0; chain < chains; ++chain)
          for (int64_t column : {0, 1})
            all.push_back(sums[chain * count + first][2 * row + column]);
        tile.entries.push_back(sumOf(all));
      }
    products[op] = std::move(tile);
  }
}

// The sum of a power of two of a lane's parts and, of three parts, of its neighbour's.
Value HeldProducts::sumOf(SmallVector<Value> all) {
  for (; all.size() > 1; all.truncate(all.size() / 2))
    for (size_t i = 0; i < all.size() / 2; ++i)
      all[i] = arith::AddFOp::create(b, all[i], all[i + all.size() / 2]);
  if (areNarrow(tensors))
    return all.front();
  Value other =
      NVVM::ShflOp::create(b, b.getF32Type(), threads.constant(-1), all.front(), threads.constant(1),
                           threads.constant(aWarp - 1), NVVM::ShflKind::bfly, UnitAttr());
  return arith::AddFOp::create(b, all.front(), other);
}

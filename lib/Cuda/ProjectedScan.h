// The kernel of states that go on entry by entry between products of a token's vectors and params.
//
// A warp has some rows of all matrices and of the states, and walks the tokens with them. The results of its
// products are fragments whose columns are tokens: which ones is free, so a thread has columns that are
// tokens in a row, and four lanes those of a tile. What a thread's tokens make of an entry of a state is a
// map, which it finds by itself; four maps are put together by shuffles, and no warp waits for another but
// for the vectors that products read: inputs, on their way to shared memory a few tiles ahead, and what
// follows from products, which warps hand to one another there.
#pragma once
#include "lib/Cuda/Chunked.h"
#include "lib/Cuda/Cores.h"
#include "lib/Cuda/ParamProducts.h"
#include "lib/Cuda/Ptx.h"
#include "lib/Cuda/RuleFrame.h"
#include "lib/Cuda/Scan.h"
#include "lib/Cuda/ScanMaps.h"
#include "llvm/Support/MathExtras.h"

namespace recur::cuda {

/// How a block works: lanes of eight a warp share out the entries, four of them take `run` tokens in a row
/// each.
struct ProjectedShape {
  static constexpr int64_t turns = 4;
  Grid grid;
  int64_t run = 8;
  /// Tiles of inputs in shared memory.
  int64_t places = 3;
  /// Whether the matrices are kept in registers, or in shared memory.
  bool inRegisters = false;
  /// Products are those of warpgroups, and run one tile ahead of all else where they are of inputs. One more
  /// warpgroup brings these.
  bool byWarpgroups = false;

  /// Of each state, which input of tokens before it is.
  llvm::SmallVector<Delay> delays;
  /// Of the entries that a head's blocks share out, those of one.
  int64_t slab = 0;
  /// A vector is longer than what a block has threads for.
  bool isLarge = false;

  /// Takes less shared memory, if that is possible.
  bool shrink();
  int64_t tokens() const { return turns * run; }
  /// Threads that walk the tokens, those that bring inputs, and how many blocks share a processor.
  int64_t walkers() const { return grid.threads * grid.groups; }
  int64_t bringers() const { return byWarpgroups ? 128 : 0; }
  int64_t blocksOfProcessor() const { return std::max<int64_t>(1, 256 / walkers()); }
};

/// The shape for a rule that findScan has rewritten, or nothing where it has no such products, or does more
/// than products, sums over entries and functions entry by entry.
std::optional<ProjectedShape> chooseProjectedShape(RuleOp rule, llvm::ArrayRef<TensorArgument> tensors,
                                                   bool hasWarpgroups);

/// Emits the body of an entry point. Fails, and says nothing, where shared memory has no room.
mlir::LogicalResult emitProjectedScan(mlir::LLVM::LLVMFuncOp function, RuleOp rule, const ScanForm &form,
                                      llvm::ArrayRef<TensorArgument> tensors, const ProjectedShape &shape,
                                      ScanTask task, int64_t sharedLimit, Entry &entry);

/// The phase whose states go on from segment to segment, where those of all others are inputs of tokens
/// before; or nothing.
std::optional<unsigned> phaseOfSegments(const ScanForm &form, llvm::ArrayRef<Delay> delays);

/// Whether warps make an operation's result together: a product with a param, or a sum over entries.
bool isShared(mlir::Operation *op);

/// Emits one entry point.
class ProjectedScan : RuleFrame {
  static constexpr int64_t bytesOfLine = 128; // of swizzled rows

public:
  ProjectedScan(mlir::ImplicitLocOpBuilder &b, RuleOp rule, const ScanForm &form,
                llvm::ArrayRef<TensorArgument> tensors, const ProjectedShape &shape,
                const Placement &placement, ScanTask task, Entry &entry)
      : RuleFrame(b, rule, tensors, shape.grid, placement), form(form), shape(shape), task(task),
        entry(entry), maps(threads) {}

  mlir::LogicalResult run(mlir::LLVM::LLVMFuncOp function, int64_t sharedLimit);

private:
  // The vectors of a tile's tokens in shared memory, a row for each: in the order of tokens, the next run
  // some bytes further on; or, swizzled, in that of a product's columns, blocks of 64 entries.
  struct Rows {
    int64_t at = 0, entries = 0;
    mlir::FloatType element;
    bool isSwizzled = false;

    int64_t entryBytes() const { return element.getIntOrFloatBitWidth() / 8; }
    // Rows are a packet longer than a multiple of 32 bytes, and runs two, so that what a warp reads at once
    // lies in different banks.
    int64_t pitch() const { return llvm::alignTo(entries * entryBytes(), 32) + 16; }
    int64_t ofRun(int64_t run) const { return run * pitch() + 32; }
    int64_t ofBlock(const ProjectedShape &shape) const { return shape.tokens() * bytesOfLine; }
    int64_t bytes(const ProjectedShape &shape) const {
      return isSwizzled ? llvm::divideCeil(entries, 64) * ofBlock(shape) : shape.turns * ofRun(shape.run);
    }
  };
  // A matrix: of each of a warp's tiles of 16 rows, and each 16 of depth, what a lane reads.
  struct Weights {
    ParamProduct of;
    int64_t tiles = 0, steps = 0;
    int64_t at = 0;                           // in shared memory
    llvm::SmallVector<Values> fragments = {}; // in registers
    int64_t blocks() const { return llvm::divideCeil(of.depth, 64); }
    int64_t bytes(int64_t warps, bool byWarpgroups) const;
  };
  using Tokens = llvm::MutableArrayRef<BodyEmitter>;

  mlir::Value i64(int64_t n) { return threads.constant(n, 64); }
  bool isWanted(mlir::Operation *op) const;
  void findLevels();
  bool layOut(int64_t sharedLimit);
  llvm::SmallVector<MatmulOp> productsOf(unsigned level);
  llvm::SmallVector<mlir::Operation *> sumsOf(unsigned level);

  // Shared memory (ProjectedTiles.cpp).
  Rows rowsOf(int64_t entries, mlir::FloatType element, bool isFactor);
  mlir::Value sharedAt(mlir::Value bytes, int64_t more = 0);
  mlir::Value ownRow(mlir::Value base, const Rows &rows, int64_t token, mlir::Value entry);
  mlir::Value packetOf(const Rows &rows, mlir::Value token, mlir::Value packet);
  void clearRows();
  void ask(TensorAccess &access, mlir::Value first, mlir::Value tile);
  void take(TensorAccess &access, Tokens tokens, mlir::Value tile);
  mlir::Value copyOf(const Rows &rows, mlir::Value tile);
  void handOver(mlir::Value vector, Tokens tokens, mlir::Value tile);

  // Products (ProjectedProducts.cpp).
  void loadWeights(TensorAccess &access);
  Values loadWeight(TensorAccess &access, const Weights &weights, int64_t tile, mlir::Value step);
  void storeWeight(const Weights &weights, int64_t tile, mlir::Value step, mlir::ValueRange words);
  Values weight(const Weights &weights, int64_t tile, int64_t step);
  const Weights &weightsOf(MatmulOp op) const;
  const Rows &rowsOf(MatmulOp op) const;
  bool isOfInput(MatmulOp op) const;
  mlir::Value addressOf(const Rows &rows, mlir::Value tile);
  void setResult(MatmulOp op, Tokens tokens, llvm::ArrayRef<Values> sums);
  void multiply(llvm::ArrayRef<MatmulOp> products, Tokens tokens, mlir::Value tile);
  void multiplyByWarps(llvm::ArrayRef<MatmulOp> products, Tokens tokens, mlir::Value tile);
  llvm::SmallVector<Pending> startProducts(llvm::ArrayRef<MatmulOp> products, mlir::Value tile);
  void meet(bool isRead = true);

  // Sums over entries (ProjectedSums.cpp).
  void sumUp(llvm::ArrayRef<mlir::Operation *> sums, Tokens tokens, mlir::Value tile);

  // Places of the ring that are full, and empty again (ProjectedRing.cpp).
  void initRing();
  mlir::Value barrierOf(bool full, mlir::Value tile);
  mlir::Value placeOf(mlir::Value tile);
  void awaitTile(mlir::Value tile);
  void releaseTile(mlir::Value tile);
  void bring(TensorAccess &access);

  // The walk.
  mlir::LogicalResult walk(TensorAccess &access, Tokens tokens, mlir::Value tile);
  void exchange(const ScanGroup &group, Tokens tokens);
  mlir::Value fromTurn(mlir::Value x, mlir::Value before, int64_t distance);
  mlir::Value fromLast(mlir::Value x);
  llvm::SmallVector<mlir::Value> fetchNumbers(TensorAccess &access, mlir::Value begin);
  void setNumbers(TensorAccess &access, Tokens tokens, mlir::ValueRange fetched);
  void storeOutputs(TensorAccess &access, Tokens tokens, mlir::Value begin, mlir::Value first);
  void storeFinals(TensorAccess &access, Tokens tokens, mlir::Value begin, mlir::Value first);
  void runTiles(TensorAccess &access);
  void walkPart(TensorAccess &access, const Part &part);

  // Segments.
  bool isGathered(const ScanGroup &group) const;
  llvm::ArrayRef<ScanGroup> mapped() const { return form.phases[*phaseOfSegments(form, shape.delays)]; }
  void setDelayed(TensorAccess &access, const Part &part);
  int64_t bytesOfMaps() const;
  Staged mapsOf(mlir::Value block);
  void beginSegment(const Part &part);
  void storeMaps(const Part &part);

  const ScanForm &form;
  const ProjectedShape &shape;
  ScanTask task;
  Entry &entry;
  MapBuilder maps;
  mlir::LogicalResult status = mlir::success();
  mlir::Value lane, warp, turn; // of four lanes, which takes which tokens
  mlir::Value scratch;
  mlir::Value isLastPart; // whether states after this part are final; null: they are

  // What is known once so many exchanges and products were made: an op's operands; a phase's states.
  llvm::DenseMap<mlir::Operation *, unsigned> levels;
  llvm::SmallVector<unsigned> begins;
  unsigned lastLevel = 0;
  llvm::DenseSet<mlir::Operation *> gatheredOps; // what the maps of segments follow from

  llvm::DenseMap<unsigned, Rows> ringed; // inputs, by tensor
  int64_t ringBytes = 0;                 // of one place
  llvm::DenseMap<mlir::Value, Rows> handed;
  int64_t rowsEnd = 0, sharedBytes = 0;   // matrices lie behind the rows, barriers last
  int64_t handedBytes = 0, sumsBytes = 0; // of the tiles of one parity
  int64_t sumsAt = 0, ringAt = 0;
  llvm::DenseMap<mlir::Operation *, int64_t> sumPlaces;
  llvm::SmallVector<Weights> weights;

  llvm::DenseMap<unsigned, llvm::SmallVector<Tile>> after; // a tile, states in their layouts
  // Products that run a tile ahead, and what they gave for this one: of each, and of each tile of rows.
  llvm::SmallVector<MatmulOp> ahead;
  llvm::SmallVector<Values> aheadSums;
  struct Gathered {
    const ScanGroup *group;
    Tile tile;
    llvm::SmallVector<EntryMap> entries;
  };
  llvm::SmallVector<Gathered> gathered;
};

} // namespace recur::cuda

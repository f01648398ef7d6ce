// A scan's kernel, piece by piece.
#pragma once
#include "lib/Cuda/Chunked.h"
#include "lib/Cuda/RuleFrame.h"
#include "lib/Cuda/Scan.h"
#include "lib/Cuda/ScanMaps.h"

namespace recur::cuda {

/// Emits one entry point.
class ScanEmitter : RuleFrame {
public:
  ScanEmitter(mlir::ImplicitLocOpBuilder &b, RuleOp rule, const ScanForm &form,
              llvm::ArrayRef<TensorArgument> tensors, const ScanShape &shape, const Placement &placement,
              ScanTask task, Entry &entry)
      : RuleFrame(b, rule, tensors, shape.grid, placement), form(form), shape(shape), task(task),
        entry(entry), builder(threads) {}

  mlir::LogicalResult run(mlir::LLVM::LLVMFuncOp function, int64_t sharedLimit);

private:
  // Maps of the entries of one layout of a group's states.
  struct TileMaps {
    const MapBoard *board;
    Tile tile; // its shape
    llvm::SmallVector<EntryMap> entries;
  };
  // Some tokens in a row: what is known of each, and which count (null: it does).
  struct Run {
    std::vector<BodyEmitter> bodies;
    llvm::SmallVector<mlir::Value> valid;
    mlir::Value begin;
  };

  bool isGrouped() const { return shape.grid.groups > 1; }
  mlir::Value i64(int64_t n) { return threads.constant(n, 64); }
  void findStages();
  void makeBoards();
  Run startRun(TensorAccess &access, mlir::ValueRange fetched, mlir::Value begin, int64_t count);
  llvm::SmallVector<mlir::Value> fetchRun(TensorAccess &access, mlir::Value begin, int64_t count);
  // Inputs of tiles to come in shared memory (ScanRing.cpp).
  bool makeRing(TensorAccess &access);
  mlir::Value inRing(mlir::Value place, int64_t offset);
  void askTile(TensorAccess &access, mlir::Value begin, mlir::Value place);
  mlir::Value tokenOfThread();
  llvm::SmallVector<mlir::Value> askNumbers(TensorAccess &access, mlir::Value begin);
  void storeNumbers(llvm::ArrayRef<mlir::Value> numbers, mlir::Value place);
  llvm::SmallVector<mlir::Value> takeTile(TensorAccess &access, mlir::Value place);
  using TileBody = llvm::function_ref<llvm::SmallVector<mlir::Value>(
      mlir::Value first, mlir::ValueRange carried, mlir::ValueRange fetched)>;
  using BeginFunction = llvm::function_ref<mlir::Value(mlir::Value first)>;
  llvm::SmallVector<mlir::Value> forTilesInRing(TensorAccess &access, llvm::ArrayRef<mlir::Value> inits,
                                                BeginFunction beginOf, TileBody body);
  llvm::SmallVector<mlir::Value> forTiles(TensorAccess &access, llvm::ArrayRef<mlir::Value> inits,
                                          BeginFunction beginOf, TileBody body);
  mlir::LogicalResult emitOps(BodyEmitter &token, std::optional<unsigned> stage);
  mlir::LogicalResult walkAlone(TensorAccess &access, Run &run, mlir::Value writes);
  mlir::LogicalResult walkGroups(TensorAccess &access, Run &run);
  void advance(unsigned state, BodyEmitter &token, mlir::Value valid);
  void storeOutputs(TensorAccess &access, Run &run, mlir::Value writes);

  llvm::SmallVector<TileMaps> makeMaps(unsigned phase);
  void addToken(llvm::SmallVectorImpl<TileMaps> &maps, BodyEmitter &token, mlir::Value valid);
  void exchange(llvm::MutableArrayRef<TileMaps> maps, bool gather);
  void combineRuns(const MapBoard &board, bool gather);
  Staged row(const Staged &rows, mlir::Value first, int64_t more, const MapBoard &board);
  void storeTile(const Staged &to, const Tile &tile);
  void forEntries(const MapBoard &board, llvm::function_ref<void(mlir::Value)> body);
  void carryStates();
  void beginSegment(const Part &part);
  mlir::Value scratchOf(mlir::Value block);
  void loadCarried();

  llvm::SmallVector<mlir::Value> carried();
  void setAllCarried(mlir::ValueRange values);
  void beginTiles();
  void endTiles();
  mlir::LogicalResult runTiles(TensorAccess &access);
  mlir::LogicalResult runShort(TensorAccess &access);

  // Tokens by products (ScanQuads.h).
  struct Quads;
  mlir::LogicalResult runSums(TensorAccess &access);
  mlir::LogicalResult sumTile(Quads &quads, mlir::Value first, mlir::Value place);
  void fillTable(Quads &quads, llvm::ArrayRef<mlir::Value> factors, llvm::ArrayRef<mlir::Value> weights);
  mlir::Value weightedScores(Quads &quads, const SumReads::Read &read, llvm::ArrayRef<mlir::Value> scores,
                             int64_t which);
  void storeRun(Quads &quads);
  llvm::SmallVector<mlir::Value> readStart(Quads &quads);

  const ScanForm &form;
  const ScanShape &shape;
  ScanTask task;
  Entry &entry;
  MapBuilder builder;
  llvm::SmallVector<llvm::SmallVector<MapBoard>> boards; // of each phase
  llvm::SmallVector<TileMaps> gathered; // of the tokens so far, where each thread has its own
  llvm::DenseMap<mlir::Operation *, unsigned> stages;
  mlir::Value group; // of this thread; null if there is one
  mlir::Value scratch;
  // The ring, the bytes of one of its places, and where in it a tensor's tokens are, each of so many bytes.
  Staged ring;
  int64_t ringBytes = 0;
  struct Ringed {
    unsigned tensor;
    int64_t bytes, at;
    mlir::Type number; // of a token's one entry; null where tokens have vectors
  };
  llvm::SmallVector<Ringed> ringed;
  llvm::DenseMap<std::pair<unsigned, Axis>, llvm::SmallVector<mlir::Value>> ringOffsets;
};

} // namespace recur::cuda

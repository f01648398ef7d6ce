// Who walks the channels where each key couples the states: a thread takes two channels of 16 tokens, and a
// token's transitions are a 2 x 2 matrix for each (lib/Cuda/RoleKeyWalk.cpp).
#pragma once
#include "lib/Cuda/RoleDecay.h"

namespace recur::cuda {

struct RoleEmitter::KeyWalk {
  KeyWalk(RoleEmitter &roles, ScoreState &state);
  /// Makes a chunk's sums of all products between tokens, and its tiles.
  void emit();

  /// Of shared memory: what the tokens of a level see and are seen by; and what blocks of 16 tokens make of
  /// each key, with the numbers of tokens that transitions have as factors.
  static int64_t bytesOfLevels(const RolePlan &plan);
  static int64_t bytesOfTables(const RolePlan &plan);

  /// What the chain's states begin with, before what a chunk writes is added: whether a value is that of one,
  /// and all of them (RoleKeys.cpp).
  static bool isBegin(const RolePlan &plan, mlir::Value value);
  static mlir::LogicalResult beginStates(RoleEmitter &roles, ChainState &state);

private:
  /// The tokens of a warp, and how many such blocks a chunk has; bytes of 64 channels of all rows, and of a
  /// block's.
  static constexpr int64_t tokens = tokensOfWarp, blocksOfChunk = tokensOfChunk / tokens,
                           halfBytes = tokensOfChunk * 128, blockBytes = tokens * 128;

  /// Rows that read a state, with what has decayed up to their token or before it; rows that are written, to
  /// each state with factors; and an entry of the transitions: of the plan's numbers and vectors, or -1 each.
  struct Left {
    mlir::Value rows;
    unsigned to;
    chunk::Span span;
  };
  struct Right {
    mlir::Value rows;
    llvm::SmallVector<std::optional<RowFactors>, 2> weights;
  };
  struct Transition {
    bool isZero = false;
    int number = -1, vector = -1;
  };
  /// Numbers of tokens, with what they count as past a sequence's end; vectors likewise.
  struct Number {
    RowFactors factors;
    double outside;
  };
  struct Vector {
    mlir::Value value;
    double outside;
  };
  struct Shape {
    explicit Shape(const RolePlan &plan);
    int numberOf(const RowFactors &factors, double outside);
    llvm::SmallVector<Left, 2> lefts;
    llvm::SmallVector<Right, 2> rights;
    Transition transitions[2][2];
    llvm::SmallVector<Number> numbers;
    llvm::SmallVector<Vector> vectors;
    /// Which entries of products of transitions may differ from 0.
    bool holds[2][2];
    size_t tiles() const { return std::max(seers, seen); }
    /// Rows of a level's tiles: those that have none that are seen have half as many.
    int64_t rowsOfLevel() const { return (seen + tiles()) * tokensOfChunk / 2; }
    unsigned leftOf(const Left &left);
    unsigned rightOf(const Right &right);
    /// Of each product between tokens; and so many of the rows are some's.
    llvm::SmallVector<std::pair<unsigned, unsigned>> grams;
    size_t seers = 0, seen = 0;
  };
  using Two = std::array<mlir::Value, 2>; // a number for each of a thread's channels
  /// Null where an entry is 0.
  struct Matrix {
    Two entries[2][2];
  };
  using Step = llvm::function_ref<void(int64_t)>;
  using Stacked = std::array<Two, 2>; // an entry for each state, null where it is 0
  /// Of a level the tokens of a half, and the place of its tiles.
  struct Level {
    int64_t size, place;
  };
  Two sum(Two x, Two y);
  Two times(Two x, Two y);
  Matrix identity();
  Matrix multiply(const Matrix &x, const Matrix &y);
  Matrix when(mlir::Value condition, llvm::function_ref<Matrix()> body,
              llvm::function_ref<Matrix()> otherwise);

  void whenWalking(llvm::function_ref<void()> body);
  void findPlaces();
  void loadTokens();
  mlir::Value loadPair(mlir::BlockArgument input, int64_t token);
  Two entriesOf(mlir::Value vector, int64_t token);
  Two rowsOf(mlir::Value rows, int64_t token);
  mlir::Value fresh(mlir::Value value);
  Two number(int number, int64_t token);
  Matrix transitionsOf(int64_t token);
  Stacked leftRows(const Left &left, const Matrix &before, const Matrix &through, int64_t token);
  Stacked rightRows(const Right &right, const Matrix &after, int64_t token);
  bool isPacked(size_t tile) const { return tile >= shape.seen; }
  int64_t offsetOf(size_t tile, int64_t part, int64_t place) const;
  void storeRows(Level level, size_t tile, const Stacked &rows, int64_t token);
  void storeBlock();
  Matrix loadBlock(mlir::Value block);
  void makeTiles(Level within, Level across);
  void storeMade(mlir::Value record, size_t tile, Two entries, int64_t token);
  void makeLevel(Level level, Step beside);
  void makeHalves(Level level, llvm::function_ref<Matrix()> sinceMiddle,
                  llvm::function_ref<Matrix()> untilMiddle);
  Matrix goOn(Matrix before, llvm::function_ref<void(const Matrix &, const Matrix &, int64_t)> body);
  void goBack(Matrix after, llvm::function_ref<void(const Matrix &, int64_t)> body);
  void multiplyStep(Level level, mlir::Value seen, int64_t step, llvm::SmallVectorImpl<Values> &sums);
  llvm::SmallVector<Values> multiplyRows(Level level, mlir::Value seen);
  llvm::SmallVector<Values> noSums();
  llvm::SmallVector<Values> whenSums(mlir::Value condition,
                                     llvm::function_ref<llvm::SmallVector<Values>()> body);
  Values ownSums(unsigned gram);
  Values bitsApart();
  Values leaveColumn(mlir::Value place, llvm::ArrayRef<Values> sums);
  void emitLevels(llvm::SmallVectorImpl<Values> &sums);

  RoleEmitter &roles;
  ScoreState &state;
  const RolePlan &plan;
  Ptx &ptx;
  mlir::ImplicitLocOpBuilder &b;
  Shape shape;
  mlir::Value one;
  mlir::Value half, block; // which 64 channels are the thread's, and which block of tokens
  mlir::Value place;       // of the thread's channels in rows of 128 bytes
  mlir::Value blocks;      // the address of what blocks make of the thread's channels
  // Of the thread's tokens: vectors and numbers of transitions, by number; rows, in pairs where they are as
  // they were.
  llvm::SmallVector<llvm::SmallVector<Two>> vectors;
  llvm::SmallVector<Values> numbers;
  llvm::DenseMap<mlir::Value, Values> pairs;
  llvm::DenseMap<mlir::Value, llvm::SmallVector<Two>> rows;
};

} // namespace recur::cuda

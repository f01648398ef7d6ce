// What the values of a chunk program are to warp roles: numbers of tokens, tiles, scores, products of the
// chain.
#pragma once
#include "dialect/chunk/Chunk.h"

#include <optional>

namespace recur::cuda {

/// One number per token (or the same for all) that rows are multiplied with, or divided by.
struct RowFactor {
  mlir::Value value;
  bool divides = false;
  bool operator==(const RowFactor &other) const { return value == other.value && divides == other.divides; }
};
using RowFactors = llvm::SmallVector<RowFactor, 2>;

/// What is left of factors without some others, or nothing where those are not among them, each as often.
std::optional<RowFactors> without(RowFactors factors, llvm::ArrayRef<RowFactor> others);

/// What of a token's writes reaches what a later token reads of coupled states: the product of the
/// transitions between the two, with a number for each state that is read before it and for each that is
/// written behind.
struct CoupledMask {
  mlir::Value cascade;
  /// For each state factors of the later token, none where it does not read the state; and of the earlier
  /// one, none where it does not write to it.
  llvm::SmallVector<std::optional<RowFactors>, 0> reads, weights;
  chunk::Reach reach = chunk::Reach::Inclusive;
  /// Factors of the later token that it is times, which its numbers do not have.
  RowFactors scale = {};

  /// The numbers of tokens that it is made of.
  llvm::SmallVector<mlir::Value> numbers() const;
};

/// Of states that each key couples, what rows that are times entries of the cascade have to do with them: for
/// reads of one state, `to`, the part that comes of `state`; for writes the part that comes to `state` of
/// what is written to all, to each with factors, or none.
struct KeyCoupling {
  unsigned state = 0, to = 0;
  llvm::SmallVector<std::optional<RowFactors>, 2> weights = {};
  bool operator==(const KeyCoupling &other) const {
    return state == other.state && to == other.to && weights == other.weights;
  }
};

/// The rows of an input, each times factors. With a decay of each key, each entry may be times what decays
/// over a span, or times the token's own factor.
struct TokenTile {
  mlir::BlockArgument input;
  RowFactors scale;
  std::optional<chunk::Span> span = std::nullopt;
  bool decayed = false;
  /// Where rows follow from inputs' entry by entry, the vector that tells how; `input` is one of them.
  mlir::Value made = {};
  std::optional<KeyCoupling> coupling = std::nullopt;
  mlir::Value rows() const { return made ? made : mlir::Value(input); }
};

/// A tile that is made from rows: what decays over a span, times them. It lies where `place` was before.
struct MadeTile {
  mlir::Value rows;
  chunk::Span span;
  mlir::BlockArgument place = {};
  std::optional<KeyCoupling> coupling = std::nullopt;
  bool isOf(const TokenTile &tile) const {
    return rows == tile.rows() && span == tile.span && coupling == tile.coupling;
  }
};

/// Scores between tokens, their columns times factors, as the chain multiplies with them.
struct ScoreTile {
  mlir::Value value;
  RowFactors columnScale;
  /// Factors of the rows are left to the product that the scores go into, but for those.
  bool plainRows = false;
  RowFactors rowScale = {};
  /// What lies above the diagonal does not matter.
  bool anyAbove = false;
  /// A row is a token, where columns are micro-steps.
  bool ofTokens = false;
  /// Rows and columns have changed places: columns are the later tokens.
  bool turned = false;
};

/// A product of the chain: left (independent rows x depth, in registers) times right (in shared memory).
struct ChainProduct {
  enum Right {
    Rows,   // a tile, its rows are the result's columns
    Depth,  // a tile, its rows are summed over
    Scores, // scores, summed over their columns
    Inverse // of a unit triangular system
  } kind;
  mlir::Value left, right, result;
  /// Which of the plan's score tiles the right side is.
  unsigned scores = 0;
  /// What it is added to, or null; and whether that is a product of the same wave.
  mlir::Value start;
  bool chained = false;
  /// Factors of the result's columns; and those of the start's, where the start is a product whose other
  /// factors are the result's.
  RowFactors resultScale;
  std::optional<RowFactors> startScale;
  /// With an inverse, a number of tokens that all of the left side has as a factor; or null. The inverse has
  /// it instead.
  mlir::Value leftFactor = {};
  /// Products of a wave need no product of this wave or a later one.
  unsigned wave = 0;
  /// Products with the same number have the same left side and their tiles side by side.
  int stack = -1;
  /// The result's columns are tokens, where those of others are micro-steps.
  bool ofTokens = false;
  /// With two states, which of a thread's two rows the result's are, and the product in the same wave, by
  /// number, that has the others': of the two the first is made, for both.
  unsigned row = 0;
  int other = -1;
  bool isSecond = false;
};

} // namespace recur::cuda

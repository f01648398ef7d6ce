// The small types that roles hand to one another while they are emitted.
#pragma once
#include "lib/Cuda/Ptx.h"
#include "lib/Cuda/RoleForm.h"

namespace recur::cuda {

struct RoleTypes {
  /// Where a role is in the ring.
  struct Stage {
    mlir::Value index, phase;       // phase of what is filled: 0 at first
    mlir::Value tiles, rows, masks; // addresses of tiles and numbers, and of those of masks, if there are any
    mlir::Value place;              // of the numbers, from 0
    mlir::Value early; // address of the tiles that are read first, where those have places of their own
    mlir::Value logs, walked; // those of logarithms, and of what is walked for a team, where those have
    mlir::Value values; // that of what the chain alone reads, which outputs take the place of, where it has
  };
  using Slot = RowSlot;
  enum Barrier {
    Loaded,
    Full,
    KnownFull, // of numbers that follow from no sums
    Empty,
    TilesFull,
    PartsFull,
    PartsEmpty,
    EarlyFull,
    EarlyEmpty,
    ValuesFull,
    ScoresFull,
    ScoresEmpty,
    SystemFull, // where the system's inverse comes before the scores
    Summed,
    OutputsFull,
    OutputsEmpty,
    Changed,
    RowsRead, // by who sums over them, before they are scaled
    TablesFull,
    TablesEmpty,
    LogsFull,
    LogsEmpty,
    WalkLoaded,
    WalkedEmpty,
    Cleared,
    Barriers,
    // Who walks channels maps no rows.
    MapsFull = WalkLoaded,
    MapsEmpty = WalkedEmpty
  };
  static constexpr int64_t rowBytes = 128, slotBytes = tokensOfChunk * 4,
                           tileBytes = tokensOfChunk * rowBytes, quarterBytes = 8 * 32, ownLeafPitch = 80,
                           ownLeafBytes = 16 * ownLeafPitch, rightHalf = 6 * 16 * 128, partBytes = 10 * 1024,
                           beginBytes = 16, stripBytes = tileBytes / 2;
  static constexpr int64_t sumParts = 2, barrierPitch = 64, ownPlaces = 2, sumsOfWarps = 8 * 4;

  /// Where things are in shared memory, and how large.
  int64_t buffers = 2, stageBytes = 0, loadedBytes = 0, logsBytes = 0, logsAt = 0, walkedBytes = 0,
          walkedLoaded = 0, walkedAt = 0, earlyBytes = 0, earlyAt = 0, earlyPlaces = 0, valuesBytes = 0,
          valuesAt = 0, valuesPlaces = 0, scoreBytes = 0, scoresAt = 0, inverseAt = 0, blocksAt = 0,
          leavesAt = 0, outputsAt = 0, barriersAt = 0, masksAt = 0, slotsAt = 0, normsAt = 0, vectorsAt = 0,
          tablesAt = 0, scalesAt = 0, rightsAt = 0, beginAt = 0, exchangeAt = 0, normaliserAt = 0,
          functionsAt = 0, twinsAt = 0, middleAt = 0;
  /// Whether the system's blocks lie where scores go when it is inverted.
  bool blocksInScores = false;

  /// What each thread of a role may have of the registers, 512 or a little less, that the warpgroups share:
  /// of those who load and make numbers, who make scores, of the chain, who walk channels and who sum over
  /// rows; and what all have at entry.
  struct Registers {
    int64_t few, some, many, walk, sum, atEntry;
    /// Whether there are so many that nobody need give any back.
    bool areFixed() const { return atEntry >= most; }
    static constexpr int64_t most = 248;
  };
  /// Of a thread's two rows, where their tokens' rows are in a tile, but for the columns, and whether they
  /// are the tokens' last ones, which those without a place never are and those without a condition always.
  struct LastRows {
    mlir::Value place[2], isLast[2];
  };
  enum class RowPart { Numbers, Tables, Sides };
  /// Logarithms of a decay of each key: in pairs of tokens, and summed up to tokens.
  struct LogPairs {
    Values logs, negatives; // the latter where decays may be negative
    Values rests;           // that rounding leaves of computed ones
  };
  struct LogSums {
    Values logs, signs; // bits that turn what has decayed
  };
  /// A thread's entries of a block in pairs of f16, or of bf16 and of the rests that these leave.
  struct Halves {
    Values high, low;
  };
  /// The place of tables that are made ahead, its phase, and where they and what tells of wild blocks are.
  struct Tables {
    mlir::Value index, phase, numbers, wild;
  };
};

/// The row of a tile, by eights, that one of a token's two rows is.
mlir::Value rowInStack(Ptx &ptx, mlir::Value token, unsigned row);

} // namespace recur::cuda

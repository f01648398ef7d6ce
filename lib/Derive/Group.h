// A group of states that scalars couple (mostly one state), unrolled over the chunk.
#pragma once

#include "lib/Derive/Derive.h"
#include "lib/Derive/TokenRows.h"

#include <functional>

namespace recur {

/// Rows that are known up to unknown streams: base + diagonals .* sum of scores[s] * U_s. Null stands for
/// zero.
struct RowValue {
  mlir::Value base;
  llvm::SmallVector<mlir::Value> scores; // by stream, C x C
  /// The rule's diagonals that multiply what was read, a number for each value.
  llvm::SmallVector<mlir::Value, 1> diagonals;

  bool hasScores() const {
    return llvm::any_of(scores, [](mlir::Value score) { return score != nullptr; });
  }
};

class Inverse;

/// What all groups of one derivation share.
struct DeriveContext {
  const NormalForm &nf;
  TokenRows &tokens;
  mlir::Location loc;
  std::vector<DerivationStep> &steps;
  const ShortNames &names;
  std::string reason; // set on failure
  llvm::ArrayRef<std::unique_ptr<Inverse>> inverses = {};

  mlir::OpBuilder &b() { return tokens.builder; }
  mlir::Value add(mlir::Value x, mlir::Value y);
  mlir::Value mul(mlir::Value x, mlir::Value y);
  mlir::Value matmul(mlir::Value x, mlir::Value y);
  mlir::Value transpose(mlir::Value x);
  /// c * x for rows x; null c is 1.
  mlir::Value scale(const Coefficient &c, mlir::Value x);
  mlir::LogicalResult fail(std::string why);
  void note(llvm::StringRef step, std::string line);
};

/// True when old parts, or writes, are the same terms.
bool sameOld(llvm::ArrayRef<OldTerm> a, llvm::ArrayRef<OldTerm> b);
bool sameWrite(const Write &a, const Write &b);
bool sameColumn(const Column &a, const Column &b);
/// Whether a version is the state as it was, but for what has been written.
bool isUndecayed(const Version &version);

/// What a number is times another one, where that is no rounded number: proofs compare exactly.
std::optional<double> quotient(double of, double by);
/// What a coefficient is times another one, where it has all of that one's factors.
std::optional<Coefficient> quotient(Coefficient of, const Coefficient &by);

/// Whether what one state was reaches another: whether no product of a cascade's transitions is zero there,
/// whatever their numbers.
bool reaches(mlir::Value cascade, unsigned from, unsigned to);

class Group {
public:
  /// Of some states, and of others that these were at the starts of blocks: each with the one that it was.
  Group(DeriveContext &context, llvm::ArrayRef<unsigned> members,
        llvm::ArrayRef<std::pair<unsigned, unsigned>> starts)
      : cx(context), states(members), starts(starts) {}

  /// Picks the key side and the decays. Fails with a reason when the group has no chunk form.
  mlir::LogicalResult prepare();
  /// Unrolls the states and solves for the unknown rows; `known` gives rows of groups that were eliminated
  /// before.
  mlir::LogicalResult eliminate(llvm::function_ref<mlir::Value(unsigned row)> known);
  /// A row of this group's states, C x n; null when it is no read of a state before or after its update.
  mlir::Value finalRow(unsigned row);
  /// A row that is what a stream of this group writes, C x n, where that was solved for; else null.
  mlir::Value writtenRow(unsigned row) const;
  /// A read of an old state, C x n.
  mlir::Value finalRead(const Read &read);
  /// Rows `vectors`, each multiplied by what `version` is at its token: a new state plus token-only matrices.
  /// Null when it is no such version.
  mlir::Value multiplyRows(const Version &version, mlir::Value vectors);
  /// The state at the chunk's end, as the rule stores it.
  mlir::Value finalState(unsigned state);
  bool contains(unsigned state) const { return llvm::is_contained(states, state) || isStart(state); }
  /// True when a row reads this group's states, directly or through other rows.
  bool reads(unsigned row) const;

private:
  // A member state that a stream goes into (index), and the number of each token that it is times there.
  struct Target {
    unsigned member;
    Coefficient weight;
  };
  // Rank-1 terms with one key: sum over tokens of key_j payload_jT, into some member states.
  struct Stream {
    Column key; // token-only, or a row that reads states of earlier groups
    llvm::SmallVector<std::pair<Coefficient, Column>> payload;
    llvm::SmallVector<Target> into;
    bool unknown = false;
    mlir::Value keys, values; // rows of the chunk

    bool goesInto(unsigned member) const {
      return llvm::any_of(into, [&](const Target &target) { return target.member == member; });
    }
    void takeFactorsOut();
  };
  struct Place { // of a row among the group's states: what it has seen
    unsigned member;
    bool after; // reads with what this token has written (streams in `seen`) and, unless late, its decay
    llvm::SmallVector<bool> seen;
    bool isDecayed = false; // with a late decay
    bool atStart = false;   // of its block
  };

  mlir::LogicalResult orient();
  bool wantsScan() const;
  /// Whether diagonals on the key side couple the states, where such are wanted (channelsAttr).
  bool areChannelsCoupled() const;
  bool hasChannels() const { return cascade && !isOne(chunk::typeOfFactors(cascade.getType()).getCols()); }
  mlir::LogicalResult findCascade();
  void prepareScan();
  /// All states of the chunk, after each token or before it.
  chunk::ScanOp scan(bool before);
  mlir::Value scanRow(unsigned member, bool before, Side side, mlir::Value vector);
  mlir::LogicalResult findDecays();
  void findDecayedRows(mlir::Value decay);
  /// Has the decay come after what a token writes, where all of it decays and reads want it so.
  void findLateWrites(const Coefficient &number, llvm::ArrayRef<mlir::Value> channels);
  bool wantsLate(llvm::ArrayRef<mlir::Value> channels) const;
  const Version *versionThatDecays() const;
  /// What a token writes to a state: before its decay, where that is late.
  const std::vector<Write> &writesTo(unsigned state) const {
    return isLate() ? lateWrites : cx.nf.update(state).writes;
  }
  bool isLate() const { return !lateWrites.empty(); }
  /// Where a version has some of a state's `writes`, which are those of writesTo as the version has them.
  std::optional<Place> placeAmong(const Version &version, unsigned member,
                                  const std::vector<Write> &writes) const;
  bool isTimesDecay(unsigned row) const;
  /// What a column is times, without the decay's numbers where its row has them.
  Coefficient withoutDecay(const Coefficient &c, const Column &column) const;
  mlir::LogicalResult findStreams();
  mlir::Value payloadOfToken(const Stream &stream);
  bool joinStreams(Stream &stream, Stream other);
  bool joinReads(Stream &stream, const Stream &other, std::vector<Stream> &known);
  bool isUnknown(const Column &payload) const {
    return payload.kind == Column::RowOf && reads(payload.index);
  }
  std::optional<Place> placeOf(const Row &row) const;
  /// The place of a read of the state before its token or, of one at a block's start, there.
  Place placeOf(const Read &read) const;
  bool isStart(unsigned state) const {
    return llvm::any_of(starts, [&](const auto &start) { return start.first == state; });
  }
  chunk::Reach reachOf(const Place &place, unsigned stream) const;
  bool sideIsKey(Side side) const { return side == keySide; }

  /// Scores of rows `vectors` (on the key side) against a stream, through the decays to `member`; null where
  /// none of its writes comes there.
  mlir::Value scores(mlir::Value vectors, const Stream &stream, unsigned member, chunk::Reach reach);
  mlir::Value masked(mlir::Value vectors, mlir::Value keys, mlir::Value decay, llvm::ArrayRef<Target> from,
                     unsigned member, chunk::Reach reach);
  mlir::Value gramOfChannels(mlir::Value vectors, mlir::Value keys, llvm::ArrayRef<Target> from,
                             unsigned member, chunk::Reach reach);
  mlir::Value numberRows(double number);
  /// A target's weights as rows; null where they are 1.
  mlir::Value weightRows(const Target &target);
  /// What the initial states give to rows that read a place with `vectors`.
  mlir::Value carried(mlir::Value vectors, const Place &place, bool otherSide);
  std::optional<RowValue> rowValue(unsigned row, llvm::function_ref<mlir::Value(unsigned)> known);
  RowValue readValue(mlir::Value vectors, const Place &place);
  /// The vectors that rows at a place read with.
  mlir::Value vectorsAt(const Place &place, mlir::Value vectors);
  /// What a term of a row multiplies, each by its diagonals.
  std::optional<RowValue> termValue(const RowTerm &term, llvm::function_ref<mlir::Value(unsigned)> known);
  /// sum += c * part, of which the scores are `ofScores` * theirs; fails where the two are times different
  /// diagonals.
  mlir::LogicalResult addRow(RowValue &sum, const Coefficient &c, const Coefficient &ofScores,
                             const RowValue &part);
  /// The product of diagonals as rows; null where there are none.
  mlir::Value diagonalRows(llvm::ArrayRef<mlir::Value> diagonals);
  mlir::Value otherSideRead(mlir::Value vector, const Place &place);
  mlir::Value finish(const RowValue &value, bool after);
  mlir::Value apply(mlir::Value scores, mlir::Value values, bool after);
  mlir::LogicalResult solve(llvm::function_ref<mlir::Value(unsigned)> known);
  unsigned indexOf(unsigned state) const {
    for (auto [start, of] : starts)
      state = state == start ? of : state;
    return llvm::find(states, state) - states.begin();
  }

  DeriveContext &cx;
  llvm::SmallVector<unsigned> states;
  llvm::SmallVector<std::pair<unsigned, unsigned>> starts;
  Side keySide = Side::Right;
  std::vector<Stream> streams;
  mlir::Value keyDecay, valueDecay;                  // !chunk.decay, C x 1 or with channels; null: none
  std::vector<Write> lateWrites;                     // empty where no decay is late
  Coefficient decayNumber;                           // of the key decay, beside its channels
  llvm::SmallVector<mlir::Value, 1> valueFactors;    // whose product is the value decay's factors
  llvm::DenseMap<unsigned, mlir::Value> decayedRows; // what reads them, with the decay's numbers
  mlir::Value cascade;                               // for several states
  llvm::SmallVector<mlir::Value> initial;            // keys x values
  llvm::DenseMap<unsigned, RowValue> rowCache;
  llvm::SmallVector<mlir::Value> scanFactors, scanWrites; // of a scan
  chunk::ScanOp scans[2];
  bool readsBefore = false, readsAfter = false; // by unknown rows
};

} // namespace recur

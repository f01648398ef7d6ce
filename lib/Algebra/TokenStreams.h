// What a token writes to a state, told apart by the vectors that it is written along, and what of it reads
// what.
#pragma once

#include "lib/Algebra/NormalForm.h"
#include "mlir/IR/Builders.h"

namespace recur {

/// A token's vector times a number, or what a version of the state reads with such a vector.
struct StreamPart {
  Coefficient c;
  mlir::Value vector;
  unsigned version = Row::none; // of the normal form's; none: nothing is read
};

/// What is written along one vector; which writes of the update these are.
struct TokenStream {
  mlir::Value key;
  llvm::SmallVector<StreamPart, 2> known, reads;
  llvm::SmallVector<const Write *, 2> writes = {};
};

/// The streams of a rule of one matrix state, as rows of a token (stackReads).
class TokenStreams {
public:
  /// The most vectors, known beforehand, whose sum is written along one.
  static constexpr size_t mostKnown = 2;
  /// What of an update is one row.
  enum class Rows {
    OfKeys, // what is written along one vector
    Apart,  // what is known and what is read, where both are: others read what is erased before it is written
    InOrder // what stands together: others are written along before the same vector comes again
  };

protected:
  /// Values are built where `b` stands, in the rule's body.
  TokenStreams(RuleOp rule, mlir::OpBuilder b, size_t mostRows, Rows kind)
      : b(b), loc(rule.getLoc()), mostRows(mostRows), kind(kind) {}

  /// The vectors that the normal form's update writes along.
  mlir::LogicalResult findStreams();
  /// What the rows read: one version that has no write yet, or each one what those before it leave.
  mlir::LogicalResult findReads();
  /// Whether a version is the state with what some rows write, as it decays in the update or, where numbers
  /// do that, before.
  bool isWritten(unsigned version, llvm::ArrayRef<TokenStream> written, bool decays) const;
  /// What one of several rows in turn finds, and has decayed; null where nothing reads it.
  mlir::Value beforeRow(size_t row) const;
  /// Whether what is read is the state at the start of a block.
  bool readsStart(const StreamPart &part) const {
    return part.version != Row::none && nf.versions[part.version].old[0].state != 0;
  }
  /// What reads a state that has not decayed, times all that it decays by, as it reads what has: without the
  /// numbers and without the factors of keys.
  std::optional<StreamPart> withoutDecay(StreamPart part);
  /// A coefficient as a number, 1 where it has no factors.
  mlir::Value coefficient(const Coefficient &c);

  mlir::OpBuilder b;
  mlir::Location loc;
  NormalForm nf;
  Side keySide = Side::Right;
  std::vector<TokenStream> streams, apart; // the rows, and what is only written beside them
  llvm::SmallVector<StreamPart> parts;     // what the rows read
  /// Whether rows read what those before them leave; then, whether the first one reads what has not decayed.
  bool isInTurn = false, readsOlder = false;

private:
  mlir::LogicalResult add(TokenStream &stream, const Coefficient &c, const Column &column);
  bool readsDecayed(TokenStream &stream, const Coefficient &c, const RowTerm &term);
  bool takes(const TokenStream &stream, const TokenStream &own) const;
  bool isSame(const Write &own, const Write &ofUpdate, bool decays) const;
  bool hasWrite(unsigned version, const Write &ofUpdate) const;
  /// Writes that a version lacks, and those that it has beside others.
  struct Difference {
    llvm::SmallVector<const Write *> lacking, more;
  };
  std::optional<Difference> differenceTo(unsigned version, llvm::ArrayRef<TokenStream> written,
                                         bool decays) const;
  void orderStreams();
  void join(llvm::SmallVectorImpl<StreamPart> &parts);
  bool takeApart();
  mlir::LogicalResult readWith(const Difference &difference, TokenStream &stream, const StreamPart &part);

  size_t mostRows;
  Rows kind;
};

} // namespace recur

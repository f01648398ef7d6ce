// A rule in stages: its states, in groups that can be updated apart, and what comes before, between and after
// them.
//
// Roles take inputs as they are, or as functions of one input's rows that they apply in place (RowMaps.h),
// and outputs as products leave them. Where a key is another function (a rotation, a product of inputs, a
// convolution), or an output is more than products, sums and numbers (a norm, a weight of each entry), that
// is left to kernels before and after: one token apart from the other, at the speed of memory, through
// temporaries in the workspace. So is what one group of states takes from another: products with its states,
// and functions of those.
#pragma once
#include "dialect/recur/Recur.h"
#include "lib/Cuda/RowMaps.h"
#include "mlir/IR/BuiltinOps.h"
#include "mlir/IR/OwningOpRef.h"

#include <optional>

namespace recur::cuda {

/// The stages of a rule in the order of their launches, each a rule in a module of its own that has the
/// inputs, params and builtins of the rule. Temporaries are outputs of one stage and inputs of later ones.
struct Stages {
  enum Kind {
    Tokens,  // functions of the token
    Vectors, // states that are vectors and numbers
    Matrices // other states
  };
  struct Stage {
    mlir::OwningOpRef<mlir::ModuleOp> module;
    Kind kind;
    RuleOp rule() const { return *module.get().getOps<RuleOp>().begin(); }
  };
  struct Temporary {
    std::string name;
    MatType type;
    /// In f32: no stage of matrices reads or writes it.
    bool isWide = true;
    /// As many numbers as there are micro-steps.
    bool areNumbers = false;
    /// Exponentials are taken of it.
    bool isExponent = false;
    /// It is handed over with its rest, as two bf16; or it is that rest.
    bool isInParts = false;
    bool isNumber() const { return isOne(type.getRows()) && isOne(type.getCols()); }
  };
  /// A function of an input's rows that stages of matrices have for an input under a name, in a module as
  /// stages have: they are to apply it to what they copy.
  struct Map {
    std::string name, source;
    mlir::OwningOpRef<mlir::ModuleOp> module;
    RuleOp rule() const { return *module.get().getOps<RuleOp>().begin(); }
  };
  /// An input of a stage that several inputs and temporaries are (JoinedKeys.h), whose names it has.
  struct Joined {
    llvm::SmallVector<std::string> names;
    llvm::SmallVector<MatType> types;
  };
  llvm::SmallVector<Stage> stages;
  llvm::SmallVector<Joined> joined;
  llvm::SmallVector<Temporary> temporaries;
  llvm::SmallVector<Map> maps;
};

/// Says of the rule of a stage that what follows magnifies the errors of its reads: it divides them by what
/// may nearly cancel, takes exponentials, or writes other states along them. Its states are then read with
/// twice the digits of a bf16.
constexpr llvm::StringLiteral magnifiedAttr = "recur.magnified";
/// Says of the rule of a stage that another state of the same value adds up for ever what this one is
/// written, as stages hand it over. So this one is written that, too, and no more digits of it.
constexpr llvm::StringLiteral followedAttr = "recur.followed";
/// What an output's name ends with that is the rest of the one before: what rounding to bf16 takes away.
constexpr llvm::StringLiteral restSuffix = ".rest";

/// What stages hand over, and keep.
struct CutOptions {
  /// What exponentials are taken of is handed over by stages of matrices with its rest, which they then must
  /// know how to make.
  bool withRests = false;
  /// What is handed over for each of a token's micro-steps is one temporary, which stages take as
  /// micro-steps, too; nothing where that is not possible.
  bool ofColumns = false;
  /// A stage of matrices keeps what it writes of the token before, and its rule can be rotated
  /// (RotatedUpdate.h); nothing where none does.
  bool keepsDelayed = false;
  /// What outputs read of a state at another time than the last of them is read of a second one of the same
  /// value; nothing where all read at one time, along one vector.
  bool splitsTimes = false;
  /// All that stages of matrices hand over to stages of tokens comes with its rest: it may leave the range of
  /// what vectors are, f16.
  bool withAllRests = false;
  /// What becomes of functions of an input's rows that stages of matrices take: a stage before hands them
  /// over; or these stages apply them in place to what they copy, or have them in their rules, for roles that
  /// walk channels: nothing where there are none such.
  enum RowFunctions { HandedOver, InPlace, Kept } rowFunctions = HandedOver;
  /// A vector that sums keys stays with the matrix that is written along them, for roles to read it beside
  /// their scores; nothing where there is none. (Then one stage may be all of the rule.)
  bool keepsSums = false;
  /// States that read each other and have keys of their own are one (joinKeys); nothing where none are.
  bool joinsKeys = false;
  /// Vectors that are divided by their norms are handed over as that, for stages of matrices that have no
  /// room for the sums; nothing where there are none.
  bool takesNorms = false;
};

/// The logarithm of a value between 0 and 1, as a function that loses no digits where there is one; null
/// where ranges do not tell that it is that.
mlir::Value logarithmOf(mlir::OpBuilder &b, mlir::Location loc, mlir::Value value,
                        llvm::function_ref<RangeAttr(mlir::Value)> rangeOf);

/// Cuts a bound and simplified rule into stages, or nothing where there is nothing to cut off, or where a
/// function of the token cannot be told from the rest.
std::optional<Stages> cutIntoStages(RuleOp rule, CutOptions options);

} // namespace recur::cuda

// Cuts a rule into stages: first what each of them has, then their modules.
#pragma once
#include "lib/Algebra/AnchoredState.h"
#include "lib/Algebra/ColumnRows.h"
#include "lib/Cuda/Cores.h"
#include "lib/Cuda/Stages.h"

namespace recur::cuda {

/// What the name of a state's second one ends with, of the same value, for reads on the other side.
constexpr llvm::StringLiteral secondSuffix = ".second";

/// Whether a vector is one divided by its norm, or that rotated.
bool isDividedByNorm(mlir::Value vector);

/// Cuts one rule, which may be changed.
class StageCutter {
public:
  StageCutter(RuleOp rule, CutOptions options)
      : rule(rule), options(options), body(rule.getBody().front()),
        cores(rule, options.keepsDelayed, options.keepsSums), anchor(anchorOf(rule)) {}

  std::optional<Stages> run();

private:
  using Names = llvm::SmallVector<std::pair<mlir::Value, std::string>>;

  bool isInput(mlir::Value value) {
    value = stripOrientation(value);
    if (auto extract = value.getDefiningOp<ExtractOp>(); extract && options.ofColumns && microStepOf(extract))
      value = extract.getSteps();
    auto argument = llvm::dyn_cast<mlir::BlockArgument>(value);
    return argument && rule.getArg(argument.getArgNumber()).getKind() == ArgKind::Input;
  }
  /// Whether a vector comes to a core as it is: an input, or what another core gives.
  bool isGiven(mlir::Value value) {
    // Of what several cores read all have to round the same.
    if (options.rowFunctions && cores.cores.size() == 1)
      if (std::optional<RowMap> map = RowMap::of(value); map && map->isEntrywise)
        return true;
    return isInput(value) || (cores.entrywiseCoreOf(stripOrientation(value)) && !isOwn(value));
  }
  bool isOwn(mlir::Value value) { return cores.reachOf(value) & core->states; }
  bool isPlainNumber(mlir::Value value);
  mlir::Value base(mlir::Value vector, bool withoutDecays = true);
  void distributeReads();
  void readBeforeUpdates();
  void mergeReads();
  void splitSides();
  mlir::Value decayedSum(mlir::OpBuilder &b, mlir::Value value, mlir::Value factor);
  bool decaysLate(mlir::Value matrix);
  bool isReadAlong(Core *own, mlir::Value factor);
  void distributeDecays();
  void findDecays();
  void takeLogs(mlir::Value decay);
  bool takeDecays();
  bool take(mlir::Value value);
  bool need(mlir::Value value);
  bool needVector(mlir::Value value, bool withoutDecays);
  bool keeps(mlir::Value vector);
  void findFunctions();
  bool isParamOfFunction(mlir::Operation *op, mlir::Value operand);
  bool needOperands(mlir::Operation *op);
  bool needNumber(mlir::Value value);
  bool needEntries(mlir::Value value);
  uint64_t feeding(const Core &own);
  bool isForRoles(mlir::Value value);
  bool findProducts(mlir::Value value);
  bool isProduct(mlir::Value value);
  Core *coreOfGrowth(mlir::Operation *op);
  Core *coreOfFunction(mlir::Value value);
  bool findOutputs();
  bool findNeeds();
  llvm::SetVector<mlir::Value> linearSources(mlir::Value value);
  bool bundle();
  bool bundle(llvm::SetVector<mlir::Value> &values, int64_t count);
  void findMagnified();
  bool feedsOthers(const Core &own);
  void findMaps();
  void nameMaps(Stages &stages, Names &named);
  void keepWhole(Stages &stages);
  void addRests(Stages &stages);
  std::optional<Stages> makeStages();
  mlir::OwningOpRef<mlir::ModuleOp> stage(const Names &inputs, const Names &outputs, uint64_t states);

  RuleOp rule;
  CutOptions options;
  mlir::Block &body;
  Cores cores;
  mlir::Value anchor;               // the param that the state decays to, or null
  Core *core = nullptr;             // the one whose needs are looked for
  llvm::DenseSet<mlir::Value> seen; // looked at by need()
  // What its states follow from, where what is written to them is a function of what is read.
  llvm::SetVector<mlir::Operation *> functions;
  // What is handed over for each micro-step, by what has all as its rows; each thing's number of them.
  llvm::DenseMap<mlir::Value, llvm::SmallVector<mlir::Value>> bundles;
  // Functions of the token that become temporaries, and those of one input that matrices' stages apply.
  llvm::SetVector<mlir::Value> early, inPlace;
  bool keepsAny = false; // such functions
  bool hasNorms = false; // that are handed over
  // Vectors that states decay by; of early ones, logarithms of such or, of those that may be negative, these.
  llvm::DenseSet<mlir::Value> decays, logs;
  llvm::DenseMap<Core *, llvm::DenseSet<mlir::Value>> taken; // what each core has of other stages
  llvm::SmallVector<unsigned> late;                          // outputs that no core computes
  mlir::OwningOpRef<mlir::ModuleOp> whole; // the rule as it was, where states have second ones
  llvm::SetVector<mlir::Value> written;    // what states hand to others that they are written themselves
  uint64_t followed = 0;                   // those to which a second one has to be the same for ever, as bits
  // Whose reads are magnified, as bits of states; what exponentials follow from by sums and factors alone;
  // and the names of such values that are handed over.
  uint64_t magnified = 0;
  llvm::SetVector<mlir::Value> exponents;
  llvm::SmallVector<std::string> wanted;
};

} // namespace recur::cuda

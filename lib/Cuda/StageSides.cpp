// States that are read on one side by their own updates and on the other one by what follows, or by that
// along what it has read of them before.
//
// Of the rows of such a state none is independent of all others: those that the update reads are what the
// products of the other side sum over. But what it writes, once that is known, is a vector like any other: a
// second state of the same value, which takes it from the first one, is read on the other side alone. Each of
// the two is then a core of its own.
//
// The first one erases what it is off by, too. The second one does not, so that what half precision rounds of
// those vectors adds up until it decays. Where it never does, both states are written the same numbers: what
// is handed over, and what it is written along as it was rounded once, before both.
//
// A state that its own update does not read is split all the same where what follows reads it on both sides.
// And S*(S*q) is read of a second state, as chunks of the first one have no products by what they give.
//
// So are states, where that is asked for, that outputs read at several times of a token, before some change
// and after it, or along several vectors: the rows of a token that changes a state several times have one
// output (StackedReads.h).
#include "lib/Algebra/Rewriting.h"
#include "lib/Cuda/StageCutter.h"
#include "llvm/ADT/MapVector.h"

using namespace mlir;
using namespace recur;
using namespace recur::cuda;

namespace {
/// Part of a sum of matrices: some matrix, or the product of a column and a row, times numbers.
struct Part {
  Value matrix, column, row; // the row as a column
  bool isNegative = false;
  SmallVector<std::pair<Value, bool>> numbers; // and whether they divide
};

/// Gives one state a second one for reads on the other side, or at another time.
class SideSplitter {
public:
  SideSplitter(RuleOp rule, const Cores &cores, unsigned state, bool byTime)
      : rule(rule), cores(cores), number(state), state(rule.argumentsOf(ArgKind::State)[state]),
        bit(uint64_t(1) << state), byTime(byTime) {}

  struct Split {
    /// What is handed over to both states: what the state's own reads write to it and, where nothing decays,
    /// what they write along.
    SmallVector<Value> written;
    /// Whether that adds up as nothing decays.
    bool addsUp = false;
  };

  /// Nothing where there is nothing to split, or no way to.
  std::optional<Split> run(StringRef name) {
    if (!isMatrix(state) || !rule.argumentsOf(ArgKind::Stale).empty())
      return std::nullopt;
    Value update = rule.yieldedStates()[number];
    SmallVector<Part> parts;
    if (update == state || !takeApart(update, {}, false, parts) || !findSide(parts) || !findOthers())
      return std::nullopt;
    Split split;
    if (!reads.empty()) {
      split.addsUp =
          llvm::any_of(parts, [&](const Part &part) { return part.matrix == state && part.numbers.empty(); });
      split.written = writeAgain(update, parts, split.addsUp);
    }
    addState(name);
    return split;
  }

private:
  bool dependsOn(Value value) const { return cores.reachOf(stripOrientation(value)) & bit; }

  // Numbers that a value is times, or divided by, and signs; the norm that makes it short is its own.
  Value withoutNumbers(Value value, Part &part) const {
    for (;;) {
      Operation *op = value.getDefiningOp();
      if (isDividedByNorm(value))
        return value;
      if (isa_and_present<NegOp>(op)) {
        part.isNegative = !part.isNegative;
        value = op->getOperand(0);
      } else if (isa_and_present<AssumeOp>(op)) {
        value = op->getOperand(0);
      } else if (isa_and_present<MulOp, DivOp>(op)) {
        unsigned i = isa<MulOp>(op) && isNumber(op->getOperand(0)) ? 0 : 1;
        if (!isNumber(op->getOperand(i)))
          return value;
        part.numbers.push_back({op->getOperand(i), isa<DivOp>(op)});
        value = op->getOperand(1 - i);
      } else {
        return value;
      }
    }
  }

  bool takeApart(Value value, Part part, bool isTurned, SmallVectorImpl<Part> &parts) {
    value = withoutNumbers(value, part);
    Operation *op = value.getDefiningOp();
    if (auto transpose = dyn_cast_if_present<TransposeOp>(op))
      return takeApart(transpose.getOperand(), part, !isTurned, parts);
    if (isa_and_present<AddOp, SubOp>(op)) {
      Part second = part;
      second.isNegative ^= isa<SubOp>(op);
      // A number that is added to all entries is no matrix.
      return isMatrix(op->getOperand(0)) && isMatrix(op->getOperand(1)) &&
             takeApart(op->getOperand(0), part, isTurned, parts) &&
             takeApart(op->getOperand(1), second, isTurned, parts);
    }
    auto product = dyn_cast_if_present<MatmulOp>(op);
    if (product && !isMatrix(product.getLhs()) && !isMatrix(product.getRhs())) {
      Value column = isTurned ? turned(product.getRhs()) : product.getLhs();
      Value row = isTurned ? product.getLhs() : turned(product.getRhs());
      part.column = withoutNumbers(column, part);
      part.row = withoutNumbers(row, part);
    } else {
      part.matrix = isTurned ? turned(value) : value;
    }
    parts.push_back(part);
    return true;
  }

  Value turned(Value value) {
    if (auto transpose = value.getDefiningOp<TransposeOp>())
      return transpose.getOperand();
    OpBuilder b(rule.getContext());
    b.setInsertionPointAfterValue(value);
    return TransposeOp::create(b, rule.getLoc(), value);
  }

  // The side on which products of vectors with what the state has become read it: 0 from the right, 1 from
  // the left; nothing for other products.
  std::optional<unsigned> sideOf(MatmulOp product) {
    for (unsigned i : {0, 1}) {
      Value matrix = product->getOperand(i), vector = product->getOperand(1 - i);
      if (!isMatrix(matrix) || !reaches(matrix) || isMatrix(vector))
        continue;
      for (; matrix.getDefiningOp<TransposeOp>(); matrix = matrix.getDefiningOp()->getOperand(0))
        i = 1 - i;
      return i;
    }
    return std::nullopt;
  }

  // The update's own reads, which are to be on one side.
  bool findSide(ArrayRef<Part> parts) {
    SmallVector<Value> work;
    for (const Part &part : parts) {
      if (part.matrix) {
        work.push_back(part.matrix);
        continue;
      }
      unsigned depend = dependsOn(part.column) + dependsOn(part.row);
      if (depend > 1)
        return false;
      if (!depend)
        continue;
      unsigned own = dependsOn(part.row) ? 1 : 0; // what is read from the left is a row
      if (side && *side != own)
        return false;
      side = own;
      work.push_back(own ? part.row : part.column);
    }
    llvm::DenseSet<Value> seen;
    while (!work.empty()) {
      Value value = work.pop_back_val();
      Operation *op = value.getDefiningOp();
      if (!op || !dependsOn(value) || !seen.insert(value).second)
        continue;
      if (auto product = dyn_cast<MatmulOp>(op)) {
        std::optional<unsigned> found = sideOf(product);
        if (!found || !side || *found != *side)
          return false;
        reads.insert(product);
      }
      llvm::append_range(work, sourcesOf(op));
    }
    if (!side) // it reads nothing
      side = 0;
    return true;
  }

  // What reads the state on the other side, where it is read on both; or at another time than the last
  // output, or beside it.
  bool findOthers() {
    if (byTime)
      return findOtherTimes();
    bool isReadHere = false;
    for (auto product : rule.getBody().front().getOps<MatmulOp>())
      if (std::optional<unsigned> found = sideOf(product)) {
        bool again = readsAgain(product);
        if (!isReadHere && !again && reads.empty()) // any side will do
          side = found;
        if (*found != *side || again)
          others.push_back(product);
        else
          isReadHere = true;
      }
    return isReadHere && !others.empty();
  }

  // Whether it reads along what was read before. Numbers go with what it gives.
  bool readsAgain(MatmulOp product) const {
    auto isRead = [&](Value operand) {
      Part numbers;
      return !isMatrix(operand) && dependsOn(withoutNumbers(stripOrientation(operand), numbers));
    };
    return llvm::any_of(product->getOperands(), isRead) && !feedsState(rule, product);
  }

  bool findOtherTimes() {
    SmallVector<MatmulOp> outputs;
    for (auto product : rule.getBody().front().getOps<MatmulOp>())
      if (sideOf(product) == side && !feedsState(rule, product))
        outputs.push_back(product);
    auto matrixOf = [](MatmulOp product) {
      return stripOrientation(product->getOperand(isMatrix(product.getLhs()) ? 0 : 1));
    };
    for (MatmulOp product : outputs)
      if (matrixOf(product) != matrixOf(outputs.back()))
        others.push_back(product);
    if (others.empty() && !outputs.empty())
      llvm::append_range(others, ArrayRef(outputs).drop_back());
    return !others.empty();
  }

  // One vector for each that is written along, made of all that is written there.
  SmallVector<Value> writeAgain(Value update, ArrayRef<Part> parts, bool withAlong) {
    OpBuilder b(rule.getContext());
    b.setInsertionPointAfterValue(update);
    Location loc = rule.getLoc();
    auto times = [&](Value value, ArrayRef<std::pair<Value, bool>> numbers) {
      for (auto [factor, divides] : numbers)
        value = divides ? DivOp::create(b, loc, value, factor).getResult()
                        : MulOp::create(b, loc, factor, value).getResult();
      return value;
    };
    auto sum = [&](Value x, Value y, bool isNegative) -> Value {
      if (!x)
        return isNegative ? NegOp::create(b, loc, y).getResult() : y;
      return isNegative ? SubOp::create(b, loc, x, y).getResult() : AddOp::create(b, loc, x, y).getResult();
    };
    llvm::MapVector<Value, SmallVector<const Part *>> written;
    Value whole;
    SmallVector<Value> vectors;
    for (const Part &part : parts)
      if (part.matrix)
        whole = sum(whole, times(part.matrix, part.numbers), part.isNegative);
      else
        written[*side ? part.column : part.row].push_back(&part);
    for (auto &[along, own] : written) {
      // A positive one first, and numbers that all have once.
      if (auto *first = llvm::find_if(own, [](const Part *part) { return !part->isNegative; });
          first != own.end())
        std::rotate(own.begin(), first, first + 1);
      SmallVector<std::pair<Value, bool>> common;
      for (auto factor : own.front()->numbers)
        if (llvm::all_of(own, [&](const Part *part) {
              return llvm::count(part->numbers, factor) >= llvm::count(common, factor) + 1;
            }))
          common.push_back(factor);
      Value vector;
      for (const Part *part : own) {
        auto rest = part->numbers;
        for (auto factor : common)
          rest.erase(llvm::find(rest, factor));
        vector = sum(vector, times(*side ? part->row : part->column, rest), part->isNegative);
      }
      vector = times(vector, common);
      if (dependsOnAny(own)) {
        vectors.push_back(vector);
        if (withAlong)
          vectors.push_back(stripOrientation(along));
      }
      Value column = *side ? along : vector, row = *side ? vector : along;
      whole = sum(whole, MatmulOp::create(b, loc, column, TransposeOp::create(b, loc, row)), false);
    }
    update.replaceUsesWithIf(whole, [&](OpOperand &use) {
      return use.getOwner()->getBlock() == &rule.getBody().front() &&
             (use.getOwner()->hasTrait<OpTrait::IsTerminator>() ||
              whole.getDefiningOp()->isBeforeInBlock(use.getOwner()));
    });
    return vectors;
  }
  bool dependsOnAny(ArrayRef<const Part *> parts) const {
    return llvm::any_of(parts,
                        [&](const Part *part) { return dependsOn(part->column) || dependsOn(part->row); });
  }

  // The same of the second state: matrices are made again, vectors and numbers are the first one's.
  Value ofSecond(Value value) {
    if (value == state)
      return second;
    Operation *op = value.getDefiningOp();
    if (!op || !isMatrix(value) || !reaches(value))
      return value;
    Value &known = ofSecondState[value];
    if (known)
      return known;
    SmallVector<Value> operands;
    for (Value operand : op->getOperands())
      operands.push_back(ofSecond(operand));
    OpBuilder b(rule.getContext());
    b.setInsertionPointAfter(op);
    Operation *copy = b.clone(*op);
    copy->setOperands(operands);
    return ofSecondState[value] = copy->getResult(cast<OpResult>(value).getResultNumber());
  }
  // Whether a matrix is made of the state, by matrices alone; ops may be new.
  bool reaches(Value value) {
    if (value == state)
      return true;
    Operation *op = value.getDefiningOp();
    if (!op || !isMatrix(value))
      return false;
    auto [it, isNew] = reached.try_emplace(value, false);
    if (!isNew)
      return it->second;
    bool found = llvm::any_of(op->getOperands(), [&](Value operand) { return reaches(operand); });
    return reached[value] = found;
  }

  void addState(StringRef name) {
    Block &block = rule.getBody().front();
    size_t states = rule.argumentsOf(ArgKind::State).size();
    Value update = rule.yieldedStates()[number];
    second = block.addArgument(state.getType(), rule.getLoc());
    ArgAttr old = rule.getArg(state);
    SmallVector<Attribute> args(rule.getArgs().begin(), rule.getArgs().end());
    args.push_back(ArgAttr::get(rule.getContext(), ArgKind::State, StringAttr::get(rule.getContext(), name),
                                old.getRange(), old.getUnit(), old.getBlock()));
    rule.setArgsAttr(ArrayAttr::get(rule.getContext(), args));
    for (MatmulOp product : others) {
      unsigned matrix = isMatrix(product.getLhs()) ? 0 : 1;
      product->setOperand(matrix, ofSecond(product->getOperand(matrix)));
    }
    Operation *yield = rule.getBodyYield(), *init = rule.getInitYield();
    yield->insertOperands(states, ofSecond(update));
    init->insertOperands(states, init->getOperand(number));
    eraseDead(block);
  }

  RuleOp rule;
  const Cores &cores;
  unsigned number;
  BlockArgument state, second;
  uint64_t bit;
  bool byTime;
  std::optional<unsigned> side;
  llvm::DenseSet<Operation *> reads;
  SmallVector<MatmulOp> others;
  llvm::DenseMap<Value, Value> ofSecondState;
  llvm::DenseMap<Value, bool> reached;
};
} // namespace

void StageCutter::splitSides() {
  constexpr size_t mostStates = 8;
  bool isSplit = false;
  whole = ModuleOp::create(rule.getLoc());
  OpBuilder::atBlockEnd(whole->getBody()).clone(*rule);
  auto count = [&] { return rule.argumentsOf(ArgKind::State).size(); };
  // A second state may be read again along what was read of it.
  size_t most = options.splitsTimes ? count() : std::max(count(), mostStates);
  for (unsigned state = 0; state < std::min(count(), most); ++state) {
    std::string name = rule.getArg(rule.argumentsOf(ArgKind::State)[state]).getName().str();
    auto split = SideSplitter(rule, cores, state, options.splitsTimes).run(name + secondSuffix.str());
    if (!split)
      continue;
    isSplit = true;
    written.insert_range(split->written);
    followed |= uint64_t(split->addsUp) << state;
    cores = Cores(rule, options.keepsDelayed);
  }
  if (!isSplit)
    whole = {};
}

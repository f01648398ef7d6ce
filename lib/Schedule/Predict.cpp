// The parameters were fitted to times of the rules of specs/ on one core with vectors of 16 and of 8 f32;
// what matters is that forms come out in the order in which they were measured.
#include "lib/Schedule/Predict.h"
#include "llvm/ADT/StringSwitch.h"

#include <cmath>

using namespace mlir;
using namespace recur;

CpuModel CpuModel::of(unsigned lanes, bool pairs, unsigned bytesOfValue) {
  CpuModel cpu;
  cpu.lanes = lanes;
  cpu.pairs = pairs;
  cpu.bytesOfValue = bytesOfValue;
  return cpu;
}

// A function that has no instruction costs as much as this many that have one.
static constexpr double functionFlops = 12;

static bool isFunction(Operation &op) {
  return isa<ExpOp, LogOp, SigmoidOp, TanhOp, SoftplusOp, ErfOp, SinOp, CosOp, PowOp, DivOp, SqrtOp>(op);
}

static bool isMatrixValue(Value value) { return isa<MatType>(value.getType()) && isMatrix(matType(value)); }

static double flopsOfTokenOp(Operation &op) {
  if (auto product = dyn_cast<MatmulOp>(op))
    return 2.0 * matType(product.getLhs()).numCols() * product.getType().numElements();
  return isa<ElementwiseOp, ReduceOp>(op)
             ? (isFunction(op) ? functionFlops : 1) * elementsOf(op.getOperand(0).getType())
             : 0;
}

RuleWork recur::workOf(const NormalForm &form, const TokenCost &cost, chunk::ProgramOp program) {
  RuleWork work;
  work.values = cost.values;
  work.flops = cost.flops;
  for (Operation &op : RuleOp(form.rule).getBody().front().without_terminator()) {
    if (!op.getNumResults() || !op.getNumOperands())
      continue;
    // Products with matrices that are not states; vectors may depend on states.
    auto isGiven = [&](Value value) { return isMatrixValue(value) && form.isTokenOnly(value); };
    auto product = dyn_cast<MatmulOp>(op);
    if (product && (isGiven(product.getLhs()) || isGiven(product.getRhs()))) {
      Value matrix = isGiven(product.getLhs()) ? product.getLhs() : product.getRhs();
      work.matrixFlops += flopsOfTokenOp(op);
      work.matrixBytes = std::max(work.matrixBytes, 4.0 * elementsOf(matrix.getType()));
    } else if (form.isTokenOnly(op.getResult(0)) && (!isMatrixValue(op.getResult(0)) || isFunction(op))) {
      work.tokenFlops += flopsOfTokenOp(op);
    }
  }
  if (!form.affine) {
    // What is read of the states is known of the program alone.
    if (program)
      for (auto op : program.getBody().getOps<chunk::SubstituteOp>())
        for (Value state : program.argumentsOf(ArgKind::State))
          work.states.push_back({double(matType(state).numCols()), double(matType(state).numRows()),
                                 double(op.getReads().size()), double(op.getWrites().size())});
    work.streams = work.states.size();
    return work;
  }
  for (auto [index, state] : llvm::enumerate(form.states)) {
    MatType type = matType(state);
    if (form.updates[index] == Row::none) {
      work.ahead += isMatrix(type) ? type.numElements() : 0;
      continue;
    }
    StateWork one;
    one.rows = type.numCols(), one.columns = type.numRows();
    for (const Read &read : form.reads)
      if (read.state == index) {
        ++one.reads;
        if (read.side == Side::Left)
          one.rows = type.numRows(), one.columns = type.numCols();
      }
    // Each step of conjugate gradients multiplies the matrix by a vector.
    for (const Row &row : form.rows)
      if (auto solve = row.solution ? row.solution.getDefiningOp<SolveOp>() : SolveOp();
          solve && solve.getIterations())
        for (const OldTerm &term : form.versions[row.version].old)
          one.reads += term.state == index ? *solve.getIterations() : 0;
    one.writes = outerProducts(form.update(index));
    std::optional<Decay> decay = form.decay(index);
    one.rowDecay = decay && !(decay->left.empty() && decay->right.empty() && decay->elementwise.empty());
    one.scan = decay && (!decay->elementwise.empty() || (type.isVector() && one.rowDecay));
    for (const Write &write : form.update(index).writes)
      work.streams += write.isErase();
    work.states.push_back(one);
  }
  if (program)
    program.getBody().walk([&](chunk::LdlOp op) {
      double size = matType(op.getKeys()).numCols();
      work.inverses += size * size;
    });
  return work;
}

StringRef FormCost::bound() const {
  return overhead > std::max(arithmetic, memory) ? "overhead"
         : arithmetic >= memory                  ? "arithmetic"
                                                 : "memory";
}

// The rate of multiply-adds, in flop a nanosecond.
static double flopRate(const CpuModel &cpu) { return cpu.gigahertz * cpu.products * cpu.lanes * 2; }

// Inputs and outputs, which come from memory and go there.
static double tensorTime(const RuleWork &work, const CpuModel &cpu) {
  return work.values * cpu.bytesOfValue / (cpu.memoryBytes * cpu.gigahertz);
}

// Functions of the token, in vectors but with little reuse.
static double tokenTime(const RuleWork &work, const CpuModel &cpu) {
  return work.tokenFlops / (0.25 * flopRate(cpu));
}

// Products with given matrices, one vector at a time.
static double matrixTime(const RuleWork &work, const CpuModel &cpu) {
  return work.matrixFlops / (0.25 * flopRate(cpu));
}

// Between the passes over a state of a token.
static constexpr double passCycles = 100;

// A pass over the states for each read and each write: loads and stores bind it, to half the arithmetic's
// rate from the first cache, to less from the second.
static void addPasses(FormCost &cost, ArrayRef<StateWork> states, const CpuModel &cpu) {
  double bytes = 0, moved = 0;
  for (const StateWork &state : states) {
    double entries = state.rows * state.columns;
    bytes += 4 * entries;
    moved += 4 * entries * (state.reads + 2 * std::max(state.writes, 1.0));
    cost.arithmetic += 2 * entries * (state.reads + state.writes) / (0.4 * flopRate(cpu));
  }
  if (bytes > cpu.smallCache)
    cost.memory += moved / (cpu.cacheBytes * cpu.gigahertz);
}

// Matrices that run ahead: a product, an outer product and a scaling for each token, passes that nothing
// shares.
static void addAhead(FormCost &cost, double entries, const CpuModel &cpu) {
  constexpr double passes = 7;
  cost.overhead += std::max(passes * entries / (0.4 * flopRate(cpu)),
                            4 * passes * entries / (cpu.cacheBytes * cpu.gigahertz));
}

FormCost recur::predictSequential(const RuleWork &work, const CpuModel &cpu) {
  FormCost cost;
  addPasses(cost, work.states, cpu);
  addAhead(cost, work.ahead, cpu);
  if (work.states.empty())
    cost.arithmetic = work.flops / (0.25 * flopRate(cpu));
  cost.memory += tensorTime(work, cpu);
  cost.overhead = tokenTime(work, cpu) + matrixTime(work, cpu) + 120 / cpu.gigahertz;
  for (const StateWork &state : work.states)
    if (state.isMatrix()) // sums of few entries wait for each other
      cost.overhead += passCycles * (state.reads + state.writes) / cpu.gigahertz;
  return cost;
}

// How many tokens a sweep takes together: as many as have room for the sums and writes of two vectors of
// columns in registers, up to two. 0: not even one has.
static int sweptTokens(const StateWork &state, const CpuModel &cpu) {
  double spare = cpu.lanes == 16 ? 32 - 6 : 16 - 3, perToken = 2 * (state.reads + state.writes);
  return 2 * perToken <= spare ? 2 : perToken <= spare;
}

FormCost recur::predictSweep(const RuleWork &work, const CpuModel &cpu) {
  // Groups of tokens and blocks of two vectors (CpuModel's lanes are one): each block of a group ends in a
  // solve of about 50 cycles, and a token is packed in about as many; a decay of each row is multiplied in
  // there. A second matrix is worked on token by token, by way of memory.
  constexpr double vectors = 2, solveCycles = 52, packCycles = 48, scaleCycles = 40, sideCycles = 400;
  FormCost cost;
  double rate = flopRate(cpu) * (cpu.pairs ? 2 : 1);
  if (work.states.empty())
    cost.arithmetic = work.flops / (0.25 * flopRate(cpu));
  // One state is swept; what the others do is done token by token beside it.
  SmallVector<StateWork> others(work.states.begin(), work.states.end());
  auto *swept = llvm::max_element(
      others, [](const StateWork &a, const StateWork &b) { return a.rows * a.columns < b.rows * b.columns; });
  if (swept != others.end()) {
    double entries = swept->rows * swept->columns, share = sweptTokens(*swept, cpu) ? 0.95 : 0.45;
    int group = std::max(sweptTokens(*swept, cpu), 1);
    cost.arithmetic += 2 * entries * (swept->reads + swept->writes) / (share * rate);
    cost.overhead += swept->rowDecay ? scaleCycles / cpu.gigahertz : 0;
    cost.overhead += std::ceil(swept->columns / (vectors * cpu.lanes)) / group * solveCycles / cpu.gigahertz;
    others.erase(swept);
  }
  for (StateWork &other : others)
    if (other.isMatrix()) { // read and written as if it were three
      other.reads *= 3, other.writes *= 3;
      cost.overhead += sideCycles / cpu.gigahertz;
    }
  addPasses(cost, others, cpu);
  cost.memory += tensorTime(work, cpu);
  cost.overhead += tokenTime(work, cpu) + matrixTime(work, cpu) + packCycles / cpu.gigahertz;
  return cost;
}

FormCost recur::predictChunk(const RuleWork &work, const CpuModel &cpu, double chunk) {
  // Each read meets each stream of writes of the chunk, twice; with all that lies between them the products
  // reach two thirds of the peak, those of several matrices less. A chunk has its masks, its solve and its
  // loops over small matrices.
  constexpr double chunkCycles = 2500, scanCycles = 100;
  FormCost cost;
  auto matrices = llvm::count_if(work.states, [](const StateWork &state) { return state.isMatrix(); });
  double rate = (matrices > 1 ? 0.5 : 0.65) * flopRate(cpu);
  for (const StateWork &state : work.states) {
    double entries = state.rows * state.columns;
    cost.arithmetic += (2 * chunk * state.reads * state.writes * (state.rows + state.columns) +
                        2 * entries * (state.reads + state.writes)) /
                       rate;
    if (state.scan) // factors, writes and results of every token are in memory
      cost.overhead += (scanCycles + 24 * entries / cpu.cacheBytes) / cpu.gigahertz;
    else if (state.rowDecay) // the products between near tokens are formed one by one
      cost.overhead += functionFlops * 8 * state.rows / flopRate(cpu);
  }
  cost.memory = tensorTime(work, cpu);
  // Given matrices multiply a chunk's vectors at once, which pays as long as the first-level cache holds
  // them.
  bool fits = 2 * work.matrixBytes < cpu.smallCache;
  cost.overhead +=
      tokenTime(work, cpu) + matrixTime(work, cpu) * (fits ? 0.5 : 1) + chunkCycles / chunk / cpu.gigahertz;
  return cost;
}

FormCost recur::predict(StringRef form, const RuleWork &work, const CpuModel &cpu) {
  return llvm::StringSwitch<FormCost (*)(const RuleWork &, const CpuModel &)>(form)
      .Case("sweep", predictSweep)
      .Case("chunk", [](const RuleWork &work, const CpuModel &cpu) { return predictChunk(work, cpu, 16); })
      .Default(predictSequential)(work, cpu);
}

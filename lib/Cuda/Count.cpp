#include "lib/Cuda/Count.h"
#include "lib/Cuda/Chunked.h"
#include "lib/Cuda/Sequential.h"
#include "mlir/Dialect/Arith/IR/Arith.h"
#include "mlir/Dialect/LLVMIR/LLVMDialect.h"
#include "mlir/Dialect/LLVMIR/NVVMDialect.h"
#include "mlir/Dialect/Math/IR/Math.h"
#include "mlir/Dialect/SCF/IR/SCF.h"
#include "mlir/IR/Matchers.h"
#include "llvm/ADT/TypeSwitch.h"

#include <map>

using namespace mlir;
using namespace recur;
using namespace recur::cuda;

static constexpr llvm::StringLiteral partAttr = "recur.part", tokensAttr = "recur.tokens",
                                     warpsAttr = "recur.warps", tripsAttr = "recur.trips",
                                     besideAttr = "recur.beside", againAttr = "recur.again";

static std::optional<int64_t> constantOf(Value value) {
  APInt number;
  if (matchPattern(value, m_ConstantInt(&number)))
    return number.getSExtValue();
  return std::nullopt;
}

static void describeLoop(Operation *loop, StringRef part, int64_t unit, int64_t warps) {
  auto counted = dyn_cast<scf::ForOp>(loop);
  if (counted && constantOf(counted.getUpperBound()))
    return;
  Builder b(loop->getContext());
  loop->setAttr(partAttr, b.getStringAttr(part));
  int64_t step = counted ? constantOf(counted.getStep()).value_or(1) : 1;
  loop->setAttr(tokensAttr, b.getI64IntegerAttr(unit * step));
  loop->setAttr(warpsAttr, b.getI64IntegerAttr(warps));
}

void cuda::describeLoops(Block &block, StringRef part, int64_t unit, int64_t warps) {
  block.walk<WalkOrder::PreOrder>([&](Operation *loop) {
    if (!isa<scf::ForOp>(loop) && !loop->hasAttr(againAttr))
      return WalkResult::advance();
    describeLoop(loop, part, unit, warps);
    return WalkResult::skip();
  });
}

void cuda::describeLoops(Region &region, StringRef part, int64_t unit, int64_t warps) {
  for (Block &block : region)
    describeLoops(block, part, unit, warps);
}

void cuda::describeTrips(Operation *op, int64_t trips) {
  op->setAttr(tripsAttr, Builder(op->getContext()).getI64IntegerAttr(trips));
}

void cuda::describeAgain(Operation *op) { op->setAttr(againAttr, UnitAttr::get(op->getContext())); }

void cuda::describeBeside(Operation *op) { op->setAttr(besideAttr, UnitAttr::get(op->getContext())); }

void cuda::describeRare(Block &block) { describeTrips(block.getParentOp(), 0); }
void cuda::describeEach(Block &block, int64_t times) { describeTrips(block.getParentOp(), times); }

namespace {
class Counter {
public:
  explicit Counter(Operation *loop) : loop(loop) {}
  GpuPart run();

private:
  GpuPart count(Block &block);
  GpuPart count(Operation *op);
  GpuPart countAssembly(StringRef text);
  bool isOutside(Value value) {
    return outside.contains(value) || !loop->isAncestor(value.getParentBlock()->getParentOp());
  }
  bool isKnown(Operation &op);

  Operation *loop;
  llvm::DenseSet<Value> outside;      // what the loop need not compute
  llvm::DenseMap<Value, Value> first; // of equal values
  std::map<std::vector<const void *>, Operation *> seen;
};
} // namespace

static GpuPart instructions(double count) {
  GpuPart part;
  part.instructions = count;
  return part;
}

static GpuPart function(double count, double instructions) {
  GpuPart part;
  part.functions = count;
  part.instructions = instructions;
  return part;
}

// Assembly is counted by its statements.
GpuPart Counter::countAssembly(StringRef text) {
  GpuPart part;
  SmallVector<StringRef> statements;
  text.split(statements, ';', -1, /*KeepEmpty=*/false);
  for (StringRef statement : statements) {
    statement = statement.trim(" {}");
    auto [name, rest] = statement.split(' ');
    // A negation is part of what takes it.
    if (name.empty() || name.starts_with(".reg") || name.starts_with("setp") || name == "neg.f32")
      continue;
    part.instructions += 1;
    if (name.starts_with("wgmma.mma_async")) {
      // m64nNk16: the matrix units take N/2 cycles.
      int64_t columns = 0;
      StringRef shape = name.split(".m64n").second;
      shape.consumeInteger(10, columns);
      part.groupCycles += columns / 2.0;
    } else if (name.starts_with("mma.sync")) {
      part.products += 1;
    } else if (name.starts_with("ex2") || name.starts_with("lg2") || name.starts_with("rcp") ||
               name.starts_with("rsqrt") || name.starts_with("tanh")) {
      part.functions += 1;
    } else if (name.contains("try_wait") || name.starts_with("again:") || name.starts_with("bar.sync") ||
               name.starts_with("bar.red") || name.starts_with("wgmma.wait_group") ||
               name.starts_with("barrier.cluster") || name.starts_with("cp.async.bulk.wait") ||
               name.starts_with("fence.proxy")) {
      part.waits += 1;
    } else if (name.starts_with("ld.global")) {
      part.loads += 1;
    } else if (name.starts_with("ld.shared") || name.starts_with("ldmatrix")) {
      part.reads += 1;
    } else if (name.starts_with("shfl")) {
      part.shuffles += 1;
    }
  }
  return part;
}

GpuPart Counter::count(Operation *op) {
  return TypeSwitch<Operation *, GpuPart>(op)
      .Case([&](scf::ForOp inner) {
        double trips = 1;
        auto begin = constantOf(inner.getLowerBound()), end = constantOf(inner.getUpperBound()),
             step = constantOf(inner.getStep());
        if (auto told = inner->getAttrOfType<IntegerAttr>(tripsAttr))
          trips = told.getInt();
        else if (end && step)
          trips = std::ceil(double(*end - begin.value_or(0)) / *step);
        GpuPart sum;
        sum.add(count(*inner.getBody()), trips);
        sum.instructions += 2 * trips;
        return sum;
      })
      .Case([&](scf::WhileOp inner) {
        auto told = inner->getAttrOfType<IntegerAttr>(tripsAttr);
        GpuPart sum;
        for (Block *block : {inner.getBeforeBody(), inner.getAfterBody()})
          sum.add(count(*block), told ? told.getInt() : 1);
        return sum;
      })
      .Case([&](scf::IfOp branch) {
        GpuPart sum = instructions(2);
        auto told = branch->getAttrOfType<IntegerAttr>(tripsAttr);
        GpuPart then;
        if (!told || told.getInt())
          then.add(count(*branch.thenBlock()), told ? 1. / told.getInt() : 1);
        GpuPart otherwise = branch.elseBlock() ? count(*branch.elseBlock()) : GpuPart();
        sum.add(then.instructions >= otherwise.instructions ? then : otherwise);
        return sum;
      })
      .Case([&](LLVM::InlineAsmOp assembly) { return countAssembly(assembly.getAsmString()); })
      .Case([&](LLVM::LoadOp load) {
        GpuPart part = instructions(1);
        part.loads = cast<LLVM::LLVMPointerType>(load.getAddr().getType()).getAddressSpace() != 3;
        part.reads = !part.loads;
        return part;
      })
      .Case([&](NVVM::ShflOp) {
        GpuPart part = instructions(1);
        part.shuffles = 1;
        return part;
      })
      .Case([&](NVVM::Barrier0Op) {
        GpuPart part = instructions(1);
        part.waits = 1;
        return part;
      })
      .Case<arith::DivFOp>([](arith::DivFOp op) { return function(1, isReciprocalOnUnit(op) ? 1 : 8); })
      .Case<math::ExpOp, math::Exp2Op, math::LogOp, math::Log2Op, math::RsqrtOp>(
          [](Operation *) { return function(1, 3); })
      .Case<math::SqrtOp>([](Operation *) { return function(1, 8); })
      .Case<math::TanhOp, math::Log1pOp, math::ErfOp, math::SinOp, math::CosOp, math::PowFOp, math::ExpM1Op>(
          [](Operation *) { return function(2, 20); })
      .Case<arith::DivUIOp, arith::RemUIOp, arith::CeilDivUIOp, arith::DivSIOp, arith::RemSIOp>(
          [](Operation *op) {
            auto divisor = constantOf(op->getOperand(1));
            return instructions(divisor && llvm::isPowerOf2_64(*divisor) ? 1 : divisor ? 3 : 20);
          })
      .Case<arith::ConstantOp, LLVM::ConstantOp, LLVM::ExtractValueOp, LLVM::InsertValueOp,
            LLVM::ExtractElementOp, LLVM::InsertElementOp, LLVM::PoisonOp, LLVM::UndefOp, LLVM::BitcastOp,
            LLVM::IntToPtrOp, LLVM::PtrToIntOp, LLVM::AddressOfOp, arith::BitcastOp, arith::ExtUIOp,
            arith::TruncIOp, arith::IndexCastOp, scf::YieldOp>([](Operation *) { return GpuPart(); })
      .Default([](Operation *) { return instructions(1); });
}

// Whether an operation gives what one before it gave.
bool Counter::isKnown(Operation &op) {
  std::vector<const void *> key{op.getName().getAsOpaquePointer(),
                                op.getPropertiesAsAttribute().getAsOpaquePointer()};
  for (Value operand : op.getOperands())
    key.push_back(first.lookup_or(operand, operand).getAsOpaquePointer());
  for (Type type : op.getResultTypes())
    key.push_back(type.getAsOpaquePointer());
  auto [at, isNew] = seen.try_emplace(key, &op);
  if (!isNew)
    for (auto [result, known] : llvm::zip(op.getResults(), at->second->getResults()))
      first[result] = first.lookup_or(known, known);
  return !isNew;
}

GpuPart Counter::count(Block &block) {
  GpuPart sum;
  for (Operation &op : block) {
    bool pure = isMemoryEffectFree(&op) && op.getNumRegions() == 0;
    // The call's parameters do not change.
    if (auto load = dyn_cast<LLVM::LoadOp>(op))
      pure |= isOutside(load.getAddr()) &&
              cast<LLVM::LLVMPointerType>(load.getAddr().getType()).getAddressSpace() != 3;
    if (auto assembly = dyn_cast<LLVM::InlineAsmOp>(op))
      pure |= !assembly.getHasSideEffects();
    if (pure && llvm::all_of(op.getOperands(), [&](Value operand) { return isOutside(operand); })) {
      outside.insert(op.result_begin(), op.result_end());
      continue;
    }
    if (pure && isKnown(op))
      continue;
    GpuPart own = count(&op);
    if (op.hasAttr(besideAttr))
      own.beside = own.instructions;
    sum.add(own);
  }
  return sum;
}

GpuPart Counter::run() {
  auto counted = dyn_cast<scf::ForOp>(loop);
  GpuPart part = count(counted ? *counted.getBody() : *cast<scf::WhileOp>(loop).getAfterBody());
  part.name = cast<StringAttr>(loop->getAttr(partAttr)).str();
  part.tokens = cast<IntegerAttr>(loop->getAttr(tokensAttr)).getInt();
  part.warps = cast<IntegerAttr>(loop->getAttr(warpsAttr)).getInt();
  return part;
}

std::vector<GpuPart> cuda::countParts(Operation *function) {
  std::vector<GpuPart> parts;
  function->walk([&](Operation *loop) {
    if (!loop->hasAttr(partAttr))
      return;
    GpuPart part = Counter(loop).run();
    // Of loops that are one part, such as one for what is left at the end, that of most tokens counts.
    auto same = llvm::find_if(parts, [&](const GpuPart &other) { return other.name == part.name; });
    if (same == parts.end())
      parts.push_back(part);
    else if (std::pair(part.tokens, part.instructions) > std::pair(same->tokens, same->instructions))
      *same = part;
  });
  return parts;
}

//===----------------------------------------------------------------------===//
// The choice
//===----------------------------------------------------------------------===//

std::vector<GpuCandidate> cuda::listCandidates(const Kernel &kernel, StringRef symbol) {
  constexpr GpuLaunch::Cut cuts[] = {GpuLaunch::Whole,     GpuLaunch::Segments, GpuLaunch::SegmentsOrWhole,
                                     GpuLaunch::FewTokens, GpuLaunch::Spread,   GpuLaunch::SegmentsOrWhole,
                                     GpuLaunch::Spread,    GpuLaunch::Passed,   GpuLaunch::Segments};
  double temporary = 0;
  for (const Temporary &one : kernel.temporaries) // written and read
    temporary += 2 * std::max<int64_t>(one.rows, 1) * std::max<int64_t>(one.entries, 1) * one.bits / 8;
  std::vector<GpuCandidate> candidates;
  bool begins = true;
  for (const Entry &entry : kernel.entries) {
    if (begins)
      candidates.push_back({formName(entry.form).str(), {}, entry.tensors.empty() ? 0 : temporary});
    begins = !entry.continues;
    candidates.back().bytes += 2.0 * entry.recordBytes / tokensOfRecord;
    GpuLaunch launch;
    launch.name = StringRef(entry.name).drop_front(symbol.empty() ? 0 : symbol.size() + 1).str();
    launch.blocks = entry.shards;
    launch.threads = entry.threads;
    launch.sharedBytes = entry.sharedBytes;
    launch.cut = cuts[entry.cut];
    launch.leastSegments = entry.cut == Entry::SeveralSegments ? 3 : 2;
    launch.mostBlocks = entry.mostBlocks;
    launch.takesMore = entry.takesMore;
    launch.forFew = entry.forFew;
    launch.leastTokens = entry.leastTokens;
    launch.parts = kernel.parts.lookup(entry.name);
    candidates.back().launches.push_back(launch);
  }
  return candidates;
}

StringRef cuda::fastestForm(const Kernel &kernel, StringRef chip) {
  // The order of forms is what measurements say; another one has to be better than the model may err. Beside
  // a scan tokens in turn never were by far, though the model has them 1.5 times too fast.
  constexpr double clearly = 0.7;
  llvm::StringMap<double> times;
  for (const GpuCandidate &candidate : listCandidates(kernel, "")) {
    GpuTime time = predict(candidate, GpuShape(), GpuModel::of(chip));
    if (!time.why.empty())
      continue;
    auto known = times.try_emplace(candidate.form, time.microseconds).first;
    known->second = std::min(known->second, time.microseconds);
  }
  StringRef best = formName(kernel.entries.front().form);
  for (StringRef form : {"roles", "chunk"})
    if (times.contains(form) && times.contains(best) && times.lookup(form) < clearly * times.lookup(best))
      best = form;
  // Chunks that hold several systems or states lose to tokens in turn where the model says so by far.
  constexpr double byFar = 0.6;
  if (best == "chunk" && times.contains("sequential") &&
      times.lookup("sequential") < byFar * times.lookup("chunk"))
    best = "sequential";
  return best;
}

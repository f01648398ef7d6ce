#include "lib/Driver/Segments.h"
#include "lib/Algebra/NormalForm.h"
#include "lib/Derive/Segments.h"
#include <recur/abi.h>

using namespace mlir;
using namespace recur;

static std::vector<int64_t> sizesOf(MatType type, int rank) {
  std::vector<int64_t> sizes;
  for (int64_t size : {type.numRows(), type.numCols()})
    if (rank == 2 || size > 1)
      sizes.push_back(size);
  if (rank == 1 && sizes.empty())
    sizes.push_back(1);
  return sizes;
}

namespace {
class SegmentCompiler {
public:
  SegmentCompiler(RuleOp rule, const cpu::KernelOptions &main, llvm::LLVMContext &context)
      : rule(rule), main(main), context(context) {}

  FailureOr<std::optional<CompiledSegments>> run(double time, const CpuModel &cpu) {
    // With what solves for its outputs, compiling would take more than a second.
    if (rule.walk([](SolveOp) { return WalkResult::interrupt(); }).wasInterrupted())
      return std::optional<CompiledSegments>();
    std::string reason;
    SmallVector<SegmentRound> rounds = planSegments(rule, reason);
    if (rounds.empty())
      return std::optional<CompiledSegments>();
    for (auto [state, argument] : llvm::enumerate(rule.argumentsOf(ArgKind::State)))
      result.info.arrays.push_back(sizesOf(matType(argument), stateFormat(state).rank));
    double cost = 0;
    for (SegmentRound &round : rounds) {
      SegmentsInfo::Round info;
      for (SegmentGather &gather : round.gathers) {
        std::optional<double> each = addGather(gather, info, cpu);
        if (!each)
          return failure();
        cost += *each;
      }
      if (failed(addStitch(round, info)))
        return failure();
      result.info.rounds.push_back(std::move(info));
    }
    if (result.info.arrays.size() > RECUR_MAX_ARRAYS)
      return std::optional<CompiledSegments>();
    result.info.cost = std::clamp<double>(1000 * cost / time, 200, 2000);
    return std::optional(std::move(result));
  }

private:
  cpu::TensorFormat stateFormat(unsigned state) {
    unsigned next = 0;
    for (auto [tensor, format] : llvm::zip(cpu::kernelTensors(rule), main.tensors))
      if (tensor.role == cpu::Role::InitialState && next++ == state)
        return format;
    return {};
  }

  // Of the tensors of a kernel in order; params are held as the main kernel's.
  SmallVector<cpu::TensorFormat> formats(ArrayRef<cpu::TensorFormat> inputs,
                                         ArrayRef<cpu::TensorFormat> states,
                                         ArrayRef<cpu::TensorFormat> outputs) {
    SmallVector<cpu::TensorFormat> params, all;
    for (auto [tensor, format] : llvm::zip(cpu::kernelTensors(rule), main.tensors))
      if (tensor.role == cpu::Role::Param)
        params.push_back(format);
    for (ArrayRef<cpu::TensorFormat> part : {inputs, ArrayRef(params), states, outputs, states})
      llvm::append_range(all, part);
    return all;
  }

  // A gather wants to know its form; a stitch does not.
  LogicalResult addKernel(ModuleOp module, const Twine &symbol, SmallVector<cpu::TensorFormat> tensors,
                          std::string *form = nullptr) {
    cpu::KernelOptions options = main;
    options.symbol = symbol.str();
    options.tensors = std::move(tensors);
    FailureOr<cpu::Kernel> kernel = cpu::buildKernel(*module.getOps<RuleOp>().begin(), options, context);
    if (failed(kernel))
      return failure();
    // The loops of a sweep have the shape that the machine wants, and a stitch runs for a few segments:
    // unrolled, they would take longer to compile than they save.
    if (!form || kernel->form == "sweep")
      for (llvm::Function &function : *kernel->module)
        function.addFnAttr(llvm::Attribute::OptimizeForSize);
    result.info.scratch = std::max(result.info.scratch, kernel->scratchBytes);
    result.modules.push_back(std::move(kernel->module));
    if (form)
      *form = kernel->form;
    return success();
  }

  // Predicted nanoseconds of a token.
  std::optional<double> addGather(SegmentGather &gather, SegmentsInfo::Round &info, const CpuModel &cpu) {
    SmallVector<cpu::TensorFormat> inputs, states;
    for (auto [tensor, format] : llvm::zip(cpu::kernelTensors(rule), main.tensors))
      if (tensor.role == cpu::Role::Input)
        inputs.push_back(format);
    std::vector<int32_t> numbers;
    for (const SegmentGather::State &state : gather.states) {
      cpu::TensorFormat format = state.original ? stateFormat(*state.original) : cpu::TensorFormat();
      states.push_back(format);
      if (state.isKnown) {
        numbers.push_back(-1 - int32_t(*state.original));
        continue;
      }
      info.inputs.push_back(result.info.arrays.size());
      inputFormats.push_back(format);
      numbers.push_back(result.info.arrays.size());
      result.info.arrays.push_back(sizesOf(state.type, format.rank));
    }
    std::string symbol = main.symbol + "_gather_" + std::to_string(result.modules.size()), form;
    OwningOpRef<ModuleOp> copy = gather.module->clone();
    RuleOp counted = *copy->getOps<RuleOp>().begin();
    NormalForm normal = normalise(counted);
    RuleWork work = workOf(normal, leastCost(counted, normal));
    if (failed(addKernel(*gather.module, symbol, formats(inputs, states, {}), &form)))
      return std::nullopt;
    info.gathers.push_back({symbol, std::move(numbers)});
    return predict(form, work, cpu).total();
  }

  LogicalResult addStitch(SegmentRound &round, SegmentsInfo::Round &info) {
    SmallVector<cpu::TensorFormat> states;
    for (unsigned state : round.states) {
      info.states.push_back(state);
      states.push_back(stateFormat(state));
    }
    info.stitch = main.symbol + "_stitch_" + std::to_string(result.modules.size());
    SmallVector<cpu::TensorFormat> all = formats(inputFormats, states, states);
    inputFormats.clear();
    return addKernel(*round.stitch, info.stitch, std::move(all));
  }

  RuleOp rule;
  const cpu::KernelOptions &main;
  llvm::LLVMContext &context;
  CompiledSegments result;
  SmallVector<cpu::TensorFormat> inputFormats; // of the next stitch
};
} // namespace

FailureOr<std::optional<CompiledSegments>> recur::compileSegments(RuleOp rule, const cpu::KernelOptions &main,
                                                                  double time, const CpuModel &cpu,
                                                                  llvm::LLVMContext &context) {
  return SegmentCompiler(rule, main, context).run(time, cpu);
}

// Says how a rule is compiled, what a token costs, and why.
#include "lib/Driver/Commands.h"
#include "lib/Driver/Compile.h"
#include "lib/Driver/CompileGpu.h"
#include "lib/Driver/Explanation.h"
#include "lib/Driver/Output.h"
#include "lib/Schedule/Advise.h"
#include "llvm/Support/FormatVariadic.h"
#include "llvm/Support/Path.h"

using namespace mlir;
using namespace recur;
using llvm::formatv;

namespace {
class Explainer {
public:
  explicit Explainer(Session &session) : session(session), options(session.options), sizes(session.sizes()) {}

  LogicalResult run() {
    describeRule();
    module = cpu::isolateRule(session.rule());
    bool sized = !sizes.empty() || session.rule().symbols().empty();
    RuleOp rule = *module->getOps<RuleOp>().begin();
    std::vector<std::string> shown;
    if (failed(sized ? bindRule(rule, sizes) : bindOpenColumns(rule, shown)) || failed(simplifyRule(*module)))
      return failure();
    rule = *module->getOps<RuleOp>().begin();
    noteColumns(rule);
    for (const std::string &name : std::exchange(shown, {}))
      result.notes.push_back("columns: shown for " + name + " = 2");
    if (!sized && failed(bindOpenSteps(rule, shown)))
      return failure();
    for (const std::string &name : shown)
      result.notes.push_back("micro-steps: shown for " + name + " = 2");
    FailureOr<std::unique_ptr<Analysis>> analysis = analyse(session, *module);
    if (failed(analysis))
      return failure();
    const NormalForm &form = (*analysis)->normalForm;
    const Derivation &derivation = (*analysis)->derivation;
    result.ruleClass = className(form.ruleClass);
    result.classMeaning = classMeaning(form.ruleClass);
    for (const Blame &blame : form.blame)
      result.blame.push_back(blame.text);
    result.derivation = derivation.steps;
    result.noChunk = derivation.reason;
    result.advice = adviseOn(form, derivation.program ? *derivation.program : chunk::ProgramOp());
    if (sized) {
      result.cost = leastCost(rule, form);
      if (failed(describeForms(rule, **analysis)))
        return failure();
      if (result.form == "roles")
        deriveForRoles();
      return success();
    }
    result.form = "bind the dimensions to see it (--bind)";
    return success();
  }

  Explanation result;

private:
  // Roles take states that keys couple for a cascade, which no other form does.
  void deriveForRoles() {
    OwningOpRef<ModuleOp> copy(cast<ModuleOp>((*module)->clone()));
    RuleOp rule = *copy->getOps<RuleOp>().begin();
    rule->setAttr(channelsAttr, UnitAttr::get(rule.getContext()));
    if (failed(unrollSteps(rule)))
      return;
    Derivation derivation = derive(normalise(rule));
    auto isOfKeys = [](chunk::CascadeOp cascade) { return !isOne(cascade.getType().getOf().getCols()); };
    if (!derivation.program ||
        llvm::none_of(chunk::ProgramOp(*derivation.program).getBody().getOps<chunk::CascadeOp>(), isOfKeys))
      return;
    result.derivation = derivation.steps;
    result.noChunk.clear();
  }

  // Inputs that the rule has, and what is compiled has not: they are taken apart.
  void noteColumns(RuleOp rule) {
    for (BlockArgument input : rule.argumentsOf(ArgKind::Input)) {
      ArgAttr arg = rule.getArg(input);
      auto steps = dyn_cast<StepsType>(input.getType());
      BlockArgument given = session.rule().findArgument(ArgKind::Input, arg.getName());
      if (!steps || isa<StepsType>(given.getType()))
        continue;
      bool isVector = isOne(matType(given).getCols());
      result.notes.push_back(llvm::formatv("'{0}' is taken apart: {0}[j] is its {1} j of {2}",
                                           arg.getName().str(),
                                           isVector             ? "entry"
                                           : steps.getColumns() ? "column"
                                                                : "row",
                                           dimText(steps.getCount())));
    }
  }

  void describeRule() {
    ModelInfo info = describe(session);
    result.rule = info.name;
    result.spec = info.spec;
    result.precision = info.precision;
    for (const TensorInfo &tensor : info.tensors) {
      result.tensors.push_back({roleName(tensor.role).str() + " " + tensor.name, tensor.doc});
      result.names.push_back(tensor.name);
    }
    llvm::append_range(result.names, info.dims);
  }

  // What each form costs, and which one the code takes, found by making it.
  LogicalResult describeForms(RuleOp rule, Analysis &analysis) {
    llvm::Expected<Target> target = lookupTarget(options.targets);
    if (!target)
      return session.fail("--target: explain needs one machine, got: " + options.targets + "; " +
                          llvm::toString(target.takeError()));
    ModelInfo info = describe(session);
    FailureOr<std::vector<DType>> types = readTypes(session, info);
    if (failed(types))
      return failure();
    if (target->gpu)
      return describeGpuForms(rule, info, *types, *target);
    result.place = "on one core of " + target->name + ", times of a token and head";
    result.forms = compareForms(rule, analysis, *types, *target);
    cpu::KernelOptions kernelOptions =
        cpuOptions(session.rule(), info, *types, *target, result.forms.front().form);
    {
      ScopedDiagnosticHandler quiet(rule.getContext(), [](mlir::Diagnostic &) { return success(); });
      llvm::LLVMContext context;
      bool inChunks = result.forms.front().form == "chunk";
      FailureOr<cpu::Kernel> kernel = cpu::buildKernel(
          rule, kernelOptions, context, inChunks ? *analysis.derivation.program : chunk::ProgramOp());
      result.form = failed(kernel) ? "none yet: it runs in the oracle" : kernel->form;
      if (failed(kernel)) {
        result.forms.clear();
        return success();
      }
    }
    for (FormEntry &entry : result.forms)
      entry.chosen = entry.form == result.form;
    adviseOnTarget(*target, *types, analysis.normalForm);
    return success();
  }

  LogicalResult describeGpuForms(RuleOp rule, const ModelInfo &info, ArrayRef<DType> types,
                                 const Target &target) {
    std::optional<ScopedDiagnosticHandler> quiet;
    quiet.emplace(rule.getContext(), [](mlir::Diagnostic &) { return success(); });
    FailureOr<cuda::Kernel> kernel = planForGpu(session, rule, info, types, target);
    quiet.reset();
    if (failed(kernel)) {
      result.form = "none: no kernel can be made of it";
      return success();
    }
    GpuModel gpu = GpuModel::of(target.name);
    GpuShape shape;
    shape.sequences = options.batch.value_or(shape.sequences);
    shape.tokens = options.tokens.value_or(shape.tokens);
    shape.heads = options.heads.value_or(shape.heads);
    result.form = cuda::fastestForm(*kernel, target.name).str();
    result.forms = compareGpuForms(rule, info, types, *kernel, result.form, shape, gpu);
    result.place = formatv(
        "on {0} ({1}, {2} processors at {3:f2} GHz), times of a call with {4} x {5} tokens and {6} heads",
        target.name, gpu.board, int64_t(gpu.processors), gpu.gigahertz, int64_t(shape.sequences),
        int64_t(shape.tokens), int64_t(shape.heads));
    double tokens = shape.sequences * shape.tokens * shape.heads;
    double bytes = tokens * bytesOfToken(rule, info, types), flops = tokens * result.cost->flops;
    result.floors.push_back(formatv("{0:f1} us, {1:f1} MB of inputs and outputs at {2:f2} TB/s",
                                    bytes / gpu.copyRate * 1e-3, bytes * 1e-6, gpu.copyRate * 1e-3));
    result.floors.push_back(
        formatv("{0:f1} us, {1:f1} Gflop that any form needs at the {2:f0} Tflop/s of products",
                flops / gpu.productRate * 1e-3, flops * 1e-9, gpu.productRate * 1e-3));
    return success();
  }

  void adviseOnTarget(const Target &target, ArrayRef<DType> types, const NormalForm &form) {
    if (target.required & RECUR_CPU_AVX512_BF16 && result.form == "sweep" &&
        !llvm::is_contained(types, DType::BF16))
      result.advice.push_back(
          target.required & RECUR_CPU_AMX_BF16
              ? "tensors of bf16 (--dtype bf16) let this machine multiply tiles: many times the arithmetic"
              : "tensors of bf16 (--dtype bf16) let this machine multiply pairs: about twice the arithmetic");
    for (BlockArgument state : form.states) {
      MatType type = matType(state);
      int64_t columns = type.numRows(), lanes = target.vectorWidth;
      if (isMatrix(type) && columns % (2 * lanes) != 0 && result.form == "sweep")
        result.advice.push_back("the " + std::to_string(columns) + " rows of '" + notation(state) +
                                "' do not fill vectors of " + std::to_string(2 * lanes) +
                                ": the last block is partly idle");
    }
  }

  Session &session;
  const Options &options;
  llvm::StringMap<int64_t> sizes;
  OwningOpRef<ModuleOp> module;
};
} // namespace

int recur::explainCommand(Session &session) {
  if (failed(session.load(session.options.spec())))
    return session.finish();
  Explainer explainer(session);
  if (failed(explainer.run()))
    return session.finish();
  StringRef output = session.options.output.empty() ? StringRef("-") : StringRef(session.options.output);
  StringRef extension = llvm::sys::path::extension(output);
  bool html = session.options.html || extension == ".html" || extension == ".htm";
  std::string text, error;
  llvm::raw_string_ostream os(text);
  (html ? printExplanationAsHtml : printExplanation)(explainer.result, os);
  if (!writeFile(output, text, error))
    session.diags.error(error);
  return session.finish();
}

// Says how a rule is compiled, and what a token costs.
#include "lib/Algebra/Passes.h"
#include "lib/Driver/Commands.h"
#include "lib/Driver/Compile.h"
#include "lib/Driver/Output.h"
#include "lib/Driver/Problem.h"
#include "llvm/ADT/TypeSwitch.h"
#include "llvm/Support/Format.h"

using namespace mlir;
using namespace recur;

namespace {
// Floating-point operations of one token of one head, multiplications and additions counted apart.
double flopsOf(Region &region) {
  double sum = 0;
  for (Operation &op : region.front().without_terminator())
    sum += TypeSwitch<Operation *, double>(&op)
               .Case<ForOp>([](ForOp loop) {
                 return cast<IntegerAttr>(loop.getCount()).getInt() * flopsOf(loop.getBody());
               })
               .Case<MatmulOp>([](MatmulOp product) {
                 return 2.0 * matType(product.getLhs()).numCols() * product.getType().numElements();
               })
               .Case<SolveOp>([](SolveOp solve) {
                 double n = solve.getType().numRows();
                 double once = solve.getIterations() ? *solve.getIterations() * (2 * n * n + 10 * n) : n * n * n / 3;
                 return once + 2 * n * n;
               })
               .Case<ElementwiseOp>([](ElementwiseOp op) {
                 return double(cast<MatType>(op->getResult(0).getType()).numElements());
               })
               .Case<ReduceOp>([](ReduceOp op) { return double(matType(op.getOperand()).numElements()); })
               .Default(0.0);
  return sum;
}

double elementsOfType(Type type) {
  double count = 1;
  for (Attribute dim : ownDims(type))
    count *= cast<IntegerAttr>(dim).getInt();
  return count;
}

void costs(RuleOp rule, raw_ostream &os) {
  double values = 0, state = 0;
  for (BlockArgument input : rule.argumentsOf(ArgKind::Input))
    values += elementsOfType(input.getType());
  for (Value output : rule.yieldedOutputs())
    values += elementsOfType(output.getType());
  for (BlockArgument argument : rule.argumentsOf(ArgKind::State))
    state += elementsOfType(argument.getType());
  double flops = flopsOf(rule.getBody());
  os << "cost of a token and head: " << llvm::format("%.4g", flops) << " flop, " << llvm::format("%.4g", 4 * values)
     << " bytes of f32 tensors\n"
     << "state of a head: " << llvm::format("%.4g", 4 * state) << " bytes, read and written once a call\n"
     << "cost of a decoded token and head: " << llvm::format("%.4g", 8 * state + 4 * values) << " bytes\n";
}

// The form that the CPU's code takes, found by making it.
std::string formOf(RuleOp rule) {
  ScopedDiagnosticHandler quiet(rule.getContext(), [](mlir::Diagnostic &) { return success(); });
  llvm::LLVMContext context;
  FailureOr<cpu::Kernel> kernel = cpu::buildKernel(rule, cpu::KernelOptions(), context);
  return failed(kernel) ? "none yet: it runs in the oracle" : kernel->form;
}

LogicalResult explain(Session &session, std::string &text) {
  llvm::raw_string_ostream os(text);
  ModelInfo info = describe(session);
  OwningOpRef<ModuleOp> module = cpu::isolateRule(session.rule());
  bool sized = !session.sizes().empty() || session.rule().symbols().empty();
  if ((sized && failed(bindRule(*module->getOps<RuleOp>().begin(), session.sizes()))) ||
      failed(simplifyRule(*module)))
    return failure();
  // A loop over micro-steps is unrolled, so their number must be known: two show how they follow each other.
  llvm::StringMap<int64_t> steps;
  if (!sized)
    module->walk([&](ForOp loop) {
      if (auto symbol = dyn_cast<StringAttr>(loop.getCount()))
        steps[symbol.getValue()] = 2;
    });
  if (!steps.empty() && failed(bindDimensions(*module->getOps<RuleOp>().begin(), steps)))
    return failure();
  FailureOr<std::unique_ptr<Analysis>> analysis = analyse(session, *module);
  if (failed(analysis))
    return failure();
  const NormalForm &form = (*analysis)->normalForm;
  os << "rule: " << info.name << "\nclass: " << className(form.ruleClass) << "\nform: "
     << (sized ? formOf(*module->getOps<RuleOp>().begin()) : "bind the dimensions to see it (--bind)")
     << "\nprecision: " << info.precision << "\n";
  for (const auto &entry : steps)
    os << "micro-steps: shown for " << entry.getKey() << " = " << entry.getValue() << "\n";
  for (const TensorInfo &tensor : info.tensors)
    os << roleName(tensor.role) << " " << tensor.name << " : " << tensor.doc << "\n";
  for (const Blame &blame : form.blame)
    os << "not faster because: " << blame.text << "\n";
  os << "\n" << printDerivation((*analysis)->derivation);
  if (!(*analysis)->derivation.reason.empty())
    os << "no chunk form: " << (*analysis)->derivation.reason << "\n";
  os << "\n";
  if (sized)
    costs(*module->getOps<RuleOp>().begin(), os);
  else
    os << "cost: bind the dimensions to see it (--bind)\n";
  return success();
}
} // namespace

int recur::explainCommand(Session &session) {
  std::string text;
  if (failed(session.load(session.options.spec())) || failed(explain(session, text)))
    return session.finish();
  std::string error;
  if (!writeFile(session.options.output.empty() ? "-" : session.options.output, text, error))
    session.diags.error(error);
  return session.finish();
}

// Compares what the compiler made of a rule with the rule: the chunk form exactly, over a prime field, and in
// float64; the compiled code in its own precision, with an error budget for each output.
#include "lib/Derive/Measure.h"
#include "lib/Driver/Commands.h"
#include "lib/Driver/Compile.h"
#include "llvm/Support/Format.h"
#include "llvm/Support/FormatVariadic.h"
#include "llvm/Support/JSON.h"

#include <cmath>

using namespace mlir;
using namespace recur;
using llvm::format;

namespace {
// A kind of inputs and how many tokens it has.
struct Kind {
  StringLiteral name;
  Inputs inputs;
  int64_t tokens;
  bool tame;
  int64_t position = 0; // a block of states begins, or is under way
};
constexpr Kind kinds[] = {
    {"random", Inputs::Random, 67, true}, // no multiple of any block
    {"one token", Inputs::Random, 1, true},
    {"few tokens", Inputs::Random, 5, true},
    {"correlated", Inputs::Correlated, 67, false, 5},
    {"repeated", Inputs::Repeated, 67, false},
    {"zeros", Inputs::Zeros, 67, false, 5},
    {"edges", Inputs::Edges, 67, false},
    {"mixed", Inputs::Mixed, 130, false},
    {"large state", Inputs::LargeState, 67, false},
    {"small state", Inputs::SmallState, 67, false, 5},
};

// The errors of one output or final state on one kind of inputs, the worst of all rounds.
struct Entry {
  StringRef inputs;
  std::string value;
  double forward = 0;
  std::optional<double> step = {}; // none where the rule has no step
  double budget = 0, least = 0;    // what is allowed, and what would be if the rule amplified no rounding
  bool isGood() const { return !hasBudget() || worst() <= budget; }
  double worst() const { return step && (std::isnan(*step) || *step > forward) ? *step : forward; }
  // The rule itself makes more of a rounding than any code can mend; without a budget it leaves the range of
  // f32.
  bool isTouchy() const { return !(budget <= 100 * least); }
  bool hasBudget() const { return std::isfinite(budget); }
};

// What the precision of a type allows, on tame inputs and on others.
double limitOf(DLDataType type, bool tame) {
  if (type.bits == 32)
    return tame ? 2e-6 : 2e-5;
  return type.code == kDLBfloat ? (tame ? 5e-3 : 1e-2) : (tame ? 1e-3 : 2e-3);
}

// How many roundings of all operands the error of an output may be worth: sums of f32 round as often as they
// have terms, products of 16-bit numbers are added in f32.
constexpr double roundings32 = 16, roundings16 = 2;
constexpr double float64Limit = 1e-11;

class Verifier {
public:
  explicit Verifier(Session &session) : session(session), options(session.options), sizes(session.sizes()) {}

  LogicalResult run() {
    FailureOr<OwningOpRef<ModuleOp>> module = oracleModule(session, sizes);
    if (failed(module))
      return failure();
    bound = std::move(*module);
    FailureOr<std::unique_ptr<LoadedRule>> loaded = compileAndLoad(session, sizes, options.form);
    if (failed(loaded))
      return failure();
    rule = std::move(*loaded);
    if (failed(proveForm()) || failed(compareAll()))
      return failure();
    options.json ? printJson() : print();
    return report();
  }

private:
  RuleOp boundRule() { return *bound->getOps<RuleOp>().begin(); }

  // The chunk form against the rule, exactly and in float64.
  LogicalResult proveForm() {
    OwningOpRef<ModuleOp> simplified = cast<ModuleOp>(bound->clone());
    if (failed(simplifyRule(*simplified)))
      return failure();
    FailureOr<std::unique_ptr<Analysis>> analysis = analyse(session, *simplified);
    if (failed(analysis))
      return failure();
    Derivation &derivation = (*analysis)->derivation;
    noChunk = derivation.reason;
    if (!derivation.program)
      return success();
    RuleOp derived = *simplified->getOps<RuleOp>().begin();
    if (failed(unrollSteps(derived)))
      return failure();
    difference = prove(derived, *derivation.program, options.proofs);
    worst64 = 0.0;
    for (Temper temper : {Temper::Tame, Temper::Nasty})
      for (int64_t chunk : {16, 32, 64, 128}) {
        FailureOr<Accuracy> found = measure(derived, *derivation.program, 150, chunk, temper);
        if (failed(found))
          return failure();
        isOff64 |= !(found->f64 <= found->allowed(float64Limit));
        rounding64 = std::max(rounding64, found->rounding);
        worst64 = std::isnan(found->f64) ? found->f64 : std::max(*worst64, found->f64);
      }
    return success();
  }

  LogicalResult compareAll() {
    for (const Kind &kind : kinds)
      for (unsigned round = 0; round < options.rounds; ++round)
        if (failed(compare(kind, round)))
          return failure();
    return success();
  }

  LogicalResult compare(const Kind &kind, unsigned round) {
    Problem problem;
    problem.batch = options.batch.value_or(1);
    problem.heads = options.heads.value_or(1);
    problem.tokens = options.tokens && kind.tokens > 5 ? *options.tokens : kind.tokens;
    problem.position = kind.position;
    if (failed(
            drawProblem(boundRule(), options.seed.value_or(1) + round, problem, kind.inputs, session.rule())))
      return failure();
    if ((kind.inputs == Inputs::LargeState || kind.inputs == Inputs::SmallState) && problem.states.empty())
      return success();
    Call forward(*rule, problem), steps(*rule, problem);
    bool hasStep = boundRule().argumentsOf(ArgKind::Stale).empty();
    if (forward.forward() != RECUR_OK || (hasStep && steps.stepAll() != RECUR_OK))
      return session.fail(recur_last_error());
    Problem compiled, stepped, packed;
    forward.store(compiled);
    steps.store(stepped);
    bool isPacked = problem.batch > 1 && problem.tokens > 1;
    if (isPacked) {
      Call sequences(*rule, problem);
      if (sequences.forwardPacked() != RECUR_OK)
        return session.fail(recur_last_error());
      sequences.store(packed);
    }
    // What the rounded inputs mean, and how much of that hangs on the last bits of operands and of all that
    // is computed.
    forward.round(problem);
    Problem moved = problem;
    perturb(moved, operandRounding(), round + 1);
    if (failed(runOracle(boundRule(), problem)) || failed(runOracle(boundRule(), moved, /*single=*/true)))
      return failure();
    for (auto [arrays, isState] : {std::pair(&Problem::outputs, false), std::pair(&Problem::states, true)})
      for (const auto &[name, expected] : problem.*arrays) {
        Entry &entry = entryOf(kind, isState ? name + " (state)" : name);
        auto note = [&](double &worst, double error) {
          worst = std::isnan(worst) || error <= worst ? worst : error;
        };
        note(entry.forward, relativeError((compiled.*arrays).at(name), expected));
        if (isPacked)
          note(entry.forward, relativeError((packed.*arrays).at(name), expected));
        if (hasStep)
          note(entry.step ? *entry.step : entry.step.emplace(0),
               relativeError((stepped.*arrays).at(name), expected));
        entry.least = limit(name, isState, kind.tame);
        double change = relativeError((moved.*arrays).at(name), expected);
        note(entry.budget, std::isfinite(change) ? std::max(entry.least, roundings() * change)
                                                 : std::numeric_limits<double>::infinity());
      }
    return success();
  }

  Entry &entryOf(const Kind &kind, const std::string &value) {
    for (Entry &entry : entries)
      if (entry.inputs == kind.name && entry.value == value)
        return entry;
    entries.push_back({kind.name, value});
    return entries.back();
  }

  // The first variant's types; all variants share them.
  DLDataType typeOf(int32_t tensor) const { return rule->metadata->model->variants[0].dtypes[tensor]; }

  // Products may be of operands as they are stored.
  double operandRounding() const {
    double rounding = 0x1p-24;
    const recur_model &model = *rule->metadata->model;
    for (int32_t i = 0; i < model.tensor_count; ++i)
      if (model.tensors[i].role == RECUR_INPUT && typeOf(i).bits == 16)
        rounding = std::max(rounding, typeOf(i).code == kDLBfloat ? 0x1p-9 : 0x1p-12);
    return rounding;
  }

  double roundings() const { return operandRounding() > 0x1p-24 ? roundings16 : roundings32; }

  // The limit of an output or state: by its own type, and by those of the inputs.
  double limit(const std::string &name, bool isState, bool tame) const {
    const recur_model &model = *rule->metadata->model;
    double most = 0;
    for (int32_t i = 0; i < model.tensor_count; ++i) {
      bool own = model.tensors[i].name == name && (model.tensors[i].role == RECUR_STATE) == isState;
      if (own || model.tensors[i].role == RECUR_INPUT)
        most = std::max(most, limitOf(typeOf(i), tame));
    }
    return most;
  }

  void print() {
    llvm::raw_ostream &os = llvm::outs();
    auto shown = [](std::optional<double> x) {
      return x ? llvm::formatv("{0}", format("%.1e", *x)).str() : std::string("-");
    };
    if (!worst64)
      os << "no chunk form: " << noChunk << "\n";
    else
      os << "chunk form over F_p: " << (difference.empty() ? "equal" : "different at " + difference) << ", "
         << options.proofs << (options.proofs == 1 ? " round" : " rounds") << " of chunks of 1, 4, 5 and 12\n"
         << "chunk form in float64: off by " << format("%.1e", *worst64) << ", chunks of 16 to 128\n";
    if (worst64.value_or(0) > float64Limit)
      os << "  (ill-conditioned inputs: a rounding of the states at each token moves the rule by "
         << format("%.1e", rounding64) << ")\n";
    os << "compiled " << rule->metadata->form << " form, " << options.rounds
       << (options.rounds == 1 ? " round" : " rounds") << ", relative errors against the rule in float64:\n\n"
       << "  inputs       value             forward      step    budget\n";
    for (const Entry &entry : entries)
      os << format("  %-13s%-16s%9.1e%10s%10.1e  ", entry.inputs.str().c_str(), entry.value.c_str(),
                   entry.forward, shown(entry.step).c_str(), entry.budget)
         << (!entry.isGood()      ? "FAILED"
             : !entry.hasBudget() ? "leaves the range of f32"
             : entry.isTouchy()   ? "ok, ill-conditioned"
                                  : "ok")
         << "\n";
    size_t good = llvm::count_if(entries, [](const Entry &entry) { return entry.isGood(); });
    os << "\n" << good << " of " << entries.size() << " within their budget\n";
  }

  void printJson() {
    llvm::json::OStream json(llvm::outs(), 2);
    auto number = [&](StringRef key, double x) {
      json.attribute(key, std::isfinite(x) ? llvm::json::Value(x) : llvm::json::Value(nullptr));
    };
    json.object([&] {
      json.attribute("schema", 1);
      json.attribute("rule", rule->metadata->name);
      json.attribute("form", rule->metadata->form);
      json.attribute("passed", passed());
      json.attribute("rounds", options.rounds);
      json.attributeObject("chunk_form", [&] {
        json.attribute("derived", worst64.has_value());
        if (!worst64) {
          json.attribute("why_not", noChunk);
          return;
        }
        json.attribute("proof_rounds", options.proofs);
        json.attribute("equal", difference.empty());
        number("float64_error", *worst64);
        number("float64_rounding", rounding64);
      });
      json.attributeArray("rows", [&] {
        for (const Entry &entry : entries)
          json.object([&] {
            json.attribute("inputs", entry.inputs);
            json.attribute("value", entry.value);
            number("forward_error", entry.forward);
            number("step_error", entry.step.value_or(NAN));
            number("budget", entry.budget);
            json.attribute("ill_conditioned", entry.isTouchy());
            json.attribute("passed", entry.isGood());
          });
      });
    });
    llvm::outs() << "\n";
  }

  bool proofHolds() const { return difference.empty() && !isOff64; }
  bool passed() const {
    return proofHolds() && llvm::all_of(entries, [](const Entry &entry) { return entry.isGood(); });
  }

  LogicalResult report() {
    if (!difference.empty())
      session.diags.error("the chunk form differs from the rule over F_p: " + difference);
    else if (!proofHolds())
      session.diags.error("the chunk form is off by " + llvm::formatv("{0:e1}", *worst64).str() +
                          " in float64, more than " + llvm::formatv("{0:e1}", float64Limit).str() +
                          " and more than the rule makes of roundings");
    for (const Entry &entry : entries)
      if (!entry.isGood())
        session.diags.error("'" + entry.value + "' on " + entry.inputs + " inputs differs from the rule by " +
                            llvm::formatv("{0:e1}", entry.worst()).str() + ", more than " +
                            llvm::formatv("{0:e1}", entry.budget).str());
    for (const Entry &entry : entries)
      if (entry.isGood() && entry.isTouchy())
        session.diags.warning(frontend::WarningClass::Numerics, {},
                              "'" + entry.value + "' on " + entry.inputs +
                                  (entry.hasBudget()
                                       ? " inputs is ill-conditioned: single precision moves it by " +
                                             llvm::formatv("{0:e1}", entry.budget / roundings()).str()
                                       : std::string(" inputs leaves the range of f32")));
    return success(!session.diags.hasErrors());
  }

  Session &session;
  const Options &options;
  llvm::StringMap<int64_t> sizes;
  OwningOpRef<ModuleOp> bound;
  std::unique_ptr<LoadedRule> rule;
  std::string noChunk, difference;
  std::optional<double> worst64;
  double rounding64 = 0; // what the rule itself makes of roundings
  bool isOff64 = false;  // by more than that
  std::vector<Entry> entries;
};
} // namespace

int recur::verifyCommand(Session &session) {
  if (succeeded(session.load(session.options.spec())))
    (void)Verifier(session).run();
  return session.finish();
}

// Times a compiled rule: every form it has, forward and step, one thread and several, beside the machine's
// peaks. The calls and the peaks take turns, so that what disturbs the machine for a while disturbs them all.
#include "lib/Driver/Bench.h"
#include "lib/Driver/Commands.h"
#include "lib/Driver/Forms.h"
#include "lib/Driver/Peaks.h"
#include "llvm/Support/Process.h"

using namespace mlir;
using namespace recur;

// Bytes of states that no cache holds.
static constexpr double coldBytes = 256e6;

namespace {
class Bench {
public:
  explicit Bench(Session &session) : session(session), options(session.options), sizes(session.sizes()) {}

  LogicalResult run() {
    if (failed(prepare()) || failed(compile()))
      return failure();
    bool both = options.step == options.forward, hasStep = describe(session).hasStep;
    if ((options.forward || both) && failed(draw(/*step=*/false)))
      return failure();
    if ((options.step || (both && hasStep)) && failed(draw(/*step=*/true)))
      return failure();
    if (failed(measure()))
      return failure();
    for (BenchRow &row : report.rows)
      llvm::sort(row.seconds);
    for (BenchPeak &peak : report.peaks)
      llvm::sort(peak.flops), llvm::sort(peak.copy);
    (options.json ? printReportAsJson : printReport)(report, llvm::outs());
    return success();
  }

private:
  struct Loaded {
    std::string form;
    std::unique_ptr<LoadedRule> rule;
  };

  LogicalResult prepare() {
    llvm::Expected<SmallVector<Target>> targets = parseTargets(options.targets);
    if (!targets)
      return session.fail("--target: " + llvm::toString(targets.takeError()));
    if (targets->size() != 1 || targets->front().gpu)
      return session.fail("bench needs one CPU as --target, got: " + options.targets);
    report.target = targets->front().name;
    llvm::Expected<std::unique_ptr<Peaks>> made = Peaks::create(targets->front());
    if (!made)
      return session.fail("cannot measure the machine's peaks: " + llvm::toString(made.takeError()));
    peaks = std::move(*made);

    FailureOr<OwningOpRef<ModuleOp>> module = oracleModule(session, sizes);
    if (failed(module))
      return failure();
    bound = std::move(*module);
    OwningOpRef<ModuleOp> simplified = cast<ModuleOp>(bound->clone());
    if (failed(simplifyRule(*simplified)))
      return failure();
    FailureOr<std::unique_ptr<Analysis>> analysis = analyse(session, *simplified);
    if (failed(analysis))
      return failure();
    report.rule = session.rule().getSymName().str();
    report.ruleClass = className((*analysis)->normalForm.ruleClass);
    report.cost = leastCost(*simplified->getOps<RuleOp>().begin(), (*analysis)->normalForm);
    report.heads = options.heads.value_or(1);
    report.sizes = sizes;
    unsigned most = options.threads ? options.threads : recur_threads();
    if (most > unsigned(recur_threads()))
      return session.fail("--threads: there are " + Twine(recur_threads()) + ", got: " + Twine(most));
    for (unsigned threads : {1u, most})
      if (report.peaks.empty() || report.peaks.back().threads != threads)
        report.peaks.push_back({threads, {}, {}});
    return success();
  }

  LogicalResult compile() {
    FailureOr<std::unique_ptr<LoadedRule>> first = compileAndLoad(session, sizes, options.form);
    if (failed(first))
      return failure();
    std::string taken = (*first)->metadata->form;
    if (options.form == "auto")
      report.chosen = taken;
    for (StringRef form : cpuForms) {
      if (form == taken) {
        loaded.push_back({taken, std::move(*first)});
        continue;
      }
      if (options.form != "auto")
        continue;
      std::string why;
      FailureOr<std::unique_ptr<LoadedRule>> rule = compileAndLoad(session, sizes, form, &why);
      if (failed(rule))
        return failure();
      if (*rule)
        loaded.push_back({form.str(), std::move(*rule)});
      else
        report.missing.push_back({form.str(), why});
    }
    return success();
  }

  // Draws the arrays of one function and makes its rows.
  LogicalResult draw(bool step) {
    RuleOp rule = *bound->getOps<RuleOp>().begin();
    Problem problem;
    problem.heads = options.heads.value_or(1);
    problem.tokens = step ? 1 : options.tokens.value_or(1024);
    double bytes = 4 * options.heads.value_or(1) * (report.cost.state + report.cost.values);
    problem.batch = options.batch.value_or(step ? std::clamp<int64_t>(coldBytes / bytes, 1, 4096) : 1);
    if (failed(drawProblem(rule, options.seed.value_or(1), problem)))
      return failure();
    std::unique_ptr<Call> &call = step ? stepCall : forwardCall;
    call = std::make_unique<Call>(*loaded.front().rule, problem);
    BenchShape &shape = step ? report.step : report.forward;
    shape = {problem.batch, problem.tokens, double(call->tensorBytes() + call->stateBytes()),
             double(call->stateBytes())};
    for (const Loaded &form : loaded)
      for (const BenchPeak &peak : report.peaks)
        report.rows.push_back({form.form, step, peak.threads, {}});
    // Steps begin with states that are there.
    if (step && call->stepAll() != RECUR_OK)
      return session.fail(recur_last_error());
    return success();
  }

  Clock clockOf(unsigned threads) { return threads == 1 && options.threadTime ? Clock::Thread : Clock::Wall; }

  LogicalResult callOnce(BenchRow &row, bool warm = false) {
    Call &call = row.step ? *stepCall : *forwardCall;
    call.use(*llvm::find_if(loaded, [&](const Loaded &l) { return l.form == row.form; })->rule);
    Clock clock = clockOf(row.threads);
    double begin = secondsOf(clock);
    int32_t code = row.step ? call.step(0, row.threads) : call.forward(row.threads);
    double seconds = secondsOf(clock) - begin;
    if (code != RECUR_OK)
      return session.fail(recur_last_error());
    if (!warm)
      row.seconds.push_back(seconds);
    return success();
  }

  // Rounds of everything. Short calls are repeated within a round; without --repeat there are rounds for as
  // many seconds as there are rows.
  LogicalResult measure() {
    constexpr double slice = 5e-3;
    constexpr unsigned leastRounds = 3, mostRounds = 10000;
    for (BenchRow &row : report.rows)
      if (failed(callOnce(row, /*warm=*/true)))
        return failure();
    double begin = secondsOf(Clock::Wall), budget = report.rows.size();
    bool show = options.progress || llvm::sys::Process::StandardErrIsDisplayed();
    for (unsigned round = 0; round < (options.repeat ? options.repeat : mostRounds); ++round) {
      double passed = secondsOf(Clock::Wall) - begin;
      if (!options.repeat && round >= leastRounds && passed > budget)
        break;
      if (show && (options.progress || passed > 1)) {
        double share = options.repeat ? double(round) / options.repeat : std::min(passed / budget, 1.0);
        llvm::errs() << "\r" << report.rule << ": " << static_cast<int>(100 * share)
                     << " % of the timing, round " << round + 1 << "  ";
      }
      for (BenchPeak &peak : report.peaks) {
        peak.flops.push_back(peaks->flopRate(peak.threads, clockOf(peak.threads)));
        peak.copy.push_back(peaks->copyRate(peak.threads, clockOf(peak.threads)));
      }
      for (BenchRow &row : report.rows) {
        double from = secondsOf(Clock::Wall);
        do
          if (failed(callOnce(row)))
            return failure();
        while (!options.repeat && secondsOf(Clock::Wall) - from < slice);
      }
    }
    if (show)
      llvm::errs() << "\r" << std::string(60, ' ') << "\r";
    return success();
  }

  Session &session;
  const Options &options;
  llvm::StringMap<int64_t> sizes;
  std::unique_ptr<Peaks> peaks;
  OwningOpRef<ModuleOp> bound;
  std::vector<Loaded> loaded; // before the calls, which use them
  std::unique_ptr<Call> forwardCall, stepCall;
  BenchReport report;
};
} // namespace

int recur::benchCommand(Session &session) {
  if (succeeded(session.load(session.options.spec())))
    (void)Bench(session).run();
  return session.finish();
}

// Reads the command line.
#include "lib/Driver/Options.h"
#include "lib/Artifact/Target.h"
#include "lib/Driver/Pipeline.h"
#include "llvm/ADT/StringExtras.h"
#include "llvm/ADT/StringSwitch.h"
#include "llvm/Option/ArgList.h"
#include "llvm/Option/OptTable.h"
#include "llvm/Support/CommandLine.h"
#include "llvm/Support/StringSaver.h"

#include <cmath>

using namespace recur;
using namespace llvm::opt;
using llvm::StringRef;

namespace {
// The visibility of each command's options.
enum : unsigned {
  Compile = 1 << 1,
  Check = 1 << 2,
  Run = 1 << 3,
  Verify = 1 << 4,
  Bench = 1 << 5,
  Explain = 1 << 6,
  Diff = 1 << 7,
};

enum ID {
  OPT_INVALID = 0,
#define OPTION(...) LLVM_MAKE_OPT_ID(__VA_ARGS__),
#include "lib/Driver/Options.inc"
#undef OPTION
};

#define OPTTABLE_STR_TABLE_CODE
#include "lib/Driver/Options.inc"
#undef OPTTABLE_STR_TABLE_CODE
#define OPTTABLE_PREFIXES_TABLE_CODE
#include "lib/Driver/Options.inc"
#undef OPTTABLE_PREFIXES_TABLE_CODE

constexpr OptTable::Info infoTable[] = {
#define OPTION(...) LLVM_CONSTRUCT_OPT_INFO(__VA_ARGS__),
#include "lib/Driver/Options.inc"
#undef OPTION
};

class Table : public GenericOptTable {
public:
  Table() : GenericOptTable(OptionStrTable, OptionPrefixesTable, infoTable) {}
};

struct Verb {
  StringRef name;
  Command command;
  unsigned visibility;
  const char *usage, *what;
};
constexpr Verb verbs[] = {
    {"compile", Command::Compile, Compile, "recurc [compile] SPEC --bind DIM=SIZE,.. [-o FILE] [options]",
     "Compile a spec to an object file and a C header"},
    {"check", Command::Check, Check, "recurc check SPEC [options]",
     "Parse and check a spec; print what was inferred"},
    {"run", Command::Run, Run,
     "recurc run SPEC (--inputs DIR | --random SEED --tokens N) [--outputs DIR] [options]",
     "Run a rule on arrays from .npy files, or on random ones"},
    {"verify", Command::Verify, Verify, "recurc verify SPEC --bind DIM=SIZE,.. [options]",
     "Compare the compiled rule with the interpreted one on random inputs"},
    {"bench", Command::Bench, Bench, "recurc bench SPEC --bind DIM=SIZE,.. [options]",
     "Time a compiled rule"},
    {"explain", Command::Explain, Explain, "recurc explain SPEC [options]",
     "Say how a rule is compiled, and why"},
    {"diff", Command::Diff, Diff, "recurc diff A B [options]", "Decide whether two specs are the same rule"},
};

class Reader {
public:
  Reader(Options &options, std::optional<int> &exitCode) : options(options), exitCode(exitCode) {}

  void run(llvm::ArrayRef<const char *> given) {
    llvm::SmallVector<const char *> arguments(given.begin(), given.end());
    llvm::cl::ExpandResponseFiles(saver, llvm::cl::TokenizeGNUCommandLine, arguments);
    for (StringRef argument : arguments) // what cannot be read stays as it is
      if (argument.starts_with("@"))
        return usage("cannot read the response file '" + argument.drop_front() + "'");
    const Verb *verb = &verbs[0];
    if (!arguments.empty())
      for (const Verb &candidate : verbs)
        if (candidate.name == arguments[0]) {
          verb = &candidate;
          arguments.erase(arguments.begin());
          break;
        }
    options.command = verb->command;
    unsigned missingIndex, missingCount;
    InputArgList args = table.ParseArgs(arguments, missingIndex, missingCount, Visibility(verb->visibility));
    if (missingCount)
      return usage("'" + StringRef(args.getArgString(missingIndex)) + "' needs a value");
    for (const Arg *arg : args.filtered(OPT_UNKNOWN))
      return unknown(arg->getSpelling(), *verb);
    for (const Arg *arg : args)
      if (arg->getNumValues() == 1 && StringRef(arg->getValue()).empty())
        return usage("'" + arg->getSpelling().rtrim('=') + "' needs a value");
    if (args.hasArg(OPT_help))
      return help(*verb);
    if (args.hasArg(OPT_version)) {
      llvm::outs() << compilerVersion() << "\n";
      return finish(0);
    }
    if (args.hasArg(OPT_list_targets)) {
      printTargets(llvm::outs());
      return finish(0);
    }
    if (args.hasArg(OPT_list_stages)) {
      printStages(llvm::outs());
      return finish(0);
    }
    read(args);
    if (exitCode)
      return;
    size_t wanted = verb->command == Command::Diff ? 2 : 1;
    for (const Verb &candidate : verbs)
      if (options.specs.size() > wanted && StringRef(options.specs[0]).edit_distance(candidate.name) <= 2)
        return usage("no command '" + llvm::Twine(options.specs[0]) + "'; did you mean '" + candidate.name +
                     "'?");
    if (options.specs.size() != wanted)
      return usage((options.specs.size() < wanted ? "a spec file is missing"
                                                  : "too many spec files: '" + options.specs.back() + "'") +
                   llvm::Twine("; usage: ") + verb->usage);
  }

private:
  void finish(int code) { exitCode = code; }
  void usage(const llvm::Twine &what) {
    llvm::errs() << "recurc: error: " << what << "\n";
    finish(2);
  }

  void unknown(StringRef option, const Verb &verb) {
    std::string nearest, hint;
    if (table.findNearest(option, nearest, Visibility(verb.visibility)) <= 2)
      hint = "; did you mean '" + nearest + "'?";
    usage("unknown option '" + option + "' for 'recurc " + verb.name + "'" + hint);
  }

  void help(const Verb &verb) {
    table.printHelp(llvm::outs(), verb.usage, verb.what, /*ShowHidden=*/false, /*ShowAllAliases=*/false,
                    Visibility(verb.visibility));
    if (verb.command == Command::Compile) {
      llvm::outs() << "\nCOMMANDS (each has its own --help):\n";
      for (const Verb &other : verbs)
        llvm::outs() << llvm::left_justify(llvm::Twine("  ").concat(other.name).str(), 12) << other.what
                     << "\n";
      llvm::outs() << "\nEXAMPLE:\n"
                      "  echo 'S = a*S*(I - b*k*kT) + b*v*kT; o = S*q' > rule.rec\n"
                      "  recurc rule.rec --bind dk=128,dv=128 -o rule.o     # rule.o and rule.h\n";
    }
    finish(0);
  }

  static std::vector<std::string> list(const InputArgList &args, OptSpecifier id) {
    std::vector<std::string> result;
    for (const std::string &value : args.getAllArgValues(id))
      for (StringRef part : llvm::split(value, ','))
        if (!part.empty())
          result.push_back(part.str());
    return result;
  }

  template <typename T>
  void number(const InputArgList &args, OptSpecifier id, StringRef name, T &value, int64_t least) {
    const Arg *arg = args.getLastArg(id);
    if (!arg)
      return;
    int64_t parsed;
    if (StringRef(arg->getValue()).getAsInteger(10, parsed) || parsed < least)
      return usage("--" + name + " needs an integer of at least " + llvm::Twine(least) + ", got: '" +
                   arg->getValue() + "'");
    value = parsed;
  }

  void read(const InputArgList &args) {
    options.specs = args.getAllArgValues(OPT_INPUT);
    options.output = args.getLastArgValue(OPT_output);
    options.emit = list(args, OPT_emit);
    options.name = args.getLastArgValue(OPT_name);
    options.dtypes = list(args, OPT_dtype);
    options.targets = args.getLastArgValue(OPT_target, "native");
    options.untilAfter = args.getLastArgValue(OPT_until_after);
    options.printAfter = list(args, OPT_print_ir_after);
    options.saveTemps = args.hasArg(OPT_save_temps);
    options.lines = args.hasArg(OPT_lines);
    options.dependencies = args.hasArg(OPT_MD) || args.hasArg(OPT_MF);
    options.dependencyFile = args.getLastArgValue(OPT_MF);
    options.dependencyTarget = args.getLastArgValue(OPT_MT);
    options.inputs = args.getLastArgValue(OPT_inputs);
    options.outputs = args.getLastArgValue(OPT_outputs);
    options.emulate = args.hasArg(OPT_emulate);
    options.oracle = args.hasArg(OPT_oracle);
    options.step = args.hasArg(OPT_step);
    options.forward = args.hasArg(OPT_forward);
    options.progress = args.hasArg(OPT_progress);
    options.json = args.hasArg(OPT_json);
    options.html = args.hasArg(OPT_html);
    options.warnings = args.getAllArgValues(OPT_warning);
    for (const std::string &text : list(args, OPT_bind)) {
      auto [name, value] = StringRef(text).split('=');
      double number;
      if (name.empty() || value.getAsDouble(number) || !std::isfinite(number))
        return usage("--bind needs NAME=NUMBER, got: '" + text + "'");
      if (!options.bindings.try_emplace(name, number).second)
        return usage("--bind gives '" + name + "' twice");
    }
    if (const Arg *arg = args.getLastArg(OPT_form)) {
      options.form = arg->getValue();
      if (!llvm::is_contained({"auto", "sequential", "sweep", "chunk", "scan", "roles"}, options.form))
        return usage("--form needs auto, sequential, sweep, chunk, scan or roles, got: '" + options.form +
                     "'");
    }
    if (const Arg *arg = args.getLastArg(OPT_clock)) {
      StringRef clock = arg->getValue();
      if (clock != "wall" && clock != "thread")
        return usage("--clock needs wall or thread, got: '" + clock + "'");
      options.threadTime = clock == "thread";
    }
    if (const Arg *arg = args.getLastArg(OPT_opt_level))
      if (StringRef(arg->getValue()).getAsInteger(10, options.optLevel) || options.optLevel > 3)
        return usage("-O needs a level from 0 to 3, got: '" + StringRef(arg->getValue()) + "'");
    if (const Arg *arg = args.getLastArg(OPT_diagnostics_format)) {
      StringRef format = arg->getValue();
      if (format != "text" && format != "json")
        return usage("--diagnostics-format needs text or json, got: '" + format + "'");
      options.jsonDiagnostics = format == "json";
    }
    number(args, OPT_random, "random", options.seed, 0);
    number(args, OPT_chunk, "chunk", options.chunk, 16);
    if (!exitCode && (options.chunk > 256 || !llvm::isPowerOf2_64(options.chunk)))
      return usage("--chunk needs a power of two from 16 to 256, got: '" + llvm::Twine(options.chunk) + "'");
    // A call without tokens is right, and has no time.
    bool isTimed = options.command == Command::Explain || options.command == Command::Bench;
    number(args, OPT_tokens, "tokens", options.tokens, isTimed);
    number(args, OPT_batch, "batch", options.batch, isTimed);
    number(args, OPT_heads, "heads", options.heads, 1);
    number(args, OPT_processors, "processors", options.processors, 1);
    number(args, OPT_rounds, "rounds", options.rounds, 1);
    number(args, OPT_proofs, "proofs", options.proofs, 1);
    number(args, OPT_repeat, "repeat", options.repeat, 1);
    number(args, OPT_threads, "threads", options.threads, 1);
    number(args, OPT_error_limit, "error-limit", options.errorLimit, 0);
  }

  Options &options;
  std::optional<int> &exitCode;
  llvm::BumpPtrAllocator allocator;
  llvm::StringSaver saver{allocator};
  Table table;
};
} // namespace

Options recur::parseOptions(llvm::ArrayRef<const char *> arguments, std::optional<int> &exitCode) {
  Options options;
  Reader(options, exitCode).run(arguments);
  return options;
}

std::string recur::compilerVersion() { return "recurc 0.1.0 (LLVM " LLVM_VERSION_STRING ")"; }

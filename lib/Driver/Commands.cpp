// The command line, the commands that need no arrays.
#include "lib/Driver/Commands.h"
#include "lib/Artifact/Header.h"
#include "lib/Artifact/Json.h"
#include "lib/Driver/Compile.h"
#include "lib/Driver/Output.h"
#include "lib/Driver/Register.h"
#include "llvm/Support/FileSystem.h"
#include "llvm/Support/Path.h"

using namespace mlir;
using namespace recur;

namespace {
// A kind of file that --emit names.
struct Kind {
  StringLiteral name, extension;
  bool needsCode;
};
constexpr Kind kinds[] = {
    {"obj", ".o", true},
    {"header", ".h", true},
    {"json", ".json", true},
    {"asm", ".s", true},
    {"llvm", ".ll", true},
    {"mlir", ".mlir", false},
    {"recur", ".recur.mlir", false},
    {"ast", ".ast", false},
    {"tokens", ".tokens", false},
};

const Kind *findKind(StringRef name) {
  const Kind *kind = llvm::find_if(kinds, [&](const Kind &k) { return k.name == name; });
  return kind == std::end(kinds) ? nullptr : kind;
}

// Writes the files of one compilation: all of them, or none.
class Writer {
public:
  explicit Writer(Session &session) : session(session) {}

  // The path of a kind: as -o says for the first, with the kind's extension for the others.
  std::string path(const Kind &kind, bool first) {
    StringRef output = session.options.output;
    if (first && !output.empty())
      return output.str();
    if (output.empty() && !kind.needsCode)
      return "-";
    if (output.empty() && (kind.name == "asm" || kind.name == "llvm" || kind.name == "json"))
      return "-";
    SmallString<128> stem(output.empty() || output == "-" ? session.rule().getSymName() : output);
    llvm::sys::path::replace_extension(stem, kind.extension);
    return stem.str().str();
  }

  LogicalResult write(StringRef path, StringRef text) {
    if (path == "-") {
      llvm::outs() << text;
      return success();
    }
    if (llvm::is_contained(written, path) || llvm::sys::fs::equivalent(path, session.options.spec())) {
      session.diags.error(
          "cannot write '" + path + "': " +
          (llvm::is_contained(written, path) ? "it would hold two outputs" : "it is the spec itself"));
      return removeAll();
    }
    std::string error;
    if (writeFile(path, text, error)) {
      written.push_back(path.str());
      return success();
    }
    session.diags.error(error);
    return removeAll();
  }

private:
  LogicalResult removeAll() {
    for (const std::string &file : written)
      llvm::sys::fs::remove(file);
    return failure();
  }

  Session &session;
  std::vector<std::string> written;
};
} // namespace

static LogicalResult writeDependencies(Session &session, Writer &writer, StringRef output) {
  const Options &options = session.options;
  std::string file = options.dependencyFile;
  if (file.empty() && output == "-") {
    session.diags.error("-MD needs -MF where the output is standard output");
    return failure();
  }
  if (file.empty()) {
    SmallString<128> stem(output);
    llvm::sys::path::replace_extension(stem, ".d");
    file = stem.str().str();
  }
  auto escaped = [](StringRef path) {
    std::string result;
    for (char c : path) {
      if (c == ' ' || c == '#')
        result += '\\';
      result += c == '$' ? "$$" : std::string(1, c);
    }
    return result;
  };
  StringRef target = options.dependencyTarget.empty() ? output : StringRef(options.dependencyTarget);
  return writer.write(file, escaped(target) + ": " + escaped(options.spec()) + "\n");
}

static std::string text(function_ref<void(raw_ostream &)> print) {
  std::string result;
  llvm::raw_string_ostream os(result);
  print(os);
  return result;
}

// Checks the names that options give to kinds of output and to stages.
static LogicalResult checkWanted(Session &session, ArrayRef<std::string> kindNames) {
  const Options &options = session.options;
  for (StringRef name : kindNames)
    if (!findKind(name)) {
      std::string known =
          llvm::join(llvm::map_range(kinds, [](const Kind &k) { return k.name.str(); }), ", ");
      session.diags.error("--emit: there is no kind '" + name + "'; there are " + known);
    }
  for (StringRef stage : options.printAfter)
    if (stage != "all" && !isStage(stage))
      session.diags.error("--print-ir-after: there is no stage '" + stage + "'; see --list-stages");
  if (!options.untilAfter.empty() && !isStage(options.untilAfter))
    session.diags.error("--until-after: there is no stage '" + options.untilAfter + "'; see --list-stages");
  else if (options.output == "-" && options.untilAfter.empty() && kindNames.size() > 1)
    session.diags.error("-o - takes one kind of output, such as --emit=asm, got: " +
                        llvm::join(kindNames, ", "));
  return success(!session.diags.hasErrors());
}

int recur::compileCommand(Session &session) {
  const Options &options = session.options;
  std::vector<std::string> wanted =
      options.emit.empty() ? std::vector<std::string>{"obj", "header"} : options.emit;
  if (failed(checkWanted(session, wanted))) {
    session.finish();
    return 2;
  }
  bool code = !options.untilAfter.empty() || llvm::any_of(wanted, [](StringRef name) {
    return findKind(name)->needsCode || name == "mlir";
  });

  Writer writer(session);
  auto show = [&](StringRef name) {
    return name == "ast" ? session.showTree(options.spec()) : session.showTokens(options.spec());
  };
  // Tokens and the syntax tree are shown for a spec that is wrong further on, too.
  if (llvm::all_of(wanted, [](StringRef kind) { return kind == "tokens" || kind == "ast"; })) {
    for (auto [i, name] : llvm::enumerate(wanted)) {
      FailureOr<std::string> shown = show(name);
      if (failed(shown) || failed(writer.write(writer.path(*findKind(name), i == 0), *shown)))
        break;
    }
    return session.finish();
  }
  if (failed(code ? session.load(options.spec()) : session.loadRaw(options.spec())))
    return session.finish();

  std::string stem =
      options.output.empty() || options.output == "-" ? session.rule().getSymName().str() : options.output;
  SmallString<128> base(stem);
  llvm::sys::path::replace_extension(base, "");
  StageWatcher watcher(options, base.str().str());
  std::unique_ptr<Compiled> compiled;
  if (code) {
    // --emit=mlir is the module before it is translated to LLVM IR.
    FailureOr<std::unique_ptr<Compiled>> result =
        compileRule(session, session.sizes(), watcher, options.form);
    if (failed(result))
      return session.finish();
    if (!*result) {
      (void)writer.write(options.output.empty() ? "-" : options.output, watcher.result());
      return session.finish();
    }
    compiled = std::move(*result);
  }
  bool first = true;
  for (const std::string &name : wanted) {
    const Kind &kind = *findKind(name);
    std::string content =
        llvm::StringSwitch<std::function<std::string()>>(name)
            .Case("obj", [&] { return compiled->object; })
            .Case("header", [&] { return emitHeader(compiled->info); })
            .Case("json", [&] { return emitJson(compiled->info) + "\n"; })
            .Case("asm", [&] { return compiled->assembly; })
            .Case("llvm", [&] { return compiled->llvmText; })
            .Case("mlir", [&] { return watcher.lowered(); })
            .Case("recur", [&] { return text([&](raw_ostream &os) { os << session.module() << "\n"; }); })
            .Default([&] { return show(name).value_or(""); })();
    if (failed(writer.write(writer.path(kind, std::exchange(first, false)), content)))
      return session.finish();
  }
  if (options.dependencies)
    (void)writeDependencies(session, writer, writer.path(*findKind(wanted.front()), true));
  return session.finish();
}

// Warnings that need the rule's normal form.
static LogicalResult checkTerms(Session &session) {
  OwningOpRef<ModuleOp> module = cpu::isolateRule(session.rule());
  std::vector<std::string> shown;
  if (failed(bindOpenColumns(*module->getOps<RuleOp>().begin(), shown)) || failed(simplifyRule(*module)))
    return failure();
  RuleOp rule = *module->getOps<RuleOp>().begin();
  if (failed(bindOpenSteps(rule, shown)) || failed(unrollSteps(rule)))
    return failure();
  warnOfTerms(session, normalise(rule));
  return success();
}

int recur::checkCommand(Session &session) {
  if (failed(session.load(session.options.spec())) || failed(checkTerms(session)))
    return session.finish();
  if (!session.options.json) {
    frontend::printSymbols(session.program(), llvm::outs());
    return session.finish();
  }
  ModelInfo info = describe(session);
  if (llvm::Error error = finalize(info))
    session.diags.error(llvm::toString(std::move(error)));
  else
    llvm::outs() << emitJson(info) << "\n";
  return session.finish();
}

static std::unique_ptr<MLIRContext> makeContext() {
  DialectRegistry registry;
  registerAll(registry);
  // Rules are small: threads cost more than they bring.
  auto context = std::make_unique<MLIRContext>(registry, MLIRContext::Threading::DISABLED);
  // An error shows the spec, not the IR.
  context->printOpOnDiagnostic(false);
  context->loadDialect<RecurDialect, chunk::ChunkDialect>();
  return context;
}

int recur::runCommandLine(llvm::ArrayRef<const char *> arguments) {
  std::optional<int> exitCode;
  Options options = parseOptions(arguments, exitCode);
  if (exitCode)
    return *exitCode;
  std::unique_ptr<MLIRContext> context = makeContext();
  Session session(options, *context);
  if (session.diags.hasErrors()) {
    session.finish();
    return 2;
  }
  switch (options.command) {
  case Command::Compile:
    return compileCommand(session);
  case Command::Check:
    return checkCommand(session);
  case Command::Run:
    return runCommand(session);
  case Command::Verify:
    return verifyCommand(session);
  case Command::Bench:
    return benchCommand(session);
  case Command::Explain:
    return explainCommand(session);
  case Command::Diff:
    return diffCommand(session);
  }
  return 70;
}

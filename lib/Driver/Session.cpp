// Loads a spec and collects what is said about it.
#include "lib/Driver/Session.h"
#include "lib/Algebra/Passes.h"
#include "lib/Derive/Derive.h"
#include "lib/Driver/Pipeline.h"
#include "lib/Frontend/Lexer.h"
#include "lib/Frontend/Parser.h"
#include "llvm/Support/Format.h"
#include "llvm/Support/FormatVariadic.h"

#include <cmath>

using namespace mlir;
using namespace recur;

Session::Session(const Options &options, MLIRContext &context)
    : options(options), context(context), bridge(context, diags) {
  diags.errorLimit = options.errorLimit;
  for (const std::string &flag : options.warnings)
    if (!diags.setWarningFlag(flag))
      diags.error("unknown warning flag '-W" + flag + "'");
}

LogicalResult Session::open(StringRef path) {
  source = frontend::SourceFile::open(path, diags);
  diags.setFile(source.get());
  return success(source != nullptr);
}

// Constants that --bind names get its values.
static void overrideConstants(frontend::Spec &spec, const llvm::StringMap<double> &bindings) {
  for (frontend::Stmt *item : spec.items) {
    if (!item->is(frontend::StmtKind::Const))
      continue;
    if (auto value = bindings.find(item->name().name); value != bindings.end())
      item->value = spec.context->makeNumber(value->second, item->value->range);
  }
}

LogicalResult Session::loadRaw(StringRef path) {
  if (failed(open(path)))
    return failure();
  frontend::Spec spec = frontend::parse(*source, diags);
  overrideConstants(spec, options.bindings);
  checked = frontend::check(std::move(spec), diags);
  if (!checked || diags.hasErrors())
    return failure();
  for (const auto &[name, value] : boundDimensions())
    if (value != std::trunc(value) || std::abs(value) > 0x1p53)
      diags.error("--bind: dimension '" + name +
                  "' must be an integer, got: " + llvm::formatv("{0}", llvm::format("%g", value)).str());
  if (diags.hasErrors())
    return failure();
  if (!options.name.empty())
    checked->name = options.name;
  ir = frontend::emitIR(*checked, context, diags);
  return success(!diags.hasErrors());
}

LogicalResult Session::load(StringRef path) {
  if (failed(loadRaw(path)))
    return failure();
  if (failed(differentiateRule(*ir)))
    return failure();
  OwningOpRef<RuleOp> sequence(rule().clone());
  if (sequence->getBody().getOps<BlockOp>().empty() || !findRecurrence(rule()).empty())
    return success();
  std::string difference = proveRecurrence(*sequence, rule());
  if (difference.empty())
    return success();
  diags.error("internal error: the states are not the rule: " + difference);
  return failure();
}

FailureOr<std::string> Session::showTokens(StringRef path) {
  if (!source && failed(open(path)))
    return failure();
  std::string text;
  llvm::raw_string_ostream os(text);
  frontend::printTokens(*source, frontend::lex(*source, diags), os);
  return diags.hasErrors() ? FailureOr<std::string>() : text;
}

FailureOr<std::string> Session::showTree(StringRef path) {
  if (!source && failed(open(path)))
    return failure();
  std::string text;
  llvm::raw_string_ostream os(text);
  frontend::print(frontend::parse(*source, diags), os);
  return diags.hasErrors() ? FailureOr<std::string>() : text;
}

RuleOp Session::rule() { return *ir->getOps<RuleOp>().begin(); }

std::map<std::string, double> Session::boundDimensions() const {
  std::map<std::string, double> bound;
  for (const auto &entry : options.bindings)
    if (llvm::none_of(checked->consts, [&](const frontend::Symbol *c) { return c->name == entry.getKey(); }))
      bound[entry.getKey().str()] = entry.getValue();
  return bound;
}

llvm::StringMap<int64_t> Session::sizes() const {
  llvm::StringMap<int64_t> sizes;
  for (const auto &[name, value] : boundDimensions())
    sizes[name] = static_cast<int64_t>(value);
  return sizes;
}

int Session::finish() {
  if (!rendered)
    diags.render(llvm::errs(), options.jsonDiagnostics ? frontend::DiagnosticEngine::Format::Json
                                                       : frontend::DiagnosticEngine::Format::Text);
  rendered = true;
  return diags.hasErrors();
}

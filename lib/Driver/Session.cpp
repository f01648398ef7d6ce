// Loads a spec and collects what is said about it.
#include "lib/Driver/Session.h"
#include "lib/Driver/Pipeline.h"
#include "lib/Frontend/IRGen.h"

using namespace mlir;
using namespace recur;
using frontend::Severity;

Session::Session(const Options &options, MLIRContext &context)
    : options(options), context(context), handler(&context, [this](mlir::Diagnostic &diagnostic) {
        receive(diagnostic);
        return success();
      }) {
  diags.errorLimit = options.errorLimit;
  for (const std::string &flag : options.warnings)
    if (!diags.setWarningFlag(flag))
      diags.error("unknown warning flag '-W" + flag + "'");
}

static FileLineColRange placeOf(Location loc) {
  FileLineColRange place;
  loc->walk([&](Location inner) {
    place = dyn_cast<FileLineColRange>(LocationAttr(inner));
    return place ? WalkResult::interrupt() : WalkResult::advance();
  });
  return place;
}

// An error of the IR becomes one of the spec.
void Session::receive(mlir::Diagnostic &diagnostic) {
  Severity severity = diagnostic.getSeverity() == DiagnosticSeverity::Error     ? Severity::Error
                      : diagnostic.getSeverity() == DiagnosticSeverity::Warning ? Severity::Warning
                                                                                : Severity::Remark;
  auto range = [&](FileLineColRange place) -> frontend::SourceRange {
    return {source->offset({place.getStartLine(), place.getStartColumn()}),
            source->offset({place.getEndLine(), place.getEndColumn()})};
  };
  FileLineColRange place = placeOf(diagnostic.getLocation());
  frontend::Diagnostic &reported =
      place && source ? diags.report(severity, {place.getStartLine(), place.getStartColumn()},
                                     {place.getEndLine(), place.getEndColumn()}, diagnostic.str())
                      : diags.error(diagnostic.str());
  for (mlir::Diagnostic &note : diagnostic.getNotes()) {
    FileLineColRange at = placeOf(note.getLocation());
    if (at && at != place && source)
      reported.note(range(at), note.str());
    else
      reported.note(note.str());
  }
}

LogicalResult Session::loadRaw(StringRef path) {
  source = frontend::SourceFile::open(path, diags);
  if (!source)
    return failure();
  diags.setFile(source.get());
  ir = frontend::compileSource(context, *source, diags, {options.name, options.bindings});
  return success(ir && !diags.hasErrors());
}

LogicalResult Session::load(StringRef path) {
  if (failed(loadRaw(path)))
    return failure();
  return differentiateRule(*ir);
}

RuleOp Session::rule() { return *ir->getOps<RuleOp>().begin(); }

llvm::StringMap<int64_t> Session::sizes() const {
  // What names no constant is a dimension; IRGen has used up the constants.
  llvm::StringMap<int64_t> sizes;
  for (const auto &entry : options.bindings)
    if (!llvm::is_contained(frontend::constantsOf(*ir), entry.getKey()))
      sizes[entry.getKey()] = entry.getValue();
  return sizes;
}

int Session::finish() {
  if (!rendered)
    diags.render(llvm::errs(), options.jsonDiagnostics ? frontend::DiagnosticEngine::Format::Json
                                                       : frontend::DiagnosticEngine::Format::Text);
  rendered = true;
  return diags.hasErrors();
}

// From a rule to an object, for every target.
#include "lib/Driver/Compile.h"
#include "lib/Algebra/Spectral.h"
#include "lib/Algebra/Symmetry.h"
#include "lib/Artifact/Descriptor.h"
#include "lib/Artifact/Object.h"
#include "lib/Derive/Derive.h"
#include "lib/Driver/CompileGpu.h"
#include "lib/Driver/Forms.h"
#include "lib/Driver/Problem.h"
#include "lib/Driver/Segments.h"
#include "llvm/IR/LLVMContext.h"
#include "llvm/Transforms/Utils/Cloning.h"
#include <recur/abi.h>

using namespace mlir;
using namespace recur;

static std::string shapeDoc(Type type, ArgAttr arg) {
  std::string text;
  if (auto steps = dyn_cast<StepsType>(type)) {
    text = "[" + dimText(steps.getCount()) + "]";
    type = steps.getStep();
  }
  auto mat = cast<MatType>(type);
  text = (mat.isScalar()   ? "scalar"
          : mat.isVector() ? "vector(" + dimText(mat.getRows()) + ")"
                           : "matrix(" + dimText(mat.getRows()) + ", " + dimText(mat.getCols()) + ")") +
         text;
  if (arg && arg.getRange())
    text += " in " + arg.getRange().str();
  if (arg && arg.getUnit())
    text += ", unit";
  return text;
}

void recur::warnOfTerms(Session &session, const NormalForm &form) {
  // Whoever runs a rule has been told when it was checked or compiled.
  if (session.options.command == Command::Run || session.options.command == Command::Bench)
    return;
  for (SolveOp solve : findUnsymmetricSystems(form.rule)) {
    std::optional<frontend::SourceRange> at = frontend::placeInFile(solve.getLoc(), session.diags);
    session.diags
        .warning(frontend::WarningClass::Numerics, at.value_or(frontend::SourceRange()),
                 "'solve' takes its matrix to be symmetric, but nothing shows that '" +
                     notation(solve.getMatrix()) + "' is")
        .note("sums of x*x.T, diagonals, and states that gather such are; 1/2*(A + A.T) makes one of A");
  }
  for (const UnstableTerm &term : findUnstableTerms(form)) {
    std::optional<frontend::SourceRange> at = frontend::placeInFile(term.loc, session.diags);
    session.diags.warning(frontend::WarningClass::Spectral, at.value_or(frontend::SourceRange()), term.text)
        .note(term.fix);
  }
}

void recur::warnOfDefect(Session &session, const std::string &defect) {
  session.diags
      .warning(frontend::WarningClass::Perf, {},
               "internal error: the derived chunk form is not the rule: " + defect)
      .note("the other forms are not affected; please report the spec");
}

void recur::dropUnproved(Session &session, RuleOp rule, Derivation &derivation) {
  if (derivation.program)
    derivation.defect = prove(rule, *derivation.program);
  if (derivation.defect.empty())
    return;
  derivation.program = {};
  derivation.reason = "it failed its proof";
  warnOfDefect(session, derivation.defect);
}

FailureOr<std::unique_ptr<Analysis>> recur::analyse(Session &session, ModuleOp simplified) {
  auto analysis = std::make_unique<Analysis>();
  analysis->module = cast<ModuleOp>(simplified->clone());
  RuleOp rule = *analysis->module->getOps<RuleOp>().begin();
  if (failed(unrollSteps(rule)))
    return failure();
  // The derivation is compared with the rule as it is now, before normalising adds to it.
  OwningOpRef<ModuleOp> before = analysis->module->clone();
  analysis->normalForm = normalise(rule);
  warnOfTerms(session, analysis->normalForm);
  if (session.diags.hasErrors()) // -Werror=spectral
    return failure();
  Derivation &derivation = analysis->derivation;
  derivation = derive(analysis->normalForm);
  dropUnproved(session, *before->getOps<RuleOp>().begin(), derivation);
  return analysis;
}

ModelInfo recur::describe(Session &session) {
  RuleOp rule = session.rule();
  ModelInfo info;
  info.name = rule.getSymName().str();
  info.spec = session.file().text().str();
  info.form = "sequential";
  info.precision = "f32 states, products and sums";
  info.compiler = compilerVersion();
  for (StringAttr symbol : rule.symbols())
    info.dims.push_back(symbol.str());
  for (BlockArgument argument : rule.argumentsOf(ArgKind::Position))
    info.usesPosition |= !argument.use_empty();
  info.hasStep = rule.argumentsOf(ArgKind::Stale).empty();
  auto add = [&](StringRef name, Role role, Type type, ArgAttr arg) {
    TensorInfo tensor;
    tensor.name = name.str();
    tensor.role = role;
    for (Attribute dim : ownDims(type))
      tensor.shape.push_back(dimText(dim));
    tensor.doc = shapeDoc(type, arg);
    info.tensors.push_back(std::move(tensor));
  };
  for (auto [kind, role] : {std::pair(ArgKind::Input, Role::Input), std::pair(ArgKind::Param, Role::Param),
                            std::pair(ArgKind::State, Role::State)})
    for (BlockArgument argument : rule.argumentsOf(kind))
      add(rule.getArg(argument).getName(), role, argument.getType(), rule.getArg(argument));
  for (auto [name, value] : llvm::zip(rule.getOutputs().getAsRange<StringAttr>(), rule.yieldedOutputs()))
    add(name.getValue(), Role::Output, value.getType(), {});
  return info;
}

FailureOr<std::vector<DType>> recur::readTypes(Session &session, const ModelInfo &info) {
  std::vector<DType> types(info.tensors.size(), DType::F32);
  auto fail = [&](const Twine &what) {
    session.diags.error(what);
    return failure();
  };
  if (llvm::count_if(session.options.dtypes, [](StringRef text) { return !text.contains('='); }) > 1)
    return fail("--dtype: more than one type for all tensors: " + llvm::join(session.options.dtypes, ","));
  for (bool named : {false, true})
    for (StringRef text : session.options.dtypes) {
      auto [name, value] = text.split('=');
      if (named == value.empty())
        continue;
      llvm::Expected<DType> type = parseDType(named ? value : name);
      if (!type)
        return fail("--dtype: " + llvm::toString(type.takeError()));
      bool found = !named;
      for (auto [tensor, slot] : llvm::zip(info.tensors, types)) {
        if (named && tensor.name != name)
          continue;
        if (named && tensor.role == Role::State && *type != DType::F32)
          return fail("--dtype: states are f32, so '" + name + "' cannot be " + value);
        found = true;
        slot = tensor.role == Role::State ? DType::F32 : *type;
      }
      if (!found)
        return fail("--dtype: the rule has no tensor '" + name + "'");
    }
  return types;
}

LogicalResult recur::report(Session &session, llvm::Error error) {
  if (!error)
    return success();
  session.diags.error(llvm::toString(std::move(error)));
  return failure();
}

// One format for each tensor of the kernel: states stand there twice.
static SmallVector<cpu::TensorFormat> kernelFormats(RuleOp rule, const ModelInfo &info,
                                                    ArrayRef<DType> types) {
  SmallVector<cpu::TensorFormat> formats;
  for (const cpu::KernelTensor &tensor : cpu::kernelTensors(rule)) {
    bool state = tensor.role == cpu::Role::InitialState || tensor.role == cpu::Role::FinalState;
    bool output = tensor.role == cpu::Role::Output;
    for (auto [candidate, type] : llvm::zip(info.tensors, types))
      if (candidate.name == tensor.name && (candidate.role == Role::State) == state &&
          (candidate.role == Role::Output) == output)
        formats.push_back({type, static_cast<int>(candidate.shape.size())});
  }
  return formats;
}

cpu::KernelOptions recur::cpuOptions(RuleOp rule, const ModelInfo &info, ArrayRef<DType> types,
                                     const Target &target, StringRef form) {
  cpu::KernelOptions options;
  options.sweep = form != "sequential";
  options.tensors = kernelFormats(rule, info, types);
  options.vectorWidth = target.vectorWidth;
  // Where there are tiles, products of pairs take longer than twice as many of f32.
  options.hasBf16Tiles = target.required & RECUR_CPU_AMX_BF16;
  options.hasBf16Pairs = target.required & RECUR_CPU_AVX512_BF16 && !options.hasBf16Tiles;
  return options;
}

FailureOr<std::unique_ptr<Compiled>> recur::compileRule(Session &session,
                                                        const llvm::StringMap<int64_t> &sizes,
                                                        StageWatcher &watcher, StringRef form,
                                                        std::string *missing) {
  auto compiled = std::make_unique<Compiled>();
  ModelInfo &info = compiled->info;
  info = describe(session);
  llvm::Expected<SmallVector<Target>> targets = parseTargets(session.options.targets);
  if (!targets) {
    session.diags.error("--target: " + llvm::toString(targets.takeError()));
    return failure();
  }
  FailureOr<std::vector<DType>> types = readTypes(session, info);
  if (failed(types))
    return failure();

  OwningOpRef<ModuleOp> module = cpu::isolateRule(session.rule());
  if (watcher.after("recur", session.module()) || watcher.after("differentiate", *module))
    return std::unique_ptr<Compiled>();
  RuleOp rule = *module->getOps<RuleOp>().begin();
  if (failed(bindRule(rule, sizes)))
    return failure();
  if (watcher.after("bind", *module))
    return std::unique_ptr<Compiled>();
  if (failed(simplifyRule(*module)))
    return failure();
  if (watcher.after("simplify", *module))
    return std::unique_ptr<Compiled>();

  FailureOr<std::unique_ptr<Analysis>> analysis = analyse(session, *module);
  if (failed(analysis))
    return failure();
  const NormalForm &normalForm = (*analysis)->normalForm;
  info.ruleClass = className(normalForm.ruleClass).str();
  if (auto blocks = rule.getBody().getOps<BlockOp>(); !blocks.empty()) {
    std::optional<frontend::SourceRange> at =
        frontend::placeInFile((*blocks.begin()).getLoc(), session.diags);
    session.diags
        .error(at.value_or(frontend::SourceRange()),
               "attention forms and block statements run only in the oracle for now")
        .note(normalForm.blame.front().text);
    return failure();
  }

  llvm::LLVMContext context;
  std::unique_ptr<llvm::Module> whole;
  for (auto [index, target] : llvm::enumerate(*targets)) {
    VariantInfo variant;
    variant.target = target;
    for (const std::string &dim : info.dims)
      variant.dims.push_back(sizes.lookup(dim));
    variant.dtypes = *types;
    auto part = std::make_unique<llvm::Module>("", context);
    SmallVector<StringRef> exported;
    auto hasNo = [&](std::string why) -> FailureOr<std::unique_ptr<Compiled>> {
      if (missing) {
        *missing = std::move(why);
        return std::unique_ptr<Compiled>();
      }
      session.diags.error("--form: " + why);
      return failure();
    };
    bool isOfGpus = llvm::is_contained({"roles", "scan"}, form), isOfCpus = form == "sweep";
    if (target.gpu ? isOfCpus : isOfGpus)
      return hasNo("the rule has no " + form.str() + " form for " + target.name + ": it is one of " +
                   (isOfCpus ? "CPUs" : "GPUs"));
    std::string found;
    if (target.gpu) {
      cuda::Kernel kernel;
      FailureOr<GpuCode> code = compileForGpu(session, rule, info, *types, target, form, kernel);
      if (failed(code))
        return failure();
      variant.gpu = std::move(*code);
      found = cuda::formName(kernel.entries.front().form).str();
      if (form != "auto" && form != found) {
        std::string reason = kernel.refused[form];
        return hasNo("the rule has no " + form.str() + " form for " + target.name +
                     (reason.empty() ? "" : ": " + reason));
      }
    } else {
      std::vector<FormEntry> forms = compareForms(rule, **analysis, *types, target);
      std::string wanted = form == "auto" ? forms.front().form : form.str();
      cpu::KernelOptions options = cpuOptions(session.rule(), info, *types, target, wanted);
      options.symbol = variant.kernel = info.name + "_kernel_" + std::to_string(index);
      OwningOpRef<ModuleOp> copy = module->clone();
      if (wanted == "chunk") {
        Derivation &derivation = (*analysis)->derivation;
        if (std::string why = whyNoChunks(derivation); !why.empty())
          return hasNo("'" + info.name + "' has no chunk form: " + why);
        cpu::addChunkProgram(*copy, *derivation.program);
        options.chunk = session.options.chunk;
        if (watcher.after("chunk", *copy))
          return std::unique_ptr<Compiled>();
      }
      FailureOr<cpu::Kernel> kernel = lowerToKernel(*copy, options, context, watcher, session.options.lines);
      if (failed(kernel))
        return failure();
      if (!kernel->module)
        return std::unique_ptr<Compiled>();
      if (form != "auto" && form != kernel->form)
        return hasNo("the rule has no " + form.str() + " form for " + target.name +
                     (kernel->formReason.empty() ? "" : ": " + kernel->formReason));
      variant.scratch = kernel->scratchBytes;
      variant.parts = kernel->parts;
      found = kernel->form;
      part = std::move(kernel->module);
      double time =
          *llvm::find_if(forms, [&](const FormEntry &entry) { return entry.form == found; })->microseconds *
          1e3;
      FailureOr<std::optional<CompiledSegments>> segments =
          compileSegments(rule, options, time, cpuModelOf(*types, target), context);
      if (failed(segments))
        return failure();
      if (*segments) {
        variant.segments = std::move((*segments)->info);
        for (std::unique_ptr<llvm::Module> &module : (*segments)->modules)
          if (failed(report(session, linkModules(*part, std::move(module)))))
            return failure();
      }
      for (const auto &function : variant.kernels())
        exported.push_back(function);
    }
    if (index == 0) // the best target
      info.form = found;
    llvm::Error error = prepareModule(*part, target, exported);
    info.variants.push_back(std::move(variant));
    if (!error && whole)
      error = linkModules(*whole, std::move(part));
    else if (!error)
      whole = std::move(part);
    if (failed(report(session, std::move(error))))
      return failure();
  }
  if (failed(report(session, finalize(info))) || failed(report(session, emitDescriptor(*whole, info))) ||
      failed(report(session, optimizeModule(*whole, session.options.optLevel))))
    return failure();
  if (llvm::is_contained(session.options.emit, "llvm")) {
    llvm::raw_string_ostream os(compiled->llvmText);
    whole->print(os, nullptr);
  }
  // Writing code consumes the module.
  bool assembly = llvm::is_contained(session.options.emit, "asm");
  std::unique_ptr<llvm::Module> second = assembly ? llvm::CloneModule(*whole) : nullptr;
  llvm::Expected<SmallString<0>> object = emitCode(*whole, CodeKind::Object, session.options.optLevel);
  if (failed(report(session, object.takeError())))
    return failure();
  compiled->object = object->str().str();
  if (assembly) {
    llvm::Expected<SmallString<0>> text = emitCode(*second, CodeKind::Assembly, session.options.optLevel);
    if (failed(report(session, text.takeError())))
      return failure();
    compiled->assembly = text->str().str();
  }
  return compiled;
}

FailureOr<std::unique_ptr<LoadedRule>> recur::compileAndLoad(Session &session,
                                                             const llvm::StringMap<int64_t> &sizes,
                                                             StringRef form, std::string *missing) {
  StageWatcher watcher(session.options, "");
  FailureOr<std::unique_ptr<Compiled>> compiled = compileRule(session, sizes, watcher, form, missing);
  if (failed(compiled))
    return failure();
  if (!*compiled)
    return std::unique_ptr<LoadedRule>();
  auto loaded = LoadedRule::load((*compiled)->object, (*compiled)->info.name);
  if (loaded)
    return std::move(*loaded);
  return session.fail("cannot load the compiled rule: " + llvm::toString(loaded.takeError()));
}

FailureOr<OwningOpRef<ModuleOp>> recur::oracleModule(Session &session,
                                                     const llvm::StringMap<int64_t> &sizes) {
  OwningOpRef<ModuleOp> module = cpu::isolateRule(session.rule());
  if (failed(bindRule(*module->getOps<RuleOp>().begin(), sizes)))
    return failure();
  return module;
}

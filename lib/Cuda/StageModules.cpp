// The modules of stages, and what they hand over.
#include "lib/Algebra/Bounds.h"
#include "lib/Algebra/ColumnRows.h"
#include "lib/Algebra/JoinedKeys.h"
#include "lib/Algebra/Passes.h"
#include "lib/Algebra/Rewriting.h"
#include "lib/Cuda/StageCutter.h"
#include "lib/Derive/Derive.h"
#include "mlir/IR/IRMapping.h"

using namespace mlir;
using namespace recur;
using namespace recur::cuda;

// A rule with some values of the rule for outputs, some for inputs as far as they are needed, and some of the
// states; null where others are needed, too.
OwningOpRef<ModuleOp> StageCutter::stage(const Names &inputs, const Names &outputs, uint64_t states) {
  OwningOpRef<ModuleOp> module = ModuleOp::create(rule.getLoc());
  OpBuilder b = OpBuilder::atBlockEnd(module->getBody());
  IRMapping map;
  auto copy = cast<RuleOp>(b.clone(*rule, map));
  Block &block = copy.getBody().front(), &init = copy.getInit().front();
  SmallVector<Value> yields, inits;
  for (auto [i, update] : llvm::enumerate(copy.yieldedStates()))
    if (states >> i & 1) {
      yields.push_back(update);
      inits.push_back(copy.getInitYield()->getOperand(i));
    }
  SmallVector<Attribute> args(copy.getArgs().begin(), copy.getArgs().end()), names;
  size_t known = args.size();
  // Stages hand rows over as columns.
  auto isRow = [](Value value) { return recur::isRow(matType(value)); };
  OpBuilder last(copy.getBodyYield());
  for (auto &[value, name] : outputs) {
    Value own = map.lookup(value);
    yields.push_back(isRow(value) ? TransposeOp::create(last, rule.getLoc(), own).getResult() : own);
    names.push_back(b.getStringAttr(name));
  }
  copy.getBodyYield()->setOperands(yields);
  copy.getInitYield()->setOperands(inits);
  copy.setOutputsAttr(b.getArrayAttr(names));
  SmallVector<NamedAttribute> norms;
  for (auto &[value, name] : inputs) {
    auto bundle = bundles.find(value);
    if (value.getDefiningOp<ConcatOp>() || bundle == bundles.end())
      if (double norm = normOf(value).hi; !std::isinf(norm))
        norms.push_back({b.getStringAttr(name), b.getF64FloatAttr(norm)});
    Value like = bundle == bundles.end() ? value : bundle->second.front();
    args.push_back(ArgAttr::get(b.getContext(), ArgKind::Input, b.getStringAttr(name), rangeOf(like),
                                isDividedByNorm(like), 0));
    if (bundle == bundles.end()) {
      MatType type = matType(value);
      Value given = block.addArgument(isRow(value) ? type.transposed() : type, rule.getLoc());
      OpBuilder first = OpBuilder::atBlockBegin(&block);
      if (isRow(value))
        given = TransposeOp::create(first, rule.getLoc(), given);
      map.lookup(value).replaceAllUsesWith(given);
      continue;
    }
    bool isColumn = isOne(matType(like).getCols());
    auto type = StepsType::get(b.getContext(), b.getI64IntegerAttr(bundle->second.size()),
                               isColumn ? matType(like) : matType(like).transposed());
    BlockArgument steps = block.addArgument(type, rule.getLoc());
    OpBuilder first = OpBuilder::atBlockBegin(&block);
    for (auto [i, part] : llvm::enumerate(bundle->second)) {
      Value number = ConstantOp::create(first, rule.getLoc(), double(i + 1));
      Value own = ExtractOp::create(first, rule.getLoc(), steps, number);
      if (!isColumn)
        own = TransposeOp::create(first, rule.getLoc(), own);
      map.lookup(part).replaceAllUsesWith(own);
    }
  }
  for (Block *region : {&block, &init})
    eraseDead(*region);
  for (unsigned i = args.size(), state = 64; i-- > 0;) {
    auto arg = cast<ArgAttr>(args[i]);
    bool isState = arg.getKind() == ArgKind::State || arg.getKind() == ArgKind::Stale;
    if (isState) {
      auto all = rule.argumentsOf(ArgKind::State);
      state = llvm::find(all, rule.findArgument(ArgKind::State, arg.getName())) - all.begin();
    }
    if (i >= known ? !block.getArgument(i).use_empty() : !isState || states >> state & 1)
      continue;
    if (!block.getArgument(i).use_empty())
      return {};
    block.eraseArgument(i);
    args.erase(args.begin() + i);
  }
  // States of the same value are the caller's one.
  for (Attribute &attribute : args) {
    auto arg = cast<ArgAttr>(attribute);
    StringRef name = arg.getName().getValue();
    while (name.consume_back(secondSuffix))
      attribute = ArgAttr::get(b.getContext(), arg.getKind(), b.getStringAttr(name), arg.getRange(),
                               arg.getUnit(), arg.getBlock());
  }
  copy.setArgsAttr(b.getArrayAttr(args));
  if (!norms.empty())
    copy->setAttr(normsAttr, b.getDictionaryAttr(norms));
  return module;
}

// Puts what is handed over for each micro-step together.
bool StageCutter::bundle() {
  int64_t count = 0;
  for (BlockArgument input : rule.argumentsOf(ArgKind::Input))
    if (auto steps = dyn_cast<StepsType>(input.getType())) {
      int64_t own = cast<IntegerAttr>(steps.getCount()).getInt();
      if (count && own != count)
        return false;
      count = own;
    }
  if (!count || !body.getOps<ForOp>().empty() || !written.empty() || whole || !bundle(early, count))
    return false;
  for (Core &own : cores.cores)
    if (!bundle(own.products, count))
      return false;
  cores.findReach();
  return true;
}

bool StageCutter::bundle(llvm::SetVector<Value> &values, int64_t count) {
  LookedAt looked([&](Value value) { return isMatrix(value) && cores.reachOf(value); });
  llvm::SetVector<Value> left(values), bundled;
  for (Value value : values) {
    FailureOr<int64_t> first = looked.of(value);
    if (failed(first))
      return false;
    if (*first != 1)
      continue;
    SmallVector<Value> parts{value};
    for (int64_t step = 2; step <= count; ++step) {
      auto *other = llvm::find_if(left, [&](Value other) { return looked.areAlike(value, other, step); });
      if (other == left.end())
        return false;
      parts.push_back(*other);
    }
    for (Value part : parts)
      left.remove(part);
    Operation *last = nullptr;
    for (Value part : parts)
      if (Operation *op = part.getDefiningOp(); !last || last->isBeforeInBlock(op))
        last = op;
    OpBuilder b(rule.getContext());
    b.setInsertionPointAfter(last);
    SmallVector<Value> oriented;
    for (Value part : parts)
      oriented.push_back(
          isOne(matType(part).getCols()) ? part : TransposeOp::create(b, rule.getLoc(), part).getResult());
    Value columns = JoinOp::create(b, rule.getLoc(), oriented);
    Value rows = TransposeOp::create(b, rule.getLoc(), columns);
    bundled.insert(rows);
    for (auto &[core, own] : taken)
      if (own.contains(value))
        own.insert(rows);
    if (logs.contains(value))
      logs.insert(rows);
    bundles[rows] = parts;
  }
  if (llvm::any_of(left, [&](Value value) { return *looked.of(value) != 0; }))
    return false;
  left.insert_range(bundled);
  values = left;
  return true;
}

// The rule that stages are together.
static OwningOpRef<ModuleOp> joinStages(const Stages &stages, RuleOp rule) {
  OwningOpRef<ModuleOp> module = ModuleOp::create(rule.getLoc());
  auto whole = cast<RuleOp>(OpBuilder::atBlockEnd(module->getBody()).clone(*rule));
  Operation *yield = whole.getBodyYield();
  OpBuilder b(yield);
  llvm::StringMap<Value> named; // temporaries, then outputs and new states
  SmallVector<RuleOp> parts;
  for (const Stages::Map &map : stages.maps)
    parts.push_back(map.rule());
  for (const Stages::Stage &stage : stages.stages)
    parts.push_back(stage.rule());
  for (RuleOp part : parts) {
    IRMapping map;
    auto given = [&](ArgKind kind, StringRef name) {
      Value own = whole.findArgument(kind, name);
      return own ? own : named.lookup(name);
    };
    for (BlockArgument argument : part.getBody().getArguments()) {
      ArgAttr arg = part.getArg(argument);
      Value own = given(arg.getKind(), arg.getName());
      std::optional<JoinedNames> names = joinedNames(part, arg.getName());
      if (names && !own) {
        auto joined = llvm::find_if(stages.joined, [&](const Stages::Joined &joined) {
          return joinNames(joined.names) == arg.getName().getValue();
        });
        SmallVector<Value> vectors;
        for (auto [name, type] : llvm::zip(joined->names, joined->types))
          vectors.push_back(name.empty() ? ConstantOp::create(b, rule.getLoc(), 0.0, type).getResult()
                                         : given(ArgKind::Input, name));
        own = ConcatOp::create(b, rule.getLoc(), vectors, names->firsts);
      }
      map.map(argument, own);
    }
    for (Operation &op : part.getBody().front().without_terminator()) {
      // A row of what a stage hands over.
      if (auto extract = dyn_cast<ExtractOp>(op);
          extract && isa<MatType>(map.lookup(extract.getSteps()).getType())) {
        JoinOp join = columnsOf(map.lookup(extract.getSteps()));
        map.map(extract.getResult(), join.getColumns()[*microStepOf(extract) - 1]);
        continue;
      }
      b.clone(op, map);
    }
    for (auto [state, value] : llvm::zip(part.argumentsOf(ArgKind::State), part.yieldedStates()))
      named["new " + part.getArg(state).getName().str()] = map.lookup(value);
    for (auto [name, value] : llvm::zip(part.getOutputs().getAsRange<StringAttr>(), part.yieldedOutputs()))
      named[name] = map.lookup(value);
  }
  SmallVector<Value> values;
  for (BlockArgument state : whole.argumentsOf(ArgKind::State))
    values.push_back(named.lookup("new " + whole.getArg(state).getName().str()));
  for (auto name : whole.getOutputs().getAsRange<StringAttr>())
    values.push_back(named.lookup(name));
  yield->setOperands(values);
  return module;
}

// Whether a stage takes what another one hands over under a name, perhaps as part of a vector.
static bool takesInput(RuleOp rule, StringRef name) {
  return llvm::any_of(rule.argumentsOf(ArgKind::Input), [&](BlockArgument input) {
    StringRef own = rule.getArg(input).getName();
    std::optional<JoinedNames> joined = joinedNames(rule, own);
    return own == name || (joined && llvm::is_contained(joined->names, name));
  });
}

// What a stage of matrices reads or writes is held in half precision.
static void chooseDigits(Stages &stages) {
  for (const Stages::Stage &stage : stages.stages)
    for (Stages::Temporary &temporary : stages.temporaries)
      if (stage.kind == Stages::Matrices && !temporary.areNumbers &&
          (takesInput(stage.rule(), temporary.name) ||
           llvm::is_contained(stage.rule().getOutputs(),
                              StringAttr::get(stage.rule()->getContext(), temporary.name))))
        temporary.isWide = false;
}

// What another stage of matrices reads is one number an entry, of what its other vectors are.
void StageCutter::keepWhole(Stages &stages) {
  for (Stages::Temporary &temporary : stages.temporaries)
    if (options.withAllRests && !(options.withRests && temporary.isExponent) &&
        llvm::any_of(stages.stages, [&](const Stages::Stage &stage) {
          return stage.kind == Stages::Matrices && stage.rule().findArgument(ArgKind::Input, temporary.name);
        })) {
      temporary.isInParts = false;
      llvm::erase(wanted, temporary.name);
    }
}

// Whether matrices of other cores are written along what a core gives, so that errors of both add up. What
// the core is written itself it erases where it is off.
bool StageCutter::feedsOthers(const Core &own) {
  return llvm::any_of(own.products, [&](Value given) {
    return !isNumber(given) && !written.contains(given) && llvm::any_of(cores.cores, [&](Core &other) {
      return !other.isVector && feeding(other) & own.states &&
             taken[&other].contains(stripOrientation(given));
    });
  });
}

// All stages, or nothing where what one of them needs cannot be handed over.
std::optional<Stages> StageCutter::makeStages() {
  Stages stages;
  Names ofTokens, ofCores, ofMaps, ofJoined; // early values and products that are known so far
  nameMaps(stages, ofMaps);
  auto name = [&](Value value, Names &names) {
    auto bundle = bundles.find(value);
    stages.temporaries.push_back({"recur." + std::to_string(stages.temporaries.size()), matType(value),
                                  /*isWide=*/true,
                                  bundle != bundles.end() && isNumber(bundle->second.front())});
    names.push_back({value, stages.temporaries.back().name});
  };
  // A joined vector is handed over in parts, of which zeros are none; inputs are that as they are.
  auto nameJoined = [&](ConcatOp concat, Names &names) {
    Stages::Joined joined;
    for (Value part : concat.getParts()) {
      joined.types.push_back(matType(part));
      std::string &own = joined.names.emplace_back();
      auto constant = part.getDefiningOp<ConstantOp>();
      if (constant && constant.getValue().isZero())
        continue;
      if (isInput(part)) {
        own = rule.getArg(cast<BlockArgument>(stripOrientation(part))).getName().str();
        continue;
      }
      for (const Names *known : {&ofTokens, &ofCores, &names})
        for (const auto &[value, name] : *known)
          if (value == part)
            own = name;
      if (own.empty()) {
        name(part, names);
        own = names.back().second;
      }
    }
    ofJoined.push_back({concat, joinNames(joined.names)});
    stages.joined.push_back(joined);
  };
  auto nameOutputs = [&](ArrayRef<unsigned> which, Names &names) {
    for (unsigned i : which)
      names.push_back({rule.yieldedOutputs()[i], cast<StringAttr>(rule.getOutputs()[i]).str()});
  };
  auto add = [&](const Names &inputs, const Names &outputs, uint64_t states, Stages::Kind kind) {
    stages.stages.push_back({stage(inputs, outputs, states), kind});
  };
  // States that pass go on in the stage that needs them, which hands over what later ones need of them.
  uint64_t passing = 0;
  bool isTwice = false;
  auto addTokens = [&](const Names &outputs) {
    Names given(ofCores);
    for (const auto &named : ofTokens)
      if (cores.passingOf(named.first, {}))
        given.push_back(named);
    llvm::DenseSet<Value> known;
    for (const auto &named : given)
      known.insert(named.first);
    auto values = llvm::map_to_vector(outputs, [](const auto &named) { return named.first; });
    uint64_t own = cores.passingOf(values, known);
    isTwice |= (own & passing) != 0;
    passing |= own;
    add(given, outputs, own, Stages::Tokens);
  };
  for (unsigned level = 0; level <= cores.cores.size(); ++level) {
    Names outputs;
    for (Value value : early)
      if (cores.levelOf(value) == level) {
        if (auto concat = value.getDefiningOp<ConcatOp>())
          nameJoined(concat, outputs);
        else
          name(value, outputs);
      }
    size_t between = outputs.size();
    if (level == cores.cores.size())
      nameOutputs(late, outputs);
    if (!outputs.empty())
      addTokens(outputs);
    llvm::append_range(ofTokens, ArrayRef(outputs).take_front(between));
    if (level == cores.cores.size())
      break;
    Core &own = cores.cores[level];
    Names given(ofCores), products;
    llvm::append_range(given, ofJoined);
    llvm::copy_if(ofMaps, std::back_inserter(given),
                  [&](const auto &named) { return taken[&own].contains(named.first); });
    // A function of the token that the core does not take it computes; but of vectors that numbers are read
    // along products want what matrices have, too, where nothing magnifies what rounding has taken away.
    bool givesNumbers = own.isVector && !magnified && own.outputs.empty() &&
                        llvm::all_of(own.products, [](Value value) { return isNumber(value); });
    llvm::copy_if(ofTokens, std::back_inserter(given), [&](const auto &named) {
      Value value = named.first;
      return cores.reachOf(value) || taken[&own].contains(value) || logs.contains(value) ||
             (givesNumbers && !isNumber(value) && !decays.contains(value));
    });
    for (Value value : own.products) {
      name(value, products);
      if (own.isVector || isNumber(value))
        continue;
      Stages::Temporary &temporary = stages.temporaries.back();
      temporary.isExponent = exponents.contains(value);
      temporary.isInParts = options.withAllRests || (options.withRests && temporary.isExponent);
      if (temporary.isInParts)
        wanted.push_back(temporary.name);
    }
    outputs.clear();
    nameOutputs(own.outputs, outputs);
    llvm::append_range(outputs, products);
    add(given, outputs, own.states, own.isVector ? Stages::Vectors : Stages::Matrices);
    if (Stages::Stage &made = stages.stages.back(); made.module) {
      if (magnified & own.states || feedsOthers(own))
        made.rule()->setAttr(magnifiedAttr, UnitAttr::get(rule->getContext()));
      if (followed & own.states)
        made.rule()->setAttr(followedAttr, UnitAttr::get(rule->getContext()));
    }
    llvm::append_range(ofCores, products);
  }
  auto isNone = [](const auto &part) { return !part.module; };
  if (isTwice || passing != cores.allPassing() || llvm::any_of(stages.stages, isNone) ||
      llvm::any_of(stages.maps, isNone))
    return std::nullopt;
  RuleOp first = whole ? *whole->getOps<RuleOp>().begin() : rule;
  OwningOpRef<ModuleOp> together = joinStages(stages, first);
  std::string where;
  RuleOp joined = *together->getOps<RuleOp>().begin();
  if (failed(unrollSteps(joined)) || failed(unrollSteps(first)) || !sameRule(first, joined, where)) {
    mlir::emitRemark(rule.getLoc()) << "its stages differ from the rule at " << where;
    return std::nullopt;
  }
  chooseDigits(stages);
  keepWhole(stages);
  addRests(stages);
  return stages;
}

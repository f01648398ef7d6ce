#include "lib/Frontend/IRGenImpl.h"
#include "mlir/Analysis/SliceAnalysis.h"
#include "mlir/IR/Verifier.h"

using namespace mlir;

namespace recur::frontend {

// A gradient by a state that has changed since what is differentiated was written is 0, which nobody wants.
static void warnOfZeroGradients(ModuleOp module, DiagnosticEngine &diags) {
  module.walk([&](GradientOp gradient) {
    SetVector<Operation *> users;
    getForwardSlice(gradient.getWrt(), &users);
    std::optional<SourceRange> place = placeInFile(gradient.getLoc(), diags);
    if (gradient.getOf() != gradient.getWrt() && !users.contains(gradient.getOf().getDefiningOp()))
      diags
          .warning(WarningClass::Unused, place.value_or(SourceRange()),
                   "this gradient is 0: what is differentiated does not depend on the state as it is here")
          .note("where a state has been assigned, its name is the new value: write what is differentiated "
                "after that, or take the gradient before it");
  });
}

OwningOpRef<ModuleOp> emitIR(const Program &program, MLIRContext &context, DiagnosticEngine &diags) {
  context.getOrLoadDialect<RecurDialect>();
  OwningOpRef<ModuleOp> module = IRGen(program, context).run();
  warnOfZeroGradients(*module, diags);
  return module;
}

OwningOpRef<ModuleOp> compileSource(MLIRContext &context, const SourceFile &file, DiagnosticEngine &diags) {
  std::unique_ptr<Program> program = check(file, diags);
  if (!program)
    return {};
  return emitIR(*program, context, diags);
}

IRGen::IRGen(const Program &program, MLIRContext &context)
    : program(program), context(context), builder(&context) {}

OwningOpRef<ModuleOp> IRGen::run() {
  Location whole = location(SourceRange{0, static_cast<uint32_t>(program.file->text().rtrim().size())});
  OwningOpRef<ModuleOp> module = ModuleOp::create(whole);
  collectArguments();
  SmallVector<Attribute> args, outputs;
  for (const Argument &argument : arguments)
    args.push_back(argument.attribute);
  for (const Symbol *output : program.outputs)
    outputs.push_back(builder.getStringAttr(output->name));
  builder.setInsertionPointToEnd(module->getBody());
  auto rule = RuleOp::create(builder, whole, builder.getStringAttr(program.name), builder.getArrayAttr(args),
                             builder.getArrayAttr(outputs));
  emitInit(rule.getInit());

  bindArguments(rule.getBody(), /*init=*/false);
  for (const Stmt *stmt : program.body)
    emitStatement(*stmt);
  if (!program.sequence.empty())
    emitOverTokens(program.sequence, 0,
                   cover(program.sequence.front()->range, program.sequence.back()->range));
  SmallVector<Value> results;
  for (const Symbol *state : program.states)
    results.push_back(values.lookup(state));
  for (const Symbol *output : program.outputs) {
    Value value = values.lookup(output);
    bool isRow = value.getType() != type(Program::perToken(*output));
    results.push_back(isRow ? builder.createOrFold<TransposeOp>(whole, value) : value);
  }
  YieldOp::create(builder, whole, results);
  assert(succeeded(mlir::verify(*module)) && "a checked spec gives valid IR");
  return module;
}

//===----------------------------------------------------------------------===//
// Locations and types
//===----------------------------------------------------------------------===//

Location IRGen::location(SourceRange range) {
  LineColumn begin = program.file->lineColumn(range.begin), end = program.file->lineColumn(range.end);
  return FileLineColRange::get(builder.getStringAttr(program.file->name()), begin.line, begin.column,
                               end.line, end.column);
}

Attribute IRGen::dim(const Dim &dim) {
  if (dim.isSymbol())
    return builder.getStringAttr(dim.symbol);
  return builder.getI64IntegerAttr(dim.value);
}

MatType IRGen::type(const Shape &shape) {
  return MatType::get(&context, dim(shape.rows), dim(shape.diag ? Dim() : shape.cols));
}

RangeAttr IRGen::range(const Interval &interval) {
  if (interval.isEverything())
    return {};
  return RangeAttr::get(&context, interval.lo, interval.hi, interval.loOpen, interval.hiOpen);
}

//===----------------------------------------------------------------------===//
// Arguments and initial values
//===----------------------------------------------------------------------===//

void IRGen::addArgument(ArgKind kind, StringRef name, Type type, const Symbol *symbol, int64_t block) {
  bool declares = symbol && kind != ArgKind::Stale;
  auto attribute =
      ArgAttr::get(&context, kind, builder.getStringAttr(name),
                   declares ? range(symbol->interval) : RangeAttr(), declares && symbol->unit, block);
  arguments.push_back({attribute, type, symbol});
}

void IRGen::collectArguments() {
  for (const Symbol *input : program.inputs) {
    Type inputType = type(input->shape);
    if (input->steps)
      inputType = StepsType::get(&context, dim(*input->steps), cast<MatType>(inputType));
    addArgument(ArgKind::Input, input->name, inputType, input);
  }
  for (const Symbol *param : program.params)
    addArgument(ArgKind::Param, param->name, type(param->shape), param);
  for (const Symbol *state : program.states)
    addArgument(ArgKind::State, state->name, type(state->shape), state);
  for (const Symbol *state : program.states)
    if (state->stale)
      addArgument(ArgKind::Stale, state->name, type(state->shape), state, program.blockSize);
  MatType scalar = MatType::scalar(&context);
  for (const Symbol &symbol : program.symbols) {
    ArgKind kind = symbol.is(SymbolKind::Head)       ? ArgKind::Head
                   : symbol.is(SymbolKind::Heads)    ? ArgKind::Heads
                   : symbol.is(SymbolKind::Position) ? ArgKind::Position
                                                     : ArgKind::Input;
    if (kind == ArgKind::Input)
      continue;
    // `rope` needs the position even where the spec has a `t` of its own.
    bool taken =
        llvm::any_of(arguments, [&](const Argument &a) { return a.attribute.getName() == symbol.name; });
    addArgument(kind, taken ? (symbol.name + "_").str() : symbol.name.str(), scalar, &symbol);
    if (kind == ArgKind::Position)
      position = &symbol;
  }
}

/// Opens the block of a region of the rule and makes its arguments the values of their symbols.
void IRGen::bindArguments(Region &region, bool init) {
  values.clear();
  Block &block = region.emplaceBlock();
  for (const Argument &argument : arguments) {
    ArgKind kind = argument.attribute.getKind();
    if (init && kind != ArgKind::Param && kind != ArgKind::Head && kind != ArgKind::Heads)
      continue;
    SourceRange at = argument.symbol->range;
    Value value = block.addArgument(argument.type, location(at));
    (kind == ArgKind::Stale ? stale : values)[argument.symbol] = value;
  }
  builder.setInsertionPointToEnd(&block);
}

void IRGen::emitInit(Region &region) {
  bindArguments(region, /*init=*/true);
  SmallVector<Value> initial;
  for (const Symbol *state : program.states) {
    Location loc = location(state->range);
    if (!state->value) {
      initial.push_back(number(0, type(state->shape), loc));
      continue;
    }
    Value value = convert(*state->value, state->shape);
    initial.push_back(value);
  }
  YieldOp::create(builder, region.getLoc(), initial);
}

//===----------------------------------------------------------------------===//
// Statements
//===----------------------------------------------------------------------===//

void IRGen::emitStatement(const Stmt &stmt) {
  switch (stmt.kind) {
  case StmtKind::Assign:
    return emitAssign(stmt);
  case StmtKind::For:
    return emitLoop(stmt);
  case StmtKind::Block:
    return emitOverTokens(SmallVector<const Stmt *>(stmt.body.begin(), stmt.body.end()), stmt.blockSize,
                          stmt.range);
  default:
    llvm_unreachable("declarations are no statements");
  }
}

void IRGen::emitAssign(const Stmt &stmt) {
  Value assigned = convert(*stmt.value, stmt.symbol->shape);
  // What an input's declaration promises holds for what the spec assigns to it as well.
  if (stmt.symbol->is(SymbolKind::Input))
    assigned = promise(assigned, stmt.symbol->interval, false, location(*stmt.value));
  values[stmt.symbol] = assigned;
}

void IRGen::collectAssigned(const Stmt &stmt, SymbolSet &assigned) const {
  if (stmt.is(StmtKind::Assign))
    assigned.insert(stmt.symbol);
  for (const Stmt *inner : stmt.body)
    collectAssigned(*inner, assigned);
}

void IRGen::collectReads(const Expr &expr, SymbolSet &reads, llvm::SetVector<const Expr *> &factors) const {
  if (expr.is(ExprKind::Name))
    reads.insert(expr.symbol);
  if (expr.primitive && expr.primitive->op == PrimitiveOp::Decay) {
    factors.insert(expr.operand());
    return;
  }
  for (const Expr *operand : expr.operands)
    collectReads(*operand, reads, factors);
  if (expr.body)
    collectReads(*expr.body, reads, factors);
}

void IRGen::collectReads(const Stmt &stmt, SymbolSet &reads, llvm::SetVector<const Expr *> &factors) const {
  if (stmt.is(StmtKind::Assign))
    collectReads(*stmt.value, reads, factors);
  for (const Stmt *inner : stmt.body)
    collectReads(*inner, reads, factors);
}

bool IRGen::isReadOutside(const Symbol &symbol, ArrayRef<const Stmt *> inside) const {
  SymbolSet reads;
  llvm::SetVector<const Expr *> factors;
  auto collect = [&](auto &self, const Stmt &stmt) -> void {
    if (llvm::is_contained(inside, &stmt))
      return;
    if (stmt.is(StmtKind::Assign))
      collectReads(*stmt.value, reads, factors);
    for (const Stmt *inner : stmt.body)
      self(self, *inner);
  };
  for (const Stmt *stmt : program.body)
    collect(collect, *stmt);
  for (const Stmt *stmt : program.sequence)
    collect(collect, *stmt);
  for (const Expr *factor : factors)
    collectReads(*factor, reads, factors);
  SmallVector<const Symbol *> rows;
  for (const Symbol *read : reads)
    if (read->is(SymbolKind::Rows))
      rows.push_back(read->of);
  return symbol.output || reads.contains(&symbol) || llvm::is_contained(rows, &symbol);
}

void IRGen::emitLoop(const Stmt &stmt) {
  Location loc = location(stmt.range);
  SymbolSet assigned;
  collectAssigned(stmt, assigned);
  // Carried: what has a value before the loop, and what is read after it.
  SmallVector<const Symbol *> carried;
  SmallVector<Value> inits;
  for (const Symbol *symbol : assigned) {
    Value before = values.lookup(symbol);
    if (!before && !isReadOutside(*symbol, stmt.body))
      continue;
    carried.push_back(symbol);
    inits.push_back(before ? before : number(0, type(symbol->shape), loc));
  }
  SmallVector<Type> types = llvm::to_vector(ValueRange(inits).getTypes());
  auto loop = ForOp::create(builder, loc, types, dim(*stmt.symbol->steps), inits);
  Environment outer = values;
  {
    OpBuilder::InsertionGuard guard(builder);
    Block &body = loop.getBody().emplaceBlock();
    values[stmt.symbol] = body.addArgument(MatType::scalar(&context), location(stmt.name().range));
    for (auto [symbol, type] : llvm::zip(carried, types))
      values[symbol] = body.addArgument(type, loc);
    builder.setInsertionPointToEnd(&body);
    for (const Stmt *inner : stmt.body)
      emitStatement(*inner);
    SmallVector<Value> next;
    for (const Symbol *symbol : carried)
      next.push_back(values.lookup(symbol));
    YieldOp::create(builder, loc, next);
  }
  values = std::move(outer);
  for (auto [symbol, result] : llvm::zip(carried, loop.getResults()))
    values[symbol] = result;
}

/// Statements over a block of tokens, or over the whole sequence when `size` is 0: one recur.block.
void IRGen::emitOverTokens(ArrayRef<const Stmt *> stmts, int64_t size, SourceRange range) {
  Location loc = location(range);
  SymbolSet reads, assigned;
  llvm::SetVector<const Expr *> factors;
  for (const Stmt *stmt : stmts) {
    collectReads(*stmt, reads, factors);
    collectAssigned(*stmt, assigned);
  }
  // What enters: values of each token, then values that all tokens share.
  SmallVector<const Symbol *> rowsOf, sharedSymbols;
  SmallVector<Value> tokens, shared;
  for (const Symbol *symbol : reads)
    if (symbol->is(SymbolKind::Rows)) {
      rowsOf.push_back(symbol);
      tokens.push_back(values.lookup(symbol->of));
    }
  for (const Expr *factor : factors)
    tokens.push_back(value(*factor));
  for (const Symbol *symbol : reads) {
    Value known = values.lookup(symbol);
    if (symbol->is(SymbolKind::Const) && !symbol->number)
      known = value(*symbol->value);
    if (!known || symbol->is(SymbolKind::Argument) || symbol->is(SymbolKind::Rows))
      continue;
    sharedSymbols.push_back(symbol);
    shared.push_back(known);
  }
  for (const Symbol *symbol : assigned)
    if (!llvm::is_contained(sharedSymbols, symbol) && values.lookup(symbol)) {
      sharedSymbols.push_back(symbol);
      shared.push_back(values.lookup(symbol));
    }
  // What leaves: values for the whole block, then one row for each token.
  SmallVector<const Symbol *> whole, perToken;
  SmallVector<Type> wholeTypes, rowTypes;
  for (const Symbol *symbol : assigned) {
    if (symbol->shape.rows.symbol == tokenDim && symbol->output) {
      perToken.push_back(symbol);
      rowTypes.push_back(type(Program::perToken(*symbol)));
    } else if (symbol->is(SymbolKind::State) ||
               (symbol->shape.rows.symbol != tokenDim && isReadOutside(*symbol, stmts))) {
      whole.push_back(symbol);
      wholeTypes.push_back(type(symbol->shape));
    }
  }
  auto block = BlockOp::create(builder, loc, wholeTypes, rowTypes,
                               size ? builder.getI64IntegerAttr(size) : IntegerAttr(),
                               builder.getStringAttr(tokenDim), tokens, shared);
  Environment outer = values;
  {
    OpBuilder::InsertionGuard guard(builder);
    Block &body = block.getBody().emplaceBlock();
    values.clear();
    auto enter = [&](Value from, Type type) { return body.addArgument(type, from.getLoc()); };
    for (auto [i, token] : llvm::enumerate(tokens)) {
      Value rows = enter(token, block.rowsType(matType(token)));
      if (i < rowsOf.size())
        values[rowsOf[i]] = rows;
      else
        decays[factors[i - rowsOf.size()]] = rows;
    }
    for (auto [symbol, from] : llvm::zip(sharedSymbols, shared))
      values[symbol] = enter(from, from.getType());
    builder.setInsertionPointToEnd(&body);
    for (const Stmt *stmt : stmts)
      emitStatement(*stmt);
    SmallVector<Value> results;
    for (const Symbol *symbol : whole)
      results.push_back(values.lookup(symbol));
    for (const Symbol *symbol : perToken)
      results.push_back(values.lookup(symbol));
    YieldOp::create(builder, loc, results);
  }
  values = std::move(outer);
  for (auto [symbol, result] : llvm::zip(whole, block.getStates()))
    values[symbol] = result;
  for (auto [symbol, result] : llvm::zip(perToken, block.getRows()))
    values[symbol] = result;
}

//===----------------------------------------------------------------------===//
// Diagnostics of the IR
//===----------------------------------------------------------------------===//

/// The place of a location in the spec, innermost where calls are inlined.
static FileLineColRange placeOf(Location loc) {
  FileLineColRange found;
  loc->walk([&](Location inner) {
    found = dyn_cast<FileLineColRange>(inner);
    return found ? WalkResult::interrupt() : WalkResult::advance();
  });
  return found;
}

std::optional<SourceRange> placeInFile(Location loc, const DiagnosticEngine &diags) {
  FileLineColRange place = placeOf(loc);
  if (!place || !diags.file() || place.getFilename() != diags.file()->name())
    return std::nullopt;
  return SourceRange{diags.file()->offset({place.getStartLine(), place.getStartColumn()}),
                     diags.file()->offset({place.getEndLine(), place.getEndColumn()})};
}

DiagnosticBridge::DiagnosticBridge(MLIRContext &context, DiagnosticEngine &diags)
    : handler(&context, [&diags](mlir::Diagnostic &diagnostic) {
        Severity severity = Severity::Error;
        if (diagnostic.getSeverity() == DiagnosticSeverity::Warning)
          severity = Severity::Warning;
        else if (diagnostic.getSeverity() != DiagnosticSeverity::Error)
          severity = Severity::Remark;
        auto inFile = [&](Location loc) {
          FileLineColRange place = placeOf(loc);
          return place && diags.file() && place.getFilename() == diags.file()->name() ? place
                                                                                      : FileLineColRange();
        };
        auto begin = [](FileLineColRange at) { return LineColumn{at.getStartLine(), at.getStartColumn()}; };
        auto end = [](FileLineColRange at) { return LineColumn{at.getEndLine(), at.getEndColumn()}; };
        FileLineColRange at = inFile(diagnostic.getLocation());
        Diagnostic &added = at ? diags.report(severity, begin(at), end(at), diagnostic.str())
                               : diags.report(severity, diagnostic.str());
        for (mlir::Diagnostic &note : diagnostic.getNotes()) {
          if (FileLineColRange where = inFile(note.getLocation()))
            added.note({diags.file()->offset(begin(where)), diags.file()->offset(end(where))}, note.str());
          else
            added.note(note.str());
        }
        return success();
      }) {}

} // namespace recur::frontend

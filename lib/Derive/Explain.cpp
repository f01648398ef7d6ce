// A derivation as text, in the notation of the papers: capitals are matrices with one row per token of the
// chunk, G is the sum of log decays up to a token (Gx before it), tril and stril are lower triangles with and
// without the diagonal.
#include "lib/Algebra/Stems.h"
#include "lib/Derive/Derive.h"
#include "mlir/IR/Matchers.h"
#include "llvm/ADT/StringMap.h"
#include "llvm/ADT/TypeSwitch.h"
#include "llvm/Support/FormatVariadic.h"

using namespace mlir;
using namespace recur;

namespace {
// Writes the body of a program as equations; a value that is used once stands where it is used.
class ProgramWriter {
public:
  ProgramWriter(chunk::ProgramOp program, const ShortNames &given)
      : program(program), known(given.byText),
        x(shortStem(llvm::to_vector(program.getArgs().getAsRange<ArgAttr>()))) {
    counters[x] = given.lines.size();
    for (auto solve : program.getBody().getOps<chunk::TriSolveOp>())
      allStreams += solve.getRhs().size();
  }

  void write(DerivationStep &tokens, DerivationStep &system, DerivationStep &results) {
    for (BlockArgument argument : program.getBody().getArguments()) {
      ArgAttr arg = program.getArg(argument.getArgNumber());
      bool rows = arg.getKind() == ArgKind::Input;
      names[argument] = rows ? rowsOf(arg.getName().getValue()) : arg.getName().str();
      tokenNames[argument] = arg.getName().str();
    }
    for (Operation &op : program.getBody().front().without_terminator()) {
      if (auto map = dyn_cast<chunk::MapOp>(op)) // of rows that were read out, or of tokens alone
        writeMap(map, dependsOnStates(map) ? results : tokens);
      else if (auto decay = dyn_cast<chunk::DecayOp>(op))
        writeDecay(decay, tokens);
      else if (auto cascade = dyn_cast<chunk::CascadeOp>(op))
        writeCascade(cascade, tokens);
      else if (auto solve = dyn_cast<chunk::TriSolveOp>(op))
        writeSolve(solve, system);
      else if (auto substitute = dyn_cast<chunk::SubstituteOp>(op))
        writeSubstitution(substitute, system);
      else if (auto factors = dyn_cast<chunk::LdlOp>(op))
        writeFactors(factors, system);
      else if (auto scan = dyn_cast<chunk::ScanOp>(op))
        writeScan(scan, system);
      else if (auto iterations = dyn_cast<chunk::ConjugateGradientsOp>(op))
        writeIterations(iterations, system);
      else if (!op.getResult(0).hasOneUse() && isa<MatmulOp, chunk::GramOp, chunk::MixOp>(op))
        name(op.getResult(0), isa<chunk::GramOp>(op) ? "A" : "P", system);
    }
    SmallVector<std::string> targets;
    for (BlockArgument state : program.argumentsOf(ArgKind::State))
      targets.push_back(names[state] + "'");
    for (auto output : program.getOutputs().getAsRange<StringAttr>())
      targets.push_back(upper(output.getValue()));
    for (auto [target, value] : llvm::zip(targets, program.getBodyYield().getValues()))
      results.lines.push_back(target + " = " + text(value, 0));
  }

private:
  // The capital, unless that is the name of another argument.
  std::string rowsOf(StringRef name) {
    std::string capital = upper(name);
    bool isTaken = llvm::any_of(program.getArgs().getAsRange<ArgAttr>(), [&](ArgAttr arg) {
      return arg.getName().getValue() == capital && name != capital;
    });
    return isTaken ? "rows(" + name.str() + ")" : capital;
  }

  static std::string upper(StringRef text) {
    return text.size() == 1 ? text.upper() : "rows(" + text.str() + ")";
  }

  void name(Value value, StringRef stem, DerivationStep &step) {
    std::string line = text(value, 0), fresh = stem.str() + std::to_string(++counters[stem]);
    step.lines.push_back(fresh + " = " + line);
    names[value] = fresh;
  }

  // Values of a token are named x1, x2, ..; their rows X1, X2, ..
  void writeMap(chunk::MapOp map, DerivationStep &step) {
    unsigned next = 0;
    for (Value operand :
         llvm::concat<Value>(llvm::to_vector(map.getCarried()), llvm::to_vector(map.getRows()),
                             llvm::to_vector(map.getShared()))) {
      BlockArgument argument = map.getBody().getArgument(next++);
      bool isLong = operand.getDefiningOp() && !names.contains(operand) && !argument.hasOneUse();
      if (auto known = tokenNames.find(operand); known != tokenNames.end()) {
        argumentNames[argument] = known->second;
        continue;
      }
      if (isLong && dependsOnStates(map))
        name(operand, "Y", step);
      argumentNames[argument] = text(operand, 2);
    }
    auto yielded = map.getYield().getValues().begin();
    for (auto [index, last] : llvm::enumerate(map.getLast())) {
      std::string state = argumentNames[map.getBody().getArgument(index)];
      names[last] = state + "_C";
      step.lines.push_back(state + "' = " + notation(*yielded++, argumentNames, fullDepth) +
                           ", token by token");
    }
    for (Value result : map.getResults()) {
      std::string line = notation(*yielded++, argumentNames, fullDepth), name = known.lookup(line);
      if (name.empty()) {
        name = known[line] = x + std::to_string(++counters[x]);
        step.lines.push_back(name + " = " + line);
      }
      tokenNames[result] = name;
      names[result] = StringRef(x).upper() + name.substr(x.size());
    }
  }

  void writeDecay(chunk::DecayOp decay, DerivationStep &step) {
    std::string index = std::to_string(++counters["G"]);
    auto token = [&](Value value) {
      auto known = tokenNames.find(value);
      return known != tokenNames.end() ? known->second : text(value, 0);
    };
    bool scalar = isOne(matType(decay.getFactors()).getCols());
    names[decay] = "G" + index;
    step.lines.push_back(
        "G" + index + " = cumulative " +
        (decay.getLog() ? "sum of " + token(decay.getLog()) : "log of " + token(decay.getFactors())) +
        (decay.getLate() ? " before the token" : "") +
        (scalar ? ", Γ" + index + "[t,j] = e^(G" + index + "_t - G" + index + "_j)" : ", by channel"));
  }

  void writeCascade(chunk::CascadeOp cascade, DerivationStep &step) {
    std::string index = std::to_string(++counters["G"]), line = "[";
    int64_t states = cascade.getType().getStates(), entry = 0;
    for (Value factor : cascade.getFactors()) {
      auto known = tokenNames.find(factor);
      line += (entry ? entry % states ? ", " : "; " : "") +
              (known != tokenNames.end() ? known->second : text(factor, 0));
      ++entry;
    }
    names[cascade] = "Γ" + index;
    bool channels = !isOne(cascade.getType().getOf().getCols());
    step.lines.push_back("Γ" + index + "[t,j] = Φ_t .. Φ_(j+1), Φ = " + line + "]" +
                         (channels ? ", by channel" : ""));
  }

  void writeSolve(chunk::TriSolveOp solve, DerivationStep &step) {
    // Systems after the first go on counting.
    size_t streams = solve.getRhs().size(),
           first = std::exchange(writtenStreams, writtenStreams + streams) + 1;
    auto number = [&](size_t stream) {
      return allStreams == 1 ? std::string() : std::to_string(first + stream);
    };
    for (auto [index, block] : llvm::enumerate(solve.getBlocks()))
      step.lines.push_back("N" + number(index / streams) + (streams == 1 ? "" : number(index % streams)) +
                           " = " + text(block, 0));
    for (auto [index, side, result] : llvm::enumerate(solve.getRhs(), solve.getResults())) {
      names[result] = "U" + number(index);
      std::string line = streams == 1 ? "(I + N" + number(0) + ") U" + number(0) : "U" + number(index);
      for (size_t other = 0; streams > 1 && other < streams; ++other)
        line += " + N" + number(index) + number(other) + " U" + number(other);
      step.lines.push_back(line + " = " + text(side, 0));
    }
    for (auto [index, factors] : llvm::enumerate(solve.getFactors()))
      step.lines.push_back("each value channel with N" + number(index) + " times its entries of " +
                           text(factors, 0));
    if (solve.getDecay())
      step.lines.push_back("each value channel with its decays " + names[solve.getDecay()]);
  }

  // What is read of a state, E, and functions of that, W.
  void writeSubstitution(chunk::SubstituteOp op, DerivationStep &step) {
    auto number = [](size_t index, size_t of) { return of == 1 ? std::string() : std::to_string(index + 1); };
    size_t reads = op.getReads().size(), writes = op.getWrites().size();
    for (auto [s, result] : llvm::enumerate(op.getWrites()))
      names[result] = "W" + number(s, writes);
    for (auto [i, result, side] : llvm::enumerate(op.getReads(), op.getSides())) {
      names[result] = "E" + number(i, reads);
      argumentNames[op.getBody().getArgument(i)] = "e" + number(i, reads);
      std::string line = names[result] + " = " + text(side, 0);
      for (size_t s = 0; s < writes; ++s)
        if (Value block = op.getBlocks()[i * writes + s]; !matchPattern(block, m_AnyZeroFloat()))
          line += " + " + text(block, 1) + " W" + number(s, writes);
      step.lines.push_back(line);
    }
    unsigned next = reads;
    for (Value operand :
         llvm::concat<Value>(llvm::to_vector(op.getRows()), llvm::to_vector(op.getShared()))) {
      auto known = tokenNames.find(operand);
      argumentNames[op.getBody().getArgument(next++)] =
          known != tokenNames.end() ? known->second : text(operand, 2);
    }
    for (auto [s, value] : llvm::enumerate(op.getYield().getValues()))
      step.lines.push_back("w" + number(s, writes) + " = " + notation(value, argumentNames, fullDepth) +
                           ", token by token");
  }

  static bool dependsOnStates(chunk::MapOp map) {
    return llvm::any_of(map.getRows(), [](Value rows) {
      Operation *op = rows.getDefiningOp();
      auto inner = dyn_cast_or_null<chunk::MapOp>(op);
      return op && (inner ? dependsOnStates(inner) : !isa<BroadcastOp>(op));
    });
  }

  void writeIterations(chunk::ConjugateGradientsOp op, DerivationStep &step) {
    std::string name = "Z" + std::to_string(++counters["Z"]);
    Block &product = op.getProduct().front();
    names[product.getArgument(0)] = "P";
    step.lines.push_back(name + " = " + std::to_string(op.getIterations()) +
                         " conjugate gradient steps from zero for " + text(op.getRhs(), 0) +
                         ", one system per token; its product is");
    step.lines.push_back("P ↦ " + text(product.getTerminator()->getOperand(0), 0));
    names[op] = name;
  }

  void writeFactors(chunk::LdlOp op, DerivationStep &step) {
    unsigned count = ++counters["L"];
    std::string number = count == 1 ? "" : std::to_string(count), p = text(op.getState(), 2),
                k = text(op.getKeys(), 2);
    std::string a = tokenText(op.getDecays()), w = tokenText(op.getWeights()), e = tokenText(op.getOffsets());
    std::string l = "L" + number, x = "X" + p, d = "D" + number, prefix = "A" + number;
    step.lines.push_back(prefix + "_t = the product of " + a + " up to t (" + prefix + "_C: all)");
    step.lines.push_back(k + " " + p + " " + k + "ᵀ + diag(" + prefix + "_(t-1) " + e + "/" + w + ") = " + l +
                         " " + d + " " + l + "ᵀ, " + l + " unit lower triangular");
    step.lines.push_back(x + " = " + l + "⁻¹ " + k + " " + p + ", its row t is " + prefix + "_(t-1) (" + p +
                         "_(t-1) " + tokenText(op.getKeys()) + "_t)ᵀ");
    names[op.getLower()] = "(" + l + " - I)";
    names[op.getReads()] = "diag(1/" + prefix + "_(t-1)) " + x;
    names[op.getGains()] = d + "⁻¹ " + x;
    names[op.getDenominators()] = tokenNames[op.getDenominators()] = w + " " + d + "/" + prefix + "_(t-1)";
    names[op.getLast()] = "(" + p + " - " + x + "ᵀ " + d + "⁻¹ " + x + ")/" + prefix + "_C";
    for (Value value : {Value(op.getReads()), Value(op.getDenominators())})
      argumentNames[value] = names[value];
    if (!op.getGains().use_empty()) {
      names[op.getGains()] = "Κ" + number;
      step.lines.push_back("Κ" + number + " = " + d + "⁻¹ " + x + ", the gains; stril(" + k + " Κ" + number +
                           "ᵀ) = " + l + " - I");
    }
  }

  void writeScan(chunk::ScanOp scan, DerivationStep &step) {
    size_t n = scan.getInit().size();
    std::string stem = "h" + std::to_string(++counters["h"]);
    auto state = [&](size_t i) { return n == 1 ? stem : stem + "^" + std::to_string(i + 1); };
    for (auto [i, result, last] : llvm::enumerate(scan.getResults(), scan.getLast())) {
      names[result] = tokenNames[result] = state(i);
      names[last] = state(i) + "_C";
      std::string line = state(i) + "_t = ";
      for (size_t j = 0; j < n; ++j)
        if (std::string factor = text(scan.getFactors()[i * n + j], 2); factor != "0")
          line += (factor == "1" ? "" : factor + " ⊙ ") + state(j) + "_(t-1) + ";
      step.lines.push_back(line + text(scan.getWrites()[i], 2) + " from " + text(scan.getInit()[i], 0) +
                           ", by an associative scan");
    }
  }

  // What a token does not see is zero: of those before its block's first one, b, the rest.
  static std::string triangle(chunk::Reach reach) {
    return reach == chunk::Reach::Inclusive ? "tril(" : reach == chunk::Reach::Start ? "tril_b(" : "stril(";
  }

  // What of a token's writes to all states comes to the one that is read.
  std::string transitionsOf(chunk::GramOp gram) {
    std::string sum, before = gram.getReach() == chunk::Reach::Before ? "⁻" : "";
    unsigned terms = 0;
    for (auto [from, weight] : llvm::enumerate(gram.getWeights())) {
      std::string number = tokenText(weight);
      if (number == "0")
        continue;
      sum += (terms++ ? " + " : "") + (number == "1" ? "" : number + "_j ") + names[gram.getDecay()] + "^" +
             std::to_string(gram.getTo() + 1) + std::to_string(from + 1) + before;
    }
    return (terms > 1 ? "(" + sum + ")" : sum) + "[t,j,c]";
  }

  std::string gammaOf(Value decay) {
    return isa<chunk::CascadeType>(decay.getType()) ? names[decay] : "Γ" + names[decay].substr(1);
  }

  // Precedence: 0 sums, 1 products, 2 factors.
  std::string text(Value value, unsigned needed) {
    if (auto known = names.find(value); known != names.end())
      return known->second;
    auto [result, precedence] = expression(value.getDefiningOp());
    return precedence < needed ? "(" + result + ")" : result;
  }

  std::pair<std::string, unsigned> expression(Operation *op) {
    auto operand = [&](unsigned i, unsigned needed) { return text(op->getOperand(i), needed); };
    return TypeSwitch<Operation *, std::pair<std::string, unsigned>>(op)
        .Case([&](AddOp) {
          std::string right = operand(1, 0);
          bool negative = StringRef(right).starts_with("-");
          return std::pair(operand(0, 0) + (negative ? " - " + right.substr(1) : " + " + right), 0u);
        })
        .Case([&](SubOp) { return std::pair(operand(0, 0) + " - " + operand(1, 1), 0u); })
        .Case([&](NegOp) { return std::pair("-" + operand(0, 1), 0u); })
        .Case([&](MatmulOp) { return std::pair(operand(0, 1) + " " + operand(1, 1), 1u); })
        .Case([&](MulOp mul) {
          bool diagonal = isOne(matType(mul.getLhs()).getCols()) && !isOne(matType(mul.getLhs()).getRows());
          bool scalar = matType(mul.getLhs()).isScalar();
          if (diagonal)
            return std::pair("diag(" + tokenText(mul.getLhs()) + ") " + operand(1, 1), 1u);
          return std::pair(operand(0, 1) + (scalar ? " " : " ⊙ ") + operand(1, 1), scalar ? 1u : 0u);
        })
        .Case([&](TransposeOp) { return std::pair(operand(0, 2) + "ᵀ", 2u); })
        .Case([&](chunk::GramOp gram) {
          std::string decay = gram.getDecay() ? " ⊙ " + gammaOf(gram.getDecay()) : "";
          bool channels =
              gram.getDecay() && !isOne(chunk::typeOfFactors(gram.getDecay().getType()).getCols());
          std::string product = operand(0, 1) + " " + operand(1, 2) + "ᵀ";
          if (channels && !gram.getWeights().empty())
            product = "Σ_c " + operand(0, 1) + "[t,c] " + operand(1, 2) + "[j,c] " + transitionsOf(gram);
          else if (channels)
            product = "Σ_c " + operand(0, 1) + "[t,c] " + operand(1, 2) + "[j,c] e^(" +
                      names[gram.getDecay()] + (gram.getReach() == chunk::Reach::Before ? "x" : "") +
                      "[t,c] - " + names[gram.getDecay()] + "[j,c])";
          else if (gram.getDecay() && gram.getReach() == chunk::Reach::Before)
            product += decay + "⁻";
          else
            product += decay;
          return std::pair(triangle(gram.getReach()) + product + ")", 2u);
        })
        .Case([&](chunk::MaskOp mask) {
          std::string entry =
              isa<chunk::CascadeType>(mask.getDecay().getType())
                  ? "^" + std::to_string(mask.getTo() + 1) + std::to_string(mask.getFrom() + 1)
                  : "";
          return std::pair(triangle(mask.getReach()) + gammaOf(mask.getDecay()) + entry +
                               (mask.getReach() == chunk::Reach::Before ? "⁻)" : ")"),
                           2u);
        })
        .Case([&](chunk::WeightsOp weights) {
          std::string g = names[weights.getDecay()];
          if (isa<chunk::CascadeType>(weights.getDecay().getType())) {
            StringRef span[] = {"[t,0]", "[t-1,0]", "[C,t]", "[C,0]", "[b-1,0]"};
            return std::pair(g + "^" + std::to_string(weights.getTo() + 1) +
                                 std::to_string(weights.getFrom() + 1) +
                                 span[unsigned(weights.getSpan())].str(),
                             2u);
          }
          std::string exponent[] = {g, chunk::isLate(weights.getDecay()) ? g : g + "x",
                                    "(" + g + "_C - " + g + ")", g + "_C", g + "_(b-1)"};
          return std::pair("e^" + exponent[unsigned(weights.getSpan())], 2u);
        })
        .Case([&](chunk::MixOp mix) {
          return std::pair("Σ_j " + operand(0, 2) + "[t,j] e^(" + names[mix.getDecay()] + "_t - " +
                               names[mix.getDecay()] + "_j) ⊙ " + operand(1, 2) + "_j",
                           0u);
        })
        .Case([&](chunk::HeldOp) { return std::pair(operand(0, 2) + "@b", 2u); })
        .Case([&](ReduceOp) { return std::pair("rowsum(" + operand(0, 0) + ")", 2u); })
        .Case([&](BroadcastOp) { return std::pair(operand(0, 2), 2u); })
        .Default([&](Operation *) { return std::pair(notation(op->getResult(0), argumentNames), 2u); });
  }

  // A scale of rows: by its token's name.
  std::string tokenText(Value value) {
    auto known = tokenNames.find(value);
    return known != tokenNames.end() ? known->second : text(value, 0);
  }

  chunk::ProgramOp program;
  llvm::StringMap<std::string> known; // names by what they stand for
  DenseMap<Value, std::string> names, tokenNames, argumentNames;
  llvm::StringMap<unsigned> counters;
  std::string x;                             // what rows of expressions are called
  size_t allStreams = 0, writtenStreams = 0; // of systems
};
} // namespace

void recur::explainProgram(chunk::ProgramOp program, std::vector<DerivationStep> &steps,
                           const ShortNames &names) {
  DerivationStep tokens{"per token", {}}, system{"eliminate", {}}, results{"emit", {}};
  ProgramWriter(program, names).write(tokens, system, results);
  for (DerivationStep *step : {&tokens, &system, &results})
    if (!step->lines.empty())
      steps.push_back(std::move(*step));
}

std::string recur::printDerivation(const Derivation &derivation) {
  std::string text;
  llvm::raw_string_ostream os(text);
  for (const DerivationStep &step : derivation.steps)
    for (auto [index, line] : llvm::enumerate(step.lines))
      os << llvm::formatv("{0,-12}{1}\n", index ? "" : step.name.c_str(), line);
  return text;
}

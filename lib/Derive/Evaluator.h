// Ops one after another: what runs of rules and programs are made of.
#pragma once

#include "lib/Derive/Machine.h"
#include "lib/Derive/Operations.h"
#include "llvm/ADT/TypeSwitch.h"

namespace recur {

/// The values of a body, as its ops are evaluated one after another.
template <typename F>
class Evaluator {
public:
  // A matrix, or one for each micro-step, or (tokens) one after the other for each token.
  using Values = std::vector<Dense<F>>;
  llvm::DenseMap<mlir::Value, Values> values;
  int64_t length = 1; // what a symbol stands for: the tokens of the chunk
  int64_t starts = 0; // the tokens of a program's blocks, at whose starts states are read
  bool beginsBlock = true;

  mlir::LogicalResult run(mlir::Block &block) { return run(block.begin(), std::prev(block.end())); }
  mlir::LogicalResult run(mlir::Block::iterator begin, mlir::Block::iterator end) {
    for (mlir::Operation &op : llvm::make_range(begin, end))
      if (mlir::failed(run(op)))
        return mlir::failure();
    return mlir::success();
  }
  const Dense<F> &get(mlir::Value value) { return values.find(value)->second.front(); }
  void set(mlir::Value value, Dense<F> matrix) {
    Values &slot = values[value];
    slot.resize(1);
    slot[0] = std::move(matrix);
  }

private:
  mlir::LogicalResult run(mlir::Operation &op) {
    auto result = [&](Dense<F> matrix) {
      set(op.getResult(0), std::move(matrix));
      return mlir::success();
    };
    return llvm::TypeSwitch<mlir::Operation *, mlir::LogicalResult>(&op)
        .Case([&](ElementwiseOp e) { return result(elementwise(e)); })
        .Case([&](ConstantOp c) {
          return result(filled(c.getType(), number<F>(c.getValue().convertToDouble())));
        })
        .Case([&](SizeOp s) { return result(Dense<F>(1, 1, number<F>(size(s.getDim())))); })
        .Case([&](IdentityOp i) { return result(identity<F>(size(i.getType().getRows()))); })
        .Case([&](ExtractOp e) { return extract(e); })
        .Case([&](JoinOp j) {
          return result(joined<F>(
              llvm::map_to_vector(j.getColumns(), [&](mlir::Value column) { return get(column); })));
        })
        .Case([&](ConcatOp c) {
          Dense<F> all(matType(c).numRows(), 1);
          for (auto [part, first] : llvm::zip(c.getParts(), c.getFirsts()))
            llvm::copy(get(part).data, all.data.begin() + first);
          return result(all);
        })
        .Case([&](MatmulOp m) { return result(multiply(get(m.getLhs()), get(m.getRhs()))); })
        .Case([&](TransposeOp t) { return result(transpose(get(t.getOperand()))); })
        .Case([&](ReduceOp r) { return result(reduce(r)); })
        .Case([&](BroadcastOp b) { return result(broadcast(b)); })
        .Case([&](DiagOp d) { return result(diagonal(get(d.getOperand()))); })
        .Case([&](SolveOp s) { return solve(s); })
        .Case([&](InverseOp i) {
          const Dense<F> &m = get(i.getOperand());
          return result(eliminate(m, identity<F>(m.rows)));
        })
        .Case([&](RopeOp r) { return result(rope(r)); })
        .Case([&](MaskOp m) {
          Dense<F> ones(size(m.getType().getRows()), 1, number<F>(1));
          return result(Decays<F>(ones, nullptr)
                            .mask(m.getStrict() ? chunk::Reach::Before : chunk::Reach::Inclusive, 0, 0));
        })
        .Case([&](DecayOp d) {
          return result(Decays<F>(get(d.getFactors()), nullptr).mask(chunk::Reach::Inclusive, 0, 0));
        })
        .Case([&](AssumeOp a) { return result(get(a.getOperand())); })
        .Case([&](chunk::MapOp m) { return map(m); })
        .Case([&](chunk::DecayOp d) {
          decays[d] =
              Decays<F>(get(d.getFactors()), d.getLog() ? &get(d.getLog()) : nullptr, d.getLate(), starts);
          return mlir::success();
        })
        .Case([&](chunk::CascadeOp c) {
          Values entries;
          for (mlir::Value factor : c.getFactors())
            entries.push_back(get(factor));
          decays[c] = Decays<F>(entries, c.getType().getStates(), starts);
          return mlir::success();
        })
        .Case([&](chunk::MaskOp m) {
          return result(decays[m.getDecay()].mask(m.getReach(), m.getTo(), m.getFrom()));
        })
        .Case([&](chunk::WeightsOp w) {
          return result(decays[w.getDecay()].weights(w.getSpan(), w.getTo(), w.getFrom()));
        })
        .Case([&](chunk::GramOp g) { return result(gram(g)); })
        .Case([&](chunk::MixOp m) {
          return result(decays[m.getDecay()].mix(get(m.getScores()), get(m.getValues()), m.getReach()));
        })
        .Case([&](chunk::TriSolveOp s) {
          Values blocks, rhs, factors;
          for (mlir::Value block : s.getBlocks())
            blocks.push_back(get(block));
          for (mlir::Value side : s.getRhs())
            rhs.push_back(get(side));
          for (mlir::Value factor : s.getFactors())
            factors.push_back(get(factor));
          rhs = triangularSolve<F>(blocks, rhs, factors, s.getDecay() ? &decays[s.getDecay()] : nullptr,
                                   s.getReach());
          for (auto [value, solved] : llvm::zip(s.getResults(), rhs))
            set(value, solved);
          return mlir::success();
        })
        .Case([&](chunk::SubstituteOp s) { return substitute(s); })
        .Case([&](chunk::LdlOp l) {
          Downdates<F> d = downdate<F>(get(l.getState()), get(l.getKeys()), get(l.getDecays()),
                                       get(l.getWeights()), get(l.getOffsets()));
          Dense<F> *results[] = {&d.lower, &d.reads, &d.gains, &d.denominators, &d.last};
          for (auto [value, m] : llvm::zip(l.getResults(), results))
            set(value, std::move(*m));
          return mlir::success();
        })
        .Case([&](chunk::ScanOp s) { return scan(s); })
        .Case([&](chunk::HeldOp h) { return beginsBlock ? result(get(h.getState())) : mlir::success(); })
        .Case([&](chunk::ConjugateGradientsOp c) { return solveRows(c); })
        .Default([](mlir::Operation *other) { return other->emitOpError() << "cannot be run here"; });
  }

  int64_t size(mlir::Attribute dim) {
    auto bound = llvm::dyn_cast<mlir::IntegerAttr>(dim);
    return bound ? bound.getInt() : length;
  }
  Dense<F> filled(MatType type, F value) {
    return Dense<F>(size(type.getRows()), size(type.getCols()), value);
  }

  Dense<F> elementwise(ElementwiseOp op) {
    llvm::SmallVector<const Dense<F> *> operands;
    int64_t rows = 1, cols = 1;
    for (mlir::Value operand : op->getOperands()) {
      operands.push_back(&get(operand));
      rows = operands.back()->rows == 1 ? rows : operands.back()->rows;
      cols = operands.back()->cols == 1 ? cols : operands.back()->cols;
    }
    Dense<F> result(rows, cols);
    llvm::SmallVector<F> entries(operands.size());
    for (int64_t i = 0; i < rows; ++i)
      for (int64_t j = 0; j < cols; ++j) {
        for (auto [entry, m] : llvm::zip(entries, operands))
          entry = m->at(m->rows == 1 ? 0 : i, m->cols == 1 ? 0 : j);
        result.at(i, j) = evaluateEntry(op, entries);
      }
    return result;
  }

  mlir::LogicalResult extract(ExtractOp op) {
    const Values &steps = values.find(op.getSteps())->second;
    F index = get(op.getIndex()).at(0, 0);
    for (size_t step = 0; step < steps.size(); ++step)
      if (index == number<F>(step + 1)) {
        set(op, steps[step]);
        return mlir::success();
      }
    return op.emitOpError() << "reads no micro-step";
  }

  Dense<F> reduce(ReduceOp op) {
    const Dense<F> &m = get(op.getOperand());
    bool sum = op.getKind() == Reduction::Sum;
    Dense<F> result = filled(op.getType(), F());
    std::vector<llvm::SmallVector<F>> parts(result.data.size());
    for (int64_t i = 0; i < m.rows; ++i)
      for (int64_t j = 0; j < m.cols; ++j)
        parts[(op.getRows() ? 0 : i) * result.cols + (op.getCols() ? 0 : j)].push_back(m.at(i, j));
    for (auto [entry, part] : llvm::zip(result.data, parts)) {
      if (sum)
        for (F x : part)
          entry += x;
      else if constexpr (std::is_same_v<F, Fp>)
        entry = cut("max", part);
      else
        entry = *llvm::max_element(part);
    }
    return result;
  }

  Dense<F> broadcast(BroadcastOp op) {
    const Dense<F> &m = get(op.getOperand());
    Dense<F> result = filled(op.getType(), F());
    for (int64_t i = 0; i < result.rows; ++i)
      for (int64_t j = 0; j < result.cols; ++j)
        result.at(i, j) = m.at(m.rows == 1 ? 0 : i, m.cols == 1 ? 0 : j);
    return result;
  }

  mlir::LogicalResult solve(SolveOp op) {
    const Dense<F> &a = get(op.getMatrix()), &rhs = get(op.getRhs());
    set(op, op.getIterations()
                ? *conjugateGradients<F>(rhs, *op.getIterations(), number<F>(op.getEps().convertToDouble()),
                                         [&](const Dense<F> &p) { return multiply(a, p); })
                : eliminate(a, rhs));
    return mlir::success();
  }

  mlir::LogicalResult solveRows(chunk::ConjugateGradientsOp op) {
    mlir::Block &product = op.getProduct().front();
    std::optional<Dense<F>> solved = conjugateGradients<F>(
        transpose(get(op.getRhs())), op.getIterations(), number<F>(op.getEps().convertToDouble()),
        [&](const Dense<F> &columns) -> std::optional<Dense<F>> {
          set(product.getArgument(0), transpose(columns));
          if (mlir::failed(run(product)))
            return std::nullopt;
          return transpose(get(product.getTerminator()->getOperand(0)));
        });
    if (!solved)
      return mlir::failure();
    set(op, transpose(*solved));
    return mlir::success();
  }

  Dense<F> rope(RopeOp op) {
    Dense<F> x = get(op.getOperand());
    F position = get(op.getPosition()).at(0, 0);
    for (int64_t i = 0; i + 1 < x.rows; i += 2) {
      F sine, cosine;
      if constexpr (std::is_same_v<F, Fp>) {
        sine = cut("rope.sin", {position, Fp(i)});
        cosine = cut("rope.cos", {position, Fp(i)});
      } else {
        double angle = position * std::pow(op.getBase().convertToDouble(), -double(i) / x.rows);
        sine = std::sin(angle);
        cosine = std::cos(angle);
      }
      F a = x.at(i, 0), b = x.at(i + 1, 0);
      x.at(i, 0) = a * cosine - b * sine;
      x.at(i + 1, 0) = a * sine + b * cosine;
    }
    return x;
  }

  Dense<F> gram(chunk::GramOp op) {
    const Dense<F> &lhs = get(op.getLhs()), &rhs = get(op.getRhs());
    Values weights;
    for (mlir::Value weight : op.getWeights())
      weights.push_back(get(weight));
    if (!weights.empty())
      return decays[op.getDecay()].gram(lhs, rhs, op.getReach(), op.getTo(), weights);
    if (op.getDecay())
      return decays[op.getDecay()].gram(lhs, rhs, op.getReach());
    Dense<F> result = multiply(lhs, transpose(rhs));
    for (int64_t t = 0; t < result.rows; ++t)
      for (int64_t j = seenBy(t, op.getReach(), starts); j < result.cols; ++j)
        result.at(t, j) = F();
    return result;
  }

  // One token of a value with a row (or several matrices) per token.
  Values tokenOf(mlir::Value rows, int64_t t) {
    const Values &all = values.find(rows)->second;
    if (llvm::isa<chunk::TokensType>(rows.getType())) {
      size_t steps = all.size() / length;
      return Values(all.begin() + t * steps, all.begin() + (t + 1) * steps);
    }
    Dense<F> column(all[0].cols, 1);
    for (int64_t i = 0; i < column.rows; ++i)
      column.at(i, 0) = all[0].at(t, i);
    return {column};
  }

  void appendToken(mlir::Value rows, const Dense<F> &token) {
    Values &all = values[rows];
    if (llvm::isa<chunk::TokensType>(rows.getType())) {
      all.push_back(token);
      return;
    }
    all.resize(1);
    all[0].rows += 1;
    all[0].cols = token.rows;
    all[0].data.insert(all[0].data.end(), token.data.begin(), token.data.end());
  }

  mlir::LogicalResult map(chunk::MapOp op) {
    llvm::SmallVector<Dense<F>> carried;
    for (mlir::Value value : op.getCarried())
      carried.push_back(get(value));
    for (mlir::Value value : op.getResults())
      values[value].clear();
    for (int64_t t = 0; t < length; ++t) {
      unsigned next = 0;
      for (const Dense<F> &value : carried)
        set(op.getBody().getArgument(next++), value);
      for (mlir::Value rows : op.getRows()) {
        Values token = tokenOf(rows, t);
        values[op.getBody().getArgument(next++)] = std::move(token);
      }
      for (mlir::Value shared : op.getShared()) {
        Values copy = values[shared];
        values[op.getBody().getArgument(next++)] = std::move(copy);
      }
      if (mlir::failed(run(op.getBody().front())))
        return mlir::failure();
      auto yielded = op.getYield().getValues().begin();
      for (Dense<F> &value : carried)
        value = get(*yielded++);
      for (mlir::Value result : op.getResults())
        appendToken(result, Dense<F>(get(*yielded++)));
    }
    for (auto [last, value] : llvm::zip(op.getLast(), carried))
      set(last, value);
    return mlir::success();
  }

  mlir::LogicalResult substitute(chunk::SubstituteOp op) {
    for (mlir::Value result : op.getResults())
      values[result].clear();
    mlir::Block &body = op.getBody().front();
    size_t writes = op.getWrites().size();
    for (int64_t t = 0; t < length; ++t) {
      unsigned next = 0;
      for (auto [side, read] : llvm::zip(op.getSides(), op.getReads())) {
        Dense<F> sum = tokenOf(side, t)[0];
        for (size_t s = 0; s < writes; ++s)
          for (int64_t j = 0; j < t; ++j) {
            F score = get(op.getBlocks()[next * writes + s]).at(t, j);
            const Dense<F> &written = get(op.getWrites()[s]);
            for (int64_t i = 0; i < sum.rows; ++i)
              sum.at(i, 0) += score * written.at(j, i);
          }
        appendToken(read, sum);
        set(body.getArgument(next++), sum);
      }
      for (mlir::Value rows : op.getRows()) {
        Values token = tokenOf(rows, t);
        values[body.getArgument(next++)] = std::move(token);
      }
      for (mlir::Value shared : op.getShared()) {
        Values copy = values[shared];
        values[body.getArgument(next++)] = std::move(copy);
      }
      if (mlir::failed(run(body)))
        return mlir::failure();
      for (auto [written, value] : llvm::zip(op.getWrites(), op.getYield().getValues()))
        appendToken(written, Dense<F>(get(value)));
    }
    return mlir::success();
  }

  mlir::LogicalResult scan(chunk::ScanOp op) {
    size_t n = op.getInit().size();
    Values states;
    for (mlir::Value init : op.getInit())
      states.push_back(get(init));
    auto append = [&](bool before) {
      for (auto [result, state] : llvm::zip(op.getResults(), states))
        if (op.getBefore() == before)
          appendToken(result, state);
    };
    for (mlir::Value result : op.getResults())
      values[result].clear();
    for (int64_t t = 0; t < length; ++t) {
      append(true);
      Values next;
      for (size_t i = 0; i < n; ++i) {
        next.push_back(tokenOf(op.getWrites()[i], t)[0]);
        for (size_t j = 0; j < n; ++j) {
          Dense<F> factor = tokenOf(op.getFactors()[i * n + j], t)[0];
          for (size_t e = 0; e < factor.data.size(); ++e)
            next[i].data[e] += factor.data[e] * states[j].data[e];
        }
      }
      states = std::move(next);
      append(false);
    }
    for (auto [last, state] : llvm::zip(op.getLast(), states))
      set(last, state);
    return mlir::success();
  }

  llvm::DenseMap<mlir::Value, Decays<F>> decays;
};

} // namespace recur

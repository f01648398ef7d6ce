// One op after another in float64.
#include "lib/Oracle/Evaluate.h"
#include "llvm/ADT/TypeSwitch.h"

#include <cmath>

using namespace mlir;
using namespace recur;

namespace {
class Evaluator {
public:
  Evaluator(Environment &environment, int64_t length, bool single)
      : environment(environment), length(length), single(single) {}

  LogicalResult run(Operation &op) {
    return TypeSwitch<Operation *, LogicalResult>(&op)
        .Case<ForOp>([&](ForOp loop) { return runLoop(loop); })
        .Case<ElementwiseOp>([&](ElementwiseOp e) { return set(op, elementwise(e)); })
        .Case<ConstantOp>([&](ConstantOp c) { return set(op, filled(op, c.getValue().convertToDouble())); })
        .Case<SizeOp>([&](SizeOp s) { return set(op, Matrix(1, 1, size(s.getDim()))); })
        .Case<IdentityOp>([&](IdentityOp) { return set(op, identity(typeOf(op))); })
        .Case<MaskOp>([&](MaskOp m) { return set(op, mask(m)); })
        .Case<DecayOp>([&](DecayOp d) { return set(op, decay(get(d.getFactors()))); })
        .Case<ExtractOp>([&](ExtractOp e) { return extract(e); })
        .Case<JoinOp>([&](JoinOp j) { return set(op, join(j)); })
        .Case<ConcatOp>([&](ConcatOp c) { return set(op, concat(c)); })
        .Case<MatmulOp>([&](MatmulOp m) { return set(op, multiply(get(m.getLhs()), get(m.getRhs()))); })
        .Case<TransposeOp>([&](TransposeOp t) { return set(op, transpose(get(t.getOperand()))); })
        .Case<ReduceOp>([&](ReduceOp r) { return set(op, reduce(r)); })
        .Case<BroadcastOp>([&](BroadcastOp b) { return set(op, broadcast(op, get(b.getOperand()))); })
        .Case<DiagOp>([&](DiagOp d) { return set(op, diagonal(get(d.getOperand()))); })
        .Case<SolveOp>([&](SolveOp s) { return set(op, solve(s)); })
        .Case<InverseOp>(
            [&](InverseOp i) { return set(op, eliminate(get(i.getOperand()), identity(typeOf(op)))); })
        .Case<RopeOp>([&](RopeOp r) { return set(op, rope(r)); })
        .Case<AssumeOp>([&](AssumeOp a) { return set(op, get(a.getOperand())); })
        .Default([](Operation *other) { return other->emitOpError() << "has no value in the oracle"; });
  }

private:
  const Matrix &get(Value value) { return environment.find(value)->second.front(); }
  MatType typeOf(Operation &op) { return cast<MatType>(op.getResult(0).getType()); }
  int64_t size(Attribute dim) {
    auto number = dyn_cast<IntegerAttr>(dim);
    return number ? number.getInt() : length;
  }
  LogicalResult set(Operation &op, Matrix value) {
    if (single)
      for (double &x : value.data)
        x = static_cast<float>(x);
    environment[op.getResult(0)] = {std::move(value)};
    return success();
  }
  Matrix filled(Operation &op, double value) {
    return Matrix(size(typeOf(op).getRows()), size(typeOf(op).getCols()), value);
  }

  LogicalResult runLoop(ForOp loop) {
    std::vector<Matrix> carried;
    for (Value init : loop.getInits())
      carried.push_back(get(init));
    int64_t count = size(loop.getCount());
    for (int64_t j = 1; j <= count; ++j) {
      environment[loop.getCounter()] = {Matrix(1, 1, j)};
      for (auto [argument, value] : llvm::zip(loop.getCarried(), carried))
        environment[argument] = {value};
      for (Operation &op : loop.getBody().front().without_terminator())
        if (failed(run(op)))
          return failure();
      for (auto [value, yielded] : llvm::zip(carried, loop.getYield().getValues()))
        value = get(yielded);
    }
    for (auto [result, value] : llvm::zip(loop.getResults(), carried))
      environment[result] = {value};
    return success();
  }

  LogicalResult extract(ExtractOp op) {
    const std::vector<Matrix> &steps = environment.find(op.getSteps())->second;
    double index = get(op.getIndex()).at(0, 0);
    if (!(index >= 1 && index <= steps.size()) || index != std::floor(index))
      return op.emitOpError() << "micro-step " << index << " is not one of 1 to " << steps.size();
    return set(*op, steps[int64_t(index) - 1]);
  }

  Matrix join(JoinOp op) {
    Matrix result(get(op.getColumns()[0]).rows, op.getColumns().size());
    for (auto [j, column] : llvm::enumerate(op.getColumns()))
      for (int64_t i = 0; i < result.rows; ++i)
        result.at(i, j) = get(column).at(i, 0);
    return result;
  }

  Matrix concat(ConcatOp op) {
    Matrix result(matType(op).numRows(), 1);
    for (auto [part, first] : llvm::zip(op.getParts(), op.getFirsts()))
      for (int64_t i = 0; i < get(part).rows; ++i)
        result.at(first + i, 0) = get(part).at(i, 0);
    return result;
  }

  Matrix elementwise(ElementwiseOp op) {
    SmallVector<const Matrix *> operands;
    int64_t rows = 1, cols = 1;
    for (Value operand : op->getOperands()) {
      operands.push_back(&get(operand));
      rows = std::max(rows, operands.back()->rows);
      cols = std::max(cols, operands.back()->cols);
    }
    Matrix result(rows, cols);
    SmallVector<double> entries(operands.size());
    for (int64_t i = 0; i < rows; ++i)
      for (int64_t j = 0; j < cols; ++j) {
        for (auto [entry, m] : llvm::zip(entries, operands))
          entry = m->at(m->rows == 1 ? 0 : i, m->cols == 1 ? 0 : j);
        result.at(i, j) = op.evaluate(entries);
      }
    return result;
  }

  Matrix identity(MatType type) {
    Matrix result(size(type.getRows()), size(type.getRows()));
    for (int64_t i = 0; i < result.rows; ++i)
      result.at(i, i) = 1;
    return result;
  }

  Matrix mask(MaskOp op) {
    Matrix result = filled(*op, 0);
    for (int64_t i = 0; i < result.rows; ++i)
      for (int64_t j = 0; j < i + !op.getStrict(); ++j)
        result.at(i, j) = 1;
    return result;
  }

  static Matrix decay(const Matrix &factors) {
    int64_t n = factors.rows;
    Matrix result(n, n);
    for (int64_t j = 0; j < n; ++j) {
      double product = 1;
      for (int64_t i = j; i < n; ++i) {
        product *= i == j ? 1 : factors.at(i, 0);
        result.at(i, j) = product;
      }
    }
    return result;
  }

  static Matrix multiply(const Matrix &lhs, const Matrix &rhs) {
    Matrix result(lhs.rows, rhs.cols);
    for (int64_t i = 0; i < lhs.rows; ++i)
      for (int64_t k = 0; k < lhs.cols; ++k)
        for (int64_t j = 0; j < rhs.cols; ++j)
          result.at(i, j) += lhs.at(i, k) * rhs.at(k, j);
    return result;
  }

  static Matrix transpose(const Matrix &m) {
    Matrix result(m.cols, m.rows);
    for (int64_t i = 0; i < m.rows; ++i)
      for (int64_t j = 0; j < m.cols; ++j)
        result.at(j, i) = m.at(i, j);
    return result;
  }

  Matrix reduce(ReduceOp op) {
    const Matrix &m = get(op.getOperand());
    bool sum = op.getKind() == Reduction::Sum;
    Matrix result = filled(*op, sum ? 0 : -std::numeric_limits<double>::infinity());
    for (int64_t i = 0; i < m.rows; ++i)
      for (int64_t j = 0; j < m.cols; ++j) {
        double &entry = result.at(op.getRows() ? 0 : i, op.getCols() ? 0 : j);
        entry = sum ? entry + m.at(i, j) : std::isnan(m.at(i, j)) || m.at(i, j) > entry ? m.at(i, j) : entry;
      }
    return result;
  }

  Matrix broadcast(Operation &op, const Matrix &m) {
    Matrix result = filled(op, 0);
    for (int64_t i = 0; i < result.rows; ++i)
      for (int64_t j = 0; j < result.cols; ++j)
        result.at(i, j) = m.at(m.rows == 1 ? 0 : i, m.cols == 1 ? 0 : j);
    return result;
  }

  static Matrix diagonal(const Matrix &v) {
    Matrix result(v.rows, v.rows);
    for (int64_t i = 0; i < v.rows; ++i)
      result.at(i, i) = v.at(i, 0);
    return result;
  }

  Matrix rope(RopeOp op) {
    Matrix x = get(op.getOperand());
    double position = get(op.getPosition()).at(0, 0), base = op.getBase().convertToDouble();
    for (int64_t i = 0; i + 1 < x.rows; i += 2) {
      double angle = position * std::pow(base, -double(i) / x.rows);
      double a = x.at(i, 0), b = x.at(i + 1, 0);
      x.at(i, 0) = a * std::cos(angle) - b * std::sin(angle);
      x.at(i + 1, 0) = a * std::sin(angle) + b * std::cos(angle);
    }
    return x;
  }

  Matrix solve(SolveOp op) {
    const Matrix &matrix = get(op.getMatrix()), &rhs = get(op.getRhs());
    if (!op.getIterations())
      return eliminate(matrix, rhs);
    return conjugateGradients(matrix, rhs, *op.getIterations(), op.getEps().convertToDouble());
  }

  // Gauss-Jordan elimination with row pivoting.
  static Matrix eliminate(Matrix a, Matrix x) {
    for (int64_t p = 0; p < a.rows; ++p) {
      int64_t pivot = p;
      for (int64_t i = p + 1; i < a.rows; ++i)
        if (std::fabs(a.at(i, p)) > std::fabs(a.at(pivot, p)))
          pivot = i;
      for (Matrix *m : {&a, &x}) {
        for (int64_t j = 0; j < m->cols; ++j)
          std::swap(m->at(p, j), m->at(pivot, j));
      }
      double scale = 1 / a.at(p, p);
      for (Matrix *m : {&a, &x})
        for (int64_t j = 0; j < m->cols; ++j)
          m->at(p, j) *= scale;
      for (int64_t i = 0; i < a.rows; ++i) {
        double factor = a.at(i, p);
        if (i == p || factor == 0)
          continue;
        for (Matrix *m : {&a, &x})
          for (int64_t j = 0; j < m->cols; ++j)
            m->at(i, j) -= factor * m->at(p, j);
      }
    }
    return x;
  }

  static Matrix conjugateGradients(const Matrix &a, const Matrix &rhs, int64_t iterations, double eps) {
    auto dot = [](const Matrix &x, const Matrix &y) {
      double sum = 0;
      for (int64_t i = 0; i < x.rows; ++i)
        sum += x.at(i, 0) * y.at(i, 0);
      return sum;
    };
    auto quotient = [&](double num, double den) { return den + eps == 0 ? 0 : num / (den + eps); };
    Matrix x(rhs.rows, 1), r = rhs, p = rhs;
    double rr = dot(r, r);
    for (int64_t step = 0; step < iterations; ++step) {
      Matrix ap = multiply(a, p);
      double alpha = quotient(rr, dot(p, ap));
      for (int64_t i = 0; i < x.rows; ++i) {
        x.at(i, 0) += alpha * p.at(i, 0);
        r.at(i, 0) -= alpha * ap.at(i, 0);
      }
      double next = dot(r, r), beta = quotient(next, rr);
      for (int64_t i = 0; i < x.rows; ++i)
        p.at(i, 0) = r.at(i, 0) + beta * p.at(i, 0);
      rr = next;
    }
    return x;
  }

  Environment &environment;
  int64_t length;
  bool single;
};
} // namespace

LogicalResult recur::evaluate(Operation &op, Environment &environment, int64_t length, bool single) {
  return Evaluator(environment, length, single).run(op);
}

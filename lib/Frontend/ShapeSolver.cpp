#include "lib/Frontend/ShapeSolver.h"
#include "lib/Frontend/Ast.h"
#include "llvm/ADT/STLExtras.h"

using namespace llvm;

namespace recur::frontend {

ShapeSolver::ShapeSolver() {
  classes.resize(2);
  classes[0].parent = 0;
  classes[0].state = State::One;
  classes[1].parent = 1;
  classes[1].state = State::Error;
}

//===----------------------------------------------------------------------===//
// Extents
//===----------------------------------------------------------------------===//

DimVar ShapeSolver::fresh() {
  Class &added = classes.emplace_back();
  added.parent = classes.size() - 1;
  return added.parent;
}

DimVar ShapeSolver::freshSized(StringRef soft) {
  DimVar dim = fresh();
  classes[dim].state = State::Sized;
  classes[dim].soft = soft;
  classes[dim].origin = origin;
  return dim;
}

DimVar ShapeSolver::named(StringRef name) {
  auto [entry, isNew] = names.try_emplace(name, 0);
  if (isNew) {
    entry->second = freshSized();
    classes[entry->second].name = name;
  }
  return entry->second;
}

DimVar ShapeSolver::integer(int64_t value) {
  if (value == 1)
    return one();
  DimVar dim = freshSized();
  classes[dim].value = value;
  return dim;
}

DimVar ShapeSolver::find(DimVar dim) const {
  while (classes[dim].parent != dim) {
    classes[dim].parent = classes[classes[dim].parent].parent;
    dim = classes[dim].parent;
  }
  return dim;
}

void ShapeSolver::wake(Class &changed) {
  pending.insert(pending.end(), changed.watchers.begin(), changed.watchers.end());
}

bool ShapeSolver::unify(DimVar x, DimVar y) {
  DimVar a = find(x), b = find(y);
  if (a == b)
    return true;
  bool bothUnknown = classes[a].state == State::Unknown && classes[b].state == State::Unknown;
  if (bothUnknown ? classes[a].watchers.size() > classes[b].watchers.size()
                  : classes[b].state == State::Unknown || classes[a].state == State::Error)
    std::swap(a, b); // a is now the unknown one if there is one; an error is b
  Class &from = classes[a], &to = classes[b];
  auto merge = [&] {
    to.watchers.append(from.watchers);
    from.parent = b;
    return true;
  };
  if (from.state == State::Unknown) {
    if (!bothUnknown)
      wake(from);
    if (to.soft.empty())
      to.soft = from.soft;
    return merge();
  }
  if (to.state == State::Error)
    return true;
  if (from.state != to.state)
    return false;
  // Both are sized, and 1 is one class: two fixed extents are different.
  bool fixedFrom = !from.name.empty() || from.value, fixedTo = !to.name.empty() || to.value;
  if (fixedFrom && fixedTo) {
    if (!from.name.empty() || from.value != to.value)
      return false;
  } else if (fixedFrom) {
    to.name = from.name;
    to.value = from.value;
    to.origin = from.origin;
  }
  if (to.soft.empty())
    to.soft = from.soft;
  return merge();
}

bool ShapeSolver::makeSized(DimVar dim) {
  Class &known = classes[find(dim)];
  if (known.state == State::One)
    return false;
  if (known.state == State::Unknown) {
    known.state = State::Sized;
    known.origin = origin;
    wake(known);
  }
  return true;
}

void ShapeSolver::suggestName(DimVar dim, StringRef name) {
  Class &known = classes[find(dim)];
  if (known.soft.empty())
    known.soft = name;
}

//===----------------------------------------------------------------------===//
// Constraints
//===----------------------------------------------------------------------===//

unsigned ShapeSolver::add(Constraint constraint) {
  unsigned index = constraints.size();
  constraints.push_back(constraint);
  pending.push_back(index);
  for (ShapeVar shape : {constraint.a, constraint.b, constraint.result})
    for (DimVar dim : {shape.rows, shape.cols})
      if (find(dim) > error())
        classes[find(dim)].watchers.push_back(index);
  return index;
}

void ShapeSolver::propagate(Conflict conflict) {
  while (!pending.empty()) {
    // First come first served: errors then come in the order of the text.
    std::vector<unsigned> now;
    std::swap(now, pending);
    for (unsigned index : now)
      if (!constraints[index].done)
        step(index, conflict);
  }
}

void ShapeSolver::step(unsigned index, Conflict conflict) {
  Constraint &c = constraints[index];
  if (hasError(c.a) || hasError(c.b)) {
    c.done = true;
    unify(c.result.rows, error());
    unify(c.result.cols, error());
    return;
  }
  if (c.at)
    origin = {SourceRange(), nullptr};
  switch (c.relation) {
  case Relation::Product:
    return product(c, conflict);
  case Relation::Broadcast:
    return broadcast(c, conflict);
  case Relation::Reduce:
    return reduce(c, conflict);
  }
}

void ShapeSolver::product(Constraint &c, Conflict conflict) {
  bool failed = false;
  auto equal = [&](DimVar x, DimVar y) {
    if (failed || unify(x, y))
      return;
    failed = c.done = true;
    conflict(c, x, y);
    unify(c.result.rows, error());
    unify(c.result.cols, error());
  };
  auto equalShapes = [&](ShapeVar x, ShapeVar y) {
    equal(x.rows, y.rows);
    equal(x.cols, y.cols);
    c.done = true;
  };
  if (isScalar(c.a))
    return equalShapes(c.result, c.b);
  if (isScalar(c.b))
    return equalShapes(c.result, c.a);
  bool matrixA = isNonScalar(c.a), matrixB = isNonScalar(c.b);
  // What holds for both kinds of product.
  if (matrixA)
    equal(c.result.rows, c.a.rows);
  if (matrixB)
    equal(c.result.cols, c.b.cols);
  if (matrixA && matrixB) {
    equal(c.a.cols, c.b.rows);
    c.done = true;
    return;
  }
  if (matrixA && isOne(c.a.cols))
    equal(c.b.rows, one()); // a scalar or a row
  if (matrixB && isOne(c.b.rows))
    equal(c.a.cols, one()); // a scalar or a column
  if (matrixA && isSized(c.a.cols) && isOne(c.b.rows))
    equal(c.b.cols, one());
  if (matrixB && isSized(c.b.rows) && isOne(c.a.cols))
    equal(c.a.rows, one());
  if (isSized(c.result.rows) && isOne(c.a.rows))
    equal(c.a.cols, one()); // only scaling keeps the rows of b
  if (isSized(c.result.cols) && isOne(c.b.cols))
    equal(c.b.rows, one());
}

void ShapeSolver::broadcast(Constraint &c, Conflict conflict) {
  c.done = true;
  auto along = [&](DimVar a, DimVar b, DimVar result) {
    bool fits = true;
    bool decided = true;
    if (isOne(a))
      fits = unify(result, b);
    else if (isOne(b) || same(a, b))
      fits = unify(result, a);
    else if (isOne(result))
      fits = unify(a, result) && unify(b, result);
    else {
      if (isSized(a))
        fits = unify(result, a);
      if (isSized(b))
        fits = fits && unify(result, b);
      decided = isSized(a) && isSized(b);
    }
    c.done &= decided || !fits;
    if (fits)
      return;
    conflict(c, isSized(a) && isSized(b) ? a : result, isSized(b) ? b : a);
    unify(c.result.rows, error());
    unify(c.result.cols, error());
  };
  along(c.a.rows, c.b.rows, c.result.rows);
  if (!hasError(c.result))
    along(c.a.cols, c.b.cols, c.result.cols);
  else
    c.done = true;
}

void ShapeSolver::reduce(Constraint &c, Conflict conflict) {
  bool fits = unify(c.result.cols, one());
  if (isOne(c.a.cols) || isOne(c.a.rows))
    fits = fits && unify(c.result.rows, one());
  else if (isSized(c.a.cols))
    fits = fits && unify(c.result.rows, c.a.rows);
  else
    return;
  c.done = true;
  if (!fits || isScalar(c.a))
    conflict(c, c.a.rows, c.result.rows);
}

//===----------------------------------------------------------------------===//
// Conventions
//===----------------------------------------------------------------------===//

bool ShapeSolver::apply(const Default &rule) {
  ShapeVar s = rule.shape;
  auto makeVector = [&] {
    if (isKnown(s) || isOne(s.rows) || isSized(s.cols) || hasError(s))
      return false;
    makeSized(s.rows);
    makeOne(s.cols);
    return true;
  };
  switch (rule.convention) {
  case Convention::TransposedIsVector:
    return isUnknown(s.rows) && makeVector(); // with rows known it may be the matrix of a block's rows
  case Convention::NamedVector:
  case Convention::FunctionOfVector:
    return makeVector();
  case Convention::StateIsMatrix: {
    const Constraint &c = constraints[rule.constraint];
    // A state of unknown kind times a vector is a matrix times a vector.
    if (c.done || isNonScalar(c.a) || !isSized(c.b.rows) || !isOne(c.b.cols) || !isUnknown(c.a.cols))
      return false;
    return makeSized(c.a.cols);
  }
  case Convention::ScalarOperand:
  case Convention::LeadingIsScalar:
  case Convention::FilledScalar:
    if (isKnown(s) || isNonScalar(s) || hasError(s))
      return false;
    makeOne(s.rows);
    makeOne(s.cols);
    return true;
  case Convention::OperandsAgree: {
    const Constraint &c = constraints[rule.constraint];
    bool changed = false;
    auto agree = [&](DimVar operand, DimVar with) {
      if (isUnknown(operand) && !isUnknown(with))
        changed |= unify(operand, with);
    };
    for (auto [operand, other] : {std::make_pair(c.a, c.b), std::make_pair(c.b, c.a)}) {
      if (isNonScalar(c.result) && isKnown(c.result))
        other = c.result;
      // A scalar says nothing about the other side: it is repeated anyway.
      if (!isNonScalar(other) || !isKnown(other))
        continue;
      agree(operand.rows, other.rows);
      agree(operand.cols, other.cols);
    }
    return changed;
  }
  }
  llvm_unreachable("all conventions are handled");
}

void ShapeSolver::solve(Conflict conflict) {
  propagate(conflict);
  // An applied convention may settle what a weaker one would have, and what a stronger one asks for.
  for (bool changed = true; changed;) {
    changed = false;
    for (unsigned strength = 0; strength <= static_cast<unsigned>(Convention::FilledScalar); ++strength)
      for (const Default &rule : defaults) {
        if (static_cast<unsigned>(rule.convention) != strength || !apply(rule))
          continue;
        propagate(conflict);
        changed = true;
      }
  }
}

//===----------------------------------------------------------------------===//
// Results
//===----------------------------------------------------------------------===//

Dim ShapeSolver::finish(DimVar dim, AstContext &context) {
  Class &known = classes[find(dim)];
  if (known.state != State::Sized)
    return {};
  if (known.value)
    return {StringRef(), known.value};
  auto take = [&](StringRef name) {
    if (known.name.empty() && !name.empty() && names.try_emplace(name, dim).second)
      known.name = name;
  };
  take(known.soft);
  for (unsigned i = 1; known.name.empty(); ++i)
    take(context.save("d" + Twine(i)));
  return {known.name, 0};
}

std::string ShapeSolver::describe(DimVar dim) const {
  const Class &known = classes[find(dim)];
  if (known.state == State::One)
    return "1";
  if (known.value)
    return std::to_string(known.value);
  if (!known.name.empty())
    return known.name.str();
  return known.soft.empty() ? "?" : known.soft.str();
}

std::string ShapeSolver::describe(ShapeVar s) const {
  if (isScalar(s))
    return "a scalar";
  if (isOne(s.cols))
    return "a vector(" + describe(s.rows) + ")";
  return "a matrix(" + describe(s.rows) + ", " + describe(s.cols) + ")";
}

} // namespace recur::frontend

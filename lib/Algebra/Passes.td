// Passes on recur IR.
#ifndef RECUR_ALGEBRA_PASSES
#define RECUR_ALGEBRA_PASSES

include "mlir/Pass/PassBase.td"

def RecurDifferentiate : Pass<"recur-differentiate", "::recur::RuleOp"> {
  let summary = "replace every gradient by its expression, in reverse mode";
  let description = [{
    Walks from the loss back to the value it is differentiated by and builds the cotangents from what each op says of
    itself (DifferentiableOp, ElementwiseOp). A gradient of a gradient needs nothing special: the inner one comes
    first in program order and is an ordinary expression by then.
  }];
}

def RecurFindRecurrence : Pass<"recur-find-recurrence", "::recur::RuleOp"> {
  let summary = "replace products over the whole sequence by states, where their rank is finite";
  let description = [{
    `O = ((Q*K.T).*decay(a))*V` becomes `S = a*S + v*kT; O = S*q`. Masked products, decays, diagonals, their sums,
    products and inverses have finite rank; functions of scores (softmax) have not, and stay.
  }];
}

def RecurBind : Pass<"recur-bind", "::recur::RuleOp"> {
  let summary = "give symbolic dimensions their sizes";
  let options = [
    ListOption<"dims", "dims", "std::string", "NAME=SIZE for each dimension to bind">,
  ];
}

def RecurSplitColumns : Pass<"recur-split-columns", "::recur::RuleOp"> {
  let summary = "take matrices of few columns for each token apart into vectors";
  let description = [{
    `X*B.T`, of two inputs with a few columns each, is a sum of outer products, and `S*K` a few reads. An input that
    is such a matrix becomes micro-steps, and outputs are joined again. Expects bound dimensions.
  }];
}

def RecurCheckRanges : Pass<"recur-check-ranges", "::recur::RuleOp"> {
  let summary = "report a declared range that its expression contradicts";
}

def RecurDropAssumptions : Pass<"recur-drop-assumptions", "::recur::RuleOp"> {
  let summary = "replace assumed values by the values themselves";
}

def RecurOrient : Pass<"recur-orient", "::recur::RuleOp"> {
  let summary = "compute columns instead of rows, as far as functions and sums go";
}

def RecurReassociate : Pass<"recur-reassociate", "::recur::RuleOp"> {
  let summary = "order the products of matrices so that they cost least";
  let description = [{
    The text's order of a product is no order of evaluation. Each product is expanded over sums of identities,
    diagonals and products of low rank (`S*(I - b*k*kT)` becomes `S - b*(S*k)*kT`), its factors are put in the
    cheapest order, and scalars are applied where the value is smallest. Unbound dimensions count as 64.
  }];
}

def RecurNormalise : Pass<"recur-normalise", "::recur::RuleOp"> {
  let summary = "print the class and the normal form of the update; unrolls loops over micro-steps";
  let description = "Expects recur-differentiate, recur-drop-assumptions, canonicalize and cse before it.";
}

#endif

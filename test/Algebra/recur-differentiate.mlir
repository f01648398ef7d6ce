// RUN: recur-opt %s --split-input-file --verify-diagnostics --pass-pipeline='builtin.module(recur.rule(recur-differentiate,canonicalize,cse))' | FileCheck %s

// d/dS of S x . S x by y^T S x: the product rule at every use.
// CHECK-LABEL: recur.rule @quadratic
recur.rule @quadratic(input "x" %x: !recur.mat<d x 1>, state "S" %S: !recur.mat<e x d>) -> ("o") init {
  %z = recur.constant 0.0 : !recur.mat<e x d>
  recur.yield %z : !recur.mat<e x d>
} body {
  // CHECK: %[[TWO:.*]] = recur.constant 2.000000e+00
  // CHECK: %[[Y:.*]] = recur.matmul %S, %x
  %y = recur.matmul %S, %x : !recur.mat<e x d>, !recur.mat<d x 1>
  %s = recur.mul %y, %y : !recur.mat<e x 1>, !recur.mat<e x 1>
  %l = recur.reduce sum %s rows cols : !recur.mat<e x 1>
  // CHECK: %[[TWICE:.*]] = recur.mul %[[Y]], %[[TWO]]
  // CHECK: %[[XT:.*]] = recur.transpose %x
  // CHECK: %[[G:.*]] = recur.matmul %[[TWICE]], %[[XT]]
  %g = recur.gradient %l wrt %S : !recur.mat<e x d>
  // CHECK: recur.yield %[[G]], %[[Y]]
  recur.yield %g, %y : !recur.mat<e x d>, !recur.mat<e x 1>
}

// -----

// What does not depend on the value has the derivative zero.
// CHECK-LABEL: recur.rule @constant
recur.rule @constant(input "x" %x: !recur.mat<1 x 1>, state "s" %s: !recur.mat<d x 1>) -> ("o") init {
  %z = recur.constant 0.0 : !recur.mat<d x 1>
  recur.yield %z : !recur.mat<d x 1>
} body {
  // CHECK: %[[ZERO:.*]] = recur.constant 0.000000e+00 : <d x 1>
  %g = recur.gradient %x wrt %s : !recur.mat<d x 1>
  // CHECK: recur.yield %[[ZERO]], %x
  recur.yield %g, %x : !recur.mat<d x 1>, !recur.mat<1 x 1>
}

// -----

// A gradient of a gradient: f = sum(s^3), f' = 3 s^2, d/ds of sum(f') = 6 s.
// CHECK-LABEL: recur.rule @second
recur.rule @second(input "x" %x: !recur.mat<1 x 1>, state "s" %s: !recur.mat<1 x 1>) -> ("o") init {
  %z = recur.constant 0.0 : !recur.mat<1 x 1>
  recur.yield %z : !recur.mat<1 x 1>
} body {
  // CHECK-NOT: recur.gradient
  %2 = recur.mul %s, %s : !recur.mat<1 x 1>, !recur.mat<1 x 1>
  %3 = recur.mul %2, %s : !recur.mat<1 x 1>, !recur.mat<1 x 1>
  %g = recur.gradient %3 wrt %s : !recur.mat<1 x 1>
  %h = recur.gradient %g wrt %s : !recur.mat<1 x 1>
  recur.yield %h, %x : !recur.mat<1 x 1>, !recur.mat<1 x 1>
}

// -----

recur.rule @loop(input "x" %x: !recur.mat<1 x 1>, state "s" %s: !recur.mat<1 x 1>) -> ("o") init {
  %z = recur.constant 0.0 : !recur.mat<1 x 1>
  recur.yield %z : !recur.mat<1 x 1>
} body {
  // expected-error@+1 {{cannot differentiate through 'for'}}
  %r = recur.for %j = 1 to 3 iter(%c = %s) -> !recur.mat<1 x 1> {
    %n = recur.mul %c, %x : !recur.mat<1 x 1>, !recur.mat<1 x 1>
    recur.yield %n : !recur.mat<1 x 1>
  }
  // expected-note@+1 {{the gradient is asked for here}}
  %g = recur.gradient %r wrt %s : !recur.mat<1 x 1>
  recur.yield %g, %x : !recur.mat<1 x 1>, !recur.mat<1 x 1>
}

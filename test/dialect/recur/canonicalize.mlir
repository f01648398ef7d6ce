// RUN: recur-opt %s --canonicalize | FileCheck %s

// CHECK-LABEL: recur.rule @folds
recur.rule @folds(input "x" %x: !recur.mat<d x 1>, input "m" %m: !recur.mat<d x d>) -> ("o", "p", "q") init {
  recur.yield
} body {
  %0 = recur.constant 0.0 : !recur.mat<d x 1>
  %1 = recur.constant 1.0 : !recur.mat<1 x 1>
  %eye = recur.identity : !recur.mat<d x d>
  // x + 0, 1 * x, x / 1, I * x and transposing twice are x.
  %a = recur.add %0, %x : !recur.mat<d x 1>, !recur.mat<d x 1>
  %b = recur.mul %1, %a : !recur.mat<1 x 1>, !recur.mat<d x 1>
  %c = recur.div %b, %1 : !recur.mat<d x 1>, !recur.mat<1 x 1>
  %d = recur.matmul %eye, %c : !recur.mat<d x d>, !recur.mat<d x 1>
  %e = recur.transpose %d : !recur.mat<d x 1>
  %f = recur.transpose %e : !recur.mat<1 x d>
  // A product with zero is zero.
  %z = recur.matmul %m, %0 : !recur.mat<d x d>, !recur.mat<d x 1>
  // Numbers fold.
  %two = recur.add %1, %1 : !recur.mat<1 x 1>, !recur.mat<1 x 1>
  %four = recur.pow %two, %two : !recur.mat<1 x 1>, !recur.mat<1 x 1>
  // A single entry has none to turn with.
  %turned = recur.rope %four, %two : !recur.mat<1 x 1>
  // CHECK-DAG: %[[Z:.*]] = recur.constant 0.000000e+00 : <d x 1>
  // CHECK-DAG: %[[FOUR:.*]] = recur.constant 4.000000e+00 : <1 x 1>
  // CHECK: recur.yield %x, %[[Z]], %[[FOUR]]
  recur.yield %f, %z, %turned : !recur.mat<d x 1>, !recur.mat<d x 1>, !recur.mat<1 x 1>
}

// A number that is not finite stays an expression.
// CHECK-LABEL: recur.rule @infinite
recur.rule @infinite(input "x" %x: !recur.mat<1 x 1>) -> ("o") init {
  recur.yield
} body {
  %0 = recur.constant 0.0 : !recur.mat<1 x 1>
  // CHECK: recur.log
  %1 = recur.log %0 : !recur.mat<1 x 1>
  %2 = recur.add %1, %x : !recur.mat<1 x 1>, !recur.mat<1 x 1>
  recur.yield %2 : !recur.mat<1 x 1>
}

// A product with a scalar scales; the transpose of a product goes to its factors.
// CHECK-LABEL: recur.rule @products
recur.rule @products(input "x" %x: !recur.mat<d x 1>, input "y" %y: !recur.mat<e x 1>, input "s" %s: !recur.mat<1 x 1>)
    -> ("o", "p") init {
  recur.yield
} body {
  // CHECK: recur.mul %x, %s
  %0 = recur.matmul %x, %s : !recur.mat<d x 1>, !recur.mat<1 x 1>
  %yT = recur.transpose %y : !recur.mat<e x 1>
  %1 = recur.matmul %x, %yT : !recur.mat<d x 1>, !recur.mat<1 x e>
  // CHECK: %[[XT:.*]] = recur.transpose %x
  // CHECK: recur.matmul %y, %[[XT]]
  %2 = recur.transpose %1 : !recur.mat<d x e>
  recur.yield %0, %2 : !recur.mat<d x 1>, !recur.mat<e x d>
}

// -----
// Equal terms, and factors that are constants, are one: x/2 + x/2 is x, (y + x) + x is y + 2*x. Not so constants whose
// product would be rounded.
// CHECK-LABEL: recur.rule @terms
recur.rule @terms(input "x" %x: !recur.mat<d x 1>, input "y" %y: !recur.mat<d x 1>, state "s" %s: !recur.mat<d x 1>) -> ("o", "p", "r") init {
  %zero = recur.constant 0.0 : <d x 1>
  recur.yield %zero : !recur.mat<d x 1>
} body {
  // CHECK-DAG: %[[TWO:.*]] = recur.constant 2.000000e+00
  // CHECK-DAG: %[[TENTH:.*]] = recur.constant 1.000000e-01
  // CHECK: %[[TWICE:.*]] = recur.mul %x, %[[TWO]]
  // CHECK: %[[SUM:.*]] = recur.add %y, %[[TWICE]]
  // CHECK: %[[PART:.*]] = recur.mul %x, %[[TENTH]]
  // CHECK: %[[LESS:.*]] = recur.mul %[[PART]], %[[TENTH]]
  // CHECK: recur.yield %s, %x, %[[SUM]], %[[LESS]]
  %half = recur.constant 0.5 : <1 x 1>
  %h = recur.mul %half, %x : !recur.mat<1 x 1>, !recur.mat<d x 1>
  %o = recur.add %h, %h : !recur.mat<d x 1>, !recur.mat<d x 1>
  %yx = recur.add %y, %x : !recur.mat<d x 1>, !recur.mat<d x 1>
  %p = recur.add %yx, %x : !recur.mat<d x 1>, !recur.mat<d x 1>
  %tenth = recur.constant 0.1 : <1 x 1>
  %part = recur.mul %tenth, %x : !recur.mat<1 x 1>, !recur.mat<d x 1>
  %r = recur.mul %tenth, %part : !recur.mat<1 x 1>, !recur.mat<d x 1>
  recur.yield %s, %o, %p, %r : !recur.mat<d x 1>, !recur.mat<d x 1>, !recur.mat<d x 1>, !recur.mat<d x 1>
}

// -----
// kT*k is the sum of squares; S - S*diag(x) is S*diag(1 - x), and 1 - (1 - x) is x.
// CHECK-LABEL: recur.rule @parts
recur.rule @parts(input "k" %k: !recur.mat<d x 1>, input "x" %x: !recur.mat<d x 1>, state "S" %S: !recur.mat<e x d>) -> ("o") init {
  %zero = recur.constant 0.0 : <e x d>
  recur.yield %zero : !recur.mat<e x d>
} body {
  // CHECK-DAG: %[[SQUARES:.*]] = recur.mul %k, %k
  // CHECK-DAG: %[[NORM:.*]] = recur.reduce  sum %[[SQUARES]] rows
  // CHECK-DAG: %[[XT:.*]] = recur.transpose %x
  // CHECK-DAG: %[[REST:.*]] = recur.mul %S, %[[XT]]
  // CHECK: recur.yield %[[REST]], %[[NORM]]
  %kT = recur.transpose %k : !recur.mat<d x 1>
  %o = recur.matmul %kT, %k : !recur.mat<1 x d>, !recur.mat<d x 1>
  %one = recur.constant 1.0 : <1 x 1>
  %y = recur.sub %one, %x : !recur.mat<1 x 1>, !recur.mat<d x 1>
  %yT = recur.transpose %y : !recur.mat<d x 1>
  %part = recur.mul %S, %yT : !recur.mat<e x d>, !recur.mat<1 x d>
  %rest = recur.sub %S, %part : !recur.mat<e x d>, !recur.mat<e x d>
  recur.yield %rest, %o : !recur.mat<e x d>, !recur.mat<1 x 1>
}

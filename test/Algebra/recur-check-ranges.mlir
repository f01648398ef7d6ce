// RUN: recur-opt %s --verify-diagnostics --pass-pipeline='builtin.module(recur.rule(recur-check-ranges))'

recur.rule @ranges(input "g" %g: !recur.mat<1 x 1> in <"[0, inf)">, input "n" %n: !recur.mat<1 x 1> in <"(-inf, 0)">) -> ("o") init {
  recur.yield
} body {
  // exp of what is not negative is at least 1: it may be 1.
  %e = recur.exp %g : !recur.mat<1 x 1>
  %a = recur.assume %e in <"[0, 1]"> : !recur.mat<1 x 1>
  %two = recur.constant 2.0 : !recur.mat<1 x 1>
  %f = recur.mul %two, %e : !recur.mat<1 x 1>, !recur.mat<1 x 1>
  // expected-error@+1 {{the declared range is [0, 1], but the value lies in [2, inf]}}
  %b = recur.assume %f in <"[0, 1]"> : !recur.mat<1 x 1>
  %h = recur.sub %n, %two : !recur.mat<1 x 1>, !recur.mat<1 x 1>
  // expected-error@+1 {{'log' needs a value that is not negative, but it lies in (-inf, -2)}}
  %l = recur.log %h : !recur.mat<1 x 1>
  // A sigmoid is never outside [0, 1].
  %s = recur.sigmoid %n : !recur.mat<1 x 1>
  // expected-error@+1 {{the declared range is [2, 3], but the value lies in (0, 0.5)}}
  %c = recur.assume %s in <"[2, 3]"> : !recur.mat<1 x 1>
  recur.yield %l : !recur.mat<1 x 1>
}

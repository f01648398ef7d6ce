// RUN: recur-opt %s -split-input-file -verify-diagnostics -recur-to-linalg

// expected-error @below {{dimension 'd' is not bound}}
recur.rule @unbound(input "x" %x: !recur.mat<d x 1>) -> ("o") init {
  recur.yield
} body {
  recur.yield %x : !recur.mat<d x 1>
}

// -----

recur.rule @inverse(input "x" %x: !recur.mat<4 x 4>) -> ("o") init {
  recur.yield
} body {
  // expected-error @below {{inverses of general matrices run only in the oracle for now}}
  %0 = recur.inverse %x : !recur.mat<4 x 4>
  recur.yield %0 : !recur.mat<4 x 4>
}

// RUN: recur-opt %s -split-input-file -verify-diagnostics -recur-to-linalg

// expected-error @below {{dimension 'd' is not bound}}
recur.rule @unbound(input "x" %x: !recur.mat<d x 1>) -> ("o") init {
  recur.yield
} body {
  recur.yield %x : !recur.mat<d x 1>
}

// -----

// expected-error @below {{states of an earlier block, such as 's@16', run only in the oracle for now}}
recur.rule @stale(state "s" %s: !recur.mat<4 x 1>, stale "s" %old: !recur.mat<4 x 1> block 16) -> ("o") init {
  %z = recur.constant 0.0 : !recur.mat<4 x 1>
  recur.yield %z : !recur.mat<4 x 1>
} body {
  recur.yield %old, %old : !recur.mat<4 x 1>, !recur.mat<4 x 1>
}

// -----

recur.rule @inverse(input "x" %x: !recur.mat<4 x 4>) -> ("o") init {
  recur.yield
} body {
  // expected-error @below {{inverses of general matrices run only in the oracle for now}}
  %0 = recur.inverse %x : !recur.mat<4 x 4>
  recur.yield %0 : !recur.mat<4 x 4>
}

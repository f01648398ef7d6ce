// RUN: recur-opt %s --pass-pipeline='builtin.module(recur.rule(recur-bind{dims=d=8,n=2}))' | FileCheck %s
// RUN: not recur-opt %s --pass-pipeline='builtin.module(recur.rule(recur-bind{dims=e=8}))' 2>&1 | FileCheck %s --check-prefix=UNKNOWN
// RUN: not recur-opt %s --pass-pipeline='builtin.module(recur.rule(recur-bind{dims=d=0}))' 2>&1 | FileCheck %s --check-prefix=SIZE
// RUN: not recur-opt %s --pass-pipeline='builtin.module(recur.rule(recur-bind{dims=d}))' 2>&1 | FileCheck %s --check-prefix=FORM

// UNKNOWN: error: the rule has no dimension 'e' to bind; its dimensions are 'n', 'd'
// SIZE: error: dimension 'd' must be from 1 to 16777216, got: 0
// FORM: error: a binding is NAME=SIZE, got: 'd'

// CHECK: input "k" %k: !recur.steps<2 x 8 x 1>
recur.rule @bind(input "k" %k: !recur.steps<n x d x 1>) -> ("o", "p") init {
  recur.yield
} body {
  %z = recur.constant 0.0 : !recur.mat<d x 1>
  // CHECK: recur.for %{{.*}} = 1 to 2 iter(%{{.*}} = %{{.*}}) -> !recur.mat<8 x 1>
  %r = recur.for %j = 1 to n iter(%c = %z) -> !recur.mat<d x 1> {
    // CHECK: recur.extract %k[%{{.*}}] : <2 x 8 x 1>
    %kj = recur.extract %k[%j] : !recur.steps<n x d x 1>
    %s = recur.add %c, %kj : !recur.mat<d x 1>, !recur.mat<d x 1>
    recur.yield %s : !recur.mat<d x 1>
  }
  // CHECK: recur.size 8
  %n = recur.size d
  recur.yield %r, %n : !recur.mat<d x 1>, !recur.mat<1 x 1>
}

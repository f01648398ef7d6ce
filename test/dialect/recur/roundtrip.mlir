// RUN: recur-opt %s --verify-roundtrip | FileCheck %s
// RUN: recur-opt %s --mlir-print-op-generic | recur-opt --verify-roundtrip | FileCheck %s

// CHECK-LABEL: recur.rule @everything(
// CHECK-SAME: input "a" %a: !recur.mat<1 x 1> in <"[0, 1]">, input "x" %x: !recur.mat<d x 1> unit,
// CHECK-SAME: input "k" %k: !recur.steps<n x d x 1>, param "p" %p: !recur.mat<d x 1> in <"(-inf, 0.5)">,
// CHECK-SAME: state "s" %s: !recur.mat<d x 1>, stale "s" %s_at_16: !recur.mat<d x 1> block 16,
// CHECK-SAME: position "t" %t: !recur.mat<1 x 1>, head "head" %head: !recur.mat<1 x 1>) -> ("o") init {
recur.rule @everything(input "a" %a: !recur.mat<1 x 1> in <"[0, 1]">, input "x" %x: !recur.mat<d x 1> unit,
    input "k" %k: !recur.steps<n x d x 1>, param "p" %p: !recur.mat<d x 1> in <"(-inf, 0.5)">,
    state "s" %s: !recur.mat<d x 1>, stale "s" %q: !recur.mat<d x 1> block 16,
    position "t" %t: !recur.mat<1 x 1>, head "head" %head: !recur.mat<1 x 1>) -> ("o") init {
  // CHECK: recur.mul %p, %head
  %z = recur.mul %p, %head : !recur.mat<d x 1>, !recur.mat<1 x 1>
  recur.yield %z : !recur.mat<d x 1>
} body {
  // CHECK: %[[LOOP:.*]] = recur.for %[[J:.*]] = 1 to n iter(%[[C:.*]] = %s) -> !recur.mat<d x 1> {
  %loop = recur.for %j = 1 to n iter(%c = %s) -> !recur.mat<d x 1> {
    // CHECK: recur.extract %k[%[[J]]] : <n x d x 1>
    %kj = recur.extract %k[%j] : !recur.steps<n x d x 1>
    %next = recur.add %c, %kj : !recur.mat<d x 1>, !recur.mat<d x 1>
    // CHECK: recur.yield %{{.*}} : !recur.mat<d x 1>
    recur.yield %next : !recur.mat<d x 1>
  }
  // CHECK: recur.size d
  %n = recur.size d
  // CHECK: recur.constant 5.000000e-01 : <4 x 4>
  %half = recur.constant 0.5 : !recur.mat<4 x 4>
  // CHECK: recur.identity : <d x d>
  %eye = recur.identity : !recur.mat<d x d>
  // CHECK: recur.reduce{{ +}}sum %{{.*}} rows cols : <d x 1>
  %sum = recur.reduce sum %loop rows cols : !recur.mat<d x 1>
  // CHECK: recur.reduce{{ +}}max %{{.*}} cols : <d x d>
  %top = recur.reduce max %eye cols : !recur.mat<d x d>
  // CHECK: recur.broadcast %{{.*}} : <1 x 1> to <d x 1>
  %wide = recur.broadcast %sum : !recur.mat<1 x 1> to !recur.mat<d x 1>
  // CHECK: recur.join %x, %{{.*}} : !recur.mat<d x 1>, !recur.mat<d x 1>
  %both = recur.join %x, %wide : !recur.mat<d x 1>, !recur.mat<d x 1>
  // CHECK: recur.constant {{.*}} : <4 x 1>
  %four = recur.constant 0.25 : !recur.mat<4 x 1>
  // CHECK: recur.concat %{{.*}}, %{{.*}} at [0, 8] : !recur.mat<4 x 1>, !recur.mat<4 x 1>
  %twelve = recur.concat %four, %four at [0, 8] : !recur.mat<4 x 1>, !recur.mat<4 x 1>
  // CHECK: recur.diag %{{.*}} : <d x 1>
  %diag = recur.diag %wide : !recur.mat<d x 1>
  // CHECK: recur.solve %{{.*}}, %x : <d x d>, <d x 1>
  %exact = recur.solve %diag, %x : !recur.mat<d x d>, !recur.mat<d x 1>
  // CHECK: recur.solve %{{.*}}, %x iterations 30 {eps = 1.000000e-05 : f64} : <d x d>, <d x 1>
  %cg = recur.solve %diag, %x iterations 30 {eps = 1.0e-5 : f64} : !recur.mat<d x d>, !recur.mat<d x 1>
  // CHECK: recur.rope %x, %t : <d x 1>
  %rot = recur.rope %x, %t : !recur.mat<d x 1>
  // CHECK: recur.assume %{{.*}} in <"[0, 1)"> unit : <d x 1>
  %fact = recur.assume %rot in <"[0, 1)"> unit : !recur.mat<d x 1>
  // CHECK: recur.gradient %{{.*}} wrt %s : <d x 1>
  %grad = recur.gradient %sum wrt %s : !recur.mat<d x 1>
  // CHECK: recur.block size(16) length("T") tokens(%x : !recur.mat<d x 1>) shared(%s : !recur.mat<d x 1>)
  // CHECK-SAME: states(!recur.mat<d x 1>) rows(!recur.mat<d x 1>) {
  %st, %row = recur.block size(16) length("T") tokens(%x : !recur.mat<d x 1>) shared(%s : !recur.mat<d x 1>)
      states(!recur.mat<d x 1>) rows(!recur.mat<d x 1>) {
  ^bb0(%X: !recur.mat<T x d>, %S: !recur.mat<d x 1>):
    // CHECK: recur.mask strict : <T x T>
    %m = recur.mask strict : !recur.mat<T x T>
    // CHECK: recur.matmul %{{.*}}, %{{.*}} : <T x T>, <T x d>
    %mx = recur.matmul %m, %X : !recur.mat<T x T>, !recur.mat<T x d>
    recur.yield %S, %mx : !recur.mat<d x 1>, !recur.mat<T x d>
  }
  recur.yield %grad, %row : !recur.mat<d x 1>, !recur.mat<d x 1>
}

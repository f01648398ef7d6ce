// RUN: recur-opt %s -recur-to-linalg="symbol=f chunk=16" | FileCheck %s

// The whole chunks of the sequence, with the state transposed as the program uses it.
// CHECK-LABEL: func.func @f(
// CHECK-SAME: %[[TOKENS:[^:]+]]: index, %{{[^:]+}}: index, %{{[^:]+}}: index, %{{[^:]+}}: index, %{{[^:]+}}: memref<?xi8>)
// CHECK: %[[C:.*]] = arith.constant 16
// CHECK: %[[REST:.*]] = arith.remui %[[TOKENS]], %[[C]]
// CHECK: %[[WHOLE:.*]] = arith.subi %[[TOKENS]], %[[REST]]
// CHECK: scf.if
// CHECK: scf.for %[[BEGIN:.*]] = %{{.*}} to %[[WHOLE]] step %[[C]] iter_args(%[[S:.*]] = %{{.*}}) -> (tensor<32x24xf32>)
// CHECK: memref.subview %arg0[%[[BEGIN]], 0] [16, 32] [1, 1]

// The carried part is a product, to which that of the scores is added, as far as they are not zero.
// CHECK: %[[CARRIED:.*]] = linalg.generic {{.*}} ins(%{{.*}}, %[[S]] : tensor<16x32xf32>, tensor<32x24xf32>)
// CHECK: bufferization.to_buffer %[[CARRIED]] : tensor<16x24xf32>
// CHECK: vector.fma
// The state is updated in place.
// CHECK: linalg.generic {{.*}} outs(%[[S]] : tensor<32x24xf32>)

// The tokens that are left.
// CHECK: scf.for %{{.*}} = %[[WHOLE]] to %[[TOKENS]] {{.*}} iter_args
recur.rule @sum(input "q" %q: !recur.mat<32 x 1>, input "v" %v: !recur.mat<24 x 1>, state "S" %S: !recur.mat<24 x 32>)
    -> ("o") init {
  %z = recur.constant 0.0 : !recur.mat<24 x 32>
  recur.yield %z : !recur.mat<24 x 32>
} body {
  %0 = recur.transpose %q : !recur.mat<32 x 1>
  %1 = recur.matmul %v, %0 : !recur.mat<24 x 1>, !recur.mat<1 x 32>
  %2 = recur.add %S, %1 : !recur.mat<24 x 32>, !recur.mat<24 x 32>
  %3 = recur.matmul %2, %q : !recur.mat<24 x 32>, !recur.mat<32 x 1>
  recur.yield %2, %3 : !recur.mat<24 x 32>, !recur.mat<24 x 1>
}

chunk.program @sum_chunk length("C") [#recur.arg<input "q">, #recur.arg<input "v">, #recur.arg<state "S">] -> ["o"] init {
  %0 = recur.constant 0.0 : <24 x 32>
  chunk.yield %0 : !recur.mat<24 x 32>
} body {
^bb0(%q: !recur.mat<C x 32>, %v: !recur.mat<C x 24>, %S: !recur.mat<24 x 32>):
  %0 = recur.transpose %S : <24 x 32>
  %1 = recur.matmul %q, %0 : <C x 32>, <32 x 24>
  %2 = chunk.gram inclusive %q, %q : <C x 32> -> <C x C>
  %3 = recur.matmul %2, %v : <C x C>, <C x 24>
  %4 = recur.add %1, %3 : <C x 24>, <C x 24>
  %5 = recur.transpose %q : <C x 32>
  %6 = recur.matmul %5, %v : <32 x C>, <C x 24>
  %7 = recur.add %0, %6 : <32 x 24>, <32 x 24>
  %8 = recur.transpose %7 : <32 x 24>
  chunk.yield %8, %4 : !recur.mat<24 x 32>, !recur.mat<C x 24>
}

// RUN: recur-opt %s -recur-to-linalg="symbol=f" | FileCheck %s
// RUN: recur-opt %s -recur-to-linalg="symbol=f formats=bf16,bf16:2,f32,f16,f32" \
// RUN:   | FileCheck %s --check-prefix=TYPES

// Arguments: a, x, initial s, o, final s, the span, the scratch memory.
// CHECK-LABEL: func.func @f(
// CHECK-SAME: %[[A:[^:]+]]: memref<?xf32, strided<[?], offset: ?>>, %[[X:[^:]+]]: memref<?x8xf32, strided<[?, ?], offset: ?>>,
// CHECK-SAME: %[[S:[^:]+]]: memref<8xf32, {{[^>]*>}}>, %{{[^:]+}}: memref<?x8xf32, {{[^>]*>}}>, %{{[^:]+}}: memref<8xf32,
// CHECK-SAME: %[[TOKENS:[^:]+]]: index, %{{[^:]+}}: index, %{{[^:]+}}: index, %{{[^:]+}}: index, %{{[^:]+}}: memref<?xi8>)
// TYPES-LABEL: func.func @f(
// TYPES-SAME: memref<?xbf16, {{[^>]*>}}>, %{{[^:]+}}: memref<?x8x1xbf16, {{[^>]*>}}>, %{{[^:]*}}: memref<8xf32,
// TYPES-SAME: memref<?x8xf16,

// The state is the caller's if given, else the rule's.
// CHECK: %[[ADDRESS:.*]] = memref.extract_aligned_pointer_as_index %[[S]]
// CHECK: %[[GIVEN:.*]] = arith.cmpi ne, %[[ADDRESS]]
// CHECK: scf.if %[[GIVEN]]
// CHECK: else
// CHECK: bufferization.materialize_in_destination
// CHECK: %[[FIRST:.*]] = bufferization.to_tensor %{{.*}} restrict writable

// CHECK: scf.for %[[T:.*]] = %{{.*}} to %[[TOKENS]] {{.*}} iter_args(%[[OLD:.*]] = %[[FIRST]])
// CHECK: %[[FACTOR:.*]] = memref.load
// CHECK: memref.subview %[[X]][%[[T]], 0] [1, 8] [1, 1]
// CHECK: %[[SCALED:.*]] = linalg.generic {{.*}} ins(%[[OLD]]
// CHECK: arith.mulf %[[FACTOR]], %{{.*}} fastmath<contract>
// CHECK: %[[NEW:.*]] = linalg.generic {{.*}} ins(%[[SCALED]]
// CHECK: bufferization.to_buffer %[[NEW]] read_only
// CHECK: %[[NEXT:.*]] = bufferization.materialize_in_destination %[[NEW]] in %[[OLD]]
// CHECK: scf.yield %[[NEXT]]
recur.rule @sum(input "a" %a: !recur.mat<1 x 1>, input "x" %x: !recur.mat<8 x 1>, state "s" %s: !recur.mat<8 x 1>)
    -> ("o") init {
  %z = recur.constant 0.0 : !recur.mat<8 x 1>
  recur.yield %z : !recur.mat<8 x 1>
} body {
  %0 = recur.mul %a, %s : !recur.mat<1 x 1>, !recur.mat<8 x 1>
  %1 = recur.add %0, %x : !recur.mat<8 x 1>, !recur.mat<8 x 1>
  recur.yield %1, %1 : !recur.mat<8 x 1>, !recur.mat<8 x 1>
}

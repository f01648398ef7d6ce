// RUN: recur-opt %s -plan-scratch | FileCheck %s

// Two buffers in use at the same time lie side by side, at multiples of 64; a third takes the place of the first.
// CHECK-LABEL: func.func @places(
// CHECK-SAME: attributes {recur.scratch_bytes = 192 : i64}
// CHECK: arith.constant 0 : index
// CHECK: %[[C0:.*]] = arith.constant 0 : index
// CHECK: memref.view %{{.*}}[%[[C0]]][] : memref<?xi8> to memref<20xf32>
// CHECK: %[[C128:.*]] = arith.constant 128 : index
// CHECK: memref.view %{{.*}}[%[[C128]]][] : memref<?xi8> to memref<4xf32>
// CHECK: %[[AGAIN:.*]] = arith.constant 0 : index
// CHECK: memref.view %{{.*}}[%[[AGAIN]]][] : memref<?xi8> to memref<32xf32>
func.func @places(%x: f32, %scratch: memref<?xi8>) -> f32 {
  %c0 = arith.constant 0 : index
  %a = memref.alloc() : memref<20xf32>
  %b = memref.alloc() : memref<4xf32>
  memref.store %x, %a[%c0] : memref<20xf32>
  %part = memref.subview %a[0] [4] [1] : memref<20xf32> to memref<4xf32, strided<[1]>>
  memref.copy %part, %b : memref<4xf32, strided<[1]>> to memref<4xf32>
  %c = memref.alloc() : memref<32xf32>
  memref.store %x, %c[%c0] : memref<32xf32>
  %y = memref.load %b[%c0] : memref<4xf32>
  return %y : f32
}

// What is used in a loop keeps its place until the loop ends.
// CHECK-LABEL: func.func @loop(
// CHECK-SAME: attributes {recur.scratch_bytes = 128 : i64}
func.func @loop(%x: f32, %n: index, %scratch: memref<?xi8>) {
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %a = memref.alloc() : memref<4xf32>
  scf.for %i = %c0 to %n step %c1 {
    memref.store %x, %a[%c0] : memref<4xf32>
    %b = memref.alloc() : memref<4xf32>
    memref.store %x, %b[%c0] : memref<4xf32>
  }
  return
}

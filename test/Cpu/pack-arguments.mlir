// RUN: recur-opt %s -pack-arguments | FileCheck %s

// CHECK-LABEL: func.func @kernel(
// CHECK-SAME: %[[VIEWS:.*]]: !llvm.ptr {llvm.noalias}, %[[SPAN:.*]]: !llvm.ptr {llvm.noalias},
// CHECK-SAME: %[[SCRATCH:.*]]: !llvm.ptr {llvm.align = 64 : i64, llvm.noalias})
// CHECK: %[[FIRST:.*]] = llvm.getelementptr %[[VIEWS]][0]
// CHECK: %[[VIEW:.*]] = llvm.load %[[FIRST]]
// CHECK: %[[DESCRIPTOR:.*]] = llvm.load %[[VIEW]] : !llvm.ptr -> !llvm.struct<(ptr, ptr, i64, array<1 x i64>, array<1 x i64>)>
// CHECK: builtin.unrealized_conversion_cast %[[DESCRIPTOR]]
// CHECK: %[[FIELD:.*]] = llvm.getelementptr %[[SPAN]][0]
// CHECK: %[[TOKENS:.*]] = llvm.load %[[FIELD]] : !llvm.ptr -> i64
// CHECK: arith.index_cast %[[TOKENS]]
// CHECK: llvm.insertvalue %[[SCRATCH]]
func.func @kernel(%x: memref<?xf32, strided<[?], offset: ?>>, %tokens: index, %scratch: memref<?xi8>) {
  return
}

// RUN: recur-opt %s -recur-to-linalg | FileCheck %s

// A product of vectors is elementwise; transposing and filling cost nothing.
// CHECK-DAG: #[[$ROW:.*]] = affine_map<(d0, d1) -> (d0)>
// CHECK-DAG: #[[$COLUMN:.*]] = affine_map<(d0, d1) -> (d1)>
// CHECK-DAG: #[[$MATRIX:.*]] = affine_map<(d0, d1) -> (d0, d1)>
// CHECK-LABEL: func.func @kernel(
// CHECK: scf.for
// CHECK: linalg.generic {indexing_maps = [#[[$ROW]], #[[$COLUMN]], #[[$MATRIX]]], iterator_types = ["parallel", "parallel"]}
// CHECK: %[[ONE:.*]] = arith.constant 1.0
// CHECK: linalg.generic {indexing_maps = [#[[$MATRIX]], #[[$MATRIX]]], iterator_types = ["parallel", "parallel"]}
// CHECK: arith.addf %{{.*}}, %[[ONE]]
recur.rule @outer(input "x" %x: !recur.mat<8 x 1>, input "y" %y: !recur.mat<4 x 1>) -> ("o") init {
  recur.yield
} body {
  %yT = recur.transpose %y : !recur.mat<4 x 1>
  %0 = recur.matmul %x, %yT : !recur.mat<8 x 1>, !recur.mat<1 x 4>
  %1 = recur.constant 1.0 : !recur.mat<8 x 4>
  %2 = recur.add %0, %1 : !recur.mat<8 x 4>, !recur.mat<8 x 4>
  recur.yield %2 : !recur.mat<8 x 4>
}

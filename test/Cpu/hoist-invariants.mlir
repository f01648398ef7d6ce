// RUN: recur-opt %s -hoist-invariants | FileCheck %s

#id = affine_map<(d0) -> (d0)>

// What is computed from a parameter leaves the loop; the places of results stay.
// CHECK-LABEL: func.func @parameter(
// CHECK: linalg.generic
// CHECK: math.exp
// CHECK: scf.for
// CHECK: tensor.empty
// CHECK: linalg.fill
// CHECK: linalg.generic
// CHECK: arith.addf
func.func @parameter(%p: tensor<8xf32>, %n: index) -> tensor<8xf32> {
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %zero = arith.constant 0.0 : f32
  %place = tensor.empty() : tensor<8xf32>
  %r = scf.for %i = %c0 to %n step %c1 iter_args(%s = %p) -> tensor<8xf32> {
    %e = linalg.generic {indexing_maps = [#id, #id], iterator_types = ["parallel"]}
        ins(%p : tensor<8xf32>) outs(%place : tensor<8xf32>) {
    ^bb0(%a: f32, %b: f32):
      %x = math.exp %a : f32
      linalg.yield %x : f32
    } -> tensor<8xf32>
    %empty = tensor.empty() : tensor<8xf32>
    %fill = linalg.fill ins(%zero : f32) outs(%empty : tensor<8xf32>) -> tensor<8xf32>
    %t = linalg.generic {indexing_maps = [#id, #id, #id], iterator_types = ["parallel"]}
        ins(%s, %e : tensor<8xf32>, tensor<8xf32>) outs(%fill : tensor<8xf32>) {
    ^bb0(%a: f32, %b: f32, %c: f32):
      %x = arith.addf %a, %b : f32
      linalg.yield %x : f32
    } -> tensor<8xf32>
    scf.yield %t : tensor<8xf32>
  }
  return %r : tensor<8xf32>
}

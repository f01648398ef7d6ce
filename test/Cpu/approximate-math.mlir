// RUN: recur-opt %s -approximate-math | FileCheck %s
// RUN: recur-opt %s -approximate-math=scaling | FileCheck %s --check-prefix=SCALING

// SCALING-LABEL: func.func @functions(
// SCALING: llvm.call_intrinsic "llvm.ldexp"
// CHECK-LABEL: func.func @functions(
// CHECK-NOT: math.{{exp|log|tanh|erf|sin|cos}}
// CHECK: return
func.func @functions(%x: f32) -> f32 {
  %0 = math.exp %x : f32
  %1 = math.log %0 : f32
  %2 = math.log1p %1 : f32
  %3 = math.tanh %2 : f32
  %4 = math.erf %3 : f32
  %5 = math.sin %4 : f32
  %6 = math.cos %5 : f32
  return %6 : f32
}

// CHECK-LABEL: func.func @powers(
// CHECK: arith.mulf
// CHECK: math.sqrt
// CHECK: arith.divf
// CHECK: math.powf
func.func @powers(%x: f32) -> f32 {
  %square = arith.constant 2.0 : f32
  %root = arith.constant -0.5 : f32
  %odd = arith.constant 0.3 : f32
  %0 = math.powf %x, %square : f32
  %1 = math.powf %0, %root : f32
  %2 = math.powf %1, %odd : f32
  return %2 : f32
}

// Other precisions are left alone.
// CHECK-LABEL: func.func @wide(
// CHECK: math.exp
func.func @wide(%x: f64) -> f64 {
  %0 = math.exp %x : f64
  return %0 : f64
}

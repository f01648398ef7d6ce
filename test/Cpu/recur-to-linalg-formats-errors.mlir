// RUN: not recur-opt %s -recur-to-linalg="formats=f32" 2>&1 | FileCheck %s --check-prefix=COUNT
// RUN: not recur-opt %s -recur-to-linalg="formats=f32,bf16,f32,f32" 2>&1 | FileCheck %s --check-prefix=STATE
// RUN: not recur-opt %s -recur-to-linalg="formats=f32:0,f32,f32,f32" 2>&1 | FileCheck %s --check-prefix=RANK
// RUN: not recur-opt %s -recur-to-linalg="formats=f64" 2>&1 | FileCheck %s --check-prefix=NAME

// NAME: error: unknown type 'f64', known are f32, bf16, f16
// COUNT: error: has 4 tensors, got formats for 1
// STATE: error: state 's' must be f32
// RANK: error: 'x' needs 1 dimensions, got: 0
recur.rule @sum(input "x" %x: !recur.mat<8 x 1>, state "s" %s: !recur.mat<8 x 1>) -> ("o") init {
  %z = recur.constant 0.0 : !recur.mat<8 x 1>
  recur.yield %z : !recur.mat<8 x 1>
} body {
  recur.yield %x, %s : !recur.mat<8 x 1>, !recur.mat<8 x 1>
}

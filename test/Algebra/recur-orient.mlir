// RUN: recur-opt %s --pass-pipeline='builtin.module(recur.rule(recur-orient,canonicalize,cse))' | FileCheck %s

// What is computed of rows is computed of their columns.
// CHECK-LABEL: recur.rule @rows
recur.rule @rows(input "q" %q: !recur.mat<dk x 1>, input "w" %w: !recur.mat<dv x 1>, state "S" %S: !recur.mat<dk x dv>) -> ("o", "n") init {
  %z = recur.constant 0.0 : !recur.mat<dk x dv>
  recur.yield %z : !recur.mat<dk x dv>
} body {
  %qT = recur.transpose %q : !recur.mat<dk x 1>
  %wT = recur.transpose %w : !recur.mat<dv x 1>
  %r = recur.matmul %qT, %S : !recur.mat<1 x dk>, !recur.mat<dk x dv>
  // CHECK: %[[EXP:.*]] = recur.exp %w : <dv x 1>
  // CHECK: %[[TURNED:.*]] = recur.transpose %S
  // CHECK: %[[READ:.*]] = recur.matmul %[[TURNED]], %q : <dv x dk>, <dk x 1>
  // CHECK: %[[PRODUCT:.*]] = recur.mul %[[READ]], %[[EXP]] : <dv x 1>, <dv x 1>
  %e = recur.exp %wT : !recur.mat<1 x dv>
  %x = recur.mul %r, %e : !recur.mat<1 x dv>, !recur.mat<1 x dv>
  // CHECK: %[[SUM:.*]] = recur.reduce {{ ?}}sum %[[PRODUCT]] rows
  %s = recur.reduce sum %x cols : !recur.mat<1 x dv>
  // CHECK: recur.yield %S, %[[PRODUCT]], %[[SUM]]
  %o = recur.transpose %x : !recur.mat<1 x dv>
  recur.yield %S, %o, %s : !recur.mat<dk x dv>, !recur.mat<dv x 1>, !recur.mat<1 x 1>
}

// A row that scales a matrix scales its columns: it is no vector's function.
// CHECK-LABEL: recur.rule @matrices
recur.rule @matrices(input "w" %w: !recur.mat<dv x 1>, state "S" %S: !recur.mat<dk x dv>) -> ("o") init {
  %z = recur.constant 0.0 : !recur.mat<dk x dv>
  recur.yield %z : !recur.mat<dk x dv>
} body {
  // CHECK: %[[ROW:.*]] = recur.transpose %w
  // CHECK: recur.mul %S, %[[ROW]] : <dk x dv>, <1 x dv>
  %wT = recur.transpose %w : !recur.mat<dv x 1>
  %x = recur.mul %S, %wT : !recur.mat<dk x dv>, !recur.mat<1 x dv>
  recur.yield %x, %w : !recur.mat<dk x dv>, !recur.mat<dv x 1>
}

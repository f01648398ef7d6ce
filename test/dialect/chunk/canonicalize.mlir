// RUN: recur-opt %s --cse --canonicalize | FileCheck %s

// Two readouts with one query share their scores, and what nobody uses goes.
// CHECK-LABEL: chunk.program @shared
// CHECK-COUNT-1: chunk.gram
// CHECK-NOT: chunk.gram
// CHECK-NOT: chunk.decay
chunk.program @shared length("C") [#recur.arg<input "q">, #recur.arg<input "k">, #recur.arg<input "v">] -> ["o", "p"] init {
  chunk.yield
} body {
^bb0(%q: !recur.mat<C x dk>, %k: !recur.mat<C x dk>, %v: !recur.mat<C x dv>):
  %d = chunk.decay %k : !recur.mat<C x dk>
  %a = chunk.gram inclusive %q, %k : !recur.mat<C x dk> -> !recur.mat<C x C>
  %b = chunk.gram inclusive %q, %k : !recur.mat<C x dk> -> !recur.mat<C x C>
  %o = recur.matmul %a, %v : !recur.mat<C x C>, !recur.mat<C x dv>
  %s = recur.reduce sum %b cols : !recur.mat<C x C>
  chunk.yield %o, %s : !recur.mat<C x dv>, !recur.mat<C x 1>
}

// RUN: recur-opt %s --split-input-file --pass-pipeline='builtin.module(recur.rule(canonicalize,cse),recur-derive)' 2>%t.remarks | FileCheck %s
// RUN: FileCheck %s --check-prefix=WHY < %t.remarks

// Writes alone: scores times values, no system.
// CHECK-LABEL: chunk.program @writes_chunk
// CHECK: %[[H:.*]] = recur.transpose %S
// CHECK: %[[A:.*]] = chunk.gram inclusive %q, %k : <C x dk> -> <C x C>
// CHECK: recur.matmul %[[A]], %v
// CHECK-NOT: chunk.tri_solve
recur.rule @writes(input "q" %q: !recur.mat<dk x 1>, input "k" %k: !recur.mat<dk x 1>, input "v" %v: !recur.mat<dv x 1>,
                   state "S" %S: !recur.mat<dv x dk>) -> ("o") init {
  %z = recur.constant 0.0 : !recur.mat<dv x dk>
  recur.yield %z : !recur.mat<dv x dk>
} body {
  %kT = recur.transpose %k : !recur.mat<dk x 1>
  %w = recur.matmul %v, %kT : !recur.mat<dv x 1>, !recur.mat<1 x dk>
  %n = recur.add %S, %w : !recur.mat<dv x dk>, !recur.mat<dv x dk>
  %o = recur.matmul %n, %q : !recur.mat<dv x dk>, !recur.mat<dk x 1>
  recur.yield %n, %o : !recur.mat<dv x dk>, !recur.mat<dv x 1>
}

// -----

// S (diag(a) - b (a.k) k^T) + b v k^T: one stream, because what is erased and what is written go along the same key.
// CHECK-LABEL: chunk.program @erase_chunk
// CHECK: %[[D:.*]] = chunk.decay %a : <C x dk>
// CHECK: %[[N:.*]] = chunk.gram strict %k, %k decay %[[D]]
// CHECK: %[[BN:.*]] = recur.mul %b, %[[N]]
// CHECK: %[[U:.*]] = chunk.tri_solve blocks(%[[BN]] :
// CHECK: %[[A:.*]] = chunk.gram inclusive %q, %k decay %[[D]]
// CHECK: recur.matmul %[[A]], %[[U]]
// CHECK-NOT: chunk.gram
recur.rule @erase(input "q" %q: !recur.mat<dk x 1>, input "k" %k: !recur.mat<dk x 1>, input "v" %v: !recur.mat<dv x 1>,
                  input "a" %a: !recur.mat<dk x 1> in <"[0, 1]">, input "b" %b: !recur.mat<1 x 1>,
                  state "S" %S: !recur.mat<dv x dk>) -> ("o") init {
  %z = recur.constant 0.0 : !recur.mat<dv x dk>
  recur.yield %z : !recur.mat<dv x dk>
} body {
  %kT = recur.transpose %k : !recur.mat<dk x 1>
  %aT = recur.transpose %a : !recur.mat<dk x 1>
  %d = recur.mul %S, %aT : !recur.mat<dv x dk>, !recur.mat<1 x dk>
  %r = recur.matmul %d, %k : !recur.mat<dv x dk>, !recur.mat<dk x 1>
  %e = recur.sub %v, %r : !recur.mat<dv x 1>, !recur.mat<dv x 1>
  %be = recur.mul %b, %e : !recur.mat<1 x 1>, !recur.mat<dv x 1>
  %w = recur.matmul %be, %kT : !recur.mat<dv x 1>, !recur.mat<1 x dk>
  %n = recur.add %d, %w : !recur.mat<dv x dk>, !recur.mat<dv x dk>
  %o = recur.matmul %n, %q : !recur.mat<dv x dk>, !recur.mat<dk x 1>
  recur.yield %n, %o : !recur.mat<dv x dk>, !recur.mat<dv x 1>
}

// -----

// A function of what is read is written: what a rule that knew it would do, and the function token by token.
// CHECK-LABEL: chunk.program @squash_chunk
// CHECK: %[[H:.*]] = recur.transpose %S
// CHECK: %[[A:.*]] = chunk.gram inclusive %q, %k : <C x dk> -> <C x C>
// CHECK: %[[R:.*]] = recur.matmul %k, %[[H]]
// CHECK: %[[N:.*]] = chunk.gram before %k, %k : <C x dk> -> <C x C>
// CHECK: %[[E:.*]], %[[U:.*]] = chunk.substitute blocks(%[[N]] : !recur.mat<C x C>) sides(%[[R]] : !recur.mat<C x dv>) rows(%b, %v : !recur.mat<C x 1>, !recur.mat<C x dv>) -> reads(!recur.mat<C x dv>) writes(!recur.mat<C x dv>) {
// CHECK-NEXT: ^bb0(%[[READ:.*]]: !recur.mat<dv x 1>, %[[RATE:.*]]: !recur.mat<1 x 1>, %[[VALUE:.*]]: !recur.mat<dv x 1>):
// CHECK-NEXT: %[[LEFT:.*]] = recur.sub %[[VALUE]], %[[READ]]
// CHECK-NEXT: %[[TANH:.*]] = recur.tanh %[[LEFT]]
// CHECK-NEXT: %[[WRITE:.*]] = recur.mul %[[RATE]], %[[TANH]]
// CHECK-NEXT: chunk.yield %[[WRITE]] : !recur.mat<dv x 1>
// CHECK: recur.matmul %[[A]], %[[U]]
// CHECK-NOT: chunk.tri_solve
recur.rule @squash(input "q" %q: !recur.mat<dk x 1>, input "k" %k: !recur.mat<dk x 1>, input "v" %v: !recur.mat<dv x 1>,
                   input "b" %b: !recur.mat<1 x 1>, state "S" %S: !recur.mat<dv x dk>) -> ("o") init {
  %z = recur.constant 0.0 : !recur.mat<dv x dk>
  recur.yield %z : !recur.mat<dv x dk>
} body {
  %kT = recur.transpose %k : !recur.mat<dk x 1>
  %r = recur.matmul %S, %k : !recur.mat<dv x dk>, !recur.mat<dk x 1>
  %e = recur.sub %v, %r : !recur.mat<dv x 1>, !recur.mat<dv x 1>
  %t = recur.tanh %e : !recur.mat<dv x 1>
  %bt = recur.mul %b, %t : !recur.mat<1 x 1>, !recur.mat<dv x 1>
  %w = recur.matmul %bt, %kT : !recur.mat<dv x 1>, !recur.mat<1 x dk>
  %n = recur.add %S, %w : !recur.mat<dv x dk>, !recur.mat<dv x dk>
  %o = recur.matmul %n, %q : !recur.mat<dv x dk>, !recur.mat<dk x 1>
  recur.yield %n, %o : !recur.mat<dv x dk>, !recur.mat<dv x 1>
}

// -----

// A function of what the token itself has written before is not known when the chunk's reads are.
// WHY: remark: 'squash_in_turn' keeps its sequential form: 'tanh(S*k)' is a nonlinear function of a state
// CHECK-LABEL: recur.rule @squash_in_turn
// CHECK-NOT: chunk.program
recur.rule @squash_in_turn(input "k" %k: !recur.mat<dk x 1>, input "p" %p: !recur.mat<dk x 1>,
                           state "S" %S: !recur.mat<dv x dk>) -> ("o") init {
  %z = recur.constant 0.0 : !recur.mat<dv x dk>
  recur.yield %z : !recur.mat<dv x dk>
} body {
  %kT = recur.transpose %k : !recur.mat<dk x 1>
  %r = recur.matmul %S, %k : !recur.mat<dv x dk>, !recur.mat<dk x 1>
  %t = recur.tanh %r : !recur.mat<dv x 1>
  %w = recur.matmul %t, %kT : !recur.mat<dv x 1>, !recur.mat<1 x dk>
  %m = recur.add %S, %w : !recur.mat<dv x dk>, !recur.mat<dv x dk>
  %pT = recur.transpose %p : !recur.mat<dk x 1>
  %r2 = recur.matmul %m, %p : !recur.mat<dv x dk>, !recur.mat<dk x 1>
  %t2 = recur.tanh %r2 : !recur.mat<dv x 1>
  %w2 = recur.matmul %t2, %pT : !recur.mat<dv x 1>, !recur.mat<1 x dk>
  %n = recur.add %m, %w2 : !recur.mat<dv x dk>, !recur.mat<dv x dk>
  recur.yield %n, %r2 : !recur.mat<dv x dk>, !recur.mat<dv x 1>
}

// -----

// A product of a state with itself keeps the rule sequential, and the remark says so.
// WHY: remark: 'square' keeps its sequential form: 'S*S' multiplies functions of states: not affine
recur.rule @square(input "x" %x: !recur.mat<d x 1>, state "S" %S: !recur.mat<d x d>) -> ("o") init {
  %z = recur.identity : !recur.mat<d x d>
  recur.yield %z : !recur.mat<d x d>
} body {
  %n = recur.matmul %S, %S : !recur.mat<d x d>, !recur.mat<d x d>
  %o = recur.matmul %n, %x : !recur.mat<d x d>, !recur.mat<d x 1>
  recur.yield %n, %o : !recur.mat<d x d>, !recur.mat<d x 1>
}

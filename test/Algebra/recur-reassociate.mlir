// RUN: recur-opt %s --pass-pipeline='builtin.module(recur.rule(recur-reassociate,canonicalize,cse))' | FileCheck %s

// A product with I - b k k^T becomes one matrix-vector product and one outer product.
// CHECK-LABEL: recur.rule @erase
recur.rule @erase(input "k" %k: !recur.mat<dk x 1>, input "b" %b: !recur.mat<1 x 1>, state "S" %S: !recur.mat<dv x dk>) -> ("o") init {
  %z = recur.constant 0.0 : !recur.mat<dv x dk>
  recur.yield %z : !recur.mat<dv x dk>
} body {
  %I = recur.identity : !recur.mat<dk x dk>
  %kT = recur.transpose %k : !recur.mat<dk x 1>
  %bk = recur.mul %b, %k : !recur.mat<1 x 1>, !recur.mat<dk x 1>
  %kk = recur.matmul %bk, %kT : !recur.mat<dk x 1>, !recur.mat<1 x dk>
  %P = recur.sub %I, %kk : !recur.mat<dk x dk>, !recur.mat<dk x dk>
  // CHECK-NOT: <dk x dk>
  // CHECK: %[[SK:.*]] = recur.matmul %S, %{{.*}} : <dv x dk>, <dk x 1>
  // CHECK: recur.matmul %{{.*}}, %{{.*}} : <dv x 1>, <1 x dk>
  // CHECK: recur.sub %S
  %1 = recur.matmul %S, %P : !recur.mat<dv x dk>, !recur.mat<dk x dk>
  recur.yield %1, %b : !recur.mat<dv x dk>, !recur.mat<1 x 1>
}

// The factors of a chain are multiplied in the cheapest order, wherever the text put its brackets.
// CHECK-LABEL: recur.rule @chain
recur.rule @chain(input "A" %A: !recur.mat<d x d>, input "B" %B: !recur.mat<d x d>, input "x" %x: !recur.mat<d x 1>) -> ("o") init {
  recur.yield
} body {
  // CHECK: %[[BX:.*]] = recur.matmul %B, %x
  // CHECK: %[[ABX:.*]] = recur.matmul %A, %[[BX]]
  // CHECK: recur.yield %[[ABX]]
  %AB = recur.matmul %A, %B : !recur.mat<d x d>, !recur.mat<d x d>
  %0 = recur.matmul %AB, %x : !recur.mat<d x d>, !recur.mat<d x 1>
  recur.yield %0 : !recur.mat<d x 1>
}

// A diagonal is never a matrix: it scales the vector beside it.
// CHECK-LABEL: recur.rule @diagonal
recur.rule @diagonal(input "a" %a: !recur.mat<d x 1>, input "x" %x: !recur.mat<d x 1>, state "S" %S: !recur.mat<e x d>) -> ("o") init {
  %z = recur.constant 0.0 : !recur.mat<e x d>
  recur.yield %z : !recur.mat<e x d>
} body {
  // CHECK-NOT: recur.diag
  // CHECK: %[[AX:.*]] = recur.mul %a, %x
  // CHECK: recur.matmul %S, %[[AX]]
  %D = recur.diag %a : !recur.mat<d x 1>
  %SD = recur.matmul %S, %D : !recur.mat<e x d>, !recur.mat<d x d>
  %o = recur.matmul %SD, %x : !recur.mat<e x d>, !recur.mat<d x 1>
  recur.yield %S, %o : !recur.mat<e x d>, !recur.mat<e x 1>
}

// Outer products with a vector in common are added before they are outer products.
// CHECK-LABEL: recur.rule @outer
recur.rule @outer(input "b" %b: !recur.mat<1 x 1>, input "k" %k: !recur.mat<dk x 1>, input "p" %p: !recur.mat<dv x 1>,
                  input "w" %w: !recur.mat<dv x 1>, state "S" %S: !recur.mat<dv x dk>) -> ("o") init {
  %z = recur.constant 0.0 : !recur.mat<dv x dk>
  recur.yield %z : !recur.mat<dv x dk>
} body {
  // CHECK: %[[BW:.*]] = recur.mul %b, %w
  // CHECK: %[[U:.*]] = recur.sub %[[BW]], %p
  // CHECK: %[[UK:.*]] = recur.matmul %[[U]], %{{.*}} : <dv x 1>, <1 x dk>
  // CHECK: %[[N:.*]] = recur.add %S, %[[UK]]
  // CHECK: recur.yield %[[N]], %b
  %kT = recur.transpose %k : !recur.mat<dk x 1>
  %pk = recur.matmul %p, %kT : !recur.mat<dv x 1>, !recur.mat<1 x dk>
  %0 = recur.sub %S, %pk : !recur.mat<dv x dk>, !recur.mat<dv x dk>
  %kT2 = recur.transpose %k : !recur.mat<dk x 1>
  %wk = recur.matmul %w, %kT2 : !recur.mat<dv x 1>, !recur.mat<1 x dk>
  %bwk = recur.mul %b, %wk : !recur.mat<1 x 1>, !recur.mat<dv x dk>
  %1 = recur.add %0, %bwk : !recur.mat<dv x dk>, !recur.mat<dv x dk>
  recur.yield %1, %b : !recur.mat<dv x dk>, !recur.mat<1 x 1>
}

// Entries times those of an outer product: each of its vectors scales a dimension.
// CHECK-LABEL: recur.rule @scaled_by_outer
recur.rule @scaled_by_outer(input "a" %a: !recur.mat<dk x 1>, input "h" %h: !recur.mat<dv x 1>, state "S" %S: !recur.mat<dv x dk>) -> ("o") init {
  %z = recur.constant 0.0 : !recur.mat<dv x dk>
  recur.yield %z : !recur.mat<dv x dk>
} body {
  // CHECK: %[[AT:.*]] = recur.transpose %a
  // CHECK: %[[C:.*]] = recur.mul %S, %[[AT]]
  // CHECK: %[[N:.*]] = recur.mul %h, %[[C]]
  // CHECK-NOT: recur.matmul
  // CHECK: recur.yield %[[N]]
  %aT = recur.transpose %a : !recur.mat<dk x 1>
  %ha = recur.matmul %h, %aT : !recur.mat<dv x 1>, !recur.mat<1 x dk>
  %0 = recur.mul %ha, %S : !recur.mat<dv x dk>, !recur.mat<dv x dk>
  recur.yield %0, %h : !recur.mat<dv x dk>, !recur.mat<dv x 1>
}

// What is read of one matrix along two vectors is read along their sum.
// CHECK-LABEL: recur.rule @reads
recur.rule @reads(input "b" %b: !recur.mat<1 x 1>, input "k" %k: !recur.mat<dk x 1>, input "p" %p: !recur.mat<dk x 1>,
                  state "S" %S: !recur.mat<dv x dk>) -> ("o") init {
  %z = recur.constant 0.0 : !recur.mat<dv x dk>
  recur.yield %z : !recur.mat<dv x dk>
} body {
  // CHECK: %[[BP:.*]] = recur.mul %b, %p
  // CHECK: %[[D:.*]] = recur.sub %[[BP]], %k
  // CHECK: %[[R:.*]] = recur.matmul %S, %[[D]]
  // CHECK: recur.yield %S, %[[R]]
  %0 = recur.matmul %S, %p : !recur.mat<dv x dk>, !recur.mat<dk x 1>
  %1 = recur.mul %b, %0 : !recur.mat<1 x 1>, !recur.mat<dv x 1>
  %2 = recur.matmul %S, %k : !recur.mat<dv x dk>, !recur.mat<dk x 1>
  %o = recur.sub %1, %2 : !recur.mat<dv x 1>, !recur.mat<dv x 1>
  recur.yield %S, %o : !recur.mat<dv x dk>, !recur.mat<dv x 1>
}

// So are those of sums that are times a number, under what scales the read: b*(v - h.*(S*k)) + h.*(S*p).
// CHECK-LABEL: recur.rule @reads_within
recur.rule @reads_within(input "b" %b: !recur.mat<1 x 1>, input "k" %k: !recur.mat<dk x 1>, input "p" %p: !recur.mat<dk x 1>,
                         input "v" %v: !recur.mat<dv x 1>, input "h" %h: !recur.mat<dv x 1>, state "S" %S: !recur.mat<dv x dk>) -> ("o") init {
  %z = recur.constant 0.0 : !recur.mat<dv x dk>
  recur.yield %z : !recur.mat<dv x dk>
} body {
  // CHECK-DAG: %[[BV:.*]] = recur.mul %b, %v
  // CHECK-DAG: %[[BK:.*]] = recur.mul %b, %k
  // CHECK: %[[D:.*]] = recur.sub %p, %[[BK]]
  // CHECK: %[[R:.*]] = recur.matmul %S, %[[D]]
  // CHECK: %[[HR:.*]] = recur.mul %h, %[[R]]
  // CHECK: %[[O:.*]] = recur.add %[[BV]], %[[HR]]
  // CHECK: recur.yield %S, %[[O]]
  %0 = recur.matmul %S, %k : !recur.mat<dv x dk>, !recur.mat<dk x 1>
  %1 = recur.mul %h, %0 : !recur.mat<dv x 1>, !recur.mat<dv x 1>
  %2 = recur.sub %v, %1 : !recur.mat<dv x 1>, !recur.mat<dv x 1>
  %3 = recur.mul %b, %2 : !recur.mat<1 x 1>, !recur.mat<dv x 1>
  %4 = recur.matmul %S, %p : !recur.mat<dv x dk>, !recur.mat<dk x 1>
  %5 = recur.mul %h, %4 : !recur.mat<dv x 1>, !recur.mat<dv x 1>
  %o = recur.add %3, %5 : !recur.mat<dv x 1>, !recur.mat<dv x 1>
  recur.yield %S, %o : !recur.mat<dv x dk>, !recur.mat<dv x 1>
}

// Along one vector they are one read times a number.
// CHECK-LABEL: recur.rule @read_twice
recur.rule @read_twice(input "b" %b: !recur.mat<1 x 1>, input "c" %c: !recur.mat<1 x 1>, input "k" %k: !recur.mat<dk x 1>,
                       state "S" %S: !recur.mat<dv x dk>) -> ("o") init {
  %z = recur.constant 0.0 : !recur.mat<dv x dk>
  recur.yield %z : !recur.mat<dv x dk>
} body {
  // CHECK: %[[N:.*]] = recur.add %b, %c
  // CHECK: %[[K:.*]] = recur.mul %[[N]], %k
  // CHECK: recur.matmul %S, %[[K]]
  %0 = recur.matmul %S, %k : !recur.mat<dv x dk>, !recur.mat<dk x 1>
  %1 = recur.mul %b, %0 : !recur.mat<1 x 1>, !recur.mat<dv x 1>
  %2 = recur.matmul %S, %k : !recur.mat<dv x dk>, !recur.mat<dk x 1>
  %3 = recur.mul %c, %2 : !recur.mat<1 x 1>, !recur.mat<dv x 1>
  %o = recur.add %1, %3 : !recur.mat<dv x 1>, !recur.mat<dv x 1>
  recur.yield %S, %o : !recur.mat<dv x dk>, !recur.mat<dv x 1>
}

// What is read along that vector and written along another one stays a change after the first: T*k of
// T = S + (S*p)*kT is no sum of two reads of S.
// CHECK-LABEL: recur.rule @in_turn
recur.rule @in_turn(input "k" %k: !recur.mat<dk x 1>, input "p" %p: !recur.mat<dk x 1>, input "r" %r: !recur.mat<dk x 1>,
                    state "S" %S: !recur.mat<dv x dk>) -> ("o") init {
  %z = recur.constant 0.0 : !recur.mat<dv x dk>
  recur.yield %z : !recur.mat<dv x dk>
} body {
  // CHECK: %[[T:.*]] = recur.add %S, %{{.*}} : <dv x dk>, <dv x dk>
  // CHECK: recur.matmul %[[T]], %k
  %0 = recur.matmul %S, %p : !recur.mat<dv x dk>, !recur.mat<dk x 1>
  %kT = recur.transpose %k : !recur.mat<dk x 1>
  %1 = recur.matmul %0, %kT : !recur.mat<dv x 1>, !recur.mat<1 x dk>
  %2 = recur.add %S, %1 : !recur.mat<dv x dk>, !recur.mat<dv x dk>
  %3 = recur.matmul %2, %k : !recur.mat<dv x dk>, !recur.mat<dk x 1>
  %rT = recur.transpose %r : !recur.mat<dk x 1>
  %4 = recur.matmul %3, %rT : !recur.mat<dv x 1>, !recur.mat<1 x dk>
  %5 = recur.add %2, %4 : !recur.mat<dv x dk>, !recur.mat<dv x dk>
  recur.yield %5, %k : !recur.mat<dv x dk>, !recur.mat<dk x 1>
}

// A step that is divided by its key's squared norm is one along the key divided by its norm.
// CHECK-LABEL: recur.rule @normed_step
recur.rule @normed_step(input "b" %b: !recur.mat<1 x 1>, input "k" %k: !recur.mat<dk x 1>, input "v" %v: !recur.mat<dv x 1>,
                        state "S" %S: !recur.mat<dv x dk>) -> ("o") init {
  %z = recur.constant 0.0 : !recur.mat<dv x dk>
  recur.yield %z : !recur.mat<dv x dk>
} body {
  // CHECK: %[[N:.*]] = recur.sqrt
  // CHECK: %[[X:.*]] = recur.div %k, %[[N]]
  // CHECK-DAG: %[[VN:.*]] = recur.div %v, %[[N]]
  // CHECK-DAG: %[[R:.*]] = recur.matmul %S, %[[X]]
  // CHECK: %[[E:.*]] = recur.sub %[[VN]], %[[R]]
  // CHECK: %[[BE:.*]] = recur.mul %b, %[[E]]
  // CHECK: %[[XT:.*]] = recur.transpose %[[X]]
  // CHECK: recur.matmul %[[BE]], %[[XT]]
  %kk = recur.mul %k, %k : !recur.mat<dk x 1>, !recur.mat<dk x 1>
  %square = recur.reduce sum %kk rows : !recur.mat<dk x 1>
  %eps = recur.constant 0.01 : !recur.mat<1 x 1>
  %s = recur.add %square, %eps : !recur.mat<1 x 1>, !recur.mat<1 x 1>
  %c = recur.div %b, %s : !recur.mat<1 x 1>, !recur.mat<1 x 1>
  %0 = recur.matmul %S, %k : !recur.mat<dv x dk>, !recur.mat<dk x 1>
  %1 = recur.sub %v, %0 : !recur.mat<dv x 1>, !recur.mat<dv x 1>
  %2 = recur.mul %c, %1 : !recur.mat<1 x 1>, !recur.mat<dv x 1>
  %kT = recur.transpose %k : !recur.mat<dk x 1>
  %3 = recur.matmul %2, %kT : !recur.mat<dv x 1>, !recur.mat<1 x dk>
  %4 = recur.add %S, %3 : !recur.mat<dv x dk>, !recur.mat<dv x dk>
  recur.yield %4, %v : !recur.mat<dv x dk>, !recur.mat<dv x 1>
}

// A change along a vector that has just been written along reads what was before that: the two are one.
// CHECK-LABEL: recur.rule @one_change
recur.rule @one_change(input "k" %k: !recur.mat<dk x 1>, input "v" %v: !recur.mat<dv x 1>,
                       state "S" %S: !recur.mat<dv x dk>) -> ("o") init {
  %z = recur.constant 0.0 : !recur.mat<dv x dk>
  recur.yield %z : !recur.mat<dv x dk>
} body {
  // CHECK-DAG: %[[KT:.*]] = recur.transpose %k
  // CHECK-DAG: %[[Y:.*]] = recur.matmul %S, %k
  // CHECK-DAG: %[[SQUARES:.*]] = recur.mul %k, %k
  // CHECK-DAG: %[[KK:.*]] = recur.reduce  sum %[[SQUARES]]
  // CHECK: %[[U:.*]] = recur.{{add|sub}} {{.*}} : <dv x 1>
  // CHECK: %[[UK:.*]] = recur.matmul %{{.*}}, %[[KT]] : <dv x 1>, <1 x dk>
  // CHECK-NEXT: %[[N:.*]] = recur.add %S, %[[UK]]
  // CHECK-NEXT: recur.yield %[[N]], %k
  %kT = recur.transpose %k : !recur.mat<dk x 1>
  %vk = recur.matmul %v, %kT : !recur.mat<dv x 1>, !recur.mat<1 x dk>
  %0 = recur.add %S, %vk : !recur.mat<dv x dk>, !recur.mat<dv x dk>
  %1 = recur.matmul %0, %k : !recur.mat<dv x dk>, !recur.mat<dk x 1>
  %2 = recur.matmul %1, %kT : !recur.mat<dv x 1>, !recur.mat<1 x dk>
  %3 = recur.sub %0, %2 : !recur.mat<dv x dk>, !recur.mat<dv x dk>
  recur.yield %3, %k : !recur.mat<dv x dk>, !recur.mat<dk x 1>
}

// What is read of a sum of states, and given out, is read of each.
// CHECK-LABEL: recur.rule @sum_of_states
recur.rule @sum_of_states(input "q" %q: !recur.mat<dk x 1>, state "S" %S: !recur.mat<dv x dk>,
                          state "M" %M: !recur.mat<dv x dk>) -> ("o") init {
  %z = recur.constant 0.0 : !recur.mat<dv x dk>
  recur.yield %z, %z : !recur.mat<dv x dk>, !recur.mat<dv x dk>
} body {
  // CHECK-DAG: %[[X:.*]] = recur.matmul %S, %q
  // CHECK-DAG: %[[Y:.*]] = recur.matmul %M, %q
  // CHECK: recur.sub %[[X]], %[[Y]]
  %0 = recur.sub %S, %M : !recur.mat<dv x dk>, !recur.mat<dv x dk>
  %o = recur.matmul %0, %q : !recur.mat<dv x dk>, !recur.mat<dk x 1>
  recur.yield %S, %M, %o : !recur.mat<dv x dk>, !recur.mat<dv x dk>, !recur.mat<dv x 1>
}

// So are the steps of a loop that changes a state along one vector; a loop along others is kept.
// CHECK-LABEL: recur.rule @steps
recur.rule @steps(input "k" %k: !recur.mat<dk x 1>, input "v" %v: !recur.mat<dv x 1>, input "b" %b: !recur.mat<1 x 1>,
                  input "p" %p: !recur.steps<2 x dk x 1>, state "S" %S: !recur.mat<dv x dk>, state "T" %T: !recur.mat<dv x dk>) -> ("o") init {
  %z = recur.constant 0.0 : !recur.mat<dv x dk>
  recur.yield %z, %z : !recur.mat<dv x dk>, !recur.mat<dv x dk>
} body {
  // CHECK: recur.matmul %S, %k : <dv x dk>, <dk x 1>
  // CHECK-NOT: <dv x dk>, <dk x 1>
  // CHECK: recur.matmul %{{.*}}, %{{.*}} : <dv x 1>, <1 x dk>
  // CHECK-NOT: <dv x 1>, <1 x dk>
  // CHECK: recur.for
  // CHECK: recur.matmul %{{.*}}, %{{.*}} : <dv x dk>, <dk x 1>
  %kT = recur.transpose %k : !recur.mat<dk x 1>
  %0 = recur.for %j = 1 to 3 iter(%s = %S) -> !recur.mat<dv x dk> {
    %y = recur.matmul %s, %k : !recur.mat<dv x dk>, !recur.mat<dk x 1>
    %e = recur.sub %v, %y : !recur.mat<dv x 1>, !recur.mat<dv x 1>
    %be = recur.mul %b, %e : !recur.mat<1 x 1>, !recur.mat<dv x 1>
    %w = recur.matmul %be, %kT : !recur.mat<dv x 1>, !recur.mat<1 x dk>
    %n = recur.add %s, %w : !recur.mat<dv x dk>, !recur.mat<dv x dk>
    recur.yield %n : !recur.mat<dv x dk>
  }
  %1 = recur.for %j = 1 to 2 iter(%s = %T) -> !recur.mat<dv x dk> {
    %x = recur.extract %p[%j] : <2 x dk x 1>
    %y = recur.matmul %s, %x : !recur.mat<dv x dk>, !recur.mat<dk x 1>
    %e = recur.sub %v, %y : !recur.mat<dv x 1>, !recur.mat<dv x 1>
    %xT = recur.transpose %x : !recur.mat<dk x 1>
    %w = recur.matmul %e, %xT : !recur.mat<dv x 1>, !recur.mat<1 x dk>
    %n = recur.add %s, %w : !recur.mat<dv x dk>, !recur.mat<dv x dk>
    recur.yield %n : !recur.mat<dv x dk>
  }
  recur.yield %0, %1, %v : !recur.mat<dv x dk>, !recur.mat<dv x dk>, !recur.mat<dv x 1>
}

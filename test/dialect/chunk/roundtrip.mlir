// RUN: recur-opt %s --verify-roundtrip | FileCheck %s
// RUN: recur-opt %s --mlir-print-op-generic | recur-opt --verify-roundtrip | FileCheck %s

// CHECK-LABEL: chunk.program @everything length("C") [#recur.arg<input "k">
chunk.program @everything length("C") [#recur.arg<input "k">, #recur.arg<input "a">, #recur.arg<input "w">,
    #recur.arg<input "x">, #recur.arg<state "S">] -> ["o"] init {
  %0 = recur.constant 0.0 : !recur.mat<dk x dv>
  chunk.yield %0 : !recur.mat<dk x dv>
} body {
^bb0(%k: !recur.mat<C x dk>, %a: !recur.mat<C x 1>, %w: !recur.mat<C x dk>, %x: !chunk.tokens<!recur.mat<dk x dv>>,
     %S: !recur.mat<dk x dv>):
  // CHECK: chunk.map rows(%a : !recur.mat<C x 1>) -> (!recur.mat<C x 1>) {
  %g = chunk.map rows(%a : !recur.mat<C x 1>) -> (!recur.mat<C x 1>) {
  ^bb0(%t: !recur.mat<1 x 1>):
    %l = recur.log %t : !recur.mat<1 x 1>
    // CHECK: chunk.yield
    chunk.yield %l : !recur.mat<1 x 1>
  }
  // CHECK: chunk.map carried(%S : !recur.mat<dk x dv>) rows({{.*}}) -> last(!recur.mat<dk x dv>) (!chunk.tokens<!recur.mat<dk x dv>>)
  %last, %all = chunk.map carried(%S : !recur.mat<dk x dv>) rows(%x : !chunk.tokens<!recur.mat<dk x dv>>)
      -> last(!recur.mat<dk x dv>) (!chunk.tokens<!recur.mat<dk x dv>>) {
  ^bb0(%s: !recur.mat<dk x dv>, %t: !recur.mat<dk x dv>):
    %n = recur.add %s, %t : !recur.mat<dk x dv>, !recur.mat<dk x dv>
    chunk.yield %n, %s : !recur.mat<dk x dv>, !recur.mat<dk x dv>
  }
  // CHECK: chunk.decay %a : <C x 1> log %{{.*}} : !recur.mat<C x 1>
  %d = chunk.decay %a : !recur.mat<C x 1> log %g : !recur.mat<C x 1>
  // CHECK: chunk.decay %w : <C x dk>
  %dw = chunk.decay %w : !recur.mat<C x dk>
  // CHECK: chunk.decay late %a : <C x 1> log %{{.*}} : !recur.mat<C x 1>
  %late = chunk.decay late %a : !recur.mat<C x 1> log %g : !recur.mat<C x 1>
  // CHECK: chunk.cascade
  %c = chunk.cascade %a, %a, %a, %a : !recur.mat<C x 1>, !recur.mat<C x 1>, !recur.mat<C x 1>, !recur.mat<C x 1>
    -> !chunk.cascade<2, !recur.mat<C x 1>>
  // CHECK: chunk.mask strict %{{.*}} {from = 1 : i64} :
  %m = chunk.mask strict %c {from = 1} : !chunk.cascade<2, !recur.mat<C x 1>> -> !recur.mat<C x C>
  // CHECK: chunk.weights rest
  %r = chunk.weights rest %dw : !chunk.decay<!recur.mat<C x dk>> -> !recur.mat<C x dk>
  // CHECK: chunk.weights whole
  %h = chunk.weights whole %dw : !chunk.decay<!recur.mat<C x dk>> -> !recur.mat<dk x 1>
  // CHECK: chunk.gram before %k, %k decay
  %n = chunk.gram before %k, %k decay %dw : !chunk.decay<!recur.mat<C x dk>> : !recur.mat<C x dk> -> !recur.mat<C x C>
  // CHECK: chunk.gram inclusive %k, %k :
  %i = chunk.gram inclusive %k, %k : !recur.mat<C x dk> -> !recur.mat<C x C>
  // CHECK: chunk.tri_solve blocks(%{{.*}} : !recur.mat<C x C>) rhs(%k : !recur.mat<C x dk>) ->
  %u = chunk.tri_solve blocks(%n : !recur.mat<C x C>) rhs(%k : !recur.mat<C x dk>) -> !recur.mat<C x dk>
  // CHECK: chunk.tri_solve {{.*}} decay(
  %v = chunk.tri_solve blocks(%n : !recur.mat<C x C>) rhs(%k : !recur.mat<C x dk>)
    decay(%dw : !chunk.decay<!recur.mat<C x dk>>) before -> !recur.mat<C x dk>
  // CHECK: chunk.tri_solve {{.*}} rhs(%k : !recur.mat<C x dk>) factors(%k : !recur.mat<C x dk>) decay(
  %f = chunk.tri_solve blocks(%n : !recur.mat<C x C>) rhs(%k : !recur.mat<C x dk>) factors(%k : !recur.mat<C x dk>)
    decay(%dw : !chunk.decay<!recur.mat<C x dk>>) inclusive -> !recur.mat<C x dk>
  // CHECK: chunk.mix inclusive
  %o = chunk.mix inclusive %i, %u decay %dw : !recur.mat<C x C>, !recur.mat<C x dk>, !chunk.decay<!recur.mat<C x dk>>
    -> !recur.mat<C x dk>
  // CHECK: chunk.scan before factors(
  %t, %e = chunk.scan before factors(%x : !chunk.tokens<!recur.mat<dk x dv>>)
    writes(%x : !chunk.tokens<!recur.mat<dk x dv>>) from(%S : !recur.mat<dk x dv>)
    -> !chunk.tokens<!recur.mat<dk x dv>> last(!recur.mat<dk x dv>)
  // CHECK: chunk.normaliser %k scores %{{.*}} weights %a keys %k state 1 first 0.000000e+00 : <C x dk>, <C x C>, <C x 1> -> <C x 1>
  %nm = chunk.normaliser %k scores %i weights %a keys %k state 1 first 0.0 : !recur.mat<C x dk>, !recur.mat<C x C>,
    !recur.mat<C x 1> -> !recur.mat<C x 1>
  // CHECK: chunk.conjugate_gradients %k iterations 3 eps 0.000000e+00 : <C x dk> {
  %z = chunk.conjugate_gradients %k iterations 3 eps 0.0 : !recur.mat<C x dk> {
  ^bb0(%p: !recur.mat<C x dk>):
    %y = recur.mul %w, %p : !recur.mat<C x dk>, !recur.mat<C x dk>
    chunk.yield %y : !recur.mat<C x dk>
  }
  %kt = recur.transpose %k : !recur.mat<C x dk>
  %P = recur.matmul %kt, %k : !recur.mat<dk x C>, !recur.mat<C x dk>
  // CHECK: chunk.ldl %{{.*}} keys %k decays %a weights %a offsets %a : <dk x dk>, <C x dk>, <C x 1>, <C x 1>, <C x 1> -> <C x C>, <C x 1>
  %lower, %reads, %gains, %den, %next = chunk.ldl %P keys %k decays %a weights %a offsets %a : !recur.mat<dk x dk>,
    !recur.mat<C x dk>, !recur.mat<C x 1>, !recur.mat<C x 1>, !recur.mat<C x 1> -> !recur.mat<C x C>, !recur.mat<C x 1>
  chunk.yield %e, %o : !recur.mat<dk x dv>, !recur.mat<C x dk>
}

// CHECK-LABEL: chunk.program @blocks length("C") {{.*}} -> ["o"] starts 16 init {
chunk.program @blocks length("C") [#recur.arg<input "k">, #recur.arg<input "a">] -> ["o"] starts 16 init {
  chunk.yield
} body {
^bb0(%k: !recur.mat<C x dk>, %a: !recur.mat<C x 1>):
  %d = chunk.decay %a : !recur.mat<C x 1>
  // CHECK: chunk.weights start
  %w = chunk.weights start %d : !chunk.decay<!recur.mat<C x 1>> -> !recur.mat<C x 1>
  // CHECK: chunk.gram start %k, %k decay
  %n = chunk.gram start %k, %k decay %d : !chunk.decay<!recur.mat<C x 1>> : !recur.mat<C x dk> -> !recur.mat<C x C>
  %s = recur.matmul %n, %k : !recur.mat<C x C>, !recur.mat<C x dk>
  %o = recur.mul %w, %s : !recur.mat<C x 1>, !recur.mat<C x dk>
  chunk.yield %o : !recur.mat<C x dk>
}

// CHECK-LABEL: chunk.program @parts length("C") {{.*}} -> ["o"] starts 128 init {
chunk.program @parts length("C") [#recur.arg<input "k">, #recur.arg<state "S">] -> ["o"] starts 128 init {
  %0 = recur.constant 0.0 : !recur.mat<dk x dv>
  chunk.yield %0 : !recur.mat<dk x dv>
} body {
^bb0(%k: !recur.mat<C x dk>, %S: !recur.mat<dk x dv>):
  // CHECK: chunk.held %S : <dk x dv>
  %h = chunk.held %S : !recur.mat<dk x dv>
  %o = recur.matmul %k, %h : !recur.mat<C x dk>, !recur.mat<dk x dv>
  chunk.yield %S, %o : !recur.mat<dk x dv>, !recur.mat<C x dv>
}

// Transitions of each key: one diagonal, and numbers for all keys.
// CHECK-LABEL: chunk.program @channels length("C")
chunk.program @channels length("C") [#recur.arg<input "k">, #recur.arg<input "a">, #recur.arg<input "w">] -> ["o"] init {
  chunk.yield
} body {
^bb0(%k: !recur.mat<C x dk>, %a: !recur.mat<C x 1>, %w: !recur.mat<C x dk>):
  // CHECK: %[[C:.*]] = chunk.cascade %w, %a, %a, %a : !recur.mat<C x dk>, !recur.mat<C x 1>, !recur.mat<C x 1>, !recur.mat<C x 1> -> <2, <C x dk>>
  %c = chunk.cascade %w, %a, %a, %a : !recur.mat<C x dk>, !recur.mat<C x 1>, !recur.mat<C x 1>, !recur.mat<C x 1>
    -> !chunk.cascade<2, !recur.mat<C x dk>>
  // CHECK: chunk.weights through %[[C]] {to = 1 : i64} : !chunk.cascade<2, <C x dk>> -> <C x dk>
  %t = chunk.weights through %c {to = 1} : !chunk.cascade<2, !recur.mat<C x dk>> -> !recur.mat<C x dk>
  // CHECK: chunk.weights whole %[[C]] {from = 1 : i64} : !chunk.cascade<2, <C x dk>> -> <dk x 1>
  %h = chunk.weights whole %c {from = 1} : !chunk.cascade<2, !recur.mat<C x dk>> -> !recur.mat<dk x 1>
  // CHECK: chunk.gram strict %k, %k decay %[[C]] : !chunk.cascade<2, <C x dk>> weights(%a, %a : !recur.mat<C x 1>, !recur.mat<C x 1>) :
  %s = chunk.gram strict %k, %k decay %c : !chunk.cascade<2, !recur.mat<C x dk>> weights(%a, %a : !recur.mat<C x 1>,
    !recur.mat<C x 1>) : !recur.mat<C x dk> -> !recur.mat<C x C>
  // CHECK: chunk.gram inclusive %k, %k decay %[[C]] {{.*}} {to = 1 : i64} : <C x dk> -> <C x C>
  %i = chunk.gram inclusive %k, %k decay %c : !chunk.cascade<2, !recur.mat<C x dk>> weights(%a, %a : !recur.mat<C x 1>,
    !recur.mat<C x 1>) {to = 1} : !recur.mat<C x dk> -> !recur.mat<C x C>
  %u = chunk.tri_solve blocks(%s : !recur.mat<C x C>) rhs(%t : !recur.mat<C x dk>) -> !recur.mat<C x dk>
  %o = recur.matmul %i, %u : !recur.mat<C x C>, !recur.mat<C x dk>
  chunk.yield %o : !recur.mat<C x dk>
}

// What is read of states of different values, and a function of both that is written: rows and shared values beside them, and neither.
// CHECK-LABEL: chunk.program @substituted length("C")
chunk.program @substituted length("C") [#recur.arg<input "k">, #recur.arg<input "a">, #recur.arg<param "w">] -> ["o"] init {
  chunk.yield
} body {
^bb0(%k: !recur.mat<C x dk>, %a: !recur.mat<C x 1>, %w: !recur.mat<dk x 1>):
  // CHECK: %[[N:.*]] = chunk.gram strict
  %n = chunk.gram strict %k, %k : !recur.mat<C x dk> -> !recur.mat<C x C>
  // CHECK: %[[R:.*]]:2, %[[U:.*]] = chunk.substitute blocks(%[[N]], %[[N]] : !recur.mat<C x C>, !recur.mat<C x C>) sides(%k, %a : !recur.mat<C x dk>, !recur.mat<C x 1>) rows(%a : !recur.mat<C x 1>) shared(%w : !recur.mat<dk x 1>) -> reads(!recur.mat<C x dk>, !recur.mat<C x 1>) writes(!recur.mat<C x dk>) {
  %x, %y, %u = chunk.substitute blocks(%n, %n : !recur.mat<C x C>, !recur.mat<C x C>)
    sides(%k, %a : !recur.mat<C x dk>, !recur.mat<C x 1>) rows(%a : !recur.mat<C x 1>) shared(%w : !recur.mat<dk x 1>)
    -> reads(!recur.mat<C x dk>, !recur.mat<C x 1>) writes(!recur.mat<C x dk>) {
  // CHECK-NEXT: ^bb0(%{{.*}}: !recur.mat<dk x 1>, %{{.*}}: !recur.mat<1 x 1>, %{{.*}}: !recur.mat<1 x 1>, %{{.*}}: !recur.mat<dk x 1>):
  ^bb0(%r: !recur.mat<dk x 1>, %s: !recur.mat<1 x 1>, %b: !recur.mat<1 x 1>, %c: !recur.mat<dk x 1>):
    %d = recur.sub %r, %c : !recur.mat<dk x 1>, !recur.mat<dk x 1>
    %e = recur.tanh %d : !recur.mat<dk x 1>
    %f = recur.mul %s, %e : !recur.mat<1 x 1>, !recur.mat<dk x 1>
    %g = recur.mul %b, %f : !recur.mat<1 x 1>, !recur.mat<dk x 1>
    // CHECK: chunk.yield %{{.*}} : !recur.mat<dk x 1>
    chunk.yield %g : !recur.mat<dk x 1>
  }
  // CHECK: chunk.substitute blocks(%[[N]] : !recur.mat<C x C>) sides(%[[U]] : !recur.mat<C x dk>) -> reads(!recur.mat<C x dk>) writes(!recur.mat<C x dk>) {
  %z, %v = chunk.substitute blocks(%n : !recur.mat<C x C>) sides(%u : !recur.mat<C x dk>) -> reads(!recur.mat<C x dk>)
    writes(!recur.mat<C x dk>) {
  ^bb0(%r: !recur.mat<dk x 1>):
    %e = recur.tanh %r : !recur.mat<dk x 1>
    chunk.yield %e : !recur.mat<dk x 1>
  }
  // CHECK: recur.add %[[R]]#0, %
  %o = recur.add %x, %v : !recur.mat<C x dk>, !recur.mat<C x dk>
  chunk.yield %o : !recur.mat<C x dk>
}

// RUN: recur-opt %s --split-input-file --verify-diagnostics

// Each rule is named after the constraint it breaks.

// expected-error@+1 {{argument 'x' appears twice}}
recur.rule @recur_rule_c2(input "x" %x: !recur.mat<1 x 1>, input "x" %y: !recur.mat<1 x 1>) -> ("o") init {
  recur.yield
} body {
  recur.yield %x : !recur.mat<1 x 1>
}

// -----

// expected-error@+1 {{output 'o' appears twice}}
recur.rule @recur_rule_c2_output(input "x" %x: !recur.mat<1 x 1>) -> ("o", "o") init {
  recur.yield
} body {
  recur.yield %x, %x : !recur.mat<1 x 1>, !recur.mat<1 x 1>
}

// -----

recur.rule @recur_rule_c3(input "x" %x: !recur.mat<1 x 1>, state "s" %s: !recur.mat<d x 1>) -> ("o") init {
  %z = recur.constant 0.0 : !recur.mat<d x 1>
  recur.yield %z : !recur.mat<d x 1>
} body {
  // expected-error@+1 {{state 's' must be '!recur.mat<d x 1>', got: '!recur.mat<1 x 1>'}}
  recur.yield %x, %x : !recur.mat<1 x 1>, !recur.mat<1 x 1>
}

// -----

recur.rule @recur_rule_c3_count(input "x" %x: !recur.mat<1 x 1>) -> ("o") init {
  recur.yield
} body {
  // expected-error@+1 {{needs 0 states and 1 outputs, got: 0 values}}
  recur.yield
}

// -----

recur.rule @recur_rule_c4(input "x" %x: !recur.mat<1 x 1>, state "s" %s: !recur.mat<d x 1>) -> ("o") init {
  %z = recur.constant 0.0 : !recur.mat<1 x 1>
  // expected-error@+1 {{value 0 for the initial states must be '!recur.mat<d x 1>', got: '!recur.mat<1 x 1>'}}
  recur.yield %z : !recur.mat<1 x 1>
} body {
  recur.yield %s, %x : !recur.mat<d x 1>, !recur.mat<1 x 1>
}

// -----

// expected-error@+1 {{stale argument 's' needs a state of that name and type, and a positive block}}
recur.rule @recur_rule_c5(input "x" %x: !recur.mat<1 x 1>, stale "s" %s: !recur.mat<d x 1> block 16) -> ("o") init {
  recur.yield
} body {
  recur.yield %x : !recur.mat<1 x 1>
}

// -----

// expected-error@+1 {{needs an output}}
recur.rule @recur_rule_c6(input "x" %x: !recur.mat<1 x 1>) -> () init {
  recur.yield
} body {
  recur.yield
}

// -----

// expected-error@+1 {{argument 't' must be a scalar, got: '!recur.mat<d x 1>'}}
recur.rule @recur_rule_c7(position "t" %t: !recur.mat<d x 1>) -> ("o") init {
  recur.yield
} body {
  recur.yield %t : !recur.mat<d x 1>
}

// -----

// expected-error@+1 {{has blocks of 16 and of 8 tokens}}
recur.rule @recur_rule_c8(input "x" %x: !recur.mat<1 x 1>, state "s" %s: !recur.mat<1 x 1>, stale "s" %a: !recur.mat<1 x 1> block 16, stale "s" %b: !recur.mat<1 x 1> block 8) -> ("o") init {
  %z = recur.constant 0.0 : !recur.mat<1 x 1>
  recur.yield %z : !recur.mat<1 x 1>
} body {
  recur.yield %s, %x : !recur.mat<1 x 1>, !recur.mat<1 x 1>
}

// -----

recur.rule @recur_for_c2(input "x" %x: !recur.mat<d x 1>) -> ("o") init {
  recur.yield
} body {
  %r = recur.for %j = 1 to 3 iter(%c = %x) -> !recur.mat<d x 1> {
    // expected-error@+1 {{value 0 for the carried values must be '!recur.mat<d x 1>', got: '!recur.mat<1 x 1>'}}
    recur.yield %j : !recur.mat<1 x 1>
  }
  recur.yield %r : !recur.mat<d x 1>
}

// -----

recur.rule @recur_block_c1(input "x" %x: !recur.mat<d x e>) -> ("o") init {
  recur.yield
} body {
  // expected-error@+1 {{a token value must be a scalar or a vector, got: '!recur.mat<d x e>'}}
  %r = recur.block length("T") tokens(%x : !recur.mat<d x e>) rows(!recur.mat<d x 1>) {
  ^bb0(%X: !recur.mat<T x d>):
    recur.yield %X : !recur.mat<T x d>
  }
  recur.yield %r : !recur.mat<d x 1>
}

// -----

recur.rule @recur_block_c2(input "x" %x: !recur.mat<d x 1>) -> ("o") init {
  recur.yield
} body {
  // expected-error@+1 {{must have the matrices of its token values and its shared values as region arguments}}
  %r = recur.block length("T") tokens(%x : !recur.mat<d x 1>) rows(!recur.mat<d x 1>) {
  ^bb0(%X: !recur.mat<T x T>):
    recur.yield %X : !recur.mat<T x T>
  }
  recur.yield %r : !recur.mat<d x 1>
}

// -----

recur.rule @recur_block_c3(input "x" %x: !recur.mat<d x 1>) -> ("o") init {
  recur.yield
} body {
  %r = recur.block length("T") tokens(%x : !recur.mat<d x 1>) rows(!recur.mat<d x 1>) {
  ^bb0(%X: !recur.mat<T x d>):
    // expected-error@+1 {{needs 1 values for its results, got: 0}}
    recur.yield
  }
  recur.yield %r : !recur.mat<d x 1>
}

// -----

recur.rule @recur_block_c4(input "x" %x: !recur.mat<d x 1>) -> ("o") init {
  recur.yield
} body {
  recur.for %j = 1 to 3 {
    // expected-error@+1 {{must stand directly in the body of a rule}}
    %r = recur.block length("T") tokens(%x : !recur.mat<d x 1>) rows(!recur.mat<d x 1>) {
    ^bb0(%X: !recur.mat<T x d>):
      recur.yield %X : !recur.mat<T x d>
    }
    recur.yield
  }
  recur.yield %x : !recur.mat<d x 1>
}

// -----

recur.rule @recur_identity_c1(input "x" %x: !recur.mat<d x 1>) -> ("o") init {
  recur.yield
} body {
  // expected-error@+1 {{must be square, got: '!recur.mat<d x e>'}}
  %r = recur.identity : !recur.mat<d x e>
  recur.yield %x : !recur.mat<d x 1>
}

// -----

recur.rule @recur_mask_c1(input "x" %x: !recur.mat<d x 1>) -> ("o") init {
  recur.yield
} body {
  // expected-error@+1 {{must be square, got: '!recur.mat<d x e>'}}
  %r = recur.mask : !recur.mat<d x e>
  recur.yield %x : !recur.mat<d x 1>
}

// -----

recur.rule @recur_matmul_c1(input "x" %x: !recur.mat<d x 1>) -> ("o") init {
  recur.yield
} body {
  // expected-error@+1 {{the columns of the left side must be the rows of the right side, got: '!recur.mat<d x 1>' and '!recur.mat<d x 1>'}}
  %r = recur.matmul %x, %x : !recur.mat<d x 1>, !recur.mat<d x 1>
  recur.yield %x : !recur.mat<d x 1>
}

// -----

recur.rule @recur_broadcast_c1(input "x" %x: !recur.mat<d x 1>) -> ("o") init {
  recur.yield
} body {
  // expected-error@+1 {{cannot repeat '!recur.mat<d x 1>' to '!recur.mat<e x 1>'}}
  %r = recur.broadcast %x : !recur.mat<d x 1> to !recur.mat<e x 1>
  recur.yield %x : !recur.mat<d x 1>
}

// -----

recur.rule @recur_broadcast_c2(input "x" %x: !recur.mat<d x 1>, input "y" %y: !recur.mat<e x 1>) -> ("o") init {
  recur.yield
} body {
  // expected-error@+1 {{operands must have equal dimensions, or 1, got: '!recur.mat<d x 1>' and '!recur.mat<e x 1>'}}
  %r = recur.add %x, %y : !recur.mat<d x 1>, !recur.mat<e x 1>
  recur.yield %x : !recur.mat<d x 1>
}

// -----

recur.rule @recur_diag_c1(input "x" %x: !recur.mat<d x 1>, input "y" %y: !recur.mat<d x d>) -> ("o") init {
  recur.yield
} body {
  // expected-error@+1 {{the diagonal must be a vector, got: '!recur.mat<d x d>'}}
  %r = recur.diag %y : !recur.mat<d x d>
  recur.yield %x : !recur.mat<d x 1>
}

// -----

recur.rule @recur_solve_c1(input "x" %x: !recur.mat<d x 1>) -> ("o") init {
  recur.yield
} body {
  // expected-error@+1 {{the matrix must be square and fit the right side, got: '!recur.mat<d x 1>' and '!recur.mat<d x 1>'}}
  %r = recur.solve %x, %x : !recur.mat<d x 1>, !recur.mat<d x 1>
  recur.yield %x : !recur.mat<d x 1>
}

// -----

recur.rule @recur_solve_c2(input "x" %x: !recur.mat<d x 1>, input "y" %y: !recur.mat<d x d>) -> ("o") init {
  recur.yield
} body {
  // expected-error@+1 {{conjugate gradients take one right side, got: '!recur.mat<d x d>'}}
  %r = recur.solve %y, %y iterations 3 : !recur.mat<d x d>, !recur.mat<d x d>
  recur.yield %x : !recur.mat<d x 1>
}

// -----

recur.rule @recur_inverse_c1(input "x" %x: !recur.mat<d x 1>) -> ("o") init {
  recur.yield
} body {
  // expected-error@+1 {{the matrix must be square, got: '!recur.mat<d x 1>'}}
  %r = recur.inverse %x : !recur.mat<d x 1>
  recur.yield %x : !recur.mat<d x 1>
}

// -----

recur.rule @recur_rope_c1(input "x" %x: !recur.mat<d x 1>, input "y" %y: !recur.mat<d x d>, position "t" %t: !recur.mat<1 x 1>) -> ("o") init {
  recur.yield
} body {
  // expected-error@+1 {{rope needs a vector, got: '!recur.mat<d x d>'}}
  %r = recur.rope %y, %t : !recur.mat<d x d>
  recur.yield %x : !recur.mat<d x 1>
}

// -----

recur.rule @dimension(input "x" %x: !recur.mat<d x 1>) -> ("o") init {
  recur.yield
} body {
  // expected-error@+1 {{a dimension must be at least 1, got: 0}}
  %r = recur.identity : !recur.mat<0 x 0>
  recur.yield %x : !recur.mat<d x 1>
}

// -----

// expected-error@+1 {{an interval needs its lower end below its upper end, got: 1 and 0}}
recur.rule @range(input "x" %x: !recur.mat<d x 1> in <"[1, 0]">) -> ("o") init {
  recur.yield
} body {
  recur.yield %x : !recur.mat<d x 1>
}

// -----

recur.rule @recur_concat_c1(input "x" %x: !recur.mat<d x 1>) -> ("o") init {
  recur.yield
} body {
  // expected-error@+1 {{the parts must be n x 1, of bound sizes, got:}}
  %r = recur.concat %x, %x at [0, 4] : !recur.mat<d x 1>, !recur.mat<d x 1>
  recur.yield %x : !recur.mat<d x 1>
}

// -----

recur.rule @recur_concat_c1_overlap(input "x" %x: !recur.mat<4 x 1>) -> ("o") init {
  recur.yield
} body {
  // expected-error@+1 {{a part begins at 3, before the end of the one before, 4}}
  %r = recur.concat %x, %x at [0, 3] : !recur.mat<4 x 1>, !recur.mat<4 x 1>
  recur.yield %x : !recur.mat<4 x 1>
}

// -----

recur.rule @recur_concat_c1_places(input "x" %x: !recur.mat<4 x 1>) -> ("o") init {
  recur.yield
} body {
  // expected-error@+1 {{there must be at least one part, and where each begins}}
  %r = recur.concat %x, %x at [0] : !recur.mat<4 x 1>, !recur.mat<4 x 1>
  recur.yield %x : !recur.mat<4 x 1>
}

// -----

recur.rule @recur_join_c1(input "x" %x: !recur.mat<d x 1>, input "y" %y: !recur.mat<e x 1>) -> ("o") init {
  recur.yield
} body {
  // expected-error@+1 {{the columns must be at least one, n x 1, of one type}}
  %r = recur.join %x, %y : !recur.mat<d x 1>, !recur.mat<e x 1>
  recur.yield %x : !recur.mat<d x 1>
}

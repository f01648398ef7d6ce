// RUN: recur-opt %s --split-input-file --verify-diagnostics

// Each program is named after the constraint it breaks.

// expected-error@+1 {{must have one argument in its body for each of its 1 args, got: 0}}
chunk.program @chunk_program_c1 length("C") [#recur.arg<input "k">] -> ["o"] init {
  chunk.yield
} body {
  %0 = recur.constant 0.0 : !recur.mat<C x 1>
  chunk.yield %0 : !recur.mat<C x 1>
}

// -----

// expected-error@+1 {{'k' must have C rows, got: '!recur.mat<D x 1>'}}
chunk.program @chunk_program_c1_rows length("C") [#recur.arg<input "k">] -> ["o"] init {
  chunk.yield
} body {
^bb0(%k: !recur.mat<D x 1>):
  %0 = recur.constant 0.0 : !recur.mat<C x 1>
  chunk.yield %0 : !recur.mat<C x 1>
}

// -----

// expected-error@+1 {{must yield its 0 states and then 1 outputs with C rows}}
chunk.program @chunk_program_c2 length("C") [#recur.arg<input "k">] -> ["o"] init {
  chunk.yield
} body {
^bb0(%k: !recur.mat<C x 1>):
  chunk.yield
}

// -----

// expected-error@+1 {{cannot have a stale argument, got: #recur.arg<stale "S" block = 16>}}
chunk.program @chunk_program_c3 length("C") [#recur.arg<stale "S" block = 16>] -> [] init {
  chunk.yield
} body {
^bb0(%S: !recur.mat<d x d>):
  chunk.yield
}

// -----

chunk.program @chunk_program_c4 length("C") [#recur.arg<input "k">] -> ["o"] init {
  chunk.yield
} body {
^bb0(%k: !recur.mat<C x dk>):
  // expected-error@+1 {{reaches the start of a block, but the program has no blocks}}
  %0 = chunk.gram start %k, %k : !recur.mat<C x dk> -> !recur.mat<C x C>
  %1 = recur.matmul %0, %k : !recur.mat<C x C>, !recur.mat<C x dk>
  chunk.yield %1 : !recur.mat<C x dk>
}

// -----

chunk.program @chunk_held_c1 length("C") [#recur.arg<input "k">, #recur.arg<state "S">] -> ["o"] init {
  %0 = recur.constant 0.0 : !recur.mat<dk x dv>
  chunk.yield %0 : !recur.mat<dk x dv>
} body {
^bb0(%k: !recur.mat<C x dk>, %S: !recur.mat<dk x dv>):
  // expected-error@+1 {{reaches the start of a block, but the program has no blocks}}
  %0 = chunk.held %S : !recur.mat<dk x dv>
  %1 = recur.matmul %k, %0 : !recur.mat<C x dk>, !recur.mat<dk x dv>
  chunk.yield %S, %1 : !recur.mat<dk x dv>, !recur.mat<C x dv>
}

// -----

chunk.program @chunk_map_c1 length("C") [#recur.arg<input "k">] -> ["o"] init {
  chunk.yield
} body {
^bb0(%k: !recur.mat<C x dk>):
  // expected-error@+1 {{must have the carried values, a token of each row value and the shared values as arguments}}
  %0 = chunk.map rows(%k : !recur.mat<C x dk>) -> (!recur.mat<C x dk>) {
  ^bb0(%t: !recur.mat<1 x dk>):
    %1 = recur.transpose %t : !recur.mat<1 x dk>
    chunk.yield %1 : !recur.mat<dk x 1>
  }
  chunk.yield %0 : !recur.mat<C x dk>
}

// -----

chunk.program @chunk_map_c2 length("C") [#recur.arg<input "k">] -> ["o"] init {
  chunk.yield
} body {
^bb0(%k: !recur.mat<C x dk>):
  // expected-error@+1 {{must yield the carried values, then a token of each result}}
  %0 = chunk.map rows(%k : !recur.mat<C x dk>) -> (!recur.mat<C x dk>) {
  ^bb0(%t: !recur.mat<dk x 1>):
    chunk.yield
  }
  chunk.yield %0 : !recur.mat<C x dk>
}

// -----

chunk.program @chunk_decay_c1 length("C") [#recur.arg<input "k">, #recur.arg<input "a">] -> ["o"] init {
  chunk.yield
} body {
^bb0(%k: !recur.mat<C x dk>, %a: !recur.mat<C x 1>):
  // expected-error@+1 {{must have logarithms of the factors' type, got: '!recur.mat<C x 1>'}}
  %0 = chunk.decay %k : !recur.mat<C x dk> log %a : !recur.mat<C x 1>
  chunk.yield %a : !recur.mat<C x 1>
}

// -----

chunk.program @chunk_cascade_c1 length("C") [#recur.arg<input "a">] -> ["o"] init {
  chunk.yield
} body {
^bb0(%a: !recur.mat<C x 1>):
  // expected-error@+1 {{must have 4 factors, got: 1}}
  %0 = chunk.cascade %a : !recur.mat<C x 1> -> !chunk.cascade<2, !recur.mat<C x 1>>
  chunk.yield %a : !recur.mat<C x 1>
}

// -----

chunk.program @chunk_cascade_c1_type length("C") [#recur.arg<input "k">, #recur.arg<input "a">, #recur.arg<input "v">] -> ["o"] init {
  chunk.yield
} body {
^bb0(%k: !recur.mat<C x dk>, %a: !recur.mat<C x 1>, %v: !recur.mat<C x dv>):
  // expected-error@+1 {{must have factors of type '!recur.mat<C x dk>' or one number per token, got: '!recur.mat<C x dv>'}}
  %0 = chunk.cascade %k, %a, %a, %v : !recur.mat<C x dk>, !recur.mat<C x 1>, !recur.mat<C x 1>, !recur.mat<C x dv>
    -> !chunk.cascade<2, !recur.mat<C x dk>>
  chunk.yield %a : !recur.mat<C x 1>
}

// -----

chunk.program @chunk_cascade_c1_channels length("C") [#recur.arg<input "k">, #recur.arg<input "a">] -> ["o"] init {
  chunk.yield
} body {
^bb0(%k: !recur.mat<C x dk>, %a: !recur.mat<C x 1>):
  // expected-error@+1 {{must have factors of type '!recur.mat<C x 1>' or one number per token, got: '!recur.mat<C x dk>'}}
  %0 = chunk.cascade %k, %a, %a, %a : !recur.mat<C x dk>, !recur.mat<C x 1>, !recur.mat<C x 1>, !recur.mat<C x 1>
    -> !chunk.cascade<2, !recur.mat<C x 1>>
  chunk.yield %a : !recur.mat<C x 1>
}

// -----

chunk.program @chunk_mask_c1 length("C") [#recur.arg<input "k">] -> ["o"] init {
  chunk.yield
} body {
^bb0(%k: !recur.mat<C x dk>):
  %0 = chunk.decay %k : !recur.mat<C x dk>
  // expected-error@+1 {{needs a scalar decay and gives a square matrix, got: '!recur.mat<C x dk>' and '!recur.mat<C x C>'}}
  %1 = chunk.mask strict %0 : !chunk.decay<!recur.mat<C x dk>> -> !recur.mat<C x C>
  chunk.yield %1 : !recur.mat<C x C>
}

// -----

chunk.program @chunk_mask_c2 length("C") [#recur.arg<input "a">] -> ["o"] init {
  chunk.yield
} body {
^bb0(%a: !recur.mat<C x 1>):
  %0 = chunk.decay %a : !recur.mat<C x 1>
  // expected-error@+1 {{must name one of 1 states, got: 1 and 0}}
  %1 = chunk.mask strict %0 {to = 1} : !chunk.decay<!recur.mat<C x 1>> -> !recur.mat<C x C>
  chunk.yield %1 : !recur.mat<C x C>
}

// -----

chunk.program @chunk_weights_c1 length("C") [#recur.arg<input "k">] -> ["o"] init {
  chunk.yield
} body {
^bb0(%k: !recur.mat<C x dk>):
  %0 = chunk.decay %k : !recur.mat<C x dk>
  // expected-error@+1 {{must give '!recur.mat<dk x 1>', got: '!recur.mat<C x dk>'}}
  %1 = chunk.weights whole %0 : !chunk.decay<!recur.mat<C x dk>> -> !recur.mat<C x dk>
  chunk.yield %1 : !recur.mat<C x dk>
}

// -----

chunk.program @chunk_gram_c1 length("C") [#recur.arg<input "k">, #recur.arg<input "v">] -> ["o"] init {
  chunk.yield
} body {
^bb0(%k: !recur.mat<C x dk>, %v: !recur.mat<C x dv>):
  %0 = chunk.decay %v : !recur.mat<C x dv>
  // expected-error@+1 {{must have a scalar decay or one for each column of '!recur.mat<C x dk>'}}
  %1 = chunk.gram strict %k, %k decay %0 : !chunk.decay<!recur.mat<C x dv>> : !recur.mat<C x dk> -> !recur.mat<C x C>
  chunk.yield %1 : !recur.mat<C x C>
}

// -----

chunk.program @chunk_gram_c2 length("C") [#recur.arg<input "k">] -> ["o"] init {
  chunk.yield
} body {
^bb0(%k: !recur.mat<C x dk>):
  // expected-error@+1 {{must give '!recur.mat<C x C>', got: '!recur.mat<C x dk>'}}
  %1 = chunk.gram strict %k, %k : !recur.mat<C x dk> -> !recur.mat<C x dk>
  chunk.yield %1 : !recur.mat<C x dk>
}

// -----

chunk.program @chunk_gram_c1_cascade length("C") [#recur.arg<input "k">, #recur.arg<input "a">] -> ["o"] init {
  chunk.yield
} body {
^bb0(%k: !recur.mat<C x dk>, %a: !recur.mat<C x 1>):
  %0 = chunk.cascade %a, %a, %a, %a : !recur.mat<C x 1>, !recur.mat<C x 1>, !recur.mat<C x 1>, !recur.mat<C x 1>
    -> !chunk.cascade<2, !recur.mat<C x 1>>
  // expected-error@+1 {{must have a scalar decay or one for each column of '!recur.mat<C x dk>', got: '!chunk.cascade<2, <C x 1>>'}}
  %1 = chunk.gram strict %k, %k decay %0 : !chunk.cascade<2, !recur.mat<C x 1>> weights(%a, %a : !recur.mat<C x 1>,
    !recur.mat<C x 1>) : !recur.mat<C x dk> -> !recur.mat<C x C>
  chunk.yield %1 : !recur.mat<C x C>
}

// -----

chunk.program @chunk_gram_c3 length("C") [#recur.arg<input "k">, #recur.arg<input "a">] -> ["o"] init {
  chunk.yield
} body {
^bb0(%k: !recur.mat<C x dk>, %a: !recur.mat<C x 1>):
  %0 = chunk.cascade %k, %a, %a, %k : !recur.mat<C x dk>, !recur.mat<C x 1>, !recur.mat<C x 1>, !recur.mat<C x dk>
    -> !chunk.cascade<2, !recur.mat<C x dk>>
  // expected-error@+1 {{must have a number per token for each of 2 states, and read one of them, got: 1 and 0}}
  %1 = chunk.gram strict %k, %k decay %0 : !chunk.cascade<2, !recur.mat<C x dk>> weights(%a : !recur.mat<C x 1>)
    : !recur.mat<C x dk> -> !recur.mat<C x C>
  chunk.yield %1 : !recur.mat<C x C>
}

// -----

chunk.program @chunk_gram_c3_type length("C") [#recur.arg<input "k">, #recur.arg<input "a">] -> ["o"] init {
  chunk.yield
} body {
^bb0(%k: !recur.mat<C x dk>, %a: !recur.mat<C x 1>):
  %0 = chunk.cascade %k, %a, %a, %k : !recur.mat<C x dk>, !recur.mat<C x 1>, !recur.mat<C x 1>, !recur.mat<C x dk>
    -> !chunk.cascade<2, !recur.mat<C x dk>>
  // expected-error@+1 {{must have a number per token for each of 2 states, and read one of them, got: 2 and 0}}
  %1 = chunk.gram strict %k, %k decay %0 : !chunk.cascade<2, !recur.mat<C x dk>> weights(%a, %k : !recur.mat<C x 1>,
    !recur.mat<C x dk>) : !recur.mat<C x dk> -> !recur.mat<C x C>
  chunk.yield %1 : !recur.mat<C x C>
}

// -----

chunk.program @chunk_gram_c3_to length("C") [#recur.arg<input "k">, #recur.arg<input "a">] -> ["o"] init {
  chunk.yield
} body {
^bb0(%k: !recur.mat<C x dk>, %a: !recur.mat<C x 1>):
  %0 = chunk.cascade %k, %a, %a, %k : !recur.mat<C x dk>, !recur.mat<C x 1>, !recur.mat<C x 1>, !recur.mat<C x dk>
    -> !chunk.cascade<2, !recur.mat<C x dk>>
  // expected-error@+1 {{must have a number per token for each of 2 states, and read one of them, got: 2 and 2}}
  %1 = chunk.gram strict %k, %k decay %0 : !chunk.cascade<2, !recur.mat<C x dk>> weights(%a, %a : !recur.mat<C x 1>,
    !recur.mat<C x 1>) {to = 2} : !recur.mat<C x dk> -> !recur.mat<C x C>
  chunk.yield %1 : !recur.mat<C x C>
}

// -----

chunk.program @chunk_gram_c3_decay length("C") [#recur.arg<input "k">, #recur.arg<input "a">] -> ["o"] init {
  chunk.yield
} body {
^bb0(%k: !recur.mat<C x dk>, %a: !recur.mat<C x 1>):
  %0 = chunk.decay %a : !recur.mat<C x 1>
  // expected-error@+1 {{must have a number per token for each of 0 states, and read one of them, got: 1 and 0}}
  %1 = chunk.gram strict %k, %k decay %0 : !chunk.decay<!recur.mat<C x 1>> weights(%a : !recur.mat<C x 1>)
    : !recur.mat<C x dk> -> !recur.mat<C x C>
  chunk.yield %1 : !recur.mat<C x C>
}

// -----

chunk.program @chunk_mix_c1 length("C") [#recur.arg<input "k">] -> ["o"] init {
  chunk.yield
} body {
^bb0(%k: !recur.mat<C x dk>):
  %0 = chunk.decay %k : !recur.mat<C x dk>
  // expected-error@+1 {{must have scores of type '!recur.mat<C x C>'}}
  %1 = chunk.mix strict %k, %k decay %0 : !recur.mat<C x dk>, !recur.mat<C x dk>, !chunk.decay<!recur.mat<C x dk>>
    -> !recur.mat<C x dk>
  chunk.yield %1 : !recur.mat<C x dk>
}

// -----

chunk.program @chunk_mix_c3 length("C") [#recur.arg<input "k">] -> ["o"] init {
  chunk.yield
} body {
^bb0(%k: !recur.mat<C x dk>):
  %0 = chunk.decay late %k : !recur.mat<C x dk>
  %1 = chunk.gram strict %k, %k : !recur.mat<C x dk> -> !recur.mat<C x C>
  // expected-error@+1 {{cannot have a late decay}}
  %2 = chunk.mix strict %1, %k decay %0 : !recur.mat<C x C>, !recur.mat<C x dk>, !chunk.decay<!recur.mat<C x dk>>
    -> !recur.mat<C x dk>
  chunk.yield %2 : !recur.mat<C x dk>
}

// -----

chunk.program @chunk_tri_solve_c5 length("C") [#recur.arg<input "k">] -> ["o"] init {
  chunk.yield
} body {
^bb0(%k: !recur.mat<C x dk>):
  %0 = chunk.decay late %k : !recur.mat<C x dk>
  %1 = chunk.gram strict %k, %k : !recur.mat<C x dk> -> !recur.mat<C x C>
  // expected-error@+1 {{cannot have a late decay}}
  %2 = chunk.tri_solve blocks(%1 : !recur.mat<C x C>) rhs(%k : !recur.mat<C x dk>)
    decay(%0 : !chunk.decay<!recur.mat<C x dk>>) strict -> !recur.mat<C x dk>
  chunk.yield %2 : !recur.mat<C x dk>
}

// -----

chunk.program @chunk_tri_solve_c1 length("C") [#recur.arg<input "k">] -> ["o"] init {
  chunk.yield
} body {
^bb0(%k: !recur.mat<C x dk>):
  %n = chunk.gram strict %k, %k : !recur.mat<C x dk> -> !recur.mat<C x C>
  // expected-error@+1 {{must have 1 blocks for 1 right sides, got: 2}}
  %u = chunk.tri_solve blocks(%n, %n : !recur.mat<C x C>, !recur.mat<C x C>) rhs(%k : !recur.mat<C x dk>)
    -> !recur.mat<C x dk>
  chunk.yield %u : !recur.mat<C x dk>
}

// -----

chunk.program @chunk_tri_solve_c2 length("C") [#recur.arg<input "k">] -> ["o"] init {
  chunk.yield
} body {
^bb0(%k: !recur.mat<C x dk>):
  // expected-error@+1 {{must have blocks of type '!recur.mat<C x C>', got: '!recur.mat<C x dk>'}}
  %u = chunk.tri_solve blocks(%k : !recur.mat<C x dk>) rhs(%k : !recur.mat<C x dk>) -> !recur.mat<C x dk>
  chunk.yield %u : !recur.mat<C x dk>
}

// -----

chunk.program @chunk_tri_solve_c4 length("C") [#recur.arg<input "k">] -> ["o"] init {
  chunk.yield
} body {
^bb0(%k: !recur.mat<C x dk>):
  %n = chunk.gram strict %k, %k : !recur.mat<C x dk> -> !recur.mat<C x C>
  // expected-error@+1 {{must have no factors or 1 of type '!recur.mat<C x dk>', got: '!recur.mat<C x C>'}}
  %u = chunk.tri_solve blocks(%n : !recur.mat<C x C>) rhs(%k : !recur.mat<C x dk>) factors(%n : !recur.mat<C x C>)
    -> !recur.mat<C x dk>
  chunk.yield %u : !recur.mat<C x dk>
}

// -----

chunk.program @chunk_substitute_c1 length("C") [#recur.arg<input "k">] -> ["o"] init {
  chunk.yield
} body {
^bb0(%k: !recur.mat<C x dk>):
  %n = chunk.gram strict %k, %k : !recur.mat<C x dk> -> !recur.mat<C x C>
  // expected-error@+1 {{must have 1 blocks for 1 reads and 1 writes, got: 2}}
  %x, %u = chunk.substitute blocks(%n, %n : !recur.mat<C x C>, !recur.mat<C x C>) sides(%k : !recur.mat<C x dk>)
    -> reads(!recur.mat<C x dk>) writes(!recur.mat<C x dk>) {
  ^bb0(%r: !recur.mat<dk x 1>):
    chunk.yield %r : !recur.mat<dk x 1>
  }
  chunk.yield %k : !recur.mat<C x dk>
}

// -----

chunk.program @chunk_substitute_c1_type length("C") [#recur.arg<input "k">] -> ["o"] init {
  chunk.yield
} body {
^bb0(%k: !recur.mat<C x dk>):
  // expected-error@+1 {{must have blocks of type '!recur.mat<C x C>', got: '!recur.mat<C x dk>'}}
  %x, %u = chunk.substitute blocks(%k : !recur.mat<C x dk>) sides(%k : !recur.mat<C x dk>)
    -> reads(!recur.mat<C x dk>) writes(!recur.mat<C x dk>) {
  ^bb0(%r: !recur.mat<dk x 1>):
    chunk.yield %r : !recur.mat<dk x 1>
  }
  chunk.yield %k : !recur.mat<C x dk>
}

// -----

chunk.program @chunk_substitute_c2 length("C") [#recur.arg<input "k">] -> ["o"] init {
  chunk.yield
} body {
^bb0(%k: !recur.mat<C x dk>):
  %n = chunk.gram strict %k, %k : !recur.mat<C x dk> -> !recur.mat<C x C>
  // expected-error@+1 {{must give reads of the sides' types and writes with as many rows, got: '!recur.mat<C x 1>', '!recur.mat<C x dk>'}}
  %x, %u = chunk.substitute blocks(%n : !recur.mat<C x C>) sides(%k : !recur.mat<C x dk>)
    -> reads(!recur.mat<C x 1>) writes(!recur.mat<C x dk>) {
  ^bb0(%r: !recur.mat<1 x 1>):
    chunk.yield %r : !recur.mat<1 x 1>
  }
  chunk.yield %k : !recur.mat<C x dk>
}

// -----

chunk.program @chunk_substitute_c2_rows length("C") [#recur.arg<input "k">] -> ["o"] init {
  chunk.yield
} body {
^bb0(%k: !recur.mat<C x dk>):
  %n = chunk.gram strict %k, %k : !recur.mat<C x dk> -> !recur.mat<C x C>
  // expected-error@+1 {{must give reads of the sides' types and writes with as many rows, got: '!recur.mat<C x dk>', '!recur.mat<D x dk>'}}
  %x, %u = chunk.substitute blocks(%n : !recur.mat<C x C>) sides(%k : !recur.mat<C x dk>)
    -> reads(!recur.mat<C x dk>) writes(!recur.mat<D x dk>) {
  ^bb0(%r: !recur.mat<dk x 1>):
    chunk.yield %r : !recur.mat<dk x 1>
  }
  chunk.yield %k : !recur.mat<C x dk>
}

// -----

chunk.program @chunk_substitute_c3 length("C") [#recur.arg<input "k">] -> ["o"] init {
  chunk.yield
} body {
^bb0(%k: !recur.mat<C x dk>):
  %n = chunk.gram strict %k, %k : !recur.mat<C x dk> -> !recur.mat<C x C>
  // expected-error@+1 {{must have a token of each read and of each row value and the shared values as arguments}}
  %x, %u = chunk.substitute blocks(%n : !recur.mat<C x C>) sides(%k : !recur.mat<C x dk>)
    -> reads(!recur.mat<C x dk>) writes(!recur.mat<C x dk>) {
  ^bb0(%r: !recur.mat<1 x dk>):
    chunk.yield %r : !recur.mat<1 x dk>
  }
  chunk.yield %k : !recur.mat<C x dk>
}

// -----

chunk.program @chunk_substitute_c4 length("C") [#recur.arg<input "k">] -> ["o"] init {
  chunk.yield
} body {
^bb0(%k: !recur.mat<C x dk>):
  %n = chunk.gram strict %k, %k : !recur.mat<C x dk> -> !recur.mat<C x C>
  // expected-error@+1 {{must yield a token of each write}}
  %x, %u = chunk.substitute blocks(%n : !recur.mat<C x C>) sides(%k : !recur.mat<C x dk>)
    -> reads(!recur.mat<C x dk>) writes(!recur.mat<C x dk>) {
  ^bb0(%r: !recur.mat<dk x 1>):
    chunk.yield
  }
  chunk.yield %k : !recur.mat<C x dk>
}

// -----

chunk.program @chunk_scan_c1 length("C") [#recur.arg<input "k">, #recur.arg<state "S">] -> ["o"] init {
  %0 = recur.constant 0.0 : !recur.mat<dk x 1>
  chunk.yield %0 : !recur.mat<dk x 1>
} body {
^bb0(%k: !recur.mat<C x dk>, %S: !recur.mat<dk x 1>):
  // expected-error@+1 {{must have 1 factors and 1 writes for 1 states}}
  %h, %e = chunk.scan factors(%k, %k : !recur.mat<C x dk>, !recur.mat<C x dk>) writes(%k : !recur.mat<C x dk>)
    from(%S : !recur.mat<dk x 1>) -> !recur.mat<C x dk> last(!recur.mat<dk x 1>)
  chunk.yield %e, %h : !recur.mat<dk x 1>, !recur.mat<C x dk>
}

// -----

chunk.program @chunk_scan_c2 length("C") [#recur.arg<input "k">, #recur.arg<state "S">] -> ["o"] init {
  %0 = recur.constant 0.0 : !recur.mat<1 x dk>
  chunk.yield %0 : !recur.mat<1 x dk>
} body {
^bb0(%k: !recur.mat<C x dk>, %S: !recur.mat<1 x dk>):
  // expected-error@+1 {{must have factors and writes of type '!recur.mat<C x dk>' and states of type '!recur.mat<dk x 1>'}}
  %h, %e = chunk.scan factors(%k : !recur.mat<C x dk>) writes(%k : !recur.mat<C x dk>)
    from(%S : !recur.mat<1 x dk>) -> !recur.mat<C x dk> last(!recur.mat<1 x dk>)
  chunk.yield %e, %h : !recur.mat<1 x dk>, !recur.mat<C x dk>
}

// -----

chunk.program @chunk_normaliser_c1 length("C") [#recur.arg<input "k">, #recur.arg<input "a">] -> ["o"] init {
  chunk.yield
} body {
^bb0(%k: !recur.mat<C x dk>, %a: !recur.mat<C x 1>):
  // expected-error@+1 {{must have scores of all pairs, and a weight and a result for each, of the rows of '!recur.mat<C x dk>'}}
  %n = chunk.normaliser %k scores %k weights %a keys %k state 0 first 0.0 : !recur.mat<C x dk>, !recur.mat<C x dk>,
    !recur.mat<C x 1> -> !recur.mat<C x 1>
  chunk.yield %n : !recur.mat<C x 1>
}

// -----

chunk.program @chunk_normaliser_c2 length("C") [#recur.arg<input "k">, #recur.arg<input "a">] -> ["o"] init {
  chunk.yield
} body {
^bb0(%k: !recur.mat<C x dk>, %a: !recur.mat<C x 1>):
  %g = chunk.gram inclusive %k, %k : !recur.mat<C x dk> -> !recur.mat<C x C>
  // expected-error@+1 {{must leave one number of the vector, got: '!recur.mat<C x 1>'}}
  %n = chunk.normaliser %k scores %g weights %a keys %k whole %a : !recur.mat<C x 1> state 0 first 0.0
    : !recur.mat<C x dk>, !recur.mat<C x C>, !recur.mat<C x 1> -> !recur.mat<C x 1>
  chunk.yield %n : !recur.mat<C x 1>
}

// -----

chunk.program @chunk_conjugate_gradients_c1 length("C") [#recur.arg<input "k">] -> ["o"] init {
  chunk.yield
} body {
^bb0(%k: !recur.mat<C x dk>):
  // expected-error@+1 {{must multiply a matrix of type '!recur.mat<C x dk>' in its region}}
  %z = chunk.conjugate_gradients %k iterations 3 eps 0.0 : !recur.mat<C x dk> {
  ^bb0(%p: !recur.mat<dk x 1>):
    chunk.yield %p : !recur.mat<dk x 1>
  }
  chunk.yield %z : !recur.mat<C x dk>
}

// -----

chunk.program @chunk_ldl_c1 length("C") [#recur.arg<input "k">, #recur.arg<input "a">, #recur.arg<state "P">] -> ["o"] init {
  %0 = recur.identity : !recur.mat<dk x dk>
  chunk.yield %0 : !recur.mat<dk x dk>
} body {
^bb0(%k: !recur.mat<C x dv>, %a: !recur.mat<C x 1>, %P: !recur.mat<dk x dk>):
  // expected-error@+1 {{must have a square state that fits the keys, got: '!recur.mat<dk x dk>' and '!recur.mat<C x dv>'}}
  %l, %x, %u, %d, %p = chunk.ldl %P keys %k decays %a weights %a offsets %a : !recur.mat<dk x dk>, !recur.mat<C x dv>, !recur.mat<C x 1>, !recur.mat<C x 1>, !recur.mat<C x 1> -> !recur.mat<C x C>, !recur.mat<C x 1>
  chunk.yield %p, %x : !recur.mat<dk x dk>, !recur.mat<C x dv>
}

// -----

chunk.program @chunk_ldl_c2 length("C") [#recur.arg<input "k">, #recur.arg<input "a">, #recur.arg<state "P">] -> ["o"] init {
  %0 = recur.identity : !recur.mat<dk x dk>
  chunk.yield %0 : !recur.mat<dk x dk>
} body {
^bb0(%k: !recur.mat<C x dk>, %a: !recur.mat<C x 1>, %P: !recur.mat<dk x dk>):
  // expected-error@+1 {{must have numbers of type '!recur.mat<C x 1>', got: '!recur.mat<C x dk>'}}
  %l, %x, %u, %d, %p = chunk.ldl %P keys %k decays %a weights %k offsets %a : !recur.mat<dk x dk>, !recur.mat<C x dk>, !recur.mat<C x 1>, !recur.mat<C x dk>, !recur.mat<C x 1> -> !recur.mat<C x C>, !recur.mat<C x 1>
  chunk.yield %p, %x : !recur.mat<dk x dk>, !recur.mat<C x dk>
}

// -----

chunk.program @chunk_ldl_c3 length("C") [#recur.arg<input "k">, #recur.arg<input "a">, #recur.arg<state "P">] -> ["o"] init {
  %0 = recur.identity : !recur.mat<dk x dk>
  chunk.yield %0 : !recur.mat<dk x dk>
} body {
^bb0(%k: !recur.mat<C x dk>, %a: !recur.mat<C x 1>, %P: !recur.mat<dk x dk>):
  // expected-error@+1 {{must give '!recur.mat<C x C>', got: '!recur.mat<C x 1>'}}
  %l, %x, %u, %d, %p = chunk.ldl %P keys %k decays %a weights %a offsets %a : !recur.mat<dk x dk>, !recur.mat<C x dk>, !recur.mat<C x 1>, !recur.mat<C x 1>, !recur.mat<C x 1> -> !recur.mat<C x 1>, !recur.mat<C x 1>
  chunk.yield %p, %x : !recur.mat<dk x dk>, !recur.mat<C x dk>
}

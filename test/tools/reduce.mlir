// Rules that have nothing to do with what is looked for are taken out.
// RUN: recur-reduce %s "-reduction-tree=traversal-mode=0 test=%S/Inputs/has_tanh.sh" | FileCheck %s
// CHECK: recur.rule @keep
// CHECK: recur.tanh
// CHECK-NOT: recur.rule
recur.rule @keep(input "x" %x: !recur.mat<1 x 1>) -> ("o") init {
  recur.yield
} body {
  %y = recur.tanh %x : !recur.mat<1 x 1>
  recur.yield %y : !recur.mat<1 x 1>
}
recur.rule @sum(input "x" %x: !recur.mat<1 x 1>) -> ("o") init {
  recur.yield
} body {
  %y = recur.add %x, %x : !recur.mat<1 x 1>, !recur.mat<1 x 1>
  recur.yield %y : !recur.mat<1 x 1>
}
recur.rule @square(input "x" %x: !recur.mat<1 x 1>) -> ("o") init {
  recur.yield
} body {
  %y = recur.mul %x, %x : !recur.mat<1 x 1>, !recur.mat<1 x 1>
  recur.yield %y : !recur.mat<1 x 1>
}

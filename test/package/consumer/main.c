#include <average.h>
#include <average_half.h>
#include <stdio.h>

enum { T = 3, D = 8 };

int main(void) {
  float x[T][D], a[T] = {0.5f, 0.5f, 0.5f}, o[T][D], S[D];
  for (int t = 0; t < T; ++t)
    for (int i = 0; i < D; ++i)
      x[t][i] = (float)i;
  int64_t vectors[] = {1, T, 1, D}, scalars[] = {1, T, 1}, state[] = {1, 1, D};
  DLTensor xs = {x, {kDLCPU, 0}, 4, {kDLFloat, 32, 1}, vectors, NULL, 0}, os = xs, as = xs, Ss = xs;
  os.data = o;
  as.data = a;
  as.ndim = 3;
  as.shape = scalars;
  Ss.data = S;
  Ss.ndim = 3;
  Ss.shape = state;
  average_forward_args args = {.x = &xs, .a = &as, .o = &os, .final_S = &Ss};
  static _Alignas(64) char workspace[1 << 20];
  if (average_forward_workspace(&args) > (int64_t)sizeof workspace ||
      average_forward(&args, workspace, NULL) != RECUR_OK) {
    puts(recur_last_error());
    return 1;
  }
  printf("%s %g %g %s\n", average_metadata()->name, o[T - 1][7], S[4], average_half_metadata()->name);
  return 0;
}

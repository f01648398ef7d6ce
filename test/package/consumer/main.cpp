#include <average.h>
#include <cstdio>

int main() {
  std::puts(average_metadata()->name);
  return average_forward(nullptr, nullptr, nullptr) == RECUR_ERROR_NULL ? 0 : 1;
}

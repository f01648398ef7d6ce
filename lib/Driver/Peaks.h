// What this machine can do at most, measured here and now: the rates that times of kernels are compared with.
#pragma once

#include "lib/Artifact/Target.h"

#include <memory>

namespace llvm::orc {
class LLJIT;
}

namespace recur {

/// Wall time, or the time that a thread has run, which other programs on the machine disturb less.
enum class Clock { Wall, Thread };

/// The time of a clock in seconds.
double secondsOf(Clock clock);

/// Kernels that do nothing but one thing, compiled for the machine.
class Peaks {
public:
  /// Kernels for vectors as wide as the target's. Fails where they cannot be compiled.
  static llvm::Expected<std::unique_ptr<Peaks>> create(const Target &target);
  ~Peaks();

  /// Floating-point operations per second of f32 multiply-adds in registers, over about a millisecond. Thread
  /// time is for one thread only.
  double flopRate(unsigned threads, Clock clock = Clock::Wall);
  /// Bytes read and written per second by copies of `copyBytes` in each thread, too large for caches.
  double copyRate(unsigned threads, Clock clock = Clock::Wall);
  static constexpr int64_t copyBytes = int64_t(64) << 20;

private:
  Peaks();
  double rate(unsigned threads, Clock clock, double work, llvm::function_ref<void(unsigned)> body);
  char *memory(unsigned threads);

  struct Memory;
  std::unique_ptr<llvm::orc::LLJIT> jit;
  std::unique_ptr<Memory> copied;
  void (*multiplyAdd)(int64_t rounds, float *data) = nullptr;
  unsigned lanes = 0;
};

} // namespace recur

/* cpu.c: which of the instruction sets that variants are compiled for this machine has. */
#define _GNU_SOURCE
#include "internal.h"

#include <stdatomic.h>

static const struct {
  uint64_t bit;
  const char *name;
} feature_names[] = {
    {RECUR_CPU_X86_64_V2, "x86-64-v2"},     {RECUR_CPU_X86_64_V3, "x86-64-v3"},
    {RECUR_CPU_X86_64_V4, "x86-64-v4"},     {RECUR_CPU_AVX512_BF16, "avx512_bf16"},
    {RECUR_CPU_AVX512_FP16, "avx512_fp16"}, {RECUR_CPU_AMX_TILE, "amx_tile"},
    {RECUR_CPU_AMX_BF16, "amx_bf16"},       {RECUR_CPU_AMX_INT8, "amx_int8"},
};

void recur_i_append_features(recur_i_text *text, uint64_t features) {
  recur_i_append(text, "x86-64");
  for (size_t i = 0; i < sizeof feature_names / sizeof *feature_names; ++i)
    if (features & feature_names[i].bit)
      recur_i_append(text, ", %s", feature_names[i].name);
}

#if defined(__x86_64__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>

/** The bits of `wanted` are all in `word`. */
static bool all(uint32_t word, uint32_t wanted) { return (word & wanted) == wanted; }

/** The register states that the operating system saves. */
static uint64_t saved_states(void) {
  uint32_t low = 0, high = 0;
  __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return (uint64_t)high << 32 | low;
}

static uint64_t detect(void) {
  uint32_t eax = 0, ebx = 0, ecx = 0, edx = 0;
  if (!__get_cpuid(1, &eax, &ebx, &ecx, &edx))
    return 0;
  const uint32_t basic = ecx;
  const bool saves = all(basic, bit_OSXSAVE);
  const uint64_t states = saves ? saved_states() : 0;
  const bool avx_saved = (states & 0x6) == 0x6;
  const bool avx512_saved = (states & 0xe6) == 0xe6;
  const bool tiles_saved = (states & 0x60000) == 0x60000;

  uint32_t extended = 0;
  if (__get_cpuid(0x80000001, &eax, &ebx, &ecx, &edx))
    extended = ecx;
  uint32_t seven_b = 0, seven_d = 0, seven_one_a = 0;
  if (__get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx)) {
    const uint32_t subleaves = eax;
    seven_b = ebx;
    seven_d = edx;
    if (subleaves >= 1 && __get_cpuid_count(7, 1, &eax, &ebx, &ecx, &edx))
      seven_one_a = eax;
  }

  uint64_t found = 0;
  const uint32_t lahf = 1u << 0, lzcnt = 1u << 5;
  if (all(basic, bit_CMPXCHG16B | bit_POPCNT | bit_SSE3 | bit_SSSE3 | bit_SSE4_1 | bit_SSE4_2) &&
      all(extended, lahf))
    found |= RECUR_CPU_X86_64_V2;
  if (found && avx_saved && all(basic, bit_AVX | bit_F16C | bit_FMA | bit_MOVBE) && all(extended, lzcnt) &&
      all(seven_b, bit_AVX2 | bit_BMI | bit_BMI2))
    found |= RECUR_CPU_X86_64_V3;
  if (found & RECUR_CPU_X86_64_V3 && avx512_saved &&
      all(seven_b, bit_AVX512F | bit_AVX512BW | bit_AVX512CD | bit_AVX512DQ | bit_AVX512VL)) {
    found |= RECUR_CPU_X86_64_V4;
    if (all(seven_one_a, 1u << 5))
      found |= RECUR_CPU_AVX512_BF16;
    if (all(seven_d, 1u << 23))
      found |= RECUR_CPU_AVX512_FP16;
  }
  if (tiles_saved && all(seven_d, 1u << 24)) {
    found |= RECUR_CPU_AMX_TILE;
    if (all(seven_d, 1u << 22))
      found |= RECUR_CPU_AMX_BF16;
    if (all(seven_d, 1u << 25))
      found |= RECUR_CPU_AMX_INT8;
  }
  return found;
}

/** Linux hands out the tile registers' memory on request only; asking again is cheap. */
static bool tiles_permitted(void) {
  enum { REQUEST_PERMISSION = 0x1023, TILE_DATA = 18 };
  return syscall(SYS_arch_prctl, REQUEST_PERMISSION, TILE_DATA) == 0;
}
#else
static uint64_t detect(void) { return 0; }
static bool tiles_permitted(void) { return false; }
#endif

uint64_t recur_cpu_features(void) {
  static atomic_uint_least64_t cache;
  const uint64_t known = UINT64_C(1) << 63;
  uint64_t found = atomic_load_explicit(&cache, memory_order_relaxed);
  if (!found) {
    found = detect() | known;
    atomic_store_explicit(&cache, found, memory_order_relaxed);
  }
  return found & ~known;
}

bool recur_i_cpu_has(uint64_t features) {
  if (features & ~recur_cpu_features())
    return false;
  return !(features & RECUR_CPU_AMX_TILE) || tiles_permitted();
}

#include "lib/Artifact/Target.h"

#include "recur/abi.h"
#include "llvm/ADT/STLExtras.h"
#include "llvm/ADT/StringMap.h"
#include "llvm/TargetParser/Host.h"

#if defined(__linux__) && defined(__x86_64__)
#include <sys/syscall.h>
#include <unistd.h>
#endif

using namespace llvm;

namespace recur {
namespace {

struct Row {
  StringLiteral name, cpu, features;
  /// Features of the host, in LLVM's words, that "native" asks for.
  StringLiteral host;
  uint64_t required;
  unsigned vectorWidth;
  StringLiteral needs;
};

/// From the plainest to the best.
constexpr Row rows[] = {
    {"x86-64", "x86-64", "", "", 0, 4, "any 64-bit x86"},
    {"x86-64-v2", "x86-64-v2", "", "sse4.2,ssse3,popcnt,cx16,sahf", RECUR_CPU_X86_64_V2, 4, "SSE4.2"},
    {"x86-64-v3", "x86-64-v3", "", "avx2,fma,f16c,bmi,bmi2,lzcnt,movbe", RECUR_CPU_X86_64_V3, 8,
     "AVX2 and FMA"},
    {"x86-64-v4", "x86-64-v4", "", "avx512f,avx512bw,avx512cd,avx512dq,avx512vl", RECUR_CPU_X86_64_V4, 16,
     "AVX-512"},
    {"x86-64-v4+bf16", "x86-64-v4", "+avx512bf16", "avx512bf16", RECUR_CPU_X86_64_V4 | RECUR_CPU_AVX512_BF16,
     16, "AVX-512 with bfloat16 products"},
    {"x86-64-v4+amx", "x86-64-v4", "+avx512bf16,+amx-tile,+amx-bf16", "amx-tile,amx-bf16",
     RECUR_CPU_X86_64_V4 | RECUR_CPU_AVX512_BF16 | RECUR_CPU_AMX_TILE | RECUR_CPU_AMX_BF16, 16,
     "AVX-512 with bfloat16 products of tiles (AMX)"},
};

struct GpuRow {
  StringLiteral name, needs;
};

/// GPUs, from the plainest to the best.
constexpr GpuRow gpuRows[] = {
    {"sm_80", "an NVIDIA GPU of compute capability 8.0 or later"},
    {"sm_90", "an NVIDIA GPU of compute capability 9.0 or later"},
    {"sm_90a", "an NVIDIA GPU of compute capability 9.0, with all it can do"},
};

Target makeTarget(unsigned rank) {
  const Row &row = rows[rank];
  return {row.name.str(), row.cpu.str(),   row.features.str(), "",
          row.required,   row.vectorWidth, /*gpu=*/false,      rank};
}

/// Whether this process may use tile registers: Linux hands out their memory on request only, and a sandbox
/// may refuse.
bool mayUseTiles() {
#if defined(__linux__) && defined(__x86_64__)
  enum { RequestPermission = 0x1023, TileData = 18 };
  return syscall(SYS_arch_prctl, RequestPermission, TileData) == 0;
#else
  return false;
#endif
}

/// The last row such that the host has all it needs and all that the rows before it need, and this process
/// may use it.
Target nativeTarget() {
  const StringMap<bool> has = sys::getHostCPUFeatures();
  unsigned best = 0;
  for (unsigned rank = 1; rank < std::size(rows); ++rank, ++best) {
    SmallVector<StringRef> wanted;
    rows[rank].host.split(wanted, ',');
    if (!all_of(wanted, [&](StringRef feature) { return has.lookup(feature); }))
      break;
    if (rows[rank].required & RECUR_CPU_AMX_TILE && !mayUseTiles())
      break;
  }
  Target target = makeTarget(best);
  target.tuneCpu = sys::getHostCPUName().str();
  return target;
}

std::string knownNames() {
  std::string names;
  for (const Row &row : rows)
    names += (row.name + ", ").str();
  for (const GpuRow &row : gpuRows)
    names += (row.name + ", ").str();
  return names + "native";
}

} // namespace

Expected<Target> lookupTarget(StringRef name) {
  if (name == "native")
    return nativeTarget();
  for (unsigned rank = 0; rank < std::size(rows); ++rank)
    if (rows[rank].name == name)
      return makeTarget(rank);
  for (const auto &[index, row] : enumerate(gpuRows))
    if (row.name == name)
      return Target{row.name.str(), "x86-64", "", "", 0, 4, /*gpu=*/true, unsigned(std::size(rows) + index)};
  return createStringError("unknown target '" + name + "', known are " + knownNames());
}

Expected<SmallVector<Target>> parseTargets(StringRef list) {
  SmallVector<Target> targets;
  SmallVector<StringRef> names;
  list.split(names, ',');
  for (StringRef &name : names)
    name = name.trim();
  for (const auto &[index, name] : enumerate(names)) {
    Expected<Target> target = lookupTarget(name);
    if (!target)
      return target.takeError();
    if (is_contained(ArrayRef(names).take_front(index), name))
      return createStringError("target '" + name + "' is given twice");
    // What native is may be named, too.
    if (none_of(targets, [&](const Target &other) { return other.name == target->name; }))
      targets.push_back(std::move(*target));
  }
  return targets;
}

void printTargets(raw_ostream &os) {
  for (const Row &row : rows)
    os << left_justify(row.name, 16) << row.needs << '\n';
  for (const GpuRow &row : gpuRows)
    os << left_justify(row.name, 16) << row.needs << '\n';
  os << left_justify("native", 16) << "the best of these that this machine can run, now "
     << nativeTarget().name << '\n';
}

} // namespace recur

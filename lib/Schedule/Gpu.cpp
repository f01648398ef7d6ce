// The parameters were fitted to times of the rules of specs/ on an H200: see tools/bench/NOTES.md.
#include "lib/Schedule/Gpu.h"
#include "llvm/ADT/StringSwitch.h"
#include "llvm/Support/FormatVariadic.h"

#include <algorithm>
#include <cmath>

using namespace recur;
using llvm::formatv;
using llvm::StringRef;

GpuModel GpuModel::of(StringRef chip) {
  if (chip == "sm_80")
    return {"A100", 108, 1.41, 1700, 260e3, 164 * 1024};
  return {"H200", 132, 1.755, 4150, 790e3, 228 * 1024};
}

GpuPart &GpuPart::add(const GpuPart &more, double times) {
  for (double GpuPart::*count :
       {&GpuPart::instructions, &GpuPart::functions, &GpuPart::products, &GpuPart::shuffles, &GpuPart::reads,
        &GpuPart::loads, &GpuPart::beside, &GpuPart::groupCycles, &GpuPart::waits})
    this->*count += times * (more.*count);
  return *this;
}

namespace {
// What a warp waits for each of the things that it does, in cycles. Most of it is latency that too few warps
// hide.
struct Cycles {
  double instruction, function, product, shuffle, read, load, group, wait;
  // At least so many for a round that reads memory.
  double memory;
  // Nanoseconds from the launch to the first tokens, and from the last ones to the end.
  double start;
  // Registers of a thread.
  double registers;
  // Of a scheduler, for each of the instructions of all its warps.
  double issue = 1;
  // Of the matrix units of a quarter of a processor, for each product of all its warps, which wait for it.
  double units = 0;
};
} // namespace

// By the name of a part: what is no part of those is a warp role.
static Cycles cyclesOf(StringRef part) {
  return llvm::StringSwitch<Cycles>(part)
      .Case("tokens", {2.49, 4, 0, 0, 0, 10, 0, 40, 790, 5000, 168})
      .Case("ahead", {1.25, 4, 0, 0, 0, 10, 1, 300, 790, 5000, 168, 0.83})
      .Case("held", {0.6, 2, 0, 0, 0, 10, 0, 120, 790, 5000, 255, 1, 8})
      .Case("scan", {1.22, 4, 0, 0, 0, 10, 0, 40, 790, 12000, 168})
      .Case("turns", {1, 6, 0, 20, 0, 10, 0, 40, 790, 12000, 168})
      .Case("chunks", {4.6, 4, 12, 30, 3, 10, 0, 40, 0, 12000, 255})
      .Default({2.33, 4, 29, 0, 0, 10, 0.5, 80, 0, 12000, 255});
}

static Cycles cyclesOf(const GpuLaunch &launch) {
  return cyclesOf(launch.parts.empty() ? "" : launch.parts.front().name);
}

// Shorter segments are not made; see the runtime.
static constexpr double leastOfSegment = 256, fewTokens = 16, chunk = 64;

// The segments that take all processors the least time where each gets several blocks; see the runtime.
static double segmentsInRounds(const GpuLaunch &launch, const GpuShape &shape) {
  bool passes = launch.cut == GpuLaunch::Passed;
  double startTokens = passes ? 192 : 320;
  double best = 1, least = HUGE_VAL,
         most = std::min(passes ? 8.0 : 4.0, std::floor(shape.tokens / leastOfSegment));
  for (double segments = 1; segments <= std::max(most, 1.0); ++segments) {
    double blocks = shape.sequences * shape.heads * segments,
           atOnce = std::max(1.0, std::floor(launch.mostBlocks / launch.blocks));
    double rounds = std::max(std::ceil(blocks / atOnce), passes ? segments : 1.0);
    double time = rounds * (std::floor(shape.tokens / segments) + startTokens);
    if (time < least) {
      least = time;
      best = segments;
    }
  }
  return best;
}

// The segments of a sequence; 0 where there are too few of them.
static double segmentsOf(const GpuLaunch &launch, const GpuShape &shape) {
  if (launch.cut == GpuLaunch::FewTokens)
    return std::ceil(shape.tokens / fewTokens);
  if (launch.cut == GpuLaunch::Whole)
    return 1;
  if (launch.cut == GpuLaunch::Spread) // one for each processor, or a little less
    return std::clamp(launch.mostBlocks / (shape.sequences * shape.heads), 1.0,
                      std::ceil(shape.tokens / chunk));
  if (launch.cut == GpuLaunch::Passed)
    return segmentsInRounds(launch, shape);
  double wide = std::floor(launch.mostBlocks / launch.blocks / (shape.sequences * shape.heads));
  double segments = std::min(wide, std::floor(shape.tokens / leastOfSegment));
  if (segments >= launch.leastSegments)
    return segments;
  return launch.cut == GpuLaunch::SegmentsOrWhole ? segmentsInRounds(launch, shape) : 0;
}

namespace {
struct LaunchTime {
  double nanoseconds = 0;
  std::string part;
};
} // namespace

static LaunchTime timeOf(const GpuLaunch &launch, const GpuShape &shape, const GpuModel &gpu) {
  bool isStage = launch.cut == GpuLaunch::FewTokens;
  Cycles cycles = cyclesOf(launch);
  double segments = segmentsOf(launch, shape),
         blocks = shape.sequences * shape.heads * launch.blocks * segments;
  double tokens = isStage ? fewTokens : std::ceil(shape.tokens / segments);
  bool begins = launch.cut == GpuLaunch::SegmentsOrWhole || launch.cut == GpuLaunch::Spread ||
                launch.cut == GpuLaunch::Passed;
  if (begins && segments > 1)
    tokens += chunk;
  double together = std::max(
      1.0, std::min({std::floor(2048 / launch.threads), std::floor(65536 / launch.threads / cycles.registers),
                     std::floor(gpu.sharedBytes / (launch.sharedBytes + 1024))}));
  double onProcessor = std::min(together, std::ceil(blocks / gpu.processors));
  LaunchTime time;
  double longest = 0, units = 0, issued = 0, functions = 0;
  for (const GpuPart &part : launch.parts) {
    double own = cycles.instruction * (part.instructions - part.beside) + part.beside +
                 cycles.function * part.functions + cycles.product * part.products +
                 cycles.shuffle * part.shuffles + cycles.read * part.reads + cycles.load * part.loads +
                 cycles.group * part.groupCycles * part.warps / 4 +
                 cycles.units * part.products * std::ceil(part.warps / 4) + cycles.wait * part.waits;
    if (part.loads)
      own = std::max(own, cycles.memory);
    if (own / part.tokens > longest) {
      longest = own / part.tokens;
      time.part = part.name;
    }
    // What all warps of a processor share: the matrix units, and the schedulers of its four quarters.
    double quarter = part.warps / 4 / part.tokens * onProcessor;
    units += part.groupCycles * quarter;
    issued += cycles.issue * part.instructions * quarter;
    functions += 8 * part.functions * quarter;
  }
  double rounds = blocks / (gpu.processors * together);
  longest = std::max({longest, units, issued, functions});
  time.nanoseconds = (isStage || launch.cut == GpuLaunch::Spread ? rounds : std::ceil(rounds)) * tokens *
                         longest / gpu.gigahertz +
                     cycles.start;
  return time;
}

// Why a launch is not for a shape.
static std::string refusal(const GpuLaunch &launch, const GpuShape &shape) {
  double heads = shape.sequences * shape.heads;
  if (shape.tokens < launch.leastTokens)
    return formatv("for sequences of {0} tokens and more", int64_t(launch.leastTokens));
  bool isLimited = launch.mostBlocks && !launch.takesMore && launch.cut != GpuLaunch::Spread &&
                   launch.cut != GpuLaunch::FewTokens;
  double most = std::floor(launch.mostBlocks * (launch.forFew ? 0.625 : 1));
  if (!segmentsOf(launch, shape) || (isLimited && heads > std::floor(most / launch.blocks)))
    return formatv("for at most {0} blocks, of {1} a head{2}", int64_t(most), int64_t(launch.blocks),
                   launch.cut == GpuLaunch::Segments ? " and segment" : "");
  return "";
}

GpuTime recur::predict(const GpuCandidate &candidate, const GpuShape &shape, const GpuModel &gpu) {
  GpuTime time;
  double longest = 0, sum = 0;
  for (const GpuLaunch &launch : candidate.launches) {
    if (std::string why = refusal(launch, shape); !why.empty()) {
      time.why = why;
      return time;
    }
    LaunchTime one = timeOf(launch, shape, gpu);
    sum += one.nanoseconds;
    if (one.nanoseconds > longest) {
      longest = one.nanoseconds;
      time.bound = one.part;
    }
    double blocks = shape.sequences * shape.heads * launch.blocks * segmentsOf(launch, shape);
    time.launches += formatv("{0}{1}, {2} blocks of {3} threads", time.launches.empty() ? "" : "; ",
                             launch.name, int64_t(blocks), int64_t(launch.threads));
  }
  constexpr double shareOfCopy = 0.96;
  double start = cyclesOf(candidate.launches.front()).start;
  double memory =
      candidate.bytes * shape.sequences * shape.heads * shape.tokens / (shareOfCopy * gpu.copyRate) + start;
  if (memory >= sum)
    time.bound = "memory";
  else if (start * candidate.launches.size() > 0.5 * sum)
    time.bound = "launches";
  time.microseconds = std::max(sum, memory) * 1e-3;
  return time;
}

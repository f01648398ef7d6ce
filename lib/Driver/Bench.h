// Times of a rule in all its forms, beside what the machine can do at most.
#pragma once

#include "lib/Driver/Options.h"
#include "lib/Schedule/Cost.h"

namespace recur {

/// The times of one form with one number of threads.
struct BenchRow {
  std::string form;
  bool step = false;
  unsigned threads = 1;
  std::vector<double> seconds; // sorted once all are there

  double best() const { return seconds.front(); }
  double median() const { return seconds[seconds.size() / 2]; }
};

/// The rates of the machine with one number of threads, a sample for each round of calls.
struct BenchPeak {
  unsigned threads = 1;
  std::vector<double> flops, copy; // sorted once all are there
};

/// What the two functions were called with.
struct BenchShape {
  int64_t batch = 1, tokens = 1;
  double bytes = 0, stateBytes = 0; // that a call reads and writes at least, states included
};

/// All that was measured.
struct BenchReport {
  std::string rule, ruleClass, target, chosen; // the form that --form=auto takes
  int64_t heads = 1;
  TokenCost cost;
  llvm::StringMap<int64_t> sizes;
  BenchShape forward, step;
  std::vector<BenchRow> rows;
  std::vector<BenchPeak> peaks;
  std::vector<std::pair<std::string, std::string>> missing; // forms that the rule has not, and why

  const BenchShape &shapeOf(const BenchRow &row) const { return row.step ? step : forward; }
  const BenchPeak &peakOf(const BenchRow &row) const;
  /// Tokens and operations of one call.
  double tokensOf(const BenchRow &row) const { return double(shapeOf(row).batch) * shapeOf(row).tokens; }
  double flopsOf(const BenchRow &row) const { return tokensOf(row) * heads * cost.flops; }
};

void printReport(const BenchReport &report, llvm::raw_ostream &os);
void printReportAsJson(const BenchReport &report, llvm::raw_ostream &os);

} // namespace recur

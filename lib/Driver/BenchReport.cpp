// Prints what was measured.
#include "lib/Driver/Bench.h"
#include "llvm/Support/Format.h"
#include "llvm/Support/FormatVariadic.h"
#include "llvm/Support/JSON.h"

using namespace recur;
using llvm::format;

const BenchPeak &BenchReport::peakOf(const BenchRow &row) const {
  return *llvm::find_if(peaks, [&](const BenchPeak &peak) { return peak.threads == row.threads; });
}

static std::string sizesText(const llvm::StringMap<int64_t> &sizes) {
  std::vector<std::string> parts;
  for (const auto &entry : sizes)
    parts.push_back((entry.getKey() + "=" + llvm::Twine(entry.getValue())).str());
  llvm::sort(parts);
  return llvm::join(parts, ", ");
}

static void printRow(const BenchReport &report, const BenchRow &row, llvm::raw_ostream &os) {
  const BenchPeak &peak = report.peakOf(row);
  double rate = report.flopsOf(row) / row.best(), bytes = report.shapeOf(row).bytes / row.best();
  std::string form = row.form + (row.form == report.chosen ? " *" : "");
  os << format("  %-14s%8u%8zu%11.4g%11.4g%12.4g%10.4g%8.1f %%%9.4g%8.1f %%\n", form.c_str(), row.threads,
               row.seconds.size(), row.best() * 1e3, row.median() * 1e3, report.tokensOf(row) / row.best(),
               rate * 1e-9, 100 * rate / peak.flops.back(), bytes * 1e-9, 100 * bytes / peak.copy.back());
}

void recur::printReport(const BenchReport &report, llvm::raw_ostream &os) {
  os << report.rule << ", class " << report.ruleClass;
  if (!report.sizes.empty())
    os << ": " << sizesText(report.sizes);
  os << "\n" << format("a token and head needs %.6g flop", report.cost.flops);
  if (report.cost.byOps)
    os << " (counted op by op, as the update is not affine)";
  else
    os << format(": %.3g for each of %.6g numbers of its state, two for each vector that reads or is written",
                 report.cost.flops / report.cost.state, report.cost.state);
  os << "\n";
  for (const BenchPeak &peak : report.peaks)
    os << format("peak of %u thread%s of %s: %.4g GFLOP/s of f32 multiply-adds, %.4g GB/s of copying\n",
                 peak.threads, peak.threads == 1 ? "" : "s", report.target.c_str(), peak.flops.back() * 1e-9,
                 peak.copy.back() * 1e-9);
  for (bool step : {false, true}) {
    if (llvm::none_of(report.rows, [&](const BenchRow &row) { return row.step == step; }))
      continue;
    const BenchShape &shape = step ? report.step : report.forward;
    os << "\n"
       << (step ? "step" : "forward") << ": " << shape.batch
       << (shape.batch == 1 ? " sequence" : " sequences");
    if (!step)
      os << " of " << shape.tokens << " tokens";
    os << ", " << report.heads << (report.heads == 1 ? " head, " : " heads, ")
       << format("%.3g MB of tensors and %.3g MB of states\n", (shape.bytes - shape.stateBytes) * 1e-6,
                 shape.stateBytes * 0.5e-6)
       << "  form           threads   calls    best ms  median ms    tokens/s   GFLOP/s   of peak     GB/s   "
          "of copy\n";
    for (const BenchRow &row : report.rows)
      if (row.step == step)
        printRow(report, row, os);
  }
  os << "\n"
     << (report.chosen.empty() ? "" : "* the form that is taken when none is asked for; ")
     << "rates are those of the best call\n";
  for (const auto &[form, why] : report.missing)
    os << "no row for " << form << ": " << why << "\n";
}

void recur::printReportAsJson(const BenchReport &report, llvm::raw_ostream &os) {
  llvm::json::OStream json(os, 2);
  json.object([&] {
    json.attribute("schema", 1);
    json.attribute("rule", report.rule);
    json.attribute("class", report.ruleClass);
    json.attribute("target", report.target);
    json.attribute("chosen_form", report.chosen);
    json.attribute("heads", report.heads);
    json.attributeObject("sizes", [&] {
      for (const auto &entry : report.sizes)
        json.attribute(entry.getKey(), entry.getValue());
    });
    json.attribute("flop_per_token_and_head", report.cost.flops);
    json.attributeArray("peaks", [&] {
      for (const BenchPeak &peak : report.peaks)
        json.object([&] {
          json.attribute("threads", peak.threads);
          json.attribute("gflops", peak.flops.back() * 1e-9);
          json.attribute("gflops_median", peak.flops[peak.flops.size() / 2] * 1e-9);
          json.attribute("copy_gigabytes_per_second", peak.copy.back() * 1e-9);
        });
    });
    json.attributeArray("rows", [&] {
      for (const BenchRow &row : report.rows)
        json.object([&] {
          const BenchShape &shape = report.shapeOf(row);
          const BenchPeak &peak = report.peakOf(row);
          double flops = report.flopsOf(row);
          json.attribute("entry", row.step ? "step" : "forward");
          json.attribute("form", row.form);
          json.attribute("threads", row.threads);
          json.attribute("batch", shape.batch);
          json.attribute("tokens", shape.tokens);
          json.attribute("calls", static_cast<int64_t>(row.seconds.size()));
          json.attribute("seconds_best", row.best());
          json.attribute("seconds_median", row.median());
          json.attribute("tokens_per_second", report.tokensOf(row) / row.best());
          json.attribute("gflops", flops / row.best() * 1e-9);
          json.attribute("gigabytes_per_second", shape.bytes / row.best() * 1e-9);
          json.attribute("fraction_of_peak", flops / row.best() / peak.flops.back());
          json.attribute("fraction_of_copy_rate", shape.bytes / row.best() / peak.copy.back());
        });
    });
    json.attributeArray("missing", [&] {
      for (const auto &entry : report.missing)
        json.object([&] {
          json.attribute("form", entry.first);
          json.attribute("why", entry.second);
        });
    });
  });
  os << "\n";
}

// Predicted against measured: rows of a table, each of several alternating runs.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

namespace lockstep {

inline double middle(std::vector<double> values) {
  std::ranges::sort(values);
  return values.empty() ? 0 : values[values.size() / 2];
}

class PredictionTable {
 public:
  PredictionTable() {
    fmt::print("{:<52} {:>12} {:>12} {:>17} {:>8}\n", "", "predicted ms", "measured ms", "of runs",
               "error");
  }
  ~PredictionTable() {
    if (errors_.empty()) return;
    fmt::print("error: median {:.1f}%, worst {:.1f}% of {} rows\n", 100 * middle(errors_),
               100 * *std::ranges::max_element(errors_), errors_.size());
  }
  PredictionTable(const PredictionTable&) = delete;
  PredictionTable& operator=(const PredictionTable&) = delete;

  // `disturbed`: the part of the time for which other programs had the cores while it was measured.
  void row(const std::string& what, const std::vector<double>& predicted,
           const std::vector<double>& measured, const std::vector<double>& disturbed = {}) {
    const double p = middle(predicted);
    const double m = middle(measured);
    const auto [least, most] = std::ranges::minmax(measured);
    errors_.push_back(std::abs(p / m - 1));
    fmt::print("{:<52} {:>12.3f} {:>12.3f} {:>8.3f}-{:<8.3f} {:>+7.1f}%{}\n", what, p, m, least,
               most, 100 * (p / m - 1),
               disturbed.empty()
                   ? ""
                   : fmt::format("  (others had the cores {:.0f}%)", 100 * middle(disturbed)));
    std::fflush(stdout);
  }

 private:
  std::vector<double> errors_;
};

}  // namespace lockstep

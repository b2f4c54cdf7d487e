// The gain that advice predicted against the one that following it gave.
#pragma once

#include <fmt/format.h>

#include <cmath>
#include <cstdio>
#include <string>
#include <vector>

#include "bench/prediction/table.h"

namespace lockstep {

// What following one piece of advice gave, as factors of the run's speed.
struct FollowedAdvice {
  std::string change;
  double predicted = 1;
  double measured = 1;
};

class AdviceTable {
 public:
  AdviceTable() {
    fmt::print("{:<34} {:<50} {:>9} {:>9} {:>13} {:>8}\n", "run", "advice", "predicted", "measured",
               "of runs", "error");
  }
  ~AdviceTable() {
    if (errors_.empty()) return;
    fmt::print("error: median {:.1f}%, worst {:.1f}% of {} rows\n", 100 * middle(errors_),
               100 * *std::ranges::max_element(errors_), errors_.size());
  }
  AdviceTable(const AdviceTable&) = delete;
  AdviceTable& operator=(const AdviceTable&) = delete;

  // The medians of several rounds, of which some may have had no such advice.
  void row(const std::string& run, const std::vector<FollowedAdvice>& rounds, int of) {
    if (rounds.empty()) {
      fmt::print("{:<34} none of {} runs got it  <--\n", run, of);
      std::fflush(stdout);
      return;
    }
    std::vector<double> predicted, measured;
    for (const FollowedAdvice& each : rounds) {
      predicted.push_back(each.predicted);
      measured.push_back(each.measured);
    }
    const double p = middle(predicted);
    const double m = middle(measured);
    const auto [least, most] = std::ranges::minmax(measured);
    errors_.push_back(std::abs(p / m - 1));
    fmt::print("{:<34} {:<50.50} {:>8.2f}x {:>8.2f}x {:>6.2f}-{:<6.2f} {:>+7.1f}%{}{}\n", run,
               rounds.back().change, p, m, least, most, 100 * (p / m - 1),
               errors_.back() > 0.1 ? "  <--" : "",
               std::ssize(rounds) < of ? fmt::format("  ({} of {} runs)", rounds.size(), of) : "");
    std::fflush(stdout);
  }

 private:
  std::vector<double> errors_;
};

}  // namespace lockstep

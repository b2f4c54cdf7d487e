#include "bench/causes/table.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>

namespace lockstep {
namespace {

constexpr double kWorthNaming = 0.05;  // of the run's time
constexpr double kMostError = 0.1;

double lost_to(const ExplainedTime& run, Cause cause) {
  const auto found = run.lost.find(cause);
  return found == run.lost.end() ? 0 : found->second;
}

void name(std::string& all, Cause cause, double seconds) {
  all += fmt::format("{}{} {:.3f}", all.empty() ? "" : ", ", name_of(cause), seconds);
}

}  // namespace

double median_of_runs(std::vector<double> values) {
  std::ranges::sort(values);
  return values.empty() ? 0 : values[values.size() / 2];
}

CauseTable::CauseTable() {
  fmt::print("{:<34} {:>9} {:>9} {:>7}   {}\n", "cause", "cost s", "found s", "error", "named");
}

void CauseTable::row(const std::string& what, const std::vector<Cause>& expected,
                     const std::vector<CauseTurn>& turns) {
  std::vector<double> costs, whole;
  for (const CauseTurn& turn : turns) {
    costs.push_back(turn.with.seconds - turn.without.seconds);
    whole.push_back(turn.with.seconds);
  }
  const double cost = median_of_runs(costs);
  double found = 0;
  std::string named;
  bool good = true;
  const auto is_expected = [&](Cause cause) { return std::ranges::count(expected, cause) > 0; };
  bool link_named = false;  // latency or bandwidth: the shape of a link decides which is larger
  for (int i = 0; i <= static_cast<int>(Cause::Failures); ++i) {
    const auto cause = static_cast<Cause>(i);
    std::vector<double> grew;
    for (const CauseTurn& turn : turns) {
      grew.push_back(lost_to(turn.with, cause) - lost_to(turn.without, cause));
    }
    const double seconds = median_of_runs(grew);
    const bool large = seconds > kWorthNaming * median_of_runs(whole);
    const bool link = cause == Cause::Latency || cause == Cause::Bandwidth;
    if (is_expected(cause)) found += seconds;
    if (large) name(named, cause, seconds);
    link_named = link_named || (link && large);
    good = good && (link ? is_expected(cause) || !large : is_expected(cause) == large);
  }
  if (is_expected(Cause::Bandwidth)) good = good && link_named;
  if (expected.empty()) {
    print(what, cost, found, named, good && named.empty());
  } else {
    print(what, cost, found, named, good && std::abs(found - cost) <= kMostError * cost);
  }
}

void CauseTable::row(const std::string& what, Cause cause, const std::vector<double>& costs,
                     const std::vector<ExplainedTime>& runs) {
  std::vector<double> found;
  std::string named;
  for (const ExplainedTime& run : runs) found.push_back(lost_to(run, cause));
  const double cost = median_of_runs(costs);
  name(named, cause, median_of_runs(found));
  print(what, cost, median_of_runs(found), named,
        std::abs(median_of_runs(found) - cost) <= kMostError * cost);
}

void CauseTable::advice(const std::string& what, const std::string& advised) {
  ++rows_;
  wrong_ += advised.empty() ? 0 : 1;
  fmt::print("{:<61}   {}\n", what, advised.empty() ? "nothing" : advised + "  <--");
  std::fflush(stdout);
}

void CauseTable::missing(const std::string& what, const std::string& why) {
  fmt::print("{:<34} not measured: {}\n", what, why);
  std::fflush(stdout);
}

void CauseTable::print(const std::string& what, double cost, double found, const std::string& named,
                       bool good) {
  ++rows_;
  wrong_ += good ? 0 : 1;
  const double error = std::abs(cost) > 0 ? (found - cost) / cost : 0;
  const std::string off = named.empty() ? "" : fmt::format("{:+.1f}%", 100 * error);
  fmt::print("{:<34} {:>9.3f} {:>9.3f} {:>7}   {}{}\n", what, cost, found, off,
             named.empty() ? "nothing" : named, good ? "" : "  <--");
  std::fflush(stdout);
}

int CauseTable::end() const {
  fmt::print("{} of {} as expected\n", rows_ - wrong_, rows_);
  return wrong_ == 0 ? 0 : 1;
}

}  // namespace lockstep

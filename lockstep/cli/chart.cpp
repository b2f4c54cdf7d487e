#include "lockstep/cli/chart.h"

namespace lockstep::cli {
namespace {

template <class Values>
Axis axis_of(const Panel& panel, int count, bool log, Values values_of) {
  std::vector<double> all;
  for (const Series& series : panel.series) {
    const std::vector<double>& values = values_of(series);
    all.insert(all.end(), values.begin(), values.end());
  }
  return axis_for(all, count, log);
}

}  // namespace

Axis x_axis(const Panel& panel, int count) {
  return axis_of(
      panel, count, panel.log_x, [](const Series& s) -> const auto& { return s.x; });
}

Axis y_axis(const Panel& panel, int count) {
  return axis_of(
      panel, count, false, [](const Series& s) -> const auto& { return s.y; });
}

}  // namespace lockstep::cli

// ChartAxis: the range of a chart's axis and its ticks, for pages and for the terminal.
#pragma once

#include <string>
#include <vector>

namespace lockstep {

// On a logarithmic axis `low`, `high` and the ticks are exponents of 10.
struct ChartAxis {
  double low = 0;
  double high = 1;
  std::vector<double> ticks;
  bool log = false;

  // 0 at `low`, 1 at `high`.
  double place(double value) const;
  // The same for one of the ticks.
  double place_of_tick(double tick) const { return (tick - low) / (high - low); }
};

// An axis for all finite values; round ticks, about `count` of them.
ChartAxis axis_for(const std::vector<double>& values, int count, bool log = false);
std::string tick_text(const ChartAxis& axis, double tick);  // "0.25", "1e-04"

}  // namespace lockstep

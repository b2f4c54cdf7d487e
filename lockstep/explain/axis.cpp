#include "lockstep/explain/axis.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

namespace lockstep {
namespace {

// The smallest of 1, 2, 2.5, 5, 10 times a power of 10 that is at least `least`.
double round_step(double least) {
  const double power = std::pow(10.0, std::floor(std::log10(least)));
  for (const double factor : {1.0, 2.0, 2.5, 5.0}) {
    if (factor * power >= least * (1 - 1e-9)) return factor * power;
  }
  return 10.0 * power;
}

}  // namespace

double ChartAxis::place(double value) const {
  const double at = log ? std::log10(value) : value;
  return (at - low) / (high - low);
}

ChartAxis axis_for(const std::vector<double>& values, int count, bool log) {
  double low = std::numeric_limits<double>::infinity();
  double high = -low;
  for (const double value : values) {
    const double at = log ? (value > 0 ? std::log10(value) : NAN) : value;
    if (!std::isfinite(at)) continue;
    low = std::min(low, at);
    high = std::max(high, at);
  }
  ChartAxis axis{.low = low, .high = high, .ticks = {}, .log = log};
  if (!(low <= high)) axis.low = 0, axis.high = 1;  // nothing to show
  // A single value, or values that differ only by rounding: leave room on both sides.
  const double least = std::max({std::abs(axis.low), std::abs(axis.high), 1e-12}) * 1e-9;
  if (axis.high - axis.low < least) {
    const double room = log ? 1.0 : std::max(std::abs(axis.low) * 0.5, 0.5);
    axis.low -= room;
    axis.high += room;
  }
  const double step = log ? std::max(1.0, round_step((axis.high - axis.low) / count))
                          : round_step((axis.high - axis.low) / count);
  const double first = std::ceil(axis.low / step - 1e-9);
  for (int i = 0; i < 4 * count; ++i) {
    const double tick = (first + i) * step;
    if (tick > axis.high + 1e-9 * step) break;
    axis.ticks.push_back(std::abs(tick) < 1e-12 * step ? 0.0 : tick);
  }
  return axis;
}

std::string tick_text(const ChartAxis& axis, double tick) {
  return axis.log ? fmt::format("1e{:+03d}", static_cast<int>(std::lround(tick)))
                  : fmt::format("{:.5g}", tick);
}

}  // namespace lockstep

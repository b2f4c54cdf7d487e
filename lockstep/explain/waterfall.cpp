#include "lockstep/explain/waterfall.h"

#include <algorithm>
#include <cmath>

namespace lockstep {
namespace {

// What rounding may leave over.
constexpr double kNothing = 5e-4;

}  // namespace

std::vector<WaterfallRow> waterfall_of(const Explanation& explanation) {
  using Kind = WaterfallRow::Kind;
  const double got = explanation.speed_up / std::max(explanation.replicas, 1);
  std::vector<WaterfallRow> rows = {
      {.kind = Kind::Ideal, .name = "ideal", .fraction = 1, .seconds = 0, .begin = 0, .end = 1}};
  double level = 1;
  const auto add = [&](const std::string& name, const std::string& where, double fraction,
                       double seconds) {
    if (!std::isfinite(fraction) || fraction == 0) return;
    const double next = level - fraction;
    rows.push_back({.kind = fraction > 0 ? Kind::Lost : Kind::Gained,
                    .name = name,
                    .where = where,
                    .fraction = fraction,
                    .seconds = seconds,
                    .begin = std::min(level, next),
                    .end = std::max(level, next)});
    level = next;
  };
  for (const LostTime& lost : explanation.lost) {
    add(name_of(lost.cause), lost.where, lost.fraction, lost.seconds);
  }
  const double rest = level - got;
  if (std::abs(rest) > kNothing) add("not attributed", "", rest, rest * explanation.seconds);
  rows.push_back({.kind = Kind::Got,
                  .name = "got",
                  .fraction = got,
                  .seconds = got * explanation.seconds,
                  .begin = 0,
                  .end = got});
  return rows;
}

}  // namespace lockstep

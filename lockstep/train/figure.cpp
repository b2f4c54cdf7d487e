#include "lockstep/train/figure.h"

#include <fmt/format.h>

#include <cmath>

namespace lockstep {

std::string figure(double value) {
  if (std::isnan(value)) return "NaN";
  const double size = std::abs(value);
  const bool plain = size == 0 || (size >= 1e-3 && size < 1e6);
  return plain ? fmt::format("{:.4f}", value) : fmt::format("{:.4g}", value);
}

}  // namespace lockstep

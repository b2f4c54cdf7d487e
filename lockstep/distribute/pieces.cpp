#include "lockstep/distribute/pieces.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "lockstep/base/error.h"

namespace lockstep {

std::vector<Piece> split_by_speed(std::int64_t samples, std::span<const double> speeds,
                                  std::int64_t quantum) {
  const auto replicas = static_cast<std::int64_t>(speeds.size());
  ensure(samples >= 0 && replicas > 0, "{} samples cannot be split over {} replicas", samples,
         replicas);
  for (double speed : speeds) {
    ensure(std::isfinite(speed) && speed > 0, "a replica's speed is {}", speed);
  }
  if (samples < replicas) return split_evenly(samples, static_cast<int>(replicas));
  const std::int64_t unit = std::clamp<std::int64_t>(quantum, 1, samples / replicas);
  // One unit each, and each further one to the replica that would finish it first (so the slowest
  // finishes as early as possible); the remainder, less than a unit, goes where it costs least.
  std::vector<std::int64_t> sizes(speeds.size(), unit);
  std::int64_t left = samples - unit * replicas;
  while (left > 0) {
    const std::int64_t more = std::min(unit, left);
    std::size_t best = 0;
    double best_time = 0;
    for (std::size_t r = 0; r < speeds.size(); ++r) {
      const double time = static_cast<double>(sizes[r] + more) / speeds[r];
      if (r == 0 || time < best_time) {
        best = r;
        best_time = time;
      }
    }
    sizes[best] += more;
    left -= more;
  }
  return in_a_row(sizes);
}

}  // namespace lockstep

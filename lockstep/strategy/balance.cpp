#include "lockstep/strategy/balance.h"

#include <algorithm>

#include "lockstep/base/error.h"

namespace lockstep {
namespace {

double median(std::vector<double> values) {
  const auto middle = values.begin() + std::ssize(values) / 2;
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

}  // namespace

Balancer::Balancer(int replicas, BalancerOptions options)
    : options_(options),
      speeds_(static_cast<std::size_t>(replicas), 1.0),
      sizes_(speeds_.size(), 0),
      seconds_(speeds_.size()) {
  ensure(replicas > 0 && options.window > 0 && options.fractions > 0,
         "a balancer for {} replicas, windows of {} steps, pieces in {} parts", replicas,
         options.window, options.fractions);
}

std::vector<Piece> Balancer::split(std::int64_t samples) const {
  const bool alike = std::ranges::all_of(speeds_, [&](double s) { return s == speeds_.front(); });
  if (alike) return split_evenly(samples, static_cast<int>(speeds_.size()));
  const std::int64_t parts = options_.fractions * std::ssize(speeds_);
  return split_by_speed(samples, speeds_, std::max<std::int64_t>(1, samples / parts));
}

void Balancer::observe(std::span<const Piece> pieces, std::span<const double> seconds) {
  ensure(pieces.size() == speeds_.size() && seconds.size() == speeds_.size(),
         "{} pieces and {} times of {} replicas", pieces.size(), seconds.size(), speeds_.size());
  bool same = true;
  for (std::size_t r = 0; r < pieces.size(); ++r) same = same && pieces[r].size() == sizes_[r];
  if (!same) {
    for (std::size_t r = 0; r < pieces.size(); ++r) {
      sizes_[r] = pieces[r].size();
      seconds_[r].clear();
    }
  }
  for (std::size_t r = 0; r < pieces.size(); ++r) seconds_[r].push_back(seconds[r]);
  if (std::ssize(seconds_.front()) >= options_.window) decide();
}

// Speeds from the window's medians, taken over where the step would become shorter by enough: a
// step takes as long as its slowest replica.
void Balancer::decide() {
  std::vector<double> measured(speeds_.size());
  double slowest = 0;
  std::int64_t samples = 0;
  bool known = true;
  for (std::size_t r = 0; r < speeds_.size(); ++r) {
    const double seconds = median(std::exchange(seconds_[r], {}));
    known = known && sizes_[r] > 0 && seconds > 0;
    slowest = std::max(slowest, seconds);
    samples += sizes_[r];
    measured[r] = seconds > 0 ? static_cast<double>(sizes_[r]) / seconds : 0;
  }
  if (!known) return;
  const std::int64_t parts = options_.fractions * std::ssize(speeds_);
  const std::vector<Piece> better =
      split_by_speed(samples, measured, std::max<std::int64_t>(1, samples / parts));
  double then = 0;
  for (std::size_t r = 0; r < speeds_.size(); ++r) {
    then = std::max(then, static_cast<double>(better[r].size()) / measured[r]);
  }
  if (then < slowest * (1 - options_.worth)) speeds_ = std::move(measured);
}

}  // namespace lockstep

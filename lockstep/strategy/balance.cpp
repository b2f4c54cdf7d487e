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

Balancer::Sizes Balancer::sizes_of(std::span<const Piece> pieces) {
  Sizes sizes;
  for (const Piece& piece : pieces) sizes.push_back(piece.size());
  return sizes;
}

std::vector<Piece> Balancer::split_by(std::span<const double> speeds, std::int64_t samples) const {
  const std::int64_t parts = options_.fractions * std::ssize(speeds);
  return split_by_speed(samples, speeds, std::max<std::int64_t>(1, samples / parts));
}

std::vector<Piece> Balancer::split(std::int64_t samples) const {
  const bool alike = std::ranges::all_of(speeds_, [&](double s) { return s == speeds_.front(); });
  if (alike) return split_evenly(samples, static_cast<int>(speeds_.size()));
  return split_by(speeds_, samples);
}

void Balancer::planned(std::span<const Piece> pieces, double seconds) {
  cost_ = cost_ > 0 ? std::min(cost_, seconds) : seconds;  // the first makes more than a plan
  std::erase(known_, sizes_of(pieces));
  known_.push_front(sizes_of(pieces));
  if (known_.size() > options_.known) known_.pop_back();
}

void Balancer::observe(std::span<const Piece> pieces, std::span<const double> seconds) {
  ensure(pieces.size() == speeds_.size() && seconds.size() == speeds_.size(),
         "{} pieces and {} times of {} replicas", pieces.size(), seconds.size(), speeds_.size());
  Sizes sizes = sizes_of(pieces);
  if (sizes != sizes_) {
    sizes_ = std::move(sizes);
    for (std::vector<double>& list : seconds_) list.clear();
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
  const std::vector<Piece> better = split_by(measured, samples);
  double then = 0;
  for (std::size_t r = 0; r < speeds_.size(); ++r) {
    then = std::max(then, static_cast<double>(better[r].size()) / measured[r]);
  }
  if (then >= slowest * (1 - options_.worth)) {
    lost_ = 0;
    return;
  }
  lost_ += (slowest - then) * options_.window;
  const bool is_planned = std::ranges::count(known_, sizes_of(better)) > 0;
  if (!is_planned && lost_ < cost_) return;
  speeds_ = std::move(measured);
  lost_ = 0;
}

}  // namespace lockstep

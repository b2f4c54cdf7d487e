#include "lockstep/distribute/balance.h"

#include <algorithm>
#include <numeric>

#include "lockstep/base/error.h"

namespace lockstep {
namespace {

double median(std::vector<double> values) {
  const auto middle = values.begin() + std::ssize(values) / 2;
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

std::int64_t total(std::span<const std::int64_t> sizes) {
  return std::accumulate(sizes.begin(), sizes.end(), std::int64_t{0});
}

// How long a step takes: as long as its slowest replica.
double step_time(std::span<const std::int64_t> sizes, std::span<const double> speeds) {
  double slowest = 0;
  for (std::size_t r = 0; r < sizes.size(); ++r) {
    slowest = std::max(slowest, static_cast<double>(sizes[r]) / speeds[r]);
  }
  return slowest;
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
  if (chosen_.empty()) return split_evenly(samples, static_cast<int>(speeds_.size()));
  if (total(chosen_) == samples) return in_a_row(chosen_);
  const std::vector<double> shares(chosen_.begin(), chosen_.end());
  return split_by(shares, samples);
}

void Balancer::planned(std::span<const Piece> pieces, double seconds) {
  cost_ = cost_ > 0 ? std::min(cost_, seconds) : seconds;  // the first includes more than planning
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

// Of the splits that are planned, the one with the shortest step; none if there is none.
const Balancer::Sizes* Balancer::best_known(std::int64_t samples,
                                            std::span<const double> speeds) const {
  const Sizes* best = nullptr;
  for (const Sizes& sizes : known_) {
    const bool empty = std::ranges::any_of(sizes, [](std::int64_t size) { return size == 0; });
    if (empty || total(sizes) != samples) continue;  // a replica without samples shows no speed
    if (best == nullptr || step_time(sizes, speeds) < step_time(*best, speeds)) best = &sizes;
  }
  return best;
}

// Takes speeds from the window's medians and computes the split that follows from them. A split
// that makes the step enough shorter is used: at once if it is planned, otherwise when the time
// lost without it has paid for its plan.
void Balancer::decide() {
  std::vector<double> measured(speeds_.size());
  std::int64_t samples = 0;
  bool known = true;
  for (std::size_t r = 0; r < speeds_.size(); ++r) {
    const double seconds = median(std::exchange(seconds_[r], {}));
    known = known && sizes_[r] > 0 && seconds > 0;
    samples += sizes_[r];
    measured[r] = seconds > 0 ? static_cast<double>(sizes_[r]) / seconds : 0;
  }
  if (!known) return;
  const double now = step_time(sizes_, measured);
  const auto worth = [&](double then) { return then < now * (1 - options_.worth); };
  Sizes next = sizes_of(split_by(measured, samples));
  const double best = step_time(next, measured);
  const Sizes* const planned = best_known(samples, measured);
  const double planned_time = planned != nullptr ? step_time(*planned, measured) : now;
  lost_ = worth(best) ? lost_ + (now - best) * options_.window : 0;
  if (planned_time <= best * (1 + options_.near) || lost_ < cost_) {
    if (planned == nullptr || !worth(planned_time)) return;
    next = *planned;
  } else if (!worth(best)) {
    return;
  }
  speeds_ = std::move(measured);
  const bool even = std::ranges::all_of(next, [&](std::int64_t size) { return size == next[0]; });
  chosen_ = even ? Sizes() : std::move(next);
  lost_ = 0;
}

}  // namespace lockstep

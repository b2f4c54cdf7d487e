#include "lockstep/train/noise_sampler.h"

#include <algorithm>
#include <utility>
#include <vector>

namespace lockstep {
namespace {

constexpr double kMostOfTime = 0.01;
// What the first sample is expected to cost, in steps: the gradients of two halves, and some more.
constexpr double kFirstCost = 2;
// Plain steps are compared with those just before: of another load on the machine, or none since
// the last sample, they would make samples seem too cheap.
constexpr std::size_t kRecentPlainSteps = 9;
constexpr std::size_t kFewestPlainSteps = 5;
constexpr int kPlainStepsBetween = 4;
constexpr std::int64_t kRecentCosts = 100;  // of which the mean is taken

}  // namespace

double NoiseSampler::plain_step() const {
  std::vector<double> sorted(plain_.begin(), plain_.end());
  const auto middle = sorted.begin() + std::ssize(sorted) / 2;
  std::ranges::nth_element(sorted, middle);
  return *middle;
}

bool NoiseSampler::due(std::int64_t step, bool compiled) const {
  if (every_) return *every_ > 0 && step % *every_ == 0;
  if (plain_since_ < kPlainStepsBetween || plain_.size() < kFewestPlainSteps) return false;
  const double cost = cost_ ? std::max(*cost_, 0.0) : kFirstCost * plain_step();
  const double compile = compiled ? 0.0 : plain_compile_;
  return spent_ + cost + compile <= kMostOfTime * elapsed_;
}

void NoiseSampler::compiled_sample(double seconds) {
  spent_ += seconds;
  elapsed_ += seconds;
  first_run_ = true;
}

void NoiseSampler::sample_took(double seconds) {
  spend(seconds);
}

void NoiseSampler::spend(double seconds) {
  if (std::exchange(first_run_, false)) {
    cost_ = cost_.value_or(seconds);  // until a usual one is known
  } else {
    const double mean = costs_ > 0 ? cost_.value_or(0.0) : 0.0;
    costs_ = std::min(costs_ + 1, kRecentCosts);
    cost_ = mean + (seconds - mean) / static_cast<double>(costs_);
  }
  spent_ += std::max({seconds, *cost_, 0.0});
}

void NoiseSampler::step_took(double seconds, Step kind) {
  elapsed_ += seconds;
  if (kind != Step::Plain) plain_since_ = 0;
  if (kind == Step::WithNorms) {
    with_norms_ = seconds;
    return;
  }
  if (with_norms_) {
    const double both = *std::exchange(with_norms_, std::nullopt) + seconds;
    if (!plain_.empty()) spend(both - 2 * plain_step());
    return;
  }
  if (kind == Step::BesideSample) return;
  ++plain_since_;
  plain_.push_back(seconds);
  if (plain_.size() > kRecentPlainSteps) plain_.pop_front();
}

}  // namespace lockstep

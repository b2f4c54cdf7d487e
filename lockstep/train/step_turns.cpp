#include "lockstep/train/step_turns.h"

#include <algorithm>

#include "lockstep/device/cpu/memory.h"
#include "lockstep/device/cuda/cuda_device.h"

namespace lockstep {
namespace {

constexpr double kLongStep = 0.25;  // seconds

// Whether plans of so many replicas fit beside one another, with room to spare.
bool fits(World& world, const StepPlans& plans, int copies) {
  const std::size_t needed = plans.bytes_on(world.device(0), 0).total();
  if (is_gpu(world)) return needed < free_gpu_bytes(world.device(0)) / 2;
  return needed * static_cast<std::size_t>(copies) < available_memory() / 2;
}

void set_seconds(std::vector<MeasuredInstruction>& instructions,
                 const std::vector<double>& seconds) {
  for (std::size_t i = 0; i < instructions.size(); ++i) {
    if (instructions[i].collective.empty()) instructions[i].seconds.fixed = seconds[i];
  }
}

std::vector<double> each_of(SoloStep& step, int steps) {
  std::vector<double> times;
  for (int i = 0; i < steps; ++i) {
    const std::int64_t begin = now_ns();
    step.run();
    times.push_back(seconds_from(begin));
  }
  return times;
}
// The host only issues the steps: a few at a time, up to the end of the last one.
std::vector<double> mean_of(SoloStep& step, int steps) {
  constexpr int kAtOnce = 5;
  std::vector<double> times;
  for (int done = 0; done < steps; done += kAtOnce) {
    const std::int64_t begin = now_ns();
    for (int i = 0; i < kAtOnce; ++i) step.run();
    step.wait();
    times.push_back(seconds_from(begin) / kAtOnce);
  }
  return times;
}

}  // namespace

double median_of(std::vector<double> values) {
  if (values.empty()) return 0;
  std::ranges::sort(values);
  const std::size_t half = values.size() / 2;
  return values.size() % 2 == 1 ? values[half] : (values[half - 1] + values[half]) / 2;
}

double seconds_from(std::int64_t begin_ns) {
  return static_cast<double>(now_ns() - begin_ns) * 1e-9;
}

bool is_gpu(World& world) {
  return names_cuda(world.device(0).name());
}

Turns::Turns(World& world, int copies, const StepRecipe& recipe, const ModelStep& step,
             std::int64_t samples, const SoloOptions& options)
    : world_(world), samples_(samples), copies_(copies), ranks_(options.ranks) {
  for (int local = 0; local < copies; ++local) {
    plans_.push_back(solo_plans(world, local, recipe, step, samples, options));
  }
  const StepPlans& first = plans_.front();
  plan_bytes_ = static_cast<double>(first.bytes_on(world.device(0), 0).total());
  last_ = instructions_of(first.step.front());
  if (!first.kinds.empty()) earlier_ = instructions_of(first.kinds.front().front());
  earlier_times_ = std::ssize(first.turns);
  measured_ = micro_batched(earlier_, earlier_times_, last_);
  fits_ = fits(world, first, copies);
  seed_ = recipe.seed;
}

Turns::~Turns() {
  on_ranks([&](std::size_t i) { steps_[i].reset(); });
}

double Turns::begin() {
  steps_.resize(plans_.size());
  on_ranks([&](std::size_t i) {
    steps_[i] = std::make_unique<SoloStep>(world_, static_cast<int>(i), std::move(plans_[i]), seed_,
                                           ranks_);
    steps_[i]->run();
    steps_[i]->wait();
  });
  const std::int64_t begin = now_ns();
  on_ranks([&](std::size_t i) {
    steps_[i]->run();
    steps_[i]->wait();
  });
  return seconds_from(begin);
}

void Turns::turn(int steps) {
  const bool warms_up = all_.empty() || all_.back() < kLongStep;
  std::vector<std::vector<double>> times(steps_.size());
  on_ranks([&](std::size_t i) {
    if (warms_up) steps_[i]->run();
    steps_[i]->wait();
    times[i] = is_gpu(world_) ? mean_of(*steps_[i], steps) : each_of(*steps_[i], steps);
  });
  std::vector<double> medians;
  for (const std::vector<double>& each : times) {
    medians.push_back(median_of(each));
    all_.insert(all_.end(), each.begin(), each.end());
    for (const double time : each) relative_.push_back(time / medians.back());
  }
  turns_.push_back(median_of(medians));
}

std::vector<double> Turns::jitter() const {
  // A turn of a few steps says little about its own median.
  std::vector<double> values = relative_;
  if (relative_.size() < 5 * turns_.size()) {
    values = all_;
    const double whole = seconds();
    for (double& value : values) value /= whole;
  }
  std::ranges::sort(values);
  return values;
}

std::vector<double> Turns::instruction_seconds() {
  std::vector<double> of_last, of_earlier;
  on_ranks([&](std::size_t i) {
    if (i != 0) return;
    of_last = steps_[0]->instruction_seconds();
    of_earlier = steps_[0]->earlier_seconds();
  });
  set_seconds(last_, of_last);
  set_seconds(earlier_, of_earlier);
  std::vector<double> seconds;
  double sum = 0;
  for (const MeasuredInstruction& each : micro_batched(earlier_, earlier_times_, last_)) {
    seconds.push_back(each.seconds.fixed);
    sum += seconds.back();
  }
  const double factor = sum > 0 ? this->seconds() / sum : 0;
  for (double& each : seconds) each *= factor;
  return seconds;
}

}  // namespace lockstep

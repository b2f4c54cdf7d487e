// What measuring the gradient noise scale costs: fit with it and without it, in turns.
//
//   noise_bench [seconds per run = 20] [replicas = 2] [batch per replica = 64]
//
// Prints the step of each (medians over rounds of a run's mean, with all that belongs to it), and
// what the sampler itself accounts for, which must be at most 1%.
#include <fmt/core.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <string>
#include <vector>

#include "lockstep/base/random.h"
#include "lockstep/lockstep.h"

namespace lockstep {
namespace {

constexpr int kRounds = 3;

double median(std::vector<double> values) {
  std::ranges::sort(values);
  return values[values.size() / 2];
}

Sequential make_lenet() {
  return Sequential(
      {Conv2D({.filters = 32, .kernel_size = 3, .padding = "same", .activation = "relu"}),
       MaxPooling2D(),
       Conv2D({.filters = 64, .kernel_size = 3, .padding = "same", .activation = "relu"}),
       MaxPooling2D(), Flatten(), Dense({.units = 128, .activation = "relu"}),
       Dense({.units = 10})});
}

Dataset make_batches(std::int64_t batch) {
  const std::int64_t samples = 8 * batch;
  Tensor x(DType::F32, {samples, 28, 28, 1});
  Tensor y(DType::I32, {samples});
  RandomSequence random(1, 2);
  for (float& value : x.values<float>()) value = random.uniform();
  for (std::int32_t& label : y.values<std::int32_t>()) {
    label = static_cast<std::int32_t>(random.below(10));
  }
  return Dataset::from_tensor_slices({x, y}).batch(batch).repeat().prefetch();
}

struct Run {
  double step_ms = 0;
  History history;
};

Run train(int replicas, const Dataset& batches, double seconds, std::optional<std::int64_t> every) {
  std::vector<std::string> devices;
  for (int r = 0; r < replicas; ++r) devices.push_back("cpu:" + std::to_string(r));
  Sequential model = make_lenet();
  model.compile({.strategy = MirroredStrategy({.devices = devices}),
                 .optimizer = Adam(1e-3),
                 .loss = SparseCategoricalCrossentropy({.from_logits = true})});
  using Clock = std::chrono::steady_clock;
  std::optional<Clock::time_point> begin;
  const CallbackRef first = LambdaCallback({.on_batch_end = [&](auto&, auto, auto&) {
    if (!begin) begin = Clock::now();
  }});
  const auto elapsed = [&] {
    return begin ? std::chrono::duration<double>(Clock::now() - *begin).count() : 0.0;
  };
  Run run;
  run.history = model.fit(batches, {.steps_per_epoch = 1'000'000'000,
                                    .verbose = 0,
                                    .callbacks = {first},
                                    .noise_scale_every = every,
                                    .interrupted = [&] { return elapsed() >= seconds; }});
  run.step_ms = 1e3 * elapsed() / static_cast<double>(run.history.steps - 1);
  return run;
}

void compare(double seconds, int replicas, std::int64_t per_replica) {
  const Dataset batches = make_batches(per_replica * replicas);
  std::vector<double> off, automatic, accounted;
  for (int round = 0; round < kRounds; ++round) {
    off.push_back(train(replicas, batches, seconds, 0).step_ms);
    const Run run = train(replicas, batches, seconds, std::nullopt);
    automatic.push_back(run.step_ms);
    accounted.push_back(100 * run.history.noise_scale_seconds / run.history.seconds);
    const auto& noise = run.history.noise_scale;
    fmt::print("{} steps, {} sampled, {:.2f}% of the time accounted\n", run.history.steps,
               noise ? noise->samples : 0, accounted.back());
  }
  fmt::print(
      "{} replica(s), batch {}: step {:.3f} ms without, {:.3f} ms with ({:+.2f}%); "
      "accounted {:.2f}%\n",
      replicas, per_replica * replicas, median(off), median(automatic),
      100 * (median(automatic) / median(off) - 1), median(accounted));
}

}  // namespace
}  // namespace lockstep

int main(int argc, char** argv) {
  const double seconds = argc > 1 ? std::atof(argv[1]) : 20.0;
  const int replicas = argc > 2 ? std::atoi(argv[2]) : 2;
  const std::int64_t batch = argc > 3 ? std::atoll(argv[3]) : 64;
  lockstep::compare(seconds, replicas, batch);
}

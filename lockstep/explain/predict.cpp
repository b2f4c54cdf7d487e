#include "lockstep/explain/predict.h"

#include <algorithm>

#include "lockstep/explain/what_if.h"

namespace lockstep {

BucketSizes predicted_buckets(const MeasuredStep& step, const Scenario& scenario) {
  constexpr double kSmall = 64;
  constexpr double kLarge = 1 << 20;
  const auto seconds = [&](double bytes) {
    const MeasuredInstruction sum{.name = "probe",
                                  .op = "all_reduce",
                                  .stream = kCommunicationStream,
                                  .collective = "all_reduce",
                                  .wire_bytes = static_cast<std::int64_t>(bytes)};
    return collective_seconds(step, sum, scenario).total;
  };
  const double latency = std::max(seconds(kSmall), 1e-7);
  const double transfer = std::max(seconds(kLarge) - seconds(kSmall), 1e-7);
  return choose_bucket_sizes({}, {.latency_s = latency, .bytes_per_s = kLarge / transfer});
}

SimulatedStep predict(const MeasuredStep& step, const Scenario& scenario) {
  const bool one_host = scenario.replicas <= scenario.per_host;
  const bool as_measured = scenario.replicas == 1 || (one_host && step.device != "cuda");
  if (as_measured) return simulate(step, scenario);
  SimulatedStep result = simulate(with_buckets(step, predicted_buckets(step, scenario)), scenario);
  // One replica alone has no buckets to cut.
  Scenario alone = scenario;
  alone.replicas = 1;
  alone.straggler = 1;
  result.efficiency = simulate(step, alone).step_s / result.step_s;
  return result;
}

}  // namespace lockstep

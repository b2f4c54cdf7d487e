// Helpers for tests with several replicas: strategies of n logical CPUs, samples, and a record of
// the losses.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "lockstep/base/random.h"
#include "lockstep/lockstep.h"
#include "train/worker.h"

namespace lockstep::testing {

// Replicas on as many logical CPUs. Where the test runs as one of several workers, this one has a
// part of them.
inline Strategy mirrored(int replicas, MirroredOptions options = {}) {
  options.check_replicas_every = 1;
  const TestWorker* const worker = TestWorker::current();
  if (worker != nullptr && !worker->gpu().empty()) {
    options.cuda.allow_tf32 = false;
    if (replicas == 1) options.devices = {worker->gpu()};
    if (replicas == 1) return MirroredStrategy(options);
  }
  if (worker != nullptr && replicas > 1) return worker->strategy(replicas, options);
  for (int r = 0; r < replicas; ++r) options.devices.push_back("cpu:" + std::to_string(r));
  return MirroredStrategy(options);
}

// The replicas of this process, by their numbers in the job; all of them where it is alone.
inline std::vector<int> replicas_here(const Strategy& strategy) {
  const World& world = *impl_of(strategy).world;
  std::vector<int> numbers;
  for (int local = 0; local < world.local_size(); ++local) numbers.push_back(world.rank(local));
  return numbers;
}

// Of one value per replica of the job, those of the replicas here: what a custom loop gives to run
// and gets from it are values of its own process's replicas, as in tf.distribute.
inline PerReplica values_here(const Strategy& strategy, const std::vector<Tensor>& all) {
  std::vector<Tensor> here;
  for (const int r : replicas_here(strategy)) here.push_back(all[static_cast<std::size_t>(r)]);
  return PerReplica(std::move(here));
}

struct Samples {
  Tensor x, y, weight;
};

// Images of noise with a bright patch whose position is the class; weights between 0.5 and 1.5.
inline Samples make_samples(std::int64_t count, std::int64_t side = 12, std::int64_t classes = 4) {
  RandomSequence random(7, 3);
  Samples samples{Tensor(DType::F32, {count, side, side, 1}), Tensor(DType::I32, {count}),
                  Tensor(DType::F32, {count})};
  const std::span<float> x = samples.x.values<float>();
  for (float& value : x) value = random.uniform() - 0.5f;
  for (std::int64_t n = 0; n < count; ++n) {
    const auto label = static_cast<std::int32_t>(random.below(static_cast<std::uint64_t>(classes)));
    samples.y.values<std::int32_t>()[static_cast<std::size_t>(n)] = label;
    samples.weight.values<float>()[static_cast<std::size_t>(n)] = 0.5f + random.uniform();
    for (std::int64_t i = 0; i < side * 2; ++i) {
      x[static_cast<std::size_t>((n * side + label * 2) * side + i)] += 1.0f;
    }
  }
  return samples;
}

// Records the loss of every step.
struct LossesOf {
  std::vector<double> losses;
  CallbackRef callback() {
    return LambdaCallback({.on_batch_end = [this](Model&, std::int64_t, const BatchLogs& logs) {
      losses.push_back(logs.loss());
    }});
  }
};

inline std::vector<std::vector<float>> weights_of(const Model& model) {
  std::vector<std::vector<float>> all;
  for (const VariableRef& variable : model.variables()) {
    const Tensor value = model.value(variable);
    const std::span<const float> values = value.values<float>();
    all.emplace_back(values.begin(), values.end());
  }
  return all;
}

}  // namespace lockstep::testing

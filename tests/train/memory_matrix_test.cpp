// Everything that saves memory, together: precision × accumulation × recomputation × sharding ×
// replicas and workers, on a small CNN and a small network with embeddings and layer norms. Every
// combination gives the losses of a plain run within the tolerance of its precision.
//
// The tests run a set in which every pair of settings occurs at least twice. All combinations:
//   LOCKSTEP_MEMORY_MATRIX=all build/ci/bin/train_test --gtest_filter='*MemoryMatrix*'
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <cstdlib>
#include <map>
#include <string>
#include <vector>

#include "train/replica_runs.h"
#include "train/worker_processes.h"

namespace lockstep::testing {
namespace {

constexpr std::array<std::string_view, 3> kPrecisions = {"float32", "mixed_bfloat16",
                                                         "mixed_float16"};
constexpr std::array<double, 3> kTolerances = {2e-5, 3e-2, 5e-3};  // of a loss near 1
constexpr std::array<int, 2> kAccumulations = {1, 4};
constexpr std::array<std::string_view, 3> kRecomputations = {"none", "blocks", "auto"};
constexpr std::array<int, 3> kReplicas = {1, 2, 4};  // the fourth choice: two workers
constexpr std::size_t kTwoWorkers = 3;
constexpr std::array<std::string_view, 2> kModels = {"cnn", "embeddings"};
constexpr std::array<std::size_t, 6> kChoices = {kPrecisions.size(),
                                                 kAccumulations.size(),
                                                 kRecomputations.size(),
                                                 4,  // ZeRO 0 to 3
                                                 kReplicas.size() + 1,
                                                 kModels.size()};

// A choice for each of: precision, accumulation, recomputation, sharding, replicas, model.
using Combination = std::array<std::size_t, kChoices.size()>;

std::vector<Combination> all_combinations() {
  std::vector<Combination> all = {{}};
  for (std::size_t factor = 0; factor < kChoices.size(); ++factor) {
    std::vector<Combination> longer;
    for (const Combination& each : all) {
      for (std::size_t choice = 0; choice < kChoices[factor]; ++choice) {
        longer.push_back(each);
        longer.back()[factor] = choice;
      }
    }
    all = std::move(longer);
  }
  return all;
}

using Pair = std::array<std::size_t, 4>;  // two factors and their choices

std::vector<Pair> pairs_of(const Combination& each) {
  std::vector<Pair> pairs;
  for (std::size_t a = 0; a < each.size(); ++a) {
    for (std::size_t b = a + 1; b < each.size(); ++b) pairs.push_back({a, each[a], b, each[b]});
  }
  return pairs;
}

// Greedily: always the combination with most pairs that have not occurred often enough.
std::vector<Combination> pairwise(int times) {
  const std::vector<Combination> all = all_combinations();
  std::map<Pair, int> missing;
  for (const Combination& each : all) {
    for (const Pair& pair : pairs_of(each)) missing[pair] = times;
  }
  std::vector<Combination> chosen;
  while (true) {
    const Combination* best = nullptr;
    int most = 0;
    for (const Combination& each : all) {
      if (std::ranges::count(chosen, each) > 0) continue;
      int gain = 0;
      for (const Pair& pair : pairs_of(each)) gain += missing[pair];
      if (gain > most) {
        most = gain;
        best = &each;
      }
    }
    if (best == nullptr) return chosen;
    chosen.push_back(*best);
    for (const Pair& pair : pairs_of(*best)) missing[pair] = std::max(0, missing[pair] - 1);
  }
}

std::vector<Combination> combinations_to_try() {
  const char* const wanted = std::getenv("LOCKSTEP_MEMORY_MATRIX");
  return wanted != nullptr && std::string(wanted) == "all" ? all_combinations() : pairwise(2);
}

std::string name_of_combination(const Combination& each) {
  return fmt::format("{}_accumulate{}_{}_zero{}_{}_{}", kPrecisions[each[0]],
                     kAccumulations[each[1]], kRecomputations[each[2]], each[3],
                     each[4] == kTwoWorkers ? std::string("2workers")
                                            : fmt::format("{}replicas", kReplicas[each[4]]),
                     kModels[each[5]]);
}

constexpr std::int64_t kMatrixSamples = 26;  // the last batch is short
constexpr std::int64_t kMatrixBatch = 10;    // uneven over four replicas, and over micro-batches

Samples matrix_samples(std::size_t model) {
  Samples samples = make_samples(kMatrixSamples);
  if (model == 0) return samples;
  Tensor words(DType::I32, {kMatrixSamples, 6});
  RandomSequence random(3, 5);
  for (std::int64_t n = 0; n < kMatrixSamples; ++n) {
    for (std::int64_t t = 0; t < 6; ++t) {
      words.values<std::int32_t>()[static_cast<std::size_t>(n * 6 + t)] =
          samples.y.values<std::int32_t>()[static_cast<std::size_t>(n)] * 4 +
          static_cast<std::int32_t>(random.below(8));
    }
  }
  samples.x = words;
  return samples;
}

Sequential matrix_model(std::size_t model) {
  if (model == 0) {
    return Sequential({Conv2D(8, 3, {.activation = "relu"}), MaxPooling2D(),
                       Conv2D(8, 3, {.activation = "relu"}), Dropout(0.2), Flatten(), Dense(4)});
  }
  return Sequential({Embedding(24, 8), LayerNormalization(), Dense(16, {.activation = "gelu"}),
                     LayerNormalization(), Flatten(), Dense(4)});
}

std::vector<double> matrix_losses(const Combination& each, const Strategy& strategy) {
  Sequential model = matrix_model(each[5]);
  model.compile({.strategy = strategy,
                 .optimizer = Adam(3e-3),
                 .loss = SparseCategoricalCrossentropy({.from_logits = true}),
                 .precision = std::string(kPrecisions[each[0]]),
                 .loss_scale = {.initial = 256},  // no step overflows
                 .accumulate = kAccumulations[each[1]],
                 .recompute = std::string(kRecomputations[each[2]]),
                 .shard = static_cast<int>(each[3]),
                 .seed = 11});
  const Samples samples = matrix_samples(each[5]);
  LossesOf losses;
  model.fit(Dataset::from_tensor_slices({samples.x, samples.y}).batch(kMatrixBatch),
            {.epochs = 2, .verbose = 0, .callbacks = {losses.callback()}});
  return losses.losses;
}

class MemoryMatrix : public ::testing::TestWithParam<Combination> {};

TEST_P(MemoryMatrix, GivesTheLossesOfThePlainRun) {
  const Combination& each = GetParam();
  if (each[4] == kTwoWorkers && TestWorker::current() == nullptr) {
    expect_success("*MemoryMatrix.*/" + name_of_combination(each), 2);
    return;
  }
  Combination plain{};
  plain[5] = each[5];
  const std::vector<double> expected = matrix_losses(plain, mirrored(1));
  const int replicas = each[4] == kTwoWorkers ? 2 : kReplicas[each[4]];
  const std::vector<double> losses = matrix_losses(each, mirrored(replicas));
  ASSERT_EQ(losses.size(), expected.size());
  EXPECT_LT(expected.back(), expected.front());
  for (std::size_t i = 0; i < losses.size(); ++i) {
    EXPECT_NEAR(losses[i], expected[i], kTolerances[each[0]] * (1 + std::abs(expected[i])))
        << "step " << i;
  }
}

INSTANTIATE_TEST_SUITE_P(, MemoryMatrix, ::testing::ValuesIn(combinations_to_try()),
                         [](const auto& info) { return name_of_combination(info.param); });

}  // namespace
}  // namespace lockstep::testing

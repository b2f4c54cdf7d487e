// The gradient noise scale on the GPU: that of the CPU, without changing a bit of training.
#include <cmath>

#include "gpu/gpu.h"
#include "lockstep/lockstep.h"
#include "temporary_folder.h"
#include "train/parts.h"
#include "train/replica_runs.h"

namespace lockstep::testing {
namespace {

Sequential noise_cnn() {
  return Sequential({Conv2D({.filters = 6, .kernel_size = 3, .activation = "relu"}),
                     BatchNormalization(), MaxPooling2D({.pool_size = 2}), Flatten(),
                     Dense({.units = 16, .activation = "relu"}), Dropout({.rate = 0.2}),
                     Dense({.units = 4})});
}

struct SampledRun {
  std::vector<double> losses;
  std::vector<std::vector<float>> weights;
  std::optional<NoiseScale> noise;
};

struct NoiseCase {
  std::vector<std::string> devices;
  std::string precision = "float32";
  double rate = 0.01;
};

// `plan_cache` is a file that keeps measured choices of algorithms, so that they never change.
SampledRun train_sampled(const NoiseCase& how, std::int64_t every, const std::string& plan_cache) {
  const Samples samples = make_samples(270);
  Sequential model = noise_cnn();
  LossesOf losses;
  model.compile(
      {.strategy = MirroredStrategy({.devices = how.devices,
                                     .check_replicas_every = 1,
                                     .cuda = {.allow_tf32 = false, .plan_cache = plan_cache}}),
       .optimizer = Adam({.learning_rate = how.rate}),
       .loss = SparseCategoricalCrossentropy({.from_logits = true}),
       .precision = how.precision,
       .seed = 5});
  // Batches of 41: the last has 24.
  const History history = model.fit({samples.x}, samples.y,
                                    {.epochs = 3,
                                     .callbacks = {losses.callback()},
                                     .noise_scale_every = every,
                                     .batch_size = 41,
                                     .shuffle = false});
  return {.losses = losses.losses, .weights = weights_of(model), .noise = history.noise_scale};
}

class GpuNoiseScale : public ::testing::TestWithParam<NoiseCase> {};

TEST_P(GpuNoiseScale, ChangesNoBitOfTraining) {
  LOCKSTEP_NEEDS_GPU();
  const TemporaryFolder folder;
  const std::string plans = folder / "plans";
  const SampledRun plain = train_sampled(GetParam(), 0, plans);
  for (const std::int64_t every : {1, 3}) {
    const SampledRun sampled = train_sampled(GetParam(), every, plans);
    EXPECT_EQ(sampled.losses, plain.losses) << every;
    EXPECT_EQ(sampled.weights, plain.weights) << every;
    ASSERT_TRUE(sampled.noise) << every;
    EXPECT_GT(sampled.noise->trace, 0);
  }
}

TEST_P(GpuNoiseScale, IsThatOfTheCpu) {
  LOCKSTEP_NEEDS_GPU();
  NoiseCase here = GetParam();
  here.rate = 0.0;
  NoiseCase cpu = {.devices = here.devices.size() == 1 ? std::vector<std::string>{"cpu:0"}
                                                       : std::vector<std::string>{"cpu:0", "cpu:1"},
                   .rate = 0.0};
  const NoiseScale found = train_sampled(here, 1, kept_plans()).noise.value();
  const NoiseScale expected = train_sampled(cpu, 1, "").noise.value();
  const double tolerance = here.precision == "float32" ? 1e-3 : 0.05;
  EXPECT_EQ(found.samples, expected.samples);
  EXPECT_NEAR(found.trace, expected.trace, tolerance * expected.trace);
  EXPECT_NEAR(found.squared_gradient, expected.squared_gradient, tolerance * expected.trace);
}

INSTANTIATE_TEST_SUITE_P(, GpuNoiseScale,
                         ::testing::Values(NoiseCase{{"cuda:0"}},
                                           NoiseCase{{"cuda:0/0", "cuda:0/1"}},
                                           NoiseCase{{"cuda:0"}, "mixed_bfloat16"},
                                           NoiseCase{{"cuda:0/0", "cuda:0/1"}, "mixed_bfloat16"}));

}  // namespace
}  // namespace lockstep::testing

// State of which every replica keeps a slice, on replicas that share a GPU.
#include <gtest/gtest.h>

#include "gpu/gpu.h"
#include "lockstep/train/model_impl.h"
#include "temporary_folder.h"
#include "train/replica_runs.h"

namespace lockstep::testing {
namespace {

struct GpuShardRun {
  std::vector<double> losses;
  std::vector<std::vector<float>> weights;
  std::size_t variable_bytes = 0;
};

// `plans` keeps the choices of algorithms, which are measured, for the runs to be compared.
GpuShardRun train_on_gpu(int shard, int replicas, const Optimizer& optimizer,
                         const std::string& plans, const std::string& precision = "float32") {
  std::vector<std::string> devices;
  for (int r = 0; r < replicas; ++r) devices.push_back(fmt::format("cuda:0/{}", r));
  const Samples samples = make_samples(60);
  Model model = Sequential({Conv2D({.filters = 7, .kernel_size = 3, .activation = "relu"}),
                            BatchNormalization(), MaxPooling2D(), Flatten(),
                            Dense({.units = 19, .activation = "relu"}), Dense({.units = 4})});
  LossesOf losses;
  model.compile({.strategy = MirroredStrategy({.devices = devices,
                                               .buckets = {.first_bytes = 300, .bytes = 2000},
                                               .check_replicas_every = 1,
                                               .cuda = {.allow_tf32 = false, .plan_cache = plans}}),
                 .optimizer = optimizer,
                 .loss = SparseCategoricalCrossentropy({.from_logits = true}),
                 .precision = precision,
                 .shard = shard,
                 .seed = 5});
  const Dataset batches = Dataset::from_tensor_slices({samples.x, samples.y}).batch(20);
  model.fit(batches, {.epochs = 3, .validation_data = batches, .callbacks = {losses.callback()}});
  Batch batch{.inputs = {samples.x}, .labels = samples.y, .sample_weight = {}};
  return {.losses = losses.losses,
          .weights = weights_of(model),
          .variable_bytes = impl_of(model).plan_of(batch.step(StepMode::Train)).variable_bytes};
}

class GpuShard : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(, GpuShard, ::testing::Values(1, 2, 3));

// Replicas that share a GPU add in the order of the ranks. Parameters that are gathered in 16 bits
// are packed: those of odd sizes are less aligned than whole ones, and cuBLASLt multiplies them
// with another algorithm.
TEST_P(GpuShard, TrainsWithTheBitsOfWholeStateInLessMemory) {
  LOCKSTEP_NEEDS_GPU();
  const TemporaryFolder folder;
  const std::string plans = (folder / "plans").string();
  for (const int replicas : {2, 3}) {
    for (const char* precision : {"float32", "mixed_bfloat16", "mixed_float16"}) {
      const GpuShardRun plain = train_on_gpu(0, replicas, Adam(), plans, precision);
      const GpuShardRun sliced = train_on_gpu(GetParam(), replicas, Adam(), plans, precision);
      if (GetParam() == 3 && std::string_view(precision) != "float32") {
        ASSERT_EQ(sliced.losses.size(), plain.losses.size());
        for (std::size_t i = 0; i < plain.losses.size(); ++i) {
          EXPECT_NEAR(sliced.losses[i], plain.losses[i], 1e-2) << precision << " step " << i;
        }
      } else {
        EXPECT_EQ(sliced.losses, plain.losses) << precision;
        EXPECT_TRUE(sliced.weights == plain.weights) << precision;
      }
      EXPECT_LT(sliced.variable_bytes, plain.variable_bytes);
    }
  }
}

TEST_P(GpuShard, NormsAgreeToRounding) {
  LOCKSTEP_NEEDS_GPU();
  const TemporaryFolder folder;
  const std::string plans = (folder / "plans").string();
  using Make = Optimizer (*)();
  for (const Make make : {Make([] { return LARS({.learning_rate = 1.0, .trust = 0.02}); }),
                          Make([] { return LAMB({.learning_rate = 1e-2}); }),
                          Make([] { return Adam({.clipnorm = 0.1}); }),
                          Make([] { return Adam({.global_clipnorm = 0.1}); })}) {
    const GpuShardRun plain = train_on_gpu(0, 2, make(), plans);
    const GpuShardRun sliced = train_on_gpu(GetParam(), 2, make(), plans);
    ASSERT_EQ(plain.losses.size(), sliced.losses.size());
    for (std::size_t i = 0; i < plain.losses.size(); ++i) {
      EXPECT_NEAR(plain.losses[i], sliced.losses[i], 1e-4) << "step " << i;
    }
  }
}

}  // namespace
}  // namespace lockstep::testing

// Recomputation on the GPU: the bits of the step without it, in less of the GPU's memory.
#include "gpu/gpu.h"
#include "lockstep/lockstep.h"
#include "temporary_folder.h"
#include "train/replica_runs.h"

namespace lockstep::testing {
namespace {

struct GpuRecomputedRun {
  std::vector<double> losses;
  std::vector<std::vector<float>> weights;
  std::size_t peak_bytes = 0;
};

// A network whose activations are larger than its parameters.
Model gpu_recompute_network() {
  const Symbol input = Input({.shape = {12, 12, 1}});
  Symbol x = Conv2D({.filters = 16, .padding = "same"})(input);
  for (int n = 0; n < 4; ++n) {
    Symbol y = Conv2D({.filters = 16, .padding = "same"})(x);
    y = Dropout({.rate = 0.2})(Activation("relu")(BatchNormalization()(y)));
    y = BatchNormalization()(Conv2D({.filters = 16, .padding = "same"})(y));
    x = Activation("relu")(Add()({y, x}));
  }
  return Model(input, Dense({.units = 4})(GlobalAveragePooling2D()(x)));
}

GpuRecomputedRun run_on_gpu(const std::vector<std::string>& devices, const std::string& precision,
                            const std::string& plan_cache, const Recompute& recompute) {
  const Samples samples = make_samples(160);
  Model model = gpu_recompute_network();
  LossesOf losses;
  model.compile(
      {.strategy = MirroredStrategy({.devices = devices,
                                     .check_replicas_every = 1,
                                     .cuda = {.allow_tf32 = false, .plan_cache = plan_cache}}),
       .optimizer = Adam({.learning_rate = 0.01}),
       .loss = SparseCategoricalCrossentropy({.from_logits = true}),
       .precision = precision,
       .recompute = recompute,
       .seed = 5});
  const History history = model.fit(
      {samples.x}, samples.y,
      {.epochs = 2, .callbacks = {losses.callback()}, .batch_size = 64, .shuffle = false});
  return {losses.losses, weights_of(model), history.peak_bytes};
}

class GpuRecompute : public ::testing::TestWithParam<std::tuple<const char*, int>> {};

TEST_P(GpuRecompute, GivesTheBitsOfNoneInLessMemory) {
  LOCKSTEP_NEEDS_GPU();
  const auto [precision, replicas] = GetParam();
  const std::vector<std::string> devices = replicas == 1
                                               ? std::vector<std::string>{"cuda:0"}
                                               : std::vector<std::string>{"cuda:0/0", "cuda:0/1"};
  const TemporaryFolder folder;
  const std::string plans = (folder / "plans").string();
  const GpuRecomputedRun plain = run_on_gpu(devices, precision, plans, "none");
  const std::string tight = std::to_string(plain.peak_bytes * 4 / 5) + "B";
  for (const std::string& recompute : {std::string("blocks"), tight}) {
    const GpuRecomputedRun other = run_on_gpu(devices, precision, plans, recompute);
    EXPECT_EQ(other.losses, plain.losses) << recompute;
    EXPECT_EQ(other.weights, plain.weights) << recompute;
    EXPECT_LT(other.peak_bytes, plain.peak_bytes) << recompute;
  }
}

INSTANTIATE_TEST_SUITE_P(Precisions, GpuRecompute,
                         ::testing::Combine(::testing::Values("float32", "mixed_float16",
                                                              "mixed_bfloat16"),
                                            ::testing::Values(1, 2)),
                         [](const auto& name) {
                           return fmt::format("{}_{}", std::get<0>(name.param),
                                              std::get<1>(name.param));
                         });

}  // namespace
}  // namespace lockstep::testing

// Training on the GPU matches the CPU, on one replica or several that share the GPU, and is
// reproducible.
#include <cmath>

#include "gpu/gpu.h"
#include "lockstep/lockstep.h"
#include "temporary_folder.h"
#include "train/parts.h"
#include "train/replica_runs.h"

namespace lockstep::testing {
namespace {

constexpr int kEpochs = 6;

Sequential small_cnn() {
  return Sequential({Conv2D({.filters = 6, .kernel_size = 3, .activation = "relu"}),
                     BatchNormalization({.synchronized = true}), MaxPooling2D({.pool_size = 2}),
                     Flatten(), Dense({.units = 16, .activation = "relu"}), Dropout({.rate = 0.2}),
                     Dense({.units = 4})});
}

struct Trained {
  std::vector<double> losses;
  std::vector<std::vector<float>> weights;
  double accuracy = 0;
};

// `plan_cache` is a file that keeps measured choices of algorithms, so that they never change.
Trained train(const std::vector<std::string>& devices,
              const std::string& plan_cache = kept_plans()) {
  const Samples samples = make_samples(150);
  Sequential model = small_cnn();
  LossesOf losses;
  model.compile(
      {.strategy = MirroredStrategy({.devices = devices,
                                     .check_replicas_every = 1,
                                     .cuda = {.allow_tf32 = false, .plan_cache = plan_cache}}),
       .optimizer = Adam({.learning_rate = 0.01}),
       .loss = SparseCategoricalCrossentropy({.from_logits = true}),
       .metrics = {SparseCategoricalAccuracy()},
       .seed = 5});
  // Batches of 40: the last has 30, which is not divisible by 4.
  const History history = model.fit({samples.x}, samples.y,
                                    {.epochs = kEpochs,
                                     .callbacks = {losses.callback()},
                                     .batch_size = 40,
                                     .shuffle = false,
                                     .sample_weight = samples.weight});
  return {.losses = losses.losses,
          .weights = weights_of(model),
          .accuracy = history.epochs.back().logs.at("sparse_categorical_accuracy")};
}

void expect_close(const Trained& a, const Trained& b, double tolerance) {
  ASSERT_EQ(a.losses.size(), b.losses.size());
  for (std::size_t i = 0; i < a.losses.size(); ++i) {
    EXPECT_NEAR(a.losses[i], b.losses[i], tolerance) << "step " << i;
  }
}

TEST(GpuTraining, LossesMatchTheCpu) {
  LOCKSTEP_NEEDS_GPU();
  const Trained cpu = train({"cpu:0"});
  const Trained gpu = train({"cuda:0"});
  expect_close(gpu, cpu, 1e-4);
  EXPECT_GT(gpu.accuracy, 0.9);
}

// Reading results while the next step is in flight changes no number.
TEST(GpuTraining, RunningAheadGivesTheSameBits) {
  LOCKSTEP_NEEDS_GPU();
  const TemporaryFolder folder;
  const Samples samples = make_samples(150);
  for (const std::vector<std::string>& devices :
       {std::vector<std::string>{"cuda:0"}, std::vector<std::string>{"cuda:0/0", "cuda:0/1"}}) {
    std::vector<double> losses[2];
    std::vector<std::vector<float>> weights[2];
    for (const bool ahead : {false, true}) {
      Sequential model = small_cnn();
      model.compile(
          {.strategy = MirroredStrategy(
               {.devices = devices, .cuda = {.allow_tf32 = false, .plan_cache = folder / "plans"}}),
           .optimizer = Adam({.learning_rate = 0.01}),
           .loss = SparseCategoricalCrossentropy({.from_logits = true}),
           .seed = 5});
      const auto keep = [&](Model&, std::int64_t, const BatchLogs& logs) {
        losses[ahead].push_back(logs.loss());
      };
      const Dataset batches = Dataset::from_tensor_slices({samples.x, samples.y})
                                  .shuffle({.buffer = 150, .seed = 3})
                                  .batch(40)
                                  .prefetch();
      const History history = model.fit(
          batches, {.epochs = kEpochs,
                    .validation_data = batches,
                    .callbacks = {LambdaCallback({.on_batch_end = keep, .needs_sync = !ahead})}});
      weights[ahead] = weights_of(model);
      const Attribution& part = history.attribution;
      EXPECT_EQ(part.communication > 0, devices.size() > 1);
      EXPECT_NEAR(sum_of(part), 1.0, 1e-9);
    }
    EXPECT_EQ(losses[0], losses[1]);
    EXPECT_EQ(weights[0], weights[1]);
  }
}

TEST(GpuTraining, ReplicasThatShareAGpuMatchOne) {
  LOCKSTEP_NEEDS_GPU();
  const Trained one = train({"cuda:0"});
  expect_close(train({"cuda:0/0", "cuda:0/1"}), one, 1e-5);
  expect_close(train({"cuda:0/0", "cuda:0/1", "cuda:0/2", "cuda:0/3"}), one, 1e-5);
}

// Each replica's inputs are copied to the GPU while its last step still waits for the other
// replica: these copies must not block each other.
TEST(GpuTraining, ReplicasThatShareAGpuCopyLargeInputs) {
  LOCKSTEP_NEEDS_GPU();
  constexpr std::int64_t kBatch = 256;
  constexpr int kSteps = 12;
  const Tensor images(DType::F32, {kBatch, 224, 224, 3});  // 77 MB for each
  const Tensor labels(DType::I32, {kBatch});
  Sequential model({AveragePooling2D({.pool_size = 56}), Flatten(), Dense({.units = 10})});
  model.compile(
      {.strategy = MirroredStrategy({.devices = {"cuda:0/0", "cuda:0/1"},
                                     .cuda = {.allow_tf32 = false, .plan_cache = kept_plans()}}),
       .optimizer = SGD(),
       .loss = SparseCategoricalCrossentropy({.from_logits = true})});
  const History history =
      model.fit({images}, labels, {.epochs = kSteps, .batch_size = kBatch, .shuffle = false});
  EXPECT_EQ(history.steps, kSteps);
}

// In a product of 512 terms, rounding operands to ten bits has a visible but small effect.
TEST(GpuTraining, ProductsUseTf32UnlessItIsDisabled) {
  LOCKSTEP_NEEDS_GPU();
  Tensor x(DType::F32, {64, 512});
  for (std::size_t i = 0; i < x.values<float>().size(); ++i) {
    x.values<float>()[i] = std::sin(0.37f * static_cast<float>(i));
  }
  const auto predictions = [&](const MirroredOptions& options) {
    Sequential model({Dense({.units = 256})});
    model.compile({.strategy = MirroredStrategy(options),
                   .optimizer = "sgd",
                   .loss = MeanSquaredError(),
                   .seed = 3});
    return model.predict(x);
  };
  const auto difference = [](const Tensor& a, const Tensor& b) {
    float most = 0;
    for (std::size_t i = 0; i < a.values<float>().size(); ++i) {
      most = std::max(most, std::abs(a.values<float>()[i] - b.values<float>()[i]));
    }
    return most;
  };
  const Tensor cpu = predictions({.devices = {"cpu:0"}});
  const Tensor strict = predictions({.devices = {"cuda:0"}, .cuda = {.allow_tf32 = false}});
  const Tensor by_default = predictions({.devices = {"cuda:0"}});
  EXPECT_LT(difference(cpu, strict), 2e-6);
  EXPECT_GT(difference(cpu, by_default), 2e-5);
  EXPECT_LT(difference(cpu, by_default), 5e-3);
}

TEST(GpuTraining, TwoRunsGiveTheSameBits) {
  LOCKSTEP_NEEDS_GPU();
  const TemporaryFolder folder;
  for (const std::vector<std::string>& devices :
       {std::vector<std::string>{"cuda:0"}, std::vector<std::string>{"cuda:0/0", "cuda:0/1"}}) {
    const Trained first = train(devices, folder / "plans");
    const Trained second = train(devices, folder / "plans");
    EXPECT_EQ(first.losses, second.losses);
    EXPECT_EQ(first.weights, second.weights);
  }
}

// Dense layers only: a batch norm's moving averages are not parameters and would change.
TEST(GpuTraining, ABadLabelLeavesTheParametersUnchanged) {
  LOCKSTEP_NEEDS_GPU();
  Samples samples = make_samples(40);
  Sequential model({Flatten(), Dense({.units = 16, .activation = "relu"}), Dense({.units = 4})});
  model.compile(
      {.strategy = MirroredStrategy(
           {.devices = {"cuda:0"}, .cuda = {.allow_tf32 = false, .plan_cache = kept_plans()}}),
       .optimizer = Adam({.learning_rate = 0.01}),
       .loss = SparseCategoricalCrossentropy({.from_logits = true})});
  model.fit({samples.x}, samples.y, {.batch_size = 10, .shuffle = false});
  const auto before = weights_of(model);
  samples.y.values<std::int32_t>()[3] = -1;
  EXPECT_THROW(model.fit({samples.x}, samples.y, {.batch_size = 10, .shuffle = false}), DataError);
  EXPECT_EQ(weights_of(model), before);
}

TEST(GpuTraining, ABadLabelNamesTheStepAndTrainingCanContinue) {
  LOCKSTEP_NEEDS_GPU();
  Samples samples = make_samples(40);
  Sequential model = small_cnn();
  model.compile(
      {.strategy = MirroredStrategy(
           {.devices = {"cuda:0"}, .cuda = {.allow_tf32 = false, .plan_cache = kept_plans()}}),
       .optimizer = SGD({.learning_rate = 0.01}),
       .loss = SparseCategoricalCrossentropy({.from_logits = true})});
  const std::int32_t right = samples.y.values<std::int32_t>()[25];
  samples.y.values<std::int32_t>()[25] = 9;
  try {
    model.fit({samples.x}, samples.y, {.batch_size = 10, .shuffle = false});
    ADD_FAILURE() << "label 9 of 4 classes went unnoticed";
  } catch (const DataError& error) {
    EXPECT_NE(std::string(error.what()).find("9"), std::string::npos) << error.what();
    EXPECT_NE(std::string(error.what()).find("step 2:"), std::string::npos) << error.what();
  }
  samples.y.values<std::int32_t>()[25] = right;
  EXPECT_NO_THROW(model.fit({samples.x}, samples.y, {.batch_size = 20, .shuffle = false}));
}

}  // namespace
}  // namespace lockstep::testing

// Accumulating over micro-batches on the GPU: what the whole batch gives, in the memory of one
// micro-batch, with steps in flight.
#include <cmath>

#include "gpu/gpu.h"
#include "lockstep/lockstep.h"
#include "train/parts.h"
#include "train/replica_runs.h"

namespace lockstep::testing {
namespace {

Sequential accumulated_cnn(bool normalised) {
  std::vector<Layer> layers = {Conv2D({.filters = 32, .kernel_size = 3, .padding = "same"})};
  if (normalised) layers.emplace_back(BatchNormalization());
  layers.emplace_back(Activation("relu"));
  layers.emplace_back(Conv2D({.filters = 32, .kernel_size = 3, .activation = "relu"}));
  layers.emplace_back(GlobalAveragePooling2D());
  layers.emplace_back(Dropout({.rate = 0.2}));
  layers.emplace_back(Dense({.units = 4}));
  return Sequential(std::move(layers));
}

struct AccumulatedOnGpu {
  std::vector<double> losses;
  std::vector<std::vector<float>> weights;
  History history;
};

struct GpuAccumulation {
  std::vector<std::string> devices = {"cuda:0"};
  std::int64_t accumulate = 1;
  bool normalised = false;
  std::string precision = "float32";
};

AccumulatedOnGpu train_on_gpu(const GpuAccumulation& how) {
  const Samples samples = make_samples(150);
  Sequential model = accumulated_cnn(how.normalised);
  LossesOf losses;
  model.compile(
      {.strategy = MirroredStrategy({.devices = how.devices,
                                     .check_replicas_every = 1,
                                     .cuda = {.allow_tf32 = false, .plan_cache = kept_plans()}}),
       .optimizer = Adam({.learning_rate = 0.01}),
       .loss = SparseCategoricalCrossentropy({.from_logits = true}),
       .precision = how.precision,
       .accumulate = how.accumulate,
       .seed = 5});
  // Batches of 40: the last has 30, which 4 does not divide.
  History history = model.fit({samples.x}, samples.y,
                              {.epochs = 4,
                               .callbacks = {losses.callback()},
                               .batch_size = 40,
                               .shuffle = false,
                               .sample_weight = samples.weight});
  return {.losses = losses.losses, .weights = weights_of(model), .history = std::move(history)};
}

void expect_close_losses(const AccumulatedOnGpu& a, const AccumulatedOnGpu& b, double tolerance) {
  ASSERT_EQ(a.losses.size(), b.losses.size());
  for (std::size_t i = 0; i < a.losses.size(); ++i) {
    EXPECT_NEAR(a.losses[i], b.losses[i], tolerance) << "step " << i;
  }
}

TEST(GpuAccumulate, GivesTheLossesOfTheWholeBatch) {
  LOCKSTEP_NEEDS_GPU();
  const AccumulatedOnGpu whole = train_on_gpu({});
  for (const std::int64_t accumulate : {2, 3, 4}) {
    const AccumulatedOnGpu divided = train_on_gpu({.accumulate = accumulate});
    expect_close_losses(whole, divided, 1e-4);
    EXPECT_LT(divided.history.peak_bytes, whole.history.peak_bytes);
  }
  const AccumulatedOnGpu half = train_on_gpu({.precision = "mixed_float16"});
  expect_close_losses(half, train_on_gpu({.accumulate = 4, .precision = "mixed_float16"}), 2e-2);
}

TEST(GpuAccumulate, WithBatchNormEqualsReplicasOnTheSamePieces) {
  LOCKSTEP_NEEDS_GPU();
  const AccumulatedOnGpu replicas =
      train_on_gpu({.devices = {"cuda:0/0", "cuda:0/1"}, .normalised = true});
  expect_close_losses(replicas, train_on_gpu({.accumulate = 2, .normalised = true}), 1e-4);
  const AccumulatedOnGpu both =
      train_on_gpu({.devices = {"cuda:0/0", "cuda:0/1"}, .accumulate = 2, .normalised = true});
  EXPECT_LT(both.losses.back(), both.losses.front());
}

// Large enough that the products of the second layer's gradient add to the accumulator themselves.
TEST(GpuAccumulate, LargeDenseLayersTrainAsOnTheWholeBatch) {
  LOCKSTEP_NEEDS_GPU();
  const auto train = [](const std::vector<std::string>& devices, std::int64_t accumulate) {
    const Samples samples = make_samples(100);
    Sequential model({Flatten(), Dense({.units = 1200, .activation = "relu"}),
                      Dense({.units = 1024, .activation = "relu"}), Dense({.units = 4})});
    LossesOf losses;
    model.compile(
        {.strategy = MirroredStrategy(
             {.devices = devices, .cuda = {.allow_tf32 = false, .plan_cache = kept_plans()}}),
         .optimizer = SGD({.learning_rate = 0.05}),
         .loss = SparseCategoricalCrossentropy({.from_logits = true}),
         .accumulate = accumulate,
         .seed = 5});
    model.fit({samples.x}, samples.y,
              {.epochs = 4, .callbacks = {losses.callback()}, .batch_size = 40, .shuffle = false});
    return losses.losses;
  };
  const std::vector<double> whole = train({"cuda:0"}, 1);
  for (const std::vector<double>& divided :
       {train({"cuda:0"}, 4), train({"cuda:0/0", "cuda:0/1"}, 3)}) {
    ASSERT_EQ(whole.size(), divided.size());
    for (std::size_t i = 0; i < whole.size(); ++i) EXPECT_NEAR(whole[i], divided[i], 1e-4) << i;
  }
}

TEST(GpuAccumulate, TheSameRunGivesTheSameBits) {
  LOCKSTEP_NEEDS_GPU();
  const AccumulatedOnGpu once = train_on_gpu({.accumulate = 4, .normalised = true});
  const AccumulatedOnGpu again = train_on_gpu({.accumulate = 4, .normalised = true});
  EXPECT_EQ(once.losses, again.losses);
  EXPECT_EQ(once.weights, again.weights);
}

TEST(GpuAccumulate, AnErrorInAMicroBatchNamesItsStep) {
  LOCKSTEP_NEEDS_GPU();
  const Samples samples = make_samples(64);
  for (const std::size_t wrong : {20u, 30u}) {
    Tensor labels = samples.y.clone();
    labels.values<std::int32_t>()[wrong] = 77;
    Sequential model = accumulated_cnn(false);
    model.compile({.strategy = MirroredStrategy({.devices = {"cuda:0"}}),
                   .optimizer = "sgd",
                   .loss = SparseCategoricalCrossentropy({.from_logits = true}),
                   .accumulate = 4});
    std::string message;
    try {
      model.fit({samples.x}, labels, {.epochs = 1, .batch_size = 16, .shuffle = false});
    } catch (const DataError& error) {
      message = error.what();
    }
    EXPECT_TRUE(message.starts_with("[fit] epoch 0, step 1: ")) << message;
    EXPECT_NE(message.find("77"), std::string::npos) << message;
  }
}

TEST(GpuAccumulate, AnAccumulatorTrainsAsLargeBatches) {
  LOCKSTEP_NEEDS_GPU();
  const Samples samples = make_samples(48);
  const auto train = [&](std::int64_t rows) {
    const MirroredStrategy strategy({.devices = {"cuda:0"}, .cuda = {.allow_tf32 = false}});
    Model model = accumulated_cnn(false);
    model.build({12, 12, 1});
    const Optimizer optimizer = SGD({.learning_rate = 0.1});
    Accumulator step(strategy, [&](Value x, Value y) {
      optimizer.apply(gradients(
          sparse_categorical_crossentropy(y, model(x, {.training = true}), {.from_logits = true}),
          model.trainable_variables()));
    });
    for (std::int64_t begin = 0; begin < 48; begin += rows) {
      const Tensor x = samples.x.rows(begin, rows), y = samples.y.rows(begin, rows);
      (begin + rows) % 24 == 0 ? step.update(x, y) : step.add(x, y);
    }
    return weights_of(model);
  };
  const auto whole = train(24), divided = train(8);
  for (std::size_t v = 0; v < whole.size(); ++v) {
    for (std::size_t i = 0; i < whole[v].size(); ++i) {
      ASSERT_NEAR(whole[v][i], divided[v][i], 1e-5) << v;
    }
  }
}

}  // namespace
}  // namespace lockstep::testing

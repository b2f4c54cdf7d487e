// Accumulating over k micro-batches gives what one large batch gives and, with batch norm, what k
// replicas on the same pieces give; in the memory of one micro-batch, with the collectives of one
// step.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "late_device.h"
#include "lockstep/train/model_impl.h"
#include "temporary_folder.h"
#include "train/problem.h"
#include "train/replica_runs.h"

namespace lockstep::testing {
namespace {

struct AccumulateOptions {
  std::int64_t accumulate = 1;
  int replicas = 1;
  std::int64_t batch = 12;
  std::int64_t epochs = 3;
  std::function<Optimizer()> optimizer = [] { return Adam({.learning_rate = 0.01}); };
  std::string precision = "float32";
  Balance balance = Balance::Even;
  bool weighted = true;
  std::int64_t samples = 70;
};

struct Accumulated {
  std::vector<double> losses;
  std::vector<double> epoch_losses;
  std::vector<double> accuracies;
  std::vector<std::vector<float>> weights;
  History history;
};

Accumulated train_accumulating(const std::function<Model()>& make, const AccumulateOptions& how) {
  const Samples samples = make_samples(how.samples);
  std::vector<Tensor> parts = {samples.x, samples.y};
  if (how.weighted) parts.push_back(samples.weight);
  const Dataset batches =
      Dataset::from_tensor_slices(parts).shuffle({.buffer = 70, .seed = 2}).batch(how.batch);
  Model model = make();
  model.compile({.strategy = mirrored(how.replicas, {.balance = how.balance}),
                 .optimizer = how.optimizer(),
                 .loss = SparseCategoricalCrossentropy({.from_logits = true}),
                 .metrics = {SparseCategoricalAccuracy({.name = "accuracy"})},
                 .precision = how.precision,
                 .accumulate = how.accumulate,
                 .seed = 3});
  LossesOf losses;
  History history = model.fit(batches, {.epochs = how.epochs, .callbacks = {losses.callback()}});
  return {.losses = losses.losses,
          .epoch_losses = history.series("loss"),
          .accuracies = history.series("accuracy"),
          .weights = weights_of(model),
          .history = std::move(history)};
}

void expect_same_training(const Accumulated& a, const Accumulated& b, double tolerance) {
  ASSERT_EQ(a.losses.size(), b.losses.size());
  for (std::size_t i = 0; i < a.losses.size(); ++i) {
    EXPECT_NEAR(a.losses[i], b.losses[i], tolerance * (1 + std::abs(a.losses[i]))) << "step " << i;
  }
  for (std::size_t i = 0; i < a.epoch_losses.size(); ++i) {
    EXPECT_NEAR(a.epoch_losses[i], b.epoch_losses[i], tolerance * (1 + a.epoch_losses[i]));
    EXPECT_DOUBLE_EQ(a.accuracies[i], b.accuracies[i]) << "epoch " << i;
  }
  double most = 0;
  for (std::size_t v = 0; v < a.weights.size(); ++v) {
    for (std::size_t i = 0; i < a.weights[v].size(); ++i) {
      most = std::max(most, std::abs(static_cast<double>(a.weights[v][i]) -
                                     static_cast<double>(b.weights[v][i])));
    }
  }
  EXPECT_LT(most, 20 * tolerance);
}

Model accumulate_mlp() {
  return Sequential({Flatten(),
                     Dense({.units = 24, .activation = "relu", .kernel_regularizer = L2(0.01)}),
                     Dropout({.rate = 0.3}), Dense({.units = 4})});
}

Model accumulate_cnn() {
  return Sequential({Conv2D({.filters = 8, .kernel_size = 3, .activation = "relu"}), MaxPooling2D(),
                     Conv2D({.filters = 16, .kernel_size = 3, .activation = "relu"}), Flatten(),
                     Dropout({.rate = 0.25}), Dense({.units = 24, .activation = "relu"}),
                     Dense({.units = 4})});
}

Model accumulate_batch_norm(bool synchronized) {
  const auto norm = [&] { return BatchNormalization({.synchronized = synchronized}); };
  return Sequential({Conv2D({.filters = 8, .padding = "same", .use_bias = false}), norm(),
                     Activation("relu"), MaxPooling2D(), Conv2D({.filters = 8, .use_bias = false}),
                     norm(), Activation("relu"), GlobalAveragePooling2D(), Dense({.units = 4})});
}

class AccumulatingOver : public ::testing::TestWithParam<std::int64_t> {};
INSTANTIATE_TEST_SUITE_P(, AccumulatingOver, ::testing::Values(2, 4, 5, 12, 40));

// The last batch has 10 samples: uneven for 4, and fewer than 12 and 40.
TEST_P(AccumulatingOver, MicroBatchesGivesTheLossesOfTheWholeBatch) {
  for (const auto& make : {accumulate_mlp, accumulate_cnn}) {
    const Accumulated whole = train_accumulating(make, {});
    const Accumulated divided = train_accumulating(make, {.accumulate = GetParam()});
    expect_same_training(whole, divided, 1e-5);
    EXPECT_EQ(divided.history.micro_batches, std::min<std::int64_t>(GetParam(), 12));
    EXPECT_LT(whole.losses.back(), 0.8 * whole.losses.front());
  }
}

TEST(Accumulate, EmbeddingsAndLayerNormsTrainAsOnTheWholeBatch) {
  RandomSequence random(11, 1);
  constexpr std::int64_t kRows = 44;
  Tensor tokens(DType::I32, {kRows, 9});
  Tensor labels(DType::I32, Shape{kRows});
  for (std::int32_t& token : tokens.values<std::int32_t>()) {
    token = static_cast<std::int32_t>(random.below(30));
  }
  for (std::int64_t n = 0; n < kRows; ++n) {
    labels.values<std::int32_t>()[static_cast<std::size_t>(n)] =
        tokens.values<std::int32_t>()[static_cast<std::size_t>(n * 9)] % 3;
  }
  const auto train = [&](std::int64_t accumulate) {
    Sequential model({Embedding({.input_dim = 30, .output_dim = 16}), LayerNormalization(),
                      Flatten(), Dense({.units = 16, .activation = "tanh"}), LayerNormalization(),
                      Dense({.units = 3})});
    model.compile({.optimizer = AdamW({.learning_rate = 0.01}),
                   .loss = SparseCategoricalCrossentropy({.from_logits = true}),
                   .accumulate = accumulate,
                   .seed = 3});
    return model.fit(Dataset::from_tensor_slices({tokens, labels}).batch(11), {.epochs = 4})
        .series("loss");
  };
  const std::vector<double> whole = train(1);
  const std::vector<double> divided = train(4);
  for (std::size_t i = 0; i < whole.size(); ++i) EXPECT_NEAR(whole[i], divided[i], 1e-5);
  EXPECT_LT(whole.back(), whole.front());
}

// Each micro-batch has its own statistics, and moving averages are updated once, with their mean.
TEST(Accumulate, WithBatchNormMicroBatchesEqualReplicasOnTheSamePieces) {
  const auto make = [] { return accumulate_batch_norm(false); };
  for (const std::int64_t batch : {12, 10, 3}) {  // 3: two of five replicas have no samples
    const int pieces = batch == 3 ? 5 : 4;
    const std::int64_t samples = batch == 3 ? 12 : 70;
    const Accumulated replicas =
        train_accumulating(make, {.replicas = pieces, .batch = batch, .samples = samples});
    const Accumulated divided =
        train_accumulating(make, {.accumulate = pieces, .batch = batch, .samples = samples});
    expect_same_training(replicas, divided, 1e-6);
  }
}

TEST(Accumulate, TwoReplicasWithTwoMicroBatchesEqualFourReplicas) {
  const auto make = [] { return accumulate_batch_norm(false); };
  const Accumulated four = train_accumulating(make, {.replicas = 4, .samples = 60});
  const Accumulated two = train_accumulating(make, {.accumulate = 2, .replicas = 2, .samples = 60});
  expect_same_training(four, two, 1e-6);
}

// Synchronised statistics are those of a micro-batch on all replicas: replicas change nothing.
TEST(Accumulate, WithSynchronisedBatchNormReplicasChangeNothing) {
  const auto make = [] { return accumulate_batch_norm(true); };
  const Accumulated one = train_accumulating(make, {.accumulate = 3, .batch = 36, .samples = 72});
  // The micro-batches of two replicas together are other rows than those of one.
  const Accumulated two =
      train_accumulating(make, {.accumulate = 3, .replicas = 2, .batch = 36, .samples = 72});
  ASSERT_EQ(one.losses.size(), two.losses.size());
  EXPECT_NEAR(one.losses.front(), two.losses.front(), 0.2);
  EXPECT_LT(two.losses.back(), two.losses.front());
  // With the same rows in every micro-batch all three have the same statistics, and the moving
  // averages of one update are those without accumulation.
  const Samples few = make_samples(2);
  const auto averages = [&](std::int64_t accumulate, std::int64_t copies) {
    std::vector<Tensor> x(static_cast<std::size_t>(copies), few.x);
    std::vector<Tensor> y(static_cast<std::size_t>(copies), few.y);
    Model model = make();
    model.compile({.optimizer = SGD({.learning_rate = 0.1}),
                   .loss = SparseCategoricalCrossentropy({.from_logits = true}),
                   .accumulate = accumulate,
                   .seed = 3});
    model.train_on_batch(concatenate_rows(x, "test"), concatenate_rows(y, "test"));
    return weights_of(model);
  };
  const auto once = averages(1, 1);
  const auto thrice = averages(3, 3);
  ASSERT_EQ(once.size(), thrice.size());
  for (std::size_t v = 0; v < once.size(); ++v) {
    for (std::size_t i = 0; i < once[v].size(); ++i) {
      EXPECT_NEAR(once[v][i], thrice[v][i], 1e-6) << v;
    }
  }
}

TEST(Accumulate, ReplicasAndUnevenPiecesGiveTheLossesOfOne) {
  const Accumulated one = train_accumulating(accumulate_cnn, {});
  for (const int replicas : {2, 3}) {
    const Accumulated many =
        train_accumulating(accumulate_cnn, {.accumulate = 3, .replicas = replicas, .batch = 12});
    expect_same_training(one, many, 1e-5);
  }
  const Accumulated balanced = train_accumulating(
      accumulate_cnn, {.accumulate = 3, .replicas = 2, .balance = Balance::Auto});
  expect_same_training(one, balanced, 1e-5);
}

TEST(Accumulate, EveryOptimizerAndClippingSeesTheWholeGradient) {
  const std::function<Optimizer()> rules[] = {
      [] { return SGD({.learning_rate = 0.05, .momentum = 0.9, .nesterov = true}); },
      [] { return SGD({.learning_rate = 0.1, .global_clipnorm = 0.05}); },
      [] { return SGD({.learning_rate = 0.1, .clipnorm = 0.05}); },
      [] { return Adam({.learning_rate = 0.01, .clipvalue = 0.01}); },
      [] { return RMSprop({.learning_rate = 1e-3, .momentum = 0.5, .centered = true}); },
      [] { return Adagrad({.learning_rate = 0.01}); },
      [] { return LARS({.learning_rate = 0.1}); },
      [] { return LAMB({.learning_rate = 0.01}); },
  };
  for (const std::function<Optimizer()>& rule : rules) {
    SCOPED_TRACE(rule().name());
    const Accumulated whole = train_accumulating(accumulate_mlp, {.epochs = 2, .optimizer = rule});
    const Accumulated divided =
        train_accumulating(accumulate_mlp, {.accumulate = 4, .epochs = 2, .optimizer = rule});
    expect_same_training(whole, divided, 3e-5);
  }
}

TEST(Accumulate, InMixedPrecisionTrainsAsTheWholeBatch) {
  for (const std::string precision : {"mixed_float16", "mixed_bfloat16"}) {
    const Accumulated whole =
        train_accumulating(accumulate_cnn, {.precision = precision, .weighted = false});
    const Accumulated divided = train_accumulating(
        accumulate_cnn, {.accumulate = 4, .precision = precision, .weighted = false});
    ASSERT_EQ(whole.losses.size(), divided.losses.size());
    const double unit = precision == "mixed_float16" ? std::ldexp(1.0, -11) : std::ldexp(1.0, -8);
    for (std::size_t i = 0; i < whole.losses.size(); ++i) {
      EXPECT_NEAR(whole.losses[i], divided.losses[i], 6 * unit * (1 + whole.losses[i]));
    }
  }
}

// One huge sample, in one micro-batch of one replica, overflows: nothing is updated, the scale is
// halved once, and the next step is as if nothing had been.
TEST(Accumulate, AnOverflowInOneMicroBatchSkipsTheWholeUpdateOnce) {
  for (const int replicas : {1, 2}) {
    const Problem data = make_problem(16);
    Tensor huge = data.x.clone();
    huge.values<float>()[5 * kFeatures] = 60000.0F;
    Model model = make_model();
    model.compile({.strategy = mirrored(replicas),
                   .optimizer = SGD({.learning_rate = 0.1}),
                   .loss = SparseCategoricalCrossentropy({.from_logits = true}),
                   .precision = "mixed_float16",
                   .accumulate = 4,
                   .seed = 3});
    model.build({kFeatures});
    const auto before = weights_of(model);
    ModelImpl& impl = impl_of(model);
    const auto scale_state = [&] {
      std::vector<double> values;
      for (const VariableRef& variable : impl.options.optimizer.loss_scale_variables()) {
        values.push_back(impl.session().get(variable).item());
      }
      return values;
    };
    model.train_on_batch(huge, data.y);
    EXPECT_EQ(weights_of(model), before);
    EXPECT_EQ(scale_state(), (std::vector<double>{16384, 0, 1}));
    model.train_on_batch(data.x, data.y);
    EXPECT_NE(weights_of(model), before);
    EXPECT_EQ(scale_state(), (std::vector<double>{16384, 1, 1}));
  }
}

TEST(Accumulate, ARunResumesInTheMiddleOfAnEpochBitForBit) {
  const TemporaryFolder folder;
  const Problem data = make_images(70);
  const auto options = [] {
    CompileOptions all = with_adam();
    all.accumulate = 3;
    return all;
  };
  Sequential whole = make_conv_model();
  whole.compile(options());
  whole.fit(shuffled_batches(data), {.epochs = 3});
  const std::filesystem::path file = folder / "stopped.safetensors";
  Sequential stopped = make_conv_model();
  stopped.compile(options());
  stopped.fit(shuffled_batches(data), {.epochs = 3, .callbacks = {save_and_stop(7, file)}});
  Sequential resumed = make_conv_model();
  resumed.compile(options());
  resumed.build({8, 8, 2});
  resumed.fit(shuffled_batches(data), {.epochs = 3, .resume = file.string()});
  EXPECT_TRUE(same_weights(whole, resumed));
}

// A label that names no class, in the third of four micro-batches: the step changes nothing but
// accumulators and metrics, which the next step and fit begin anew.
TEST(Accumulate, NothingOfAStepThatFailedIsLeft) {
  for (const int replicas : {1, 2}) {
    const Problem data = make_problem(16);
    Tensor wrong = data.y.clone();
    wrong.values<std::int32_t>()[5] = 77;
    const auto compiled = [&] {
      Model model = make_model();
      CompileOptions options = with_adam();
      options.strategy = mirrored(replicas);
      options.accumulate = 4;
      model.compile(options);
      model.build({kFeatures});
      return model;
    };
    Model model = compiled();
    Model undisturbed = compiled();
    model.train_on_batch(data.x, data.y);
    undisturbed.train_on_batch(data.x, data.y);
    const std::string message = message_of<DataError>([&] { model.train_on_batch(data.x, wrong); });
    EXPECT_NE(message.find(replicas == 1 ? "rows 4 to 7" : "rows 4 to 5"), std::string::npos)
        << message;
    EXPECT_NE(message.find("77"), std::string::npos) << message;
    EXPECT_TRUE(same_weights(model, undisturbed));
    model.train_on_batch(data.x, data.y);
    undisturbed.train_on_batch(data.x, data.y);
    EXPECT_TRUE(same_weights(model, undisturbed));
  }
}

// Steps in flight on an asynchronous device.
class AccumulatingAhead : public ::testing::TestWithParam<LateDevice::Copies> {
 protected:
  LateDevice device_{GetParam()};

  CompileOptions options(Device& device, std::int64_t accumulate) const {
    CompileOptions all = with_adam();
    all.device = &device;
    all.kernels = &cpu_kernels();
    all.accumulate = accumulate;
    return all;
  }
};
INSTANTIATE_TEST_SUITE_P(Copies, AccumulatingAhead,
                         ::testing::Values(LateDevice::Copies::Late, LateDevice::Copies::Early),
                         [](const auto& info) {
                           return info.param == LateDevice::Copies::Late ? "Late" : "Early";
                         });

TEST_P(AccumulatingAhead, GivesTheBitsOfTheHost) {
  const Problem data = make_problem(101);
  for (const std::int64_t accumulate : {2, 3, 5}) {
    const auto train = [&](Device& device) {
      LossesOf losses;
      Sequential model = make_dropout_model();
      model.compile(options(device, accumulate));
      model.fit(shuffled_batches(data), {.epochs = 3, .callbacks = {losses.callback()}});
      return std::pair(losses.losses, weights_of(model));
    };
    EXPECT_EQ(train(device_), train(LateDevice::core()));
  }
  EXPECT_GE(device_.max_in_flight(), 2);
}

TEST_P(AccumulatingAhead, AnErrorNamesItsOwnStep) {
  const Problem data = make_problem(64);
  for (const std::int64_t wrong : {20, 30}) {  // in the first and last micro-batch of step 1
    Tensor labels = data.y.clone();
    labels.values<std::int32_t>()[static_cast<std::size_t>(wrong)] = 77;
    Sequential model = make_model();
    model.compile(options(device_, 4));
    const std::string message = message_of<DataError>([&] {
      model.fit(Dataset::from_tensor_slices({data.x, labels}).batch(16), {.epochs = 1});
    });
    EXPECT_TRUE(message.starts_with("[fit] epoch 0, step 1: ")) << message;
    EXPECT_EQ(message.find("[fit]", 5), std::string::npos) << message;
    EXPECT_NE(message.find("77"), std::string::npos) << message;
  }
}

// Activations that are computed again change no bit.
TEST(Accumulate, WithRecomputationGivesTheSameBits) {
  const auto train = [](const char* recompute) {
    const Problem data = make_images(40);
    Sequential model = make_conv_model();
    CompileOptions options = with_adam();
    options.accumulate = 3;
    options.recompute = recompute;
    model.compile(options);
    model.fit(shuffled_batches(data), {.epochs = 2});
    return weights_of(model);
  };
  EXPECT_EQ(train("none"), train("blocks"));
}

TEST(Accumulate, IsToldInTheReport) {
  const Accumulated divided = train_accumulating(accumulate_mlp, {.accumulate = 3, .epochs = 1});
  EXPECT_NE(divided.history.report().find("accumulated gradients over 3 micro-batches per step"),
            std::string::npos)
      << divided.history.report();
}

// The norms of a replica's gradients are those of all its micro-batches: the noise scale of two
// replicas is the same with and without accumulation. Measuring changes no bit of training.
TEST(Accumulate, TheNoiseScaleIsThatOfTheWholePieces) {
  const Samples samples = make_samples(96);
  const auto train = [&](std::int64_t accumulate, int replicas, std::int64_t every) {
    Model model =
        Sequential({Flatten(), Dense({.units = 8, .activation = "tanh"}), Dense({.units = 4})});
    model.compile({.strategy = mirrored(replicas),
                   .optimizer = SGD({.learning_rate = 0.01}),
                   .loss = SparseCategoricalCrossentropy({.from_logits = true}),
                   .accumulate = accumulate,
                   .seed = 3});
    History history = model.fit(Dataset::from_tensor_slices({samples.x, samples.y}).batch(24),
                                {.epochs = 6, .noise_scale_every = every});
    return std::pair(std::move(history), weights_of(model));
  };
  const auto [whole, weights] = train(1, 2, 1);
  const auto [divided, divided_weights] = train(3, 2, 1);
  ASSERT_TRUE(whole.noise_scale && divided.noise_scale);
  EXPECT_NEAR(divided.noise_scale->squared_gradient, whole.noise_scale->squared_gradient,
              1e-3 * std::abs(whole.noise_scale->squared_gradient));
  EXPECT_NEAR(divided.noise_scale->trace, whole.noise_scale->trace,
              1e-3 * std::abs(whole.noise_scale->trace));
  for (const int replicas : {1, 2}) {
    EXPECT_EQ(train(3, replicas, 1).second, train(3, replicas, 0).second);
  }
}

}  // namespace
}  // namespace lockstep::testing

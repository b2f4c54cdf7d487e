// Training in mixed precision: close to f32, the same on any number of replicas, and resumable.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "lockstep/plan/plan.h"
#include "temporary_folder.h"
#include "train/problem.h"
#include "train/replica_runs.h"

namespace lockstep::testing {
namespace {

CompileOptions in_precision(const std::string& precision, LossScaleOptions loss_scale = {}) {
  CompileOptions options = with_adam();
  options.precision = precision;
  options.loss_scale = loss_scale;
  return options;
}

// A scale that overflows f16 for some steps, and again whenever it has grown.
constexpr LossScaleOptions kWild{.initial = 4294967296.0, .growth_steps = 3};

Sequential precision_lenet() {
  return Sequential(
      {Conv2D({.filters = 6, .kernel_size = 5, .padding = "same", .activation = "relu"}),
       MaxPooling2D(), Conv2D({.filters = 16, .kernel_size = 3, .activation = "relu"}),
       MaxPooling2D(), Flatten(), Dense({.units = 32, .activation = "tanh"}), Dense({.units = 4})});
}

// Two residual blocks.
Model make_resnet() {
  const Symbol input = Input({.shape = {12, 12, 1}});
  Symbol x =
      Activation("relu")(BatchNormalization()(Conv2D({.filters = 8, .padding = "same"})(input)));
  for (const std::int64_t filters : {8, 16}) {
    const std::int64_t stride = filters == 8 ? 1 : 2;
    Symbol y = Conv2D({.filters = filters, .strides = stride, .padding = "same"})(x);
    y = Activation("relu")(BatchNormalization()(y));
    y = BatchNormalization()(Conv2D({.filters = filters, .padding = "same"})(y));
    const Symbol same =
        Conv2D({.filters = filters, .kernel_size = 1, .strides = stride, .padding = "same"})(x);
    x = Activation("relu")(Add()({y, same}));
  }
  return Model(input, Dense({.units = 4})(GlobalAveragePooling2D()(x)));
}

std::vector<double> losses_of(Model model, const CompileOptions& options, const Dataset& batches,
                              std::int64_t epochs) {
  LossesOf losses;
  model.compile(options);
  model.fit(batches, {.epochs = epochs, .callbacks = {losses.callback()}});
  return losses.losses;
}

// The largest relative rounding error of a precision.
double unit_of(const std::string& precision) {
  return precision == "mixed_float16" ? std::ldexp(1.0, -11) : std::ldexp(1.0, -8);
}

class InMixedPrecision : public ::testing::TestWithParam<std::string> {
 protected:
  // Expects every step's loss to be close to that of f32, relative to the largest. The first loss
  // only depends on the forward pass, whose rounding errors nearly average out over a batch: half a
  // unit. For later ones, the inputs and outputs of each of the model's products were rounded,
  // forward and backward; n independent errors of a unit add up to sqrt(n) units.
  static void expect_close_to_f32(const std::function<Model()>& make, const Dataset& batches,
                                  std::int64_t epochs, int products,
                                  const Optimizer& optimizer = Adam({.learning_rate = 0.01})) {
    const auto run = [&](const std::string& precision) {
      CompileOptions options = in_precision(precision);
      options.optimizer = optimizer;
      return losses_of(make(), options, batches, epochs);
    };
    const std::vector<double> whole = run("float32"), mixed = run(GetParam());
    ASSERT_EQ(whole.size(), mixed.size());
    const double unit = unit_of(GetParam()) * *std::ranges::max_element(whole);
    EXPECT_NEAR(mixed[0], whole[0], unit / 2);
    for (std::size_t i = 0; i < whole.size(); ++i) {
      EXPECT_NEAR(mixed[i], whole[i], std::sqrt(4.0 * products) * unit) << "step " << i;
    }
    EXPECT_NE(mixed.back(), whole.back()) << "nothing was rounded";
    EXPECT_LT(mixed.back(), 0.8 * mixed.front());
  }
};
INSTANTIATE_TEST_SUITE_P(Types, InMixedPrecision,
                         ::testing::Values("mixed_float16", "mixed_bfloat16"),
                         [](const auto& info) { return info.param; });

TEST_P(InMixedPrecision, AnMlpTrainsAsInF32) {
  const Problem data = make_problem(96);
  expect_close_to_f32([] { return make_model(); },
                      Dataset::from_tensor_slices({data.x, data.y}).batch(16), 5,
                      /*products=*/2);
}

TEST_P(InMixedPrecision, LeNetTrainsAsInF32) {
  const Samples data = make_samples(96);
  expect_close_to_f32([] { return precision_lenet(); },
                      Dataset::from_tensor_slices({data.x, data.y}).batch(24), 5,
                      /*products=*/4);
}

TEST_P(InMixedPrecision, AResNetTrainsAsInF32) {
  const Samples data = make_samples(96);
  // Plain gradient descent: Adam divides tiny gradients by their size, which amplifies rounding.
  expect_close_to_f32([] { return make_resnet(); },
                      Dataset::from_tensor_slices({data.x, data.y}).batch(24), 4, /*products=*/8,
                      SGD({.learning_rate = 0.05}));
}

TEST_P(InMixedPrecision, ThePlanUsesSixteenBitsAndVariablesPredictionsAndLossesF32) {
  const Samples data = make_samples(32);
  Model model = make_resnet();
  model.compile(in_precision(GetParam()));
  model.fit(Dataset::from_tensor_slices({data.x, data.y}).batch(16));
  for (const VariableRef& variable : model.variables()) EXPECT_EQ(variable->dtype, DType::F32);
  const Tensor predictions = model.predict(data.x);
  EXPECT_EQ(predictions.dtype(), DType::F32);
  EXPECT_EQ(predictions.shape(), (Shape{32, 4}));
  EXPECT_TRUE(std::isfinite(model.evaluate(data.x, data.y).at("loss")));
  const Plan& plan = model.training_plan({{DType::F32, {16, 12, 12, 1}}}, {DType::I32, {16}});
  const std::string text = print(plan);
  const std::string type = GetParam() == "mixed_float16" ? " f16(" : "bf16(";
  EXPECT_NE(text.find(type), std::string::npos) << text;
}

// Values kept from the forward to the backward pass take half the memory.
TEST_P(InMixedPrecision, ActivationsTakeLessMemory) {
  const auto largest_value = [](const std::string& precision) {
    Sequential model = precision_lenet();
    model.compile(in_precision(precision));
    const Plan& plan = model.training_plan({{DType::F32, {64, 12, 12, 1}}}, {DType::I32, {64}});
    std::size_t most = 0;  // of pooled values: f32 never stores the convolutions' results
    for (const Node& node : plan.graph.nodes()) {
      const bool pools = node.op == Op::MaxPool || is_pooled(node.attrs);
      if (pools) most = std::max(most, plan.graph.bytes(node.outputs[0]));
    }
    return most;
  };
  EXPECT_LE(2 * largest_value(GetParam()), largest_value("float32"));
}

TEST_P(InMixedPrecision, ACustomStepEqualsFit) {
  const Problem data = make_problem(48);
  const Dataset batches = Dataset::from_tensor_slices({data.x, data.y}).batch(16);
  Sequential fitted = make_model();
  fitted.compile(in_precision(GetParam()));
  fitted.fit(batches, {.epochs = 2});

  Sequential model = make_model();
  model.compile(with_adam());
  const Optimizer plain = Adam({.learning_rate = 0.01});
  const Optimizer optimizer = GetParam() == "mixed_float16" ? plain.with_loss_scale() : plain;
  Function step(
      model,
      [&](Value x, Value y) {
        const Value logits = model(x, {.training = true});
        const LossPair loss = sparse_categorical_crossentropy(y, logits, {.from_logits = true});
        optimizer.apply(gradients(optimizer.scale(loss, 16), model.trainable_variables()));
        return loss;
      },
      {.precision = GetParam()});
  for (std::uint64_t epoch = 0; epoch < 2; ++epoch) {
    const auto iterator = batches.iterator(epoch);
    while (const auto batch = iterator->next()) step((*batch)[0], (*batch)[1]);
  }
  EXPECT_TRUE(same_weights(fitted, model));
}

TEST(Precision, AnUnknownOneIsRefusedWithTheKnownNames) {
  Sequential model = make_model();
  const std::string message =
      message_of<UsageError>([&] { model.compile(in_precision("float16")); });
  for (const char* part : {"'float16'", "float32", "mixed_float16", "mixed_bfloat16"}) {
    EXPECT_NE(message.find(part), std::string::npos) << message;
  }
  EXPECT_THROW(Function(model, [](Value x) { return x; }, {.precision = "half"}), UsageError);
}

TEST(LossScaling, OverflowSkipsStepsAndHalvesUntilTheModelTrains) {
  const Problem data = make_problem(64);
  Sequential model = make_model();
  const Schedule decay =
      ExponentialDecay({.initial_learning_rate = 0.01, .decay_steps = 1, .decay_rate = 0.9});
  CompileOptions options = in_precision("mixed_float16", {.initial = 4294967296.0});
  options.optimizer = Adam({.learning_rate = decay});
  model.compile(options);
  model.build({kFeatures});
  EXPECT_EQ(model.loss_scale(), 4294967296.0);
  const std::vector<Tensor> before = model.weights();
  const Dataset batches = Dataset::from_tensor_slices({data.x, data.y}).batch(16);
  const History first = model.fit(batches, {.steps_per_epoch = 1});
  EXPECT_EQ(first.overflowed_steps, 1);
  EXPECT_EQ(first.loss_scale, 2147483648.0);
  EXPECT_EQ(first.first_non_finite_step, std::nullopt);
  for (std::size_t i = 0; i < before.size(); ++i) {
    EXPECT_TRUE(model.weights()[i].same_bits(before[i]));
  }
  EXPECT_EQ(model.step(), 1);
  EXPECT_EQ(model.learning_rate(), 0.01);  // the step did not count as an iteration

  const History rest = model.fit(batches, {.epochs = 8});
  EXPECT_GT(rest.overflowed_steps, 3);
  EXPECT_LT(rest.overflowed_steps, 24);
  const auto skipped = static_cast<double>(1 + rest.overflowed_steps);
  EXPECT_EQ(model.loss_scale(), std::ldexp(4294967296.0, -static_cast<int>(skipped)));
  EXPECT_NEAR(model.learning_rate(), 0.01 * std::pow(0.9, 1 + rest.steps - skipped), 1e-9);
  EXPECT_LT(rest.series("loss").back(), rest.series("loss").front());
  EXPECT_NE(rest.report().find("steps on overflow; loss scale now"), std::string::npos);
}

TEST(LossScaling, OtherPrecisionsHaveNone) {
  for (const char* precision : {"float32", "mixed_bfloat16"}) {
    const Problem data = make_problem(32);
    Sequential model = make_model();
    model.compile(in_precision(precision));
    const History history = model.fit(data.x, data.y);
    EXPECT_EQ(history.loss_scale, std::nullopt);
    EXPECT_EQ(model.loss_scale(), std::nullopt);
    EXPECT_EQ(history.report().find("loss scale"), std::string::npos);
  }
}

// One sample of the third batch has such a large weight that its gradients overflow f16, on the
// replica that has it. The strategy compares all variables of the replicas, including the scale,
// after every step.
TEST(LossScaling, ReplicasDecideAlikeAndLikeOne) {
  Samples data = make_samples(90);
  data.weight.values<float>()[45] = 1e8F;
  const Dataset batches =
      Dataset::from_tensor_slices({data.x, data.y, data.weight}).batch(20);  // the last has 10
  const auto run = [&](int replicas, std::vector<double>& losses) {
    CompileOptions options = in_precision("mixed_float16", {.initial = 256, .growth_steps = 4});
    if (replicas > 1) options.strategy = mirrored(replicas);
    Sequential model = precision_lenet();
    model.compile(options);
    LossesOf log;
    const History history = model.fit(batches, {.epochs = 4, .callbacks = {log.callback()}});
    losses = log.losses;
    return std::pair(history.overflowed_steps, history.loss_scale);
  };
  std::vector<double> one;
  const auto alone = run(1, one);
  // Halved in every epoch, and doubled in between, after four good steps.
  EXPECT_EQ(alone, std::pair(std::int64_t{4}, std::optional(128.0)));
  for (const int replicas : {2, 3}) {
    std::vector<double> several;
    EXPECT_EQ(run(replicas, several), alone) << replicas;
    ASSERT_EQ(several.size(), one.size());
    for (std::size_t i = 0; i < one.size(); ++i) {
      // The first loss is of the same weights; then each replica rounds its sums in the four
      // products, forward and backward, and Adam carries the errors from step to step.
      const double units = i == 0 ? 0.01 : 4.0 * std::sqrt(4.0 * 4);
      EXPECT_NEAR(several[i], one[i], units * unit_of("mixed_float16") * std::max(1.0, one[i]))
          << i;
    }
  }
}

TEST(LossScaling, ARunResumesBitForBit) {
  const TemporaryFolder folder;
  const Dataset batches = shuffled_batches(make_problem(100));  // 7 steps per epoch
  const auto compiled = [&] {
    Sequential model = make_dropout_model();
    model.compile(in_precision("mixed_float16", kWild));
    return model;
  };
  Sequential straight = compiled();
  straight.fit(batches, {.epochs = 5});
  for (const std::int64_t step : {2, 7, 18}) {
    Sequential stopped = compiled();
    stopped.fit(batches, {.epochs = 5, .callbacks = {save_and_stop(step, folder / "file")}});
    Sequential resumed = compiled();
    resumed.fit(batches, {.epochs = 5, .resume = folder / "file"});
    EXPECT_TRUE(same_weights(straight, resumed)) << step;
    EXPECT_EQ(resumed.loss_scale(), straight.loss_scale()) << step;
    EXPECT_NE(stopped.loss_scale(), kWild.initial);
  }
}

TEST(LossScaling, ACheckpointLoadsIntoAModelOfAnotherPrecision) {
  const TemporaryFolder folder;
  const Problem data = make_problem(64);
  for (const auto& [from, to] : std::vector<std::pair<std::string, std::string>>{
           {"float32", "mixed_float16"}, {"mixed_float16", "float32"}}) {
    Sequential saved = make_model();
    saved.compile(in_precision(from));
    saved.fit(data.x, data.y);
    saved.save(folder / "file");
    Sequential loaded = make_model();
    loaded.compile(in_precision(to));
    loaded.build({kFeatures});
    loaded.load(folder / "file");
    EXPECT_TRUE(same_weights(saved, loaded));
    EXPECT_EQ(loaded.step(), saved.step());
    loaded.fit(data.x, data.y);
    EXPECT_EQ(loaded.step(), 2 * saved.step());
  }
}

}  // namespace
}  // namespace lockstep::testing

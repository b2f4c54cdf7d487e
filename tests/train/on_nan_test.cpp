// FitOptions::on_nan: what fit does about losses that are not finite, and that it warns at once.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <sstream>

#include "temporary_folder.h"
#include "train/problem.h"

namespace lockstep::testing {
namespace {

// 8 steps per epoch; one sample of the sixth step is NaN.
Problem with_a_nan() {
  Problem data = make_problem(64);
  data.x.values<float>()[45 * kFeatures] = std::numeric_limits<float>::quiet_NaN();
  return data;
}

Dataset batches_of(const Problem& data) {
  return Dataset::from_tensor_slices({data.x, data.y}).batch(8);
}

Sequential compiled_model() {
  Sequential model = make_model();
  model.compile(with_adam());
  return model;
}

bool all_finite(const Model& model) {
  for (const Tensor& weights : model.weights()) {
    for (const float value : weights.values<float>()) {
      if (!std::isfinite(value)) return false;
    }
  }
  return true;
}

struct Heard {
  CallbackRef callback() {
    return LambdaCallback(
        {.on_epoch_end = [this](Model&, std::int64_t, const Logs&) { ++ends; },
         .on_batch_end = [this](Model&, std::int64_t step, const BatchLogs&) { last = step; },
         .on_warning = [this](Model&, const std::string& text) { warnings.push_back(text); },
         .needs_sync = false});
  }
  std::vector<std::string> warnings;
  std::int64_t last = -1;
  int ends = 0;
};

TEST(OnNaN, ContinueKeepsTrainingAndWarnsOnce) {
  Heard heard;
  Sequential model = compiled_model();
  const History history =
      model.fit(batches_of(with_a_nan()), {.epochs = 2, .callbacks = {heard.callback()}});
  EXPECT_EQ(history.steps, 16);
  EXPECT_EQ(history.first_non_finite_step, 5);
  EXPECT_EQ(history.failure, "");
  ASSERT_EQ(heard.warnings.size(), 1u);
  EXPECT_NE(heard.warnings[0].find("the loss was NaN at step 5"), std::string::npos)
      << heard.warnings[0];
}

TEST(OnNaN, StopEndsAtTheStepAndKeepsTheLastGoodCheckpoint) {
  const TemporaryFolder folder;
  const std::string file = (folder / "model").string();
  Heard heard;
  Sequential model = compiled_model();
  const History history =
      model.fit(batches_of(with_a_nan()),
                {.epochs = 3,
                 .validation_data = batches_of(make_problem(16)),
                 .callbacks = {heard.callback(), ModelCheckpoint({.path = file, .every_steps = 1})},
                 .on_nan = OnNaN::Stop});
  EXPECT_NE(history.failure.find("the loss was NaN at step 5 (epoch 1, step 5)"), std::string::npos)
      << history.failure;
  EXPECT_EQ(history.steps, 6);
  EXPECT_EQ(heard.last, 4);
  EXPECT_EQ(heard.ends, 0);
  ASSERT_EQ(heard.warnings.size(), 1u);
  EXPECT_NE(heard.warnings[0].find("training stops"), std::string::npos);
  Sequential good = compiled_model();
  good.build({kFeatures});
  good.load(file);
  EXPECT_EQ(good.step(), 5);
  EXPECT_TRUE(all_finite(good));
}

TEST(OnNaN, RestoreGoesBackToAGoodStateAndHalvesTheRate) {
  Heard heard;
  Sequential model = compiled_model();
  const History history =
      model.fit(batches_of(with_a_nan()),
                {.epochs = 3, .callbacks = {heard.callback()}, .on_nan = OnNaN::Restore});
  EXPECT_EQ(history.failure, "");
  EXPECT_EQ(history.restores, 3);  // the sample comes once per epoch
  EXPECT_EQ(history.steps, 24);
  EXPECT_EQ(heard.ends, 3);
  EXPECT_TRUE(all_finite(model));
  for (const double loss : history.series("loss")) EXPECT_TRUE(std::isfinite(loss));
  EXPECT_NEAR(model.learning_rate(), 0.01 / 8, 1e-9);
  ASSERT_EQ(heard.warnings.size(), 3u);
  EXPECT_NE(heard.warnings[0].find("from the state after step 0 with a learning rate of 0.005"),
            std::string::npos)
      << heard.warnings[0];
}

TEST(OnNaN, RestoreStopsIfItDoesNotHelp) {
  Problem data = make_problem(64);
  std::ranges::fill(data.x.values<float>(), std::numeric_limits<float>::quiet_NaN());
  Sequential model = compiled_model();
  const History history = model.fit(batches_of(data), {.epochs = 3, .on_nan = OnNaN::Restore});
  EXPECT_EQ(history.restores, 5);
  EXPECT_NE(history.failure.find("after 5 returns to an earlier good state"), std::string::npos)
      << history.failure;
}

CompileOptions in_half_precision() {
  CompileOptions options = with_adam();
  options.precision = "mixed_float16";
  options.loss_scale = {.initial = 4};
  return options;
}

TEST(OnNaN, OverflowsAtTheSmallestLossScaleAreReportedAtOnceAndEndTraining) {
  Problem data = make_problem(400);
  std::ranges::fill(data.x.values<float>(), 60000.0f);  // its products overflow in 16 bits
  const Dataset batches = batches_of(data);
  Heard heard;
  Sequential model = make_model();
  model.compile(in_half_precision());
  const History history =
      model.fit(batches, {.epochs = 3, .callbacks = {heard.callback()}, .on_nan = OnNaN::Stop});
  EXPECT_NE(history.failure.find("smallest loss scale, 1"), std::string::npos) << history.failure;
  EXPECT_LT(history.steps, 50);  // within the first epoch
  EXPECT_GE(history.overflowed_steps, 16);
  ASSERT_EQ(heard.warnings.size(), 2u);
  EXPECT_NE(heard.warnings[0].find("gradients overflow in 16 bits"), std::string::npos)
      << heard.warnings[0];

  Heard going_on;
  Sequential other = make_model();
  other.compile(in_half_precision());
  const History all = other.fit(batches, {.epochs = 2, .callbacks = {going_on.callback()}});
  EXPECT_EQ(all.steps, 100);
  EXPECT_EQ(all.failure, "");
  EXPECT_EQ(going_on.warnings.size(), 2u);  // once per epoch
}

// The loss of a step that the loss scale skipped stays in the metrics until the epoch ends.
TEST(OnNaN, RestoreKeepsGoodStatesAfterALossThatTheLossScaleMadeHarmless) {
  constexpr std::int64_t kSteps = 620;
  Problem data = make_problem(8 * kSteps);
  const std::span<float> x = data.x.values<float>();
  x[5 * 8 * kFeatures] = std::numeric_limits<float>::quiet_NaN();
  std::ranges::fill(x.subspan(600 * 8 * kFeatures), 60000.0f);  // makes it restore a state
  Heard heard;
  Sequential model = make_model();
  model.compile(in_half_precision());
  const History history =
      model.fit(batches_of(data), {.callbacks = {heard.callback()}, .on_nan = OnNaN::Restore});
  EXPECT_EQ(history.first_non_finite_step, 5);
  EXPECT_GE(history.restores, 1);
  const bool late = std::ranges::any_of(heard.warnings, [](const std::string& text) {
    return text.find("from the state after step 500") != std::string::npos;
  });
  EXPECT_TRUE(late) << fmt::format("{}", fmt::join(heard.warnings, "\n"));
}

TEST(OnNaN, TheProgressLineWarnsAndAbbreviatesLargeNumbers) {
  std::ostringstream out;
  Sequential model = compiled_model();
  Problem data = with_a_nan();
  model.fit(batches_of(data), {.callbacks = {ProgressBar(out)}});
  EXPECT_NE(out.str().find("warning: the loss was NaN at step 5"), std::string::npos) << out.str();

  std::ostringstream large;
  Sequential regression({Dense({.units = 1})});
  CompileOptions options = with_adam();
  options.loss = MeanSquaredError();
  options.metrics = {};
  regression.compile(options);
  regression.fit(Tensor(DType::F32, {8, 2}), Tensor::of(std::vector<float>(8, 1e18f), {8, 1}),
                 {.callbacks = {ProgressBar(large)}});
  EXPECT_NE(large.str().find("loss 1e+36"), std::string::npos) << large.str();
}

}  // namespace
}  // namespace lockstep::testing

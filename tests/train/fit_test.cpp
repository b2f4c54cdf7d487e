#include <gtest/gtest.h>

#include <cmath>

#include "train/parts.h"
#include "train/problem.h"

namespace lockstep::testing {
namespace {

constexpr const char* kAccuracy = "sparse_categorical_accuracy";

TEST(Fit, LearnsASmallProblem) {
  const Problem data = make_problem(300);
  Sequential model = make_model();
  model.compile(with_adam());
  const History history = model.fit(data.x, data.y, {.epochs = 15});
  ASSERT_EQ(history.epochs.size(), 15u);
  EXPECT_LT(history.epochs.back().logs["loss"], 0.5 * history.epochs.front().logs["loss"]);
  EXPECT_GT(history.epochs.back().logs[kAccuracy], 0.9);
  EXPECT_EQ(history.steps, 15 * 10);
  EXPECT_EQ(history.samples, 15 * 300);
}

TEST(Fit, TheSameSeedGivesTheSameBits) {
  const Problem data = make_problem(100);
  std::vector<Sequential> models;
  std::vector<History> histories;
  for (int run = 0; run < 2; ++run) {
    models.push_back(make_dropout_model());
    models.back().compile(with_adam());
    histories.push_back(models.back().fit(data.x, data.y, {.epochs = 3}));
  }
  EXPECT_TRUE(same_weights(models[0], models[1]));
  EXPECT_EQ(histories[0].series("loss"), histories[1].series("loss"));

  Sequential other = make_dropout_model();
  other.compile(with_adam(/*seed=*/4));
  other.fit(data.x, data.y, {.epochs = 3});
  EXPECT_FALSE(same_weights(models[0], other));
}

TEST(Fit, InitialEpochCountsTowardsEpochs) {
  const Problem data = make_problem(32);
  Sequential model = make_model();
  model.compile(with_adam());
  const History history = model.fit(data.x, data.y, {.epochs = 5, .initial_epoch = 3});
  ASSERT_EQ(history.epochs.size(), 2u);
  EXPECT_EQ(history.epochs[0].epoch, 3);
  EXPECT_EQ(history.epochs[1].epoch, 4);
  EXPECT_TRUE(model.fit(data.x, data.y, {.epochs = 2, .initial_epoch = 2}).epochs.empty());
}

TEST(Fit, TwoCallsContinueTheOptimizer) {
  const Problem data = make_problem(64);
  const Dataset batches = Dataset::from_tensor_slices({data.x, data.y}).batch(16);
  Sequential whole = make_model();
  whole.compile(with_adam());
  whole.fit(batches, {.epochs = 4});
  Sequential parts = make_model();
  parts.compile(with_adam());
  parts.fit(batches, {.epochs = 2});
  parts.fit(batches, {.epochs = 4, .initial_epoch = 2});
  EXPECT_TRUE(same_weights(whole, parts));
  EXPECT_EQ(parts.step(), 16);
}

TEST(Fit, EvaluatingFirstDoesNotChangeTraining) {
  const Problem data = make_problem(64);
  Sequential plain = make_model();
  plain.compile(with_adam());
  plain.fit(data.x, data.y, {.epochs = 2});
  Sequential evaluated = make_model();
  evaluated.compile(with_adam());
  evaluated.evaluate(data.x, data.y);
  evaluated.predict(data.x);
  evaluated.fit(data.x, data.y, {.epochs = 2});
  EXPECT_TRUE(same_weights(plain, evaluated));
}

TEST(Fit, EvaluateIsExactForAShortLastBatch) {
  const Problem data = make_problem(37);
  Sequential model = make_model();
  model.compile(with_adam());
  model.fit(data.x, data.y);
  const Logs whole = model.evaluate(data.x, data.y, {.batch_size = 37});
  const Logs pieces = model.evaluate(data.x, data.y, {.batch_size = 8});
  EXPECT_NEAR(pieces["loss"], whole["loss"], 1e-6);
  EXPECT_NEAR(pieces[kAccuracy], whole[kAccuracy], 1e-7);

  const Tensor logits = model.predict(data.x, {.batch_size = 8});
  ASSERT_EQ(logits.shape(), (Shape{37, kClasses}));
  double loss = 0.0;
  for (std::size_t n = 0; n < 37; ++n) {
    const auto row = logits.values<float>().subspan(n * kClasses, kClasses);
    double sum = 0.0;
    for (float z : row) sum += std::exp(static_cast<double>(z));
    loss += std::log(sum) -
            static_cast<double>(row[static_cast<std::size_t>(data.y.values<std::int32_t>()[n])]);
  }
  EXPECT_NEAR(whole["loss"], loss / 37, 1e-5);
}

TEST(Fit, ValidationSplitTakesTheLastSamplesBeforeShuffling) {
  const Problem data = make_problem(50);
  Sequential split = make_model();
  split.compile(with_adam());
  const History history = split.fit(data.x, data.y, {.epochs = 2, .validation_split = 0.2});
  Sequential given = make_model();
  given.compile(with_adam());
  const Dataset last =
      Dataset::from_tensor_slices({data.x.rows(40, 10), data.y.rows(40, 10)}).batch(32);
  const History same =
      given.fit(data.x.rows(0, 40), data.y.rows(0, 40), {.epochs = 2, .validation_data = last});
  EXPECT_EQ(history.series("val_loss"), same.series("val_loss"));
  EXPECT_EQ(history.samples, 80);
  EXPECT_TRUE(same_weights(split, given));
}

TEST(Fit, ValidationDoesNotChangeTheMetricsOfTheEpoch) {
  const Problem data = make_problem(64);
  const Dataset batches = Dataset::from_tensor_slices({data.x, data.y}).batch(16);
  Sequential quiet = make_model();
  quiet.compile(with_adam());
  const History expected = quiet.fit(batches);
  Sequential model = make_model();
  model.compile(with_adam());
  const History history =
      model.fit(batches, {.callbacks = {LambdaCallback(
                              {.on_batch_end = [&](Model& inner, std::int64_t, const BatchLogs&) {
                                inner.evaluate(data.x, data.y);
                              }})}});
  EXPECT_EQ(history.series("loss"), expected.series("loss"));
}

TEST(Fit, StepsPerEpochContinuesInTheDataWhereTheLastEpochStopped) {
  const Problem data = make_problem(64);
  const Dataset batches = Dataset::from_tensor_slices({data.x, data.y}).batch(16);
  Sequential whole = make_model();
  whole.compile(with_adam());
  whole.fit(batches, {.epochs = 1});
  Sequential halves = make_model();
  halves.compile(with_adam());
  const History history = halves.fit(batches, {.epochs = 2, .steps_per_epoch = 2});
  EXPECT_EQ(history.epochs.size(), 2u);
  EXPECT_TRUE(same_weights(whole, halves));
  // And starts over when the data ends.
  EXPECT_EQ(halves.fit(batches, {.epochs = 1, .steps_per_epoch = 6}).steps, 6);
}

// Weights of 2 and 0 act as if samples occurred twice and not at all, and keep the number of
// samples unchanged.
TEST(Fit, SampleWeightsEqualRepeatedSamples) {
  const Problem data = make_problem(32);
  std::vector<float> weights;
  std::vector<float> x;
  std::vector<std::int32_t> y;
  for (std::size_t n = 0; n < 32; ++n) {
    weights.push_back(n % 2 == 0 ? 2.0f : 0.0f);
    const std::size_t source = n - n % 2;
    const auto row = data.x.values<float>().subspan(source * kFeatures, kFeatures);
    x.insert(x.end(), row.begin(), row.end());
    y.push_back(data.y.values<std::int32_t>()[source]);
  }
  Sequential weighted = make_model();
  weighted.compile(with_adam());
  const History a = weighted.fit(
      data.x, data.y, {.epochs = 3, .shuffle = false, .sample_weight = Tensor::of(weights, {32})});
  Sequential repeated = make_model();
  repeated.compile(with_adam());
  const History b = repeated.fit(Tensor::of(x, {32, kFeatures}), Tensor::of(y, {32}),
                                 {.epochs = 3, .shuffle = false});
  EXPECT_NEAR(a.series("loss").back(), b.series("loss").back(), 1e-5);
  EXPECT_LT(largest_difference(weighted, repeated), 1e-4);
}

TEST(Fit, ClassWeightsEqualSampleWeightsByClass) {
  const Problem data = make_problem(40);
  const std::map<std::int64_t, double> class_weight = {{0, 3.0}, {2, 0.5}};
  std::vector<float> weights;
  for (std::int32_t label : data.y.values<std::int32_t>()) {
    weights.push_back(label == 0 ? 3.0f : label == 2 ? 0.5f : 1.0f);
  }
  Sequential by_class = make_model();
  by_class.compile(with_adam());
  by_class.fit(data.x, data.y, {.epochs = 2, .class_weight = class_weight});
  Sequential by_sample = make_model();
  by_sample.compile(with_adam());
  by_sample.fit(data.x, data.y, {.epochs = 2, .sample_weight = Tensor::of(weights, {40})});
  EXPECT_TRUE(same_weights(by_class, by_sample));
  Sequential plain = make_model();
  plain.compile(with_adam());
  plain.fit(data.x, data.y, {.epochs = 2});
  EXPECT_FALSE(same_weights(plain, by_class));
}

TEST(Fit, RegularisationCountsOnceWhateverTheBatchSize) {
  const Problem data = make_problem(30);
  const auto make = [] {
    Sequential model({Dense({.units = kClasses, .kernel_regularizer = L2(0.1)})});
    model.compile(with_adam());
    return model;
  };
  Sequential model = make();
  model.build({kFeatures});
  double squares = 0.0;
  const Tensor kernel = model.weights()[0];
  for (float w : kernel.values<float>()) squares += static_cast<double>(w) * w;
  Sequential plain({Dense({.units = kClasses})});
  plain.compile(with_adam());
  plain.build({kFeatures});
  plain.set_weights(model.weights());
  const double expected = plain.evaluate(data.x, data.y)["loss"] + 0.1 * squares;
  EXPECT_NEAR(model.evaluate(data.x, data.y, {.batch_size = 30})["loss"], expected, 1e-5);
  EXPECT_NEAR(model.evaluate(data.x, data.y, {.batch_size = 7})["loss"], expected, 1e-5);
}

TEST(Fit, OnlyWeightedMetricsUseTheWeights) {
  const Problem data = make_problem(20);
  Sequential model = make_model();
  CompileOptions options = with_adam();
  options.weighted_metrics = {SparseCategoricalAccuracy({.name = "weighted"})};
  model.compile(options);
  std::vector<float> none(20, 0.0f);
  none[0] = 1.0f;
  const Logs logs = model.evaluate(data.x, data.y, {.sample_weight = Tensor::of(none, {20})});
  EXPECT_TRUE(logs["weighted"] == 0.0 || logs["weighted"] == 1.0);
  EXPECT_EQ(logs[kAccuracy], model.evaluate(data.x, data.y)[kAccuracy]);
}

TEST(Fit, TrainOnBatchEqualsAStepOfFit) {
  const Problem data = make_problem(16);
  Sequential fitted = make_model();
  fitted.compile(with_adam());
  const History history = fitted.fit(data.x, data.y, {.batch_size = 16, .shuffle = false});
  Sequential stepped = make_model();
  stepped.compile(with_adam());
  const Logs logs = stepped.train_on_batch(data.x, data.y);
  EXPECT_EQ(logs["loss"], history.series("loss")[0]);
  EXPECT_TRUE(same_weights(fitted, stepped));
  EXPECT_EQ(stepped.test_on_batch(data.x, data.y)["loss"],
            fitted.evaluate(data.x, data.y, {.batch_size = 16})["loss"]);
  EXPECT_TRUE(stepped.predict_on_batch(data.x).same_bits(fitted.predict(data.x)));
}

TEST(Fit, FunctionalModelsTakeSeveralInputs) {
  const Problem data = make_problem(48);
  const Symbol left = Input({.shape = {kFeatures}});
  const Symbol right = Input({.shape = {kFeatures}});
  const Symbol merged = Concatenate()({Dense({.units = 8, .activation = "relu"})(left),
                                       Dense({.units = 8, .activation = "relu"})(right)});
  Model model({left, right}, {Dense({.units = kClasses})(merged)});
  model.compile(with_adam());
  const History history = model.fit({data.x, data.x}, data.y, {.epochs = 10});
  EXPECT_LT(history.series("loss").back(), history.series("loss").front());
  EXPECT_TRUE(model.evaluate({data.x, data.x}, data.y).has("loss"));
}

TEST(Fit, FrozenLayersKeepTheirWeights) {
  const Problem data = make_problem(32);
  const Dense base({.units = 16, .activation = "relu"});
  Sequential model({base, Dense({.units = kClasses})});
  base->set_trainable(false);
  model.compile(with_adam());
  model.build({kFeatures});
  const std::vector<Tensor> before = model.weights();
  model.fit(data.x, data.y);
  const std::vector<Tensor> after = model.weights();
  EXPECT_TRUE(before[0].same_bits(after[0]));
  EXPECT_FALSE(before[2].same_bits(after[2]));
  // Compiled again with everything trainable, the head's values are kept and the base changes, too.
  base->set_trainable(true);
  model.compile(with_adam());
  EXPECT_TRUE(model.weights()[2].same_bits(after[2]));
  model.fit(data.x, data.y);
  EXPECT_FALSE(model.weights()[0].same_bits(after[0]));
}

TEST(Fit, TheReportMentionsTheNodesAboveOnlyIfItShowsSome) {
  History history;
  history.attribution.compute = 1;
  EXPECT_EQ(history.report().find("The nodes above"), std::string::npos);
  EXPECT_NE(history.report().find("`lockstep bench --ops`"), std::string::npos);
  history.top_ops.push_back({.name = "dense", .seconds = 1, .share = 1});
  EXPECT_NE(history.report().find("The nodes above"), std::string::npos);
}

TEST(Fit, TheReportAccountsForTheWholeTime) {
  const Problem data = make_problem(320);
  Sequential model = make_model();
  model.compile(with_adam());
  const History history = model.fit(data.x, data.y, {.epochs = 3});
  const Attribution& part = history.attribution;
  EXPECT_NEAR(sum_of(part), 1.0, 1e-9);
  EXPECT_GT(part.compute, 0.0);
  EXPECT_FALSE(history.top_ops.empty());
  EXPECT_GT(history.peak_bytes, 0u);
  EXPECT_GT(history.median_step_ms(), 0.0);
  const std::string report = history.report();
  for (const char* part_name : {"compute", "input", "host", "samples/s"}) {
    EXPECT_NE(report.find(part_name), std::string::npos) << report;
  }
}

TEST(Fit, TheLoggedRateFollowsTheSchedule) {
  const Problem data = make_problem(32);
  Sequential model = make_model();
  CompileOptions options = with_adam();
  options.optimizer =
      SGD({.learning_rate = PiecewiseConstantDecay({.boundaries = {1}, .values = {0.5, 0.25}})});
  model.compile(options);
  const History history = model.fit(data.x, data.y, {.epochs = 3, .batch_size = 32});
  EXPECT_EQ(history.series("lr"), (std::vector<double>{0.5, 0.25, 0.25}));
}

}  // namespace
}  // namespace lockstep::testing

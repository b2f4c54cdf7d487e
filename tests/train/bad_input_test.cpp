// Bad input gets a clear error, and the model can be used afterwards.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "temporary_folder.h"
#include "train/problem.h"

namespace lockstep::testing {
namespace {

class BadInput : public ::testing::Test {
 protected:
  BadInput() { model_.compile(with_adam()); }

  // Expects f to throw an E whose message contains all of these parts, and the model to train
  // afterwards.
  template <class E, class F>
  void refuse(F&& f, std::vector<std::string> parts) {
    const std::string message = message_of<E>(f);
    for (const std::string& part : parts) {
      EXPECT_NE(message.find(part), std::string::npos) << "no '" << part << "' in: " << message;
    }
    const History history = model_.fit(data_.x, data_.y, {.epochs = 2});
    EXPECT_EQ(history.epochs.size(), 2u);
    EXPECT_TRUE(std::isfinite(history.series("loss").back()));
  }

  Problem data_ = make_problem(40);
  Sequential model_ = make_model();
};

TEST_F(BadInput, AnUncompiledModelIsRefused) {
  Sequential fresh = make_model();
  refuse<UsageError>([&] { fresh.fit(data_.x, data_.y); }, {"[fit]", "not compiled"});
  refuse<UsageError>([&] { fresh.evaluate(data_.x, data_.y); }, {"[evaluate]", "not compiled"});
  refuse<UsageError>([&] { fresh.train_on_batch(data_.x, data_.y); }, {"not compiled"});
  EXPECT_EQ(fresh.predict(data_.x).shape(), (Shape{40, kClasses}));
}

TEST_F(BadInput, CompilingNeedsALossAndAnOptimizer) {
  Sequential fresh = make_model();
  refuse<UsageError>([&] { fresh.compile({.optimizer = Adam()}); }, {"[compile]", "loss"});
  refuse<UsageError>([&] { fresh.compile({.loss = MeanSquaredError()}); },
                     {"[compile]", "optimizer"});
  refuse<UsageError>(
      [&] {
        CompileOptions options = with_adam();
        options.metrics.push_back(SparseCategoricalAccuracy());
        fresh.compile(options);
      },
      {"sparse_categorical_accuracy", "name"});
}

TEST_F(BadInput, WeightsNeedABuiltModel) {
  Sequential fresh = make_model();
  refuse<UsageError>([&] { fresh.save_weights("unused"); }, {"[save_weights]", "build"});
  refuse<UsageError>([&] { fresh.load_weights("unused"); }, {"[load_weights]", "build"});
  refuse<UsageError>([&] { fresh.weights(); }, {"build"});
}

TEST_F(BadInput, XAndYMustHaveTheSameLength) {
  refuse<UsageError>([&] { model_.fit(data_.x, data_.y.rows(0, 39)); }, {"40", "39"});
  refuse<UsageError>([&] { model_.train_on_batch(data_.x, data_.y.rows(0, 39)); }, {"40", "39"});
}

TEST_F(BadInput, SamplesOfAnotherShapeAreRefused) {
  model_.fit(data_.x, data_.y);
  const Tensor wide(DType::F32, {8, kFeatures + 1});
  refuse<UsageError>([&] { model_.predict(wide); }, {"dense", "6", "7"});
  refuse<UsageError>([&] { model_.fit(wide, data_.y.rows(0, 8)); }, {"dense", "6", "7"});
}

TEST_F(BadInput, LabelsMustMatchTheOutput) {
  refuse<UsageError>([&] { model_.fit(data_.x, Tensor(DType::F32, {40, 5})); }, {"5", "3"});
}

TEST_F(BadInput, LabelsOutOfRangeAreNamed) {
  Tensor labels = data_.y.clone();
  labels.values<std::int32_t>()[25] = 7;
  refuse<DataError>([&] { model_.fit(data_.x, labels, {.batch_size = 10, .shuffle = false}); },
                    {"[fit]", "epoch 0", "step 2", "7", "3"});
  labels.values<std::int32_t>()[25] = -2;
  refuse<DataError>([&] { model_.evaluate(data_.x, labels, {.batch_size = 10}); },
                    {"[evaluate]", "batch 2", "-2"});
}

TEST_F(BadInput, FractionalLabelsAreNamed) {
  Tensor labels = data_.y.cast(DType::F32).reshaped({40, 1});
  for (const auto& [bad, text] : {std::pair{2.7f, "2.7"},
                                  {std::numeric_limits<float>::quiet_NaN(), "nan"},
                                  {1e30f, "1e+30"}}) {
    labels.values<float>()[25] = bad;
    const FitOptions in_order{.batch_size = 10, .shuffle = false};
    refuse<DataError>([&] { model_.fit(data_.x, labels, in_order); },
                      {"[fit]", "epoch 0", "step 2", "row 5", text, "whole"});
    FitOptions weighted = in_order;
    weighted.class_weight = {{1, 2.0}};
    refuse<DataError>([&] { model_.fit(data_.x, labels, weighted); },
                      {"[fit]", "epoch 0", "step 2", "row 5", text, "whole"});
    refuse<DataError>([&] { model_.evaluate(data_.x, labels, {.batch_size = 10}); },
                      {"[evaluate]", "batch 2", "row 5", text});
    refuse<DataError>([&] { model_.train_on_batch(data_.x, labels); }, {"row 25", text});
  }
}

TEST_F(BadInput, WholeFloatLabelsTrainLikeIntegers) {
  Sequential floats = make_model();
  floats.compile(with_adam());
  floats.fit(data_.x, data_.y.cast(DType::F32), {.epochs = 2});
  model_.fit(data_.x, data_.y, {.epochs = 2});
  EXPECT_TRUE(same_weights(floats, model_));
}

TEST_F(BadInput, RegressionTargetsMayBeFractional) {
  Sequential regression({Dense({.units = 1})});
  regression.compile({.optimizer = SGD(), .loss = MeanSquaredError()});
  const Tensor targets = Tensor::of(std::vector<float>(40, 0.7f), {40, 1});
  EXPECT_EQ(regression.fit(data_.x, targets).steps, 2);
}

// Moving averages are assigned long before the loss detects the label.
TEST_F(BadInput, ALabelOutOfRangeChangesNoVariable) {
  const Problem images = make_images(32);
  Sequential model = make_conv_model();
  model.compile(with_adam());
  model.fit(images.x, images.y);
  const std::vector<Tensor> before = model.weights();
  Tensor labels = images.y.clone();
  labels.values<std::int32_t>()[9] = kClasses;
  EXPECT_THROW(model.fit(images.x, labels), DataError);
  EXPECT_THROW(model.train_on_batch(images.x, labels), DataError);
  const std::vector<VariableRef> variables = model.variables();
  for (std::size_t i = 0; i < before.size(); ++i) {
    EXPECT_TRUE(model.value(variables[i]).same_bits(before[i])) << variables[i]->name;
  }
}

TEST_F(BadInput, AnEmptyDataSetIsRefused) {
  const Dataset none = Dataset::from_tensor_slices({data_.x, data_.y}).take(0).batch(8);
  refuse<UsageError>([&] { model_.fit(none); }, {"[fit]", "gave no batch"});
  refuse<UsageError>([&] { model_.evaluate(none); }, {"[evaluate]", "gave no batch"});
  refuse<UsageError>([&] { model_.predict(none); }, {"[predict]", "gave no batch"});
  refuse<UsageError>([&] { model_.fit(none, {.steps_per_epoch = 3}); }, {"gave no batch"});
  const Dataset dropped =
      Dataset::from_tensor_slices({data_.x, data_.y}).batch(64, {.drop_remainder = true});
  refuse<UsageError>([&] { model_.fit(dropped); }, {"drop_remainder"});
  refuse<UsageError>(
      [&] {
        model_.fit(Tensor(DType::F32, {0, kFeatures}), Tensor(DType::I32, Shape{0}));
      },
      {"no batch"});
}

TEST_F(BadInput, EmptyValidationDataIsRefused) {
  const Dataset none = Dataset::from_tensor_slices({data_.x, data_.y}).take(0).batch(8);
  refuse<UsageError>([&] { model_.fit(data_.x, data_.y, {.validation_data = none}); },
                     {"[validation]", "gave no batch"});
}

TEST_F(BadInput, TheWrongNumberOfComponentsIsRefused) {
  const Dataset no_labels = Dataset::from_tensor_slices({data_.x}).batch(8);
  refuse<UsageError>([&] { model_.fit(no_labels); }, {"[fit]", "labels", "has 1"});
  const Dataset many = Dataset::from_tensor_slices({data_.x, data_.x, data_.x, data_.y}).batch(8);
  refuse<UsageError>([&] { model_.fit(many); }, {"[fit]", "has 4"});
}

TEST_F(BadInput, OneWeightPerSampleIsRequired) {
  refuse<UsageError>(
      [&] {
        model_.fit(data_.x, data_.y, {.sample_weight = Tensor(DType::F32, {40, 2})});
      },
      {"sample weights", "(32)", "(32, 2)"});
}

TEST_F(BadInput, ContradictoryOptionsAreRefused) {
  const Dataset batches = Dataset::from_tensor_slices({data_.x, data_.y}).batch(8);
  refuse<UsageError>([&] { model_.fit(batches, {.validation_split = 0.5}); },
                     {"validation_split", "validation_data"});
  refuse<UsageError>([&] { model_.fit(data_.x, data_.y, {.validation_split = 1.5}); }, {"1.5"});
  refuse<UsageError>([&] { model_.fit(data_.x, data_.y, {.validation_split = 0.99}); },
                     {"0.99", "40"});
  refuse<UsageError>([&] { model_.fit(batches, {.epochs = -1}); }, {"-1"});
  refuse<UsageError>([&] { model_.fit(batches, {.steps_per_epoch = 0}); }, {"steps_per_epoch"});
  refuse<UsageError>([&] { model_.fit(data_.x, data_.y, {.batch_size = 0}); }, {"batch_size"});
  refuse<UsageError>([&] { model_.fit(batches, {.callbacks = {nullptr}}); }, {"callback"});
}

TEST_F(BadInput, NaNInTheDataIsReported) {
  Sequential poisoned = make_model();
  poisoned.compile(with_adam());
  Tensor bad = data_.x.clone();
  bad.values<float>()[7] = std::numeric_limits<float>::infinity();
  const History history = poisoned.fit(bad, data_.y);
  EXPECT_TRUE(history.first_non_finite_step.has_value());
  EXPECT_NE(history.report().find("warning"), std::string::npos);
}

TEST_F(BadInput, NaNInAnImageIsReportedWithItsStep) {
  for (const float bad :
       {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity(),
        -std::numeric_limits<float>::infinity()}) {
    Problem images = make_images(32);
    images.x.values<float>()[20 * 128 + 61] = bad;  // of the third batch
    Sequential model({Conv2D({.filters = 4, .activation = "relu"}), MaxPooling2D(), Flatten(),
                      Dense({.units = kClasses})});
    model.compile(with_adam());
    const History history =
        model.fit(images.x, images.y, {.epochs = 2, .batch_size = 8, .shuffle = false});
    EXPECT_EQ(history.steps, 8);
    ASSERT_TRUE(history.first_non_finite_step.has_value()) << bad;
    EXPECT_EQ(*history.first_non_finite_step, 2) << bad;
    EXPECT_NE(history.report().find("not a finite number at step 2"), std::string::npos);
  }
}

TEST_F(BadInput, AnErrorInACallbackLeavesTheModelUsable) {
  refuse<DataError>(
      [&] {
        model_.fit(data_.x, data_.y,
                   {.callbacks = {
                        LambdaCallback({.on_batch_end = [](Model&, std::int64_t, const BatchLogs&) {
                          fail<DataError>("the disk is full");
                        }})}});
      },
      {"the disk is full"});
}

TEST_F(BadInput, FitAndCompileAreRefusedInsideFit) {
  refuse<UsageError>(
      [&] {
        model_.fit(data_.x, data_.y,
                   {.callbacks = {LambdaCallback(
                        {.on_batch_end = [&](Model& inner, std::int64_t, const BatchLogs&) {
                          inner.fit(data_.x, data_.y);
                        }})}});
      },
      {"already running"});
  refuse<UsageError>(
      [&] {
        model_.fit(data_.x, data_.y,
                   {.callbacks = {LambdaCallback(
                        {.on_batch_end = [](Model& inner, std::int64_t, const BatchLogs&) {
                          inner.compile(with_adam());
                        }})}});
      },
      {"[compile]", "running"});
}

TEST_F(BadInput, AModelWithoutTrainableVariablesIsRefused) {
  Sequential frozen = make_model();
  frozen.network()->set_trainable(false);
  frozen.compile(with_adam());
  refuse<UsageError>([&] { frozen.fit(data_.x, data_.y); }, {"no trainable variables"});
}

TEST_F(BadInput, AnUnwritableFolderIsNamedWhenSaving) {
  model_.build({kFeatures});
  refuse<DataError>([&] { model_.save("/proc/no-such-folder/checkpoint"); },
                    {"/proc/no-such-folder/checkpoint"});
}

TEST_F(BadInput, AnUnknownNameInTheLogsIsRefused) {
  const History history = model_.fit(data_.x, data_.y);
  refuse<UsageError>([&] { history.series("accuracy"); },
                     {"'accuracy'", "sparse_categorical_accuracy"});
}

}  // namespace
}  // namespace lockstep::testing

// Code that users of Keras write out of habit.
#include <gtest/gtest.h>

#include <iostream>
#include <sstream>

#include "train/problem.h"

namespace lockstep::testing {
namespace {

// Captures what is written to standard output during its lifetime.
class Captured {
 public:
  Captured() : before_(std::cout.rdbuf(text_.rdbuf())) {}
  ~Captured() { std::cout.rdbuf(before_); }
  Captured(const Captured&) = delete;
  Captured& operator=(const Captured&) = delete;
  std::string str() const { return text_.str(); }

 private:
  std::ostringstream text_;
  std::streambuf* before_;
};

Sequential make_classifier() {
  return Sequential(
      {Dense(16, {.activation = "relu"}), Dense(kClasses, {.activation = "softmax"})});
}

TEST(Habits, CompileTakesNames) {
  const Problem data = make_problem(200);
  Sequential named = make_classifier();
  named.compile({.optimizer = "adam",
                 .loss = "sparse_categorical_crossentropy",
                 .metrics = {"accuracy", "sparse_categorical_accuracy"}});
  Sequential made = make_classifier();
  made.compile({.optimizer = Adam(),
                .loss = SparseCategoricalCrossentropy(),
                .metrics = {SparseCategoricalAccuracy()}});
  const Logs a = named.fit(data.x, data.y, {.epochs = 3, .verbose = 0}).epochs.back().logs;
  const Logs b = made.fit(data.x, data.y, {.epochs = 3, .verbose = 0}).epochs.back().logs;
  EXPECT_TRUE(same_weights(named, made));
  EXPECT_EQ(a["accuracy"], b["sparse_categorical_accuracy"]);
  EXPECT_EQ(a["sparse_categorical_accuracy"], a["accuracy"]);
}

TEST(Habits, CompileTakesThemByPosition) {
  const Problem data = make_problem(64);
  Sequential model = make_classifier();
  model.compile("sgd", "categorical_crossentropy", {"acc", "mse"});
  const Logs logs =
      model.fit(data.x, to_categorical(data.y, kClasses), {.verbose = 0}).epochs.back().logs;
  EXPECT_TRUE(logs.has("acc") && logs.has("mse"));
}

TEST(Habits, AnUnknownNameIsAnsweredWithTheKnownOnes) {
  Sequential model = make_classifier();
  EXPECT_NE(message_of<UsageError>([&] { model.compile("adamm", "mse"); }).find("rmsprop"),
            std::string::npos);
  EXPECT_NE(message_of<UsageError>([&] { model.compile("adam", "msee"); }).find("(mse)"),
            std::string::npos);
  EXPECT_NE(
      message_of<UsageError>([&] { model.compile("adam", "mse", {"accurate"}); }).find("accuracy"),
      std::string::npos);
}

TEST(Habits, DoublesAndIntegersTrainLikeFloats) {
  const Problem data = make_problem(96);
  const Tensor whole = data.x.cast(DType::I32);  // -1 to 3
  const auto train = [&](const Tensor& x, const Tensor& y) {
    Sequential model({Input({kFeatures}), Dense(8, {.activation = "tanh"}), Dense(1)});
    model.compile(Adam(0.01), "mse");
    model.fit(x, y, {.epochs = 2, .verbose = 0});
    model.evaluate(x.cast(DType::F32), y, {.verbose = 0});
    return model;
  };
  const Tensor labels = data.y.cast(DType::F32);
  EXPECT_TRUE(
      same_weights(train(data.x.cast(DType::F64), labels.cast(DType::F64)), train(data.x, labels)));
  EXPECT_TRUE(same_weights(train(whole, data.y), train(whole.cast(DType::F32), labels)));

  Sequential free = make_classifier();  // does not declare its input
  free.compile("adam", "sparse_categorical_crossentropy");
  free.fit(Dataset::from_tensor_slices({data.x.cast(DType::F64), data.y}).batch(32),
           {.verbose = 0});
  EXPECT_EQ(free.predict(data.x, {.verbose = 0}).dtype(), DType::F32);
}

TEST(Habits, FitShowsALinePerEpochUnlessToldOtherwise) {
  const Problem data = make_problem(64);
  Sequential model = make_classifier();
  model.compile("adam", "sparse_categorical_crossentropy");
  const auto shown = [&](const FitOptions& options) {
    Captured captured;
    model.fit(data.x, data.y, options);
    return captured.str();
  };
  const std::string lines = shown({.epochs = 2, .verbose = 2});
  EXPECT_EQ(std::count(lines.begin(), lines.end(), '\n'), 2) << lines;
  EXPECT_NE(lines.find("epoch 2/2"), std::string::npos) << lines;
  EXPECT_NE(lines.find("loss"), std::string::npos) << lines;
  EXPECT_NE(shown({.epochs = 1}).find("epoch 1/1"), std::string::npos);
  EXPECT_EQ(shown({.epochs = 2, .verbose = 0}), "");
  // With a progress callback, progress is not shown twice.
  std::ostringstream own;
  EXPECT_EQ(shown({.epochs = 1, .callbacks = {ProgressBar(own)}}), "");
  EXPECT_NE(own.str().find("epoch 1/1"), std::string::npos);
  EXPECT_THROW(shown({.verbose = 3}), UsageError);
}

TEST(Habits, EvaluateShowsItsResultOnRequest) {
  const Problem data = make_problem(64);
  Sequential model = make_classifier();
  model.compile("adam", "sparse_categorical_crossentropy", {"accuracy"});
  Captured captured;
  const Logs logs = model.evaluate(data.x, data.y, {.verbose = 1});
  model.evaluate(data.x, data.y, {.verbose = 0});
  std::ostringstream line;
  line << "evaluate - " << logs << '\n';
  EXPECT_EQ(captured.str(), line.str());
}

TEST(Habits, ValidationDataMayBeTensors) {
  const Problem data = make_problem(96);
  const Problem held_back = make_problem(40, 2);
  Sequential model = make_classifier();
  model.compile("adam", "sparse_categorical_crossentropy");
  const History history =
      model.fit(data.x, data.y, {.validation_data = {held_back.x, held_back.y}, .verbose = 0});
  EXPECT_EQ(history.epochs[0].logs["val_loss"],
            model.evaluate(held_back.x, held_back.y, {.verbose = 0})["loss"]);
}

TEST(Habits, FitTakesADistributedDataSet) {
  const Problem data = make_problem(100);  // the last batch is short
  const MirroredStrategy strategy({"cpu:0", "cpu:1"});
  const auto samples = Dataset::from_tensor_slices({data.x, data.y});
  const auto train = [&](const auto& batches) {
    Sequential model = make_classifier();
    model.compile(
        {.strategy = strategy, .optimizer = "adam", .loss = "sparse_categorical_crossentropy"});
    model.fit(batches, {.epochs = 2, .verbose = 0});
    EXPECT_GT(model.evaluate(batches, {.verbose = 0})["loss"], 0.0);
    return model;
  };
  const Sequential plain = train(samples.batch(16));
  EXPECT_TRUE(same_weights(train(strategy.distribute(samples.batch(16))), plain));
  const auto of_a_worker = [&](const InputContext& context) {
    return samples.batch(context.per_replica_batch_size(16));
  };
  EXPECT_TRUE(same_weights(train(strategy.distribute_from_function(of_a_worker)), plain));

  Sequential elsewhere = make_classifier();
  elsewhere.compile("adam", "sparse_categorical_crossentropy");
  EXPECT_THROW(elsewhere.fit(strategy.distribute(samples.batch(16))), UsageError);
}

TEST(Habits, LogsCanBePrinted) {
  Logs logs;
  logs.set("loss", 0.31418);
  logs.set("accuracy", 0.875);
  std::ostringstream text;
  text << logs;
  EXPECT_EQ(text.str(), "loss: 0.3142 - accuracy: 0.8750");
}

}  // namespace
}  // namespace lockstep::testing

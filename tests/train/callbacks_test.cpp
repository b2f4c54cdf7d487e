#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <limits>
#include <sstream>

#include "temporary_folder.h"
#include "train/problem.h"

namespace lockstep::testing {
namespace {

struct Trained {
  Problem data = make_problem(64);
  Sequential model = make_model();
  Trained() { model.compile(with_adam()); }
};

// Keeps val_loss the same in every epoch, by a learning rate of 0.
CallbackRef stand_still() {
  return LearningRateScheduler([](std::int64_t, double) { return 0.0; });
}

TEST(EarlyStopping, StopsAfterPatienceEpochsWithoutImprovement) {
  Trained t;
  const History history = t.model.fit(
      t.data.x, t.data.y,
      {.epochs = 20,
       .callbacks = {stand_still(), EarlyStopping({.monitor = "val_loss", .patience = 3})},
       .validation_split = 0.25});
  EXPECT_EQ(history.epochs.size(), 4u);  // the first is the best, and three more are no better
}

TEST(EarlyStopping, StartsOverWithEachFit) {
  Trained t;
  const CallbackRef early = EarlyStopping({.monitor = "loss", .min_delta = 1e-3, .patience = 2});
  for (int call = 0; call < 2; ++call) {
    const History history =
        t.model.fit(t.data.x, t.data.y, {.epochs = 9, .callbacks = {stand_still(), early}});
    EXPECT_EQ(history.epochs.size(), 3u);
  }
}

TEST(EarlyStopping, RestoresTheBestWeights) {
  Trained t;
  std::vector<Tensor> best;
  double best_loss = std::numeric_limits<double>::infinity();
  const CallbackRef watch =
      LambdaCallback({.on_epoch_end = [&](Model& model, std::int64_t, const Logs& logs) {
        if (logs["val_loss"] >= best_loss) return;
        best_loss = logs["val_loss"];
        best = model.weights();
      }});
  // A learning rate that explodes after the third epoch.
  const CallbackRef rates =
      LearningRateScheduler([](std::int64_t epoch, double) { return epoch < 3 ? 0.01 : 5.0; });
  t.model.fit(
      t.data.x, t.data.y,
      {.epochs = 10,
       .callbacks = {rates, watch, EarlyStopping({.patience = 2, .restore_best_weights = true})},
       .validation_split = 0.25});
  const std::vector<Tensor> now = t.model.weights();
  for (std::size_t i = 0; i < now.size(); ++i) EXPECT_TRUE(now[i].same_bits(best[i]));
}

TEST(Callbacks, AMonitorThatDoesNotExistIsRefusedBeforeTraining) {
  Trained t;
  for (const CallbackRef& callback :
       {EarlyStopping({.monitor = "val_los"}), ReduceLROnPlateau({.monitor = "val_los"}),
        ModelCheckpoint({.path = "unused", .monitor = "val_los", .save_best_only = true})}) {
    const std::string message =
        message_of<UsageError>([&] { t.model.fit(t.data.x, t.data.y, {.callbacks = {callback}}); });
    EXPECT_NE(message.find("'val_los'"), std::string::npos) << message;
    EXPECT_NE(message.find("sparse_categorical_accuracy"), std::string::npos) << message;
  }
  EXPECT_EQ(t.model.step(), 0);
}

TEST(Callbacks, ACheckpointOfTheBestCannotBeSavedEveryFewSteps) {
  const std::string message = message_of<UsageError>(
      [] { ModelCheckpoint({.path = "unused", .save_best_only = true, .every_steps = 5}); });
  EXPECT_NE(message.find("two callbacks"), std::string::npos) << message;
  EXPECT_NE(message.find("save_best_only"), std::string::npos) << message;
}

TEST(Callbacks, TheLearningRateSchedulerSetsTheRateOfEachEpoch) {
  Trained t;
  const History history = t.model.fit(
      t.data.x, t.data.y,
      {.epochs = 3, .callbacks = {LearningRateScheduler([](std::int64_t epoch, double rate) {
                      return epoch == 0 ? 0.5 : rate / 2;
                    })}});
  EXPECT_EQ(history.series("lr"), (std::vector<double>{0.5, 0.25, 0.125}));
}

TEST(Callbacks, ReduceLROnPlateauLowersTheRateAfterPatienceEpochs) {
  Trained t;
  t.model.set_learning_rate(0.5);
  const History history = t.model.fit(
      t.data.x, t.data.y,
      {.epochs = 6,
       .callbacks = {ReduceLROnPlateau(
           {.monitor = "loss", .factor = 0.5, .patience = 2, .min_delta = 1e6, .min_lr = 0.2})}});
  EXPECT_EQ(t.model.learning_rate(), static_cast<double>(0.2f));
  EXPECT_EQ(history.series("lr")[1], 0.5);
}

TEST(Callbacks, ARateCannotBeSetIfThereIsASchedule) {
  Trained t;
  CompileOptions options = with_adam();
  options.optimizer = SGD({.learning_rate = CosineDecay({.initial_learning_rate = 0.1})});
  t.model.compile(options);
  EXPECT_NE(message_of<UsageError>([&] { t.model.set_learning_rate(0.1); }).find("schedule"),
            std::string::npos);
}

TEST(Callbacks, CSVLoggerWritesALinePerEpoch) {
  const TemporaryFolder folder;
  Trained t;
  for (const bool append : {false, true}) {
    t.model.fit(
        t.data.x, t.data.y,
        {.epochs = 2, .callbacks = {CSVLogger({.path = folder / "log.csv", .append = append})}});
  }
  std::ifstream file(folder / "log.csv");
  std::vector<std::string> lines;
  for (std::string line; std::getline(file, line);) lines.push_back(line);
  ASSERT_EQ(lines.size(), 5u);
  EXPECT_EQ(lines[0], "epoch,loss,sparse_categorical_accuracy,lr,seconds,samples_per_s");
  EXPECT_EQ(lines[4].substr(0, 2), "1,");
  EXPECT_EQ(std::count(lines[4].begin(), lines[4].end(), ','), 5);
  EXPECT_THROW(t.model.fit(t.data.x, t.data.y,
                           {.callbacks = {CSVLogger({.path = folder / "no/such/folder.csv"})}}),
               DataError);
}

TEST(Callbacks, ModelCheckpointFillsInItsPathAndKeepsTheBestOnly) {
  const TemporaryFolder folder;
  Trained t;
  t.model.fit(t.data.x, t.data.y,
              {.epochs = 2,
               .callbacks = {ModelCheckpoint(
                   {.path = folder.path() + "/all/{epoch:02d}-{loss:.1f}.safetensors"})}});
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder / "all"), {}), 2);
  t.model.fit(
      t.data.x, t.data.y,
      {.epochs = 4,
       .callbacks = {stand_still(), ModelCheckpoint({.path = folder.path() + "/best/{epoch}",
                                                     .monitor = "val_loss",
                                                     .save_best_only = true,
                                                     .save_weights_only = true})},
       .validation_split = 0.25});
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder / "best"), {}), 1);
  EXPECT_TRUE(std::filesystem::exists(folder / "best/1"));
  t.model.fit(t.data.x, t.data.y,
              {.callbacks = {
                   ModelCheckpoint({.path = folder.path() + "/steps/{step}", .every_steps = 2})}});
  EXPECT_GE(std::distance(std::filesystem::directory_iterator(folder / "steps"), {}), 1);
  const History by_clock =
      t.model.fit(t.data.x, t.data.y,
                  {.callbacks = {ModelCheckpoint({.path = folder.path() + "/clock/{step}",
                                                  .every = std::chrono::nanoseconds(1)})}});
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder / "clock"), {}),
            by_clock.steps);
  EXPECT_NE(message_of<UsageError>([&] {
              t.model.fit(
                  t.data.x, t.data.y,
                  {.callbacks = {ModelCheckpoint({.path = folder.path() + "/{accuracy}"})}});
            }).find("sparse_categorical_accuracy"),
            std::string::npos);
}

TEST(Callbacks, EscapedBracesDoNotMakeACheckpointWaitForTheValidation) {
  const TemporaryFolder folder;
  bool trained = false;
  FitOptions options;
  options.validation_data = shuffled_batches(make_problem(16));
  options.callbacks = {LambdaCallback({.on_epoch_trained = [&](Model&, std::int64_t,
                                                               const Logs&) { trained = true; }}),
                       ModelCheckpoint({.path = (folder / "a{{val_loss}}").string()})};
  options.interrupted = [&] { return trained; };
  Sequential model = make_model();
  model.compile(with_adam());
  EXPECT_TRUE(model.fit(shuffled_batches(make_problem(64)), options).interrupted);
  EXPECT_TRUE(std::filesystem::exists(folder / "a{val_loss}"));
}

TEST(Callbacks, TerminateOnNaNStopsAtTheFirstBadStep) {
  Trained t;
  Tensor bad = t.data.x.clone();
  bad.values<float>()[0] = std::numeric_limits<float>::quiet_NaN();
  const History history = t.model.fit(
      bad, t.data.y,
      {.epochs = 5, .callbacks = {TerminateOnNaN()}, .batch_size = 16, .shuffle = false});
  EXPECT_EQ(history.steps, 1);
  EXPECT_EQ(history.first_non_finite_step, 0);
  EXPECT_NE(history.report().find("not a finite number at step 0"), std::string::npos);
}

TEST(Callbacks, TheProgressBarWritesALinePerEpochWithoutATerminal) {
  Trained t;
  std::ostringstream plain;
  t.model.fit(t.data.x, t.data.y, {.epochs = 2, .callbacks = {ProgressBar(plain)}});
  const std::string text = plain.str();
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 2);
  EXPECT_EQ(text.find('\r'), std::string::npos);
  EXPECT_NE(text.find("epoch 2/2"), std::string::npos) << text;
  EXPECT_NE(text.find("loss "), std::string::npos) << text;

  std::ostringstream live;
  t.model.fit(t.data.x, t.data.y,
              {.epochs = 2, .callbacks = {ProgressBar(live, {.terminal = true})}});
  EXPECT_NE(live.str().find('\r'), std::string::npos);
}

struct Counting : Callback {
  int begun = 0, ended = 0, epochs = 0, batches = 0;
  double last_running = 0.0;
  std::optional<std::int64_t> steps;
  void on_train_begin(Model&, const FitInfo& info) override {
    ++begun;
    steps = info.steps_per_epoch;
  }
  void on_train_end(Model&) override { ++ended; }
  void on_epoch_begin(Model&, std::int64_t) override { ++epochs; }
  void on_batch_end(Model&, std::int64_t, const BatchLogs& logs) override {
    ++batches;
    last_running = logs.running()["loss"];
  }
};

TEST(Callbacks, UserDefinedOnesSeeEveryStep) {
  Trained t;
  const auto counting = std::make_shared<Counting>();
  const History history =
      t.model.fit(t.data.x, t.data.y, {.epochs = 2, .callbacks = {counting}, .batch_size = 10});
  EXPECT_EQ(counting->begun, 1);
  EXPECT_EQ(counting->ended, 1);
  EXPECT_EQ(counting->epochs, 2);
  EXPECT_EQ(counting->batches, 14);
  EXPECT_EQ(counting->steps, 7);
  EXPECT_EQ(counting->last_running, history.series("loss").back());
}

TEST(Callbacks, StoppingInTheMiddleEndsTheEpochThere) {
  Trained t;
  const History history = t.model.fit(
      t.data.x, t.data.y,
      {.epochs = 3,
       .callbacks = {LambdaCallback({.on_batch_end =
                                         [](Model& model, std::int64_t step, const BatchLogs&) {
                                           if (step == 1) model.stop_training();
                                         }})},
       .batch_size = 16});
  EXPECT_EQ(history.steps, 2);
  EXPECT_EQ(history.epochs.size(), 1u);
  EXPECT_EQ(t.model.fit(t.data.x, t.data.y, {.batch_size = 16}).steps, 4);
}

}  // namespace
}  // namespace lockstep::testing

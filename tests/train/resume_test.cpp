// Resuming: callbacks continue with their state, or the call is refused before anything changes.
#include <gtest/gtest.h>

#include "temporary_folder.h"
#include "train/problem.h"

namespace lockstep::testing {
namespace {

Sequential compiled_model() {
  Sequential model = make_dropout_model();
  model.compile(with_adam());
  return model;
}

CallbackRef decay() {
  return LearningRateScheduler([](std::int64_t, double rate) { return rate * 0.9; });
}

class ResumeWithARate : public ::testing::TestWithParam<std::int64_t> {};

// 7 steps per epoch.
TEST_P(ResumeWithARate, SetsTheRateOncePerEpoch) {
  const TemporaryFolder folder;
  const Dataset batches = shuffled_batches(make_problem(100));
  Sequential straight = compiled_model();
  const History whole = straight.fit(batches, {.epochs = 3, .callbacks = {decay()}});
  Sequential stopped = compiled_model();
  stopped.fit(batches,
              {.epochs = 3, .callbacks = {decay(), save_and_stop(GetParam(), folder / "file")}});
  Sequential resumed = compiled_model();
  const History rest =
      resumed.fit(batches, {.epochs = 3, .callbacks = {decay()}, .resume = folder / "file"});
  EXPECT_TRUE(same_weights(straight, resumed));
  EXPECT_EQ(rest.series("lr").back(), whole.series("lr").back());
}

INSTANTIATE_TEST_SUITE_P(Steps, ResumeWithARate, ::testing::Values(1, 7, 10, 14));

TEST(Resume, EarlyStoppingStillKnowsTheBestWeights) {
  const TemporaryFolder folder;
  const Dataset batches = shuffled_batches(make_problem(64));  // 4 steps per epoch
  // The best epoch is the second; after it, the learning rate spoils the weights.
  const auto callbacks = [] {
    return std::vector{
        LearningRateScheduler([](std::int64_t epoch, double) { return epoch < 2 ? 0.01 : 5.0; }),
        EarlyStopping({.monitor = "loss", .patience = 3, .restore_best_weights = true})};
  };
  std::vector<CallbackRef> watched = callbacks();
  std::vector<Tensor> best;
  watched.push_back(
      LambdaCallback({.on_epoch_end = [&](Model& model, std::int64_t epoch, const Logs&) {
        if (epoch == 1) best = model.weights();
      }}));
  Sequential straight = compiled_model();
  EXPECT_EQ(straight.fit(batches, {.epochs = 9, .callbacks = watched}).epochs.size(), 5u);
  EXPECT_TRUE(straight.weights()[0].same_bits(best[0]));

  for (const std::int64_t step : {10, 12}) {  // in the third epoch, and at its end
    std::vector<CallbackRef> stopping = callbacks();
    stopping.push_back(save_and_stop(step, folder / "file"));
    Sequential stopped = compiled_model();
    stopped.fit(batches, {.epochs = 9, .callbacks = stopping});
    Sequential resumed = compiled_model();
    resumed.fit(batches, {.epochs = 9, .callbacks = callbacks(), .resume = folder / "file"});
    EXPECT_TRUE(same_weights(straight, resumed)) << step;
    Sequential loaded = compiled_model();
    loaded.build({kFeatures});
    loaded.load(folder / "file");  // the state of callbacks is ignored
    loaded.load_weights(folder / "file");
    EXPECT_EQ(loaded.step(), step);
  }
}

// Counts the batches that it has seen, across resumed runs.
class Counter final : public Callback {
 public:
  void on_batch_end(Model&, std::int64_t, const BatchLogs&) override { ++seen; }
  std::string save_state() const override { return std::to_string(seen); }
  void restore_state(const std::string& state) override { seen = std::stoll(state); }
  std::int64_t seen = 0;
};

TEST(Resume, StatesAreMatchedToCallbacksByKindAndOrder) {
  const TemporaryFolder folder;
  const Dataset batches = shuffled_batches(make_problem(64));
  const auto first = std::make_shared<Counter>();
  const auto second = std::make_shared<Counter>();
  second->seen = 100;
  Sequential stopped = compiled_model();
  stopped.fit(batches, {.epochs = 2,
                        .callbacks = {first, decay(), second, save_and_stop(6, folder / "file")}});
  const auto third = std::make_shared<Counter>();
  const auto fourth = std::make_shared<Counter>();
  Sequential resumed = compiled_model();
  resumed.fit(batches, {.epochs = 2,
                        .callbacks = {TerminateOnNaN(), third, LambdaCallback({}), fourth, decay(),
                                      CSVLogger({.path = folder / "log.csv"}),
                                      ModelCheckpoint({.path = (folder / "again").string()})},
                        .resume = folder / "file"});
  EXPECT_EQ(third->seen, 8);
  EXPECT_EQ(fourth->seen, 108);
}

TEST(Resume, AStateThatNoCallbackTakesIsNamedAndNothingChanges) {
  const TemporaryFolder folder;
  const Dataset batches = shuffled_batches(make_problem(64));
  const auto best = [&] {
    return ModelCheckpoint(
        {.path = (folder / "best").string(), .monitor = "loss", .save_best_only = true});
  };
  Sequential stopped = compiled_model();
  stopped.fit(batches,
              {.epochs = 2,
               .callbacks = {decay(), EarlyStopping({.monitor = "loss"}), best(),
                             std::make_shared<Counter>(), save_and_stop(6, folder / "file")}});
  Sequential resumed = compiled_model();
  resumed.build({kFeatures});
  const std::vector<Tensor> before = resumed.weights();
  const auto refuse = [&](std::vector<CallbackRef> callbacks, const std::string& missing) {
    const std::string message = message_of<UsageError>([&] {
      resumed.fit(batches, {.epochs = 2, .callbacks = callbacks, .resume = folder / "file"});
    });
    EXPECT_NE(message.find("has the saved state of"), std::string::npos) << message;
    EXPECT_NE(message.find(missing), std::string::npos) << message;
    EXPECT_TRUE(resumed.weights()[0].same_bits(before[0]));
    EXPECT_EQ(resumed.step(), 0);
  };
  const CallbackRef early = EarlyStopping({.monitor = "loss"});
  const CallbackRef counter = std::make_shared<Counter>();
  refuse({}, "LearningRateScheduler");
  refuse({early, best(), counter}, "LearningRateScheduler");
  refuse({decay(), best(), counter}, "EarlyStopping");
  refuse({decay(), early, counter, ModelCheckpoint({.path = "unused"})},
         "ModelCheckpoint with save_best_only");
  refuse({decay(), early, best()}, "Counter");
}

TEST(Resume, InTheMiddleOfAPassAnotherBatchSizeIsRefused) {
  const TemporaryFolder folder;
  const Problem data = make_problem(100);
  const Dataset batches = shuffled_batches(data);
  Sequential stopped = compiled_model();
  stopped.fit(batches, {.callbacks = {save_and_stop(3, folder / "middle")}});
  stopped = compiled_model();
  stopped.fit(batches, {.callbacks = {ModelCheckpoint({.path = (folder / "end").string()})}});

  Sequential resumed = compiled_model();
  const std::string size = message_of<UsageError>(
      [&] { resumed.fit(shuffled_batches(data, 20), {.resume = folder / "middle"}); });
  EXPECT_NE(size.find("batches of 16, 7 in a pass"), std::string::npos) << size;
  EXPECT_NE(size.find("batches of 20, 5 in a pass"), std::string::npos) << size;
  const Dataset dropping = Dataset::from_tensor_slices({data.x, data.y})
                               .shuffle({.buffer = 100, .seed = 5})
                               .batch(16, {.drop_remainder = true});
  const std::string remainder =
      message_of<UsageError>([&] { resumed.fit(dropping, {.resume = folder / "middle"}); });
  EXPECT_NE(remainder.find("drop_remainder"), std::string::npos) << remainder;
  EXPECT_EQ(resumed.step(), 0);
  // A new epoch may have another batch size.
  resumed.fit(shuffled_batches(data, 20), {.epochs = 2, .resume = folder / "end"});
  EXPECT_EQ(resumed.step(), 7 + 5);
}

Sequential compiled_conv_model() {
  Sequential model = make_conv_model();
  CompileOptions options = with_adam();
  options.optimizer =
      SGD({.learning_rate = CosineDecay({.initial_learning_rate = 0.1, .decay_steps = 10}),
           .momentum = 0.9});
  model.compile(options);
  return model;
}

TEST(Resume, AConvolutionalNetWithBatchNormAndACosineScheduleContinuesBitForBit) {
  const TemporaryFolder folder;
  const Dataset batches = shuffled_batches(make_images(72));  // 5 steps per epoch, the last short
  Sequential straight = compiled_conv_model();
  straight.fit(batches, {.epochs = 2});
  for (const std::int64_t step : {3, 5, 8}) {
    Sequential stopped = compiled_conv_model();
    stopped.fit(batches, {.epochs = 2, .callbacks = {save_and_stop(step, folder / "file")}});
    EXPECT_FALSE(same_weights(straight, stopped));
    Sequential resumed = compiled_conv_model();
    resumed.fit(batches, {.epochs = 2, .resume = folder / "file"});
    EXPECT_TRUE(same_weights(straight, resumed)) << step;
  }
}

TEST(Reproducible, AConvolutionalNetWithBatchNormTrainsToTheSameBits) {
  const Dataset batches = shuffled_batches(make_images(72));
  Sequential first = compiled_conv_model();
  const History one = first.fit(batches, {.epochs = 2});
  Sequential second = compiled_conv_model();
  const History two = second.fit(batches, {.epochs = 2});
  EXPECT_TRUE(same_weights(first, second));
  EXPECT_EQ(one.series("loss"), two.series("loss"));
}

}  // namespace
}  // namespace lockstep::testing

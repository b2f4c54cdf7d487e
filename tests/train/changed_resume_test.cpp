// Resuming with other options: permitted changes take effect, and state that was saved for
// something else, or is damaged, is not used.
#include <gtest/gtest.h>

#include "temporary_folder.h"
#include "train/problem.h"

namespace lockstep::testing {
namespace {

Sequential compiled_at(const Schedule& rate) {
  Sequential model = make_model();
  CompileOptions options = with_adam();
  options.optimizer = Adam({.learning_rate = rate});
  model.compile(options);
  return model;
}

// The learning rate after the second epoch of a run whose first epoch had another schedule.
double resumed_rate(const Schedule& first, const Schedule& then) {
  const TemporaryFolder folder;
  const std::filesystem::path file = folder / "model";
  const Dataset batches = shuffled_batches(make_problem(64));
  Sequential before = compiled_at(first);
  before.fit(batches, {.callbacks = {ModelCheckpoint({.path = file.string()})}});
  Sequential after = compiled_at(then);
  const History history =
      after.fit(batches, {.epochs = 2,
                          .callbacks = {ModelCheckpoint({.path = (folder / "next").string()})},
                          .resume = file});
  EXPECT_EQ(after.step(), 8);
  return history.epochs.back().logs.at("lr");
}

TEST(ResumeWithOthers, AScheduleMayBeAddedAndRemoved) {
  const Schedule decay = CosineDecay({.initial_learning_rate = 0.1, .decay_steps = 16});
  Sequential whole = compiled_at(decay);
  const Dataset batches = shuffled_batches(make_problem(64));
  const History history = whole.fit(batches, {.epochs = 2});
  EXPECT_FLOAT_EQ(static_cast<float>(resumed_rate(Schedule(0.01), decay)),
                  static_cast<float>(history.epochs.back().logs.at("lr")));
  EXPECT_FLOAT_EQ(static_cast<float>(resumed_rate(decay, Schedule(0.02))), 0.02f);
  // A constant rate is part of the state: callbacks may have lowered it.
  EXPECT_FLOAT_EQ(static_cast<float>(resumed_rate(Schedule(0.01), Schedule(0.02))), 0.01f);
}

// A run resumed with another monitor than "loss" has its best in its first epoch and therefore
// stops only after the second.
TEST(ResumeWithOthers, AnotherMonitorStartsWithoutABest) {
  const TemporaryFolder folder;
  const std::filesystem::path file = folder / "model";
  const std::filesystem::path best = folder / "best";
  const Dataset batches = shuffled_batches(make_problem(64));
  const auto callbacks = [&](const std::string& monitor) -> std::vector<CallbackRef> {
    // No later value improves on the first by this much.
    return {EarlyStopping({.monitor = monitor, .min_delta = 100, .patience = 1}),
            ModelCheckpoint(
                {.path = best.string(), .monitor = monitor, .save_best_only = true, .mode = "max"}),
            ModelCheckpoint({.path = file.string()})};
  };
  Sequential first = compiled_at(0.0);
  first.fit(batches, {.epochs = 1, .callbacks = callbacks("loss")});
  ASSERT_TRUE(std::filesystem::exists(best));
  const auto resumed_epochs = [&](const std::string& monitor) {
    std::filesystem::remove(best);
    std::filesystem::copy_file(file, folder / "kept",
                               std::filesystem::copy_options::overwrite_existing);
    Sequential next = compiled_at(0.0);
    const History history = next.fit(
        batches, {.epochs = 9, .callbacks = callbacks(monitor), .resume = folder / "kept"});
    std::filesystem::copy_file(folder / "kept", file,
                               std::filesystem::copy_options::overwrite_existing);
    return history.epochs.size();
  };
  EXPECT_EQ(resumed_epochs("loss"), 1u);
  EXPECT_FALSE(std::filesystem::exists(best));
  EXPECT_EQ(resumed_epochs("sparse_categorical_accuracy"), 2u);
  EXPECT_TRUE(std::filesystem::exists(best));
}

TEST(ResumeWithOthers, StatesOfEarlierVersionsKeepTheirBest) {
  const CallbackRef stopping = EarlyStopping({.monitor = "loss"});
  stopping->restore_state(R"({"best": 0.25, "waited": 1})");
  EXPECT_NE(stopping->save_state().find("0.25"), std::string::npos) << stopping->save_state();
  EXPECT_NE(stopping->save_state().find("\"waited\":1"), std::string::npos);
  const CallbackRef best = ModelCheckpoint({.path = "best", .save_best_only = true});
  best->restore_state("0.25");
  EXPECT_NE(best->save_state().find("0.25"), std::string::npos) << best->save_state();
}

TEST(ResumeWithOthers, DamagedStatesOfCallbacksAreDataErrors) {
  const auto expect_refused = [](const CallbackRef& callback, const char* state) {
    try {
      callback->restore_state(state);
      ADD_FAILURE() << state;
    } catch (const DataError& error) {
      EXPECT_NE(std::string(error.what()).find("the saved state is damaged"), std::string::npos)
          << error.what();
    }
  };
  expect_refused(EarlyStopping({}), R"({"best": 1.5, "waited": "long"})");
  expect_refused(EarlyStopping({}), R"({"best": "low", "waited": 1})");
  expect_refused(ReduceLROnPlateau({}), R"({"best": 1.5, "waited": 1, "cooling": []})");
  expect_refused(LearningRateScheduler([](std::int64_t, double rate) { return rate; }),
                 R"({"epoch": {}})");
  expect_refused(ModelCheckpoint({.path = "best", .save_best_only = true}),
                 R"({"monitor": "val_loss", "mode": "min", "best": true})");
}

}  // namespace
}  // namespace lockstep::testing

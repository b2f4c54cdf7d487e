// An epoch is saved before it is validated, so that a failed or interrupted validation loses
// nothing; a resumed run does the rest exactly once.
#include <gtest/gtest.h>

#include <fstream>
#include <map>

#include "temporary_folder.h"
#include "train/problem.h"

namespace lockstep::testing {
namespace {

struct Killed {};

// A run with callbacks that keep state, with its files in `folder`.
struct Training {
  explicit Training(const std::filesystem::path& where) : folder(where) {
    std::filesystem::create_directories(folder);
  }

  std::vector<CallbackRef> callbacks(bool resumes) {
    const auto ended = [this](Model&, std::int64_t epoch, const Logs&) { ++ends[epoch]; };
    return {LambdaCallback({.on_epoch_trained = on_epoch_trained, .on_epoch_end = ended}),
            EarlyStopping({.monitor = "val_loss", .patience = 2}),
            ReduceLROnPlateau({.monitor = "val_loss", .factor = 0.5, .patience = 1}),
            CSVLogger({.path = folder / "log.csv", .append = resumes}),
            ModelCheckpoint({.path = (folder / "model").string()})};
  }

  FitOptions options(const Dataset& validation, bool resumes) {
    FitOptions options;
    options.epochs = 5;
    options.validation_data = validation;
    options.callbacks = callbacks(resumes);
    if (resumes) options.resume = folder / "model";
    return options;
  }

  // Epochs, losses and metrics, without the times, which differ from run to run.
  std::vector<std::string> log() const {
    std::vector<std::string> lines;
    std::ifstream file(folder / "log.csv");
    for (std::string line; std::getline(file, line);) {
      lines.push_back(line.substr(0, line.rfind(',', line.rfind(',') - 1)));
    }
    return lines;
  }

  std::filesystem::path folder;
  std::map<std::int64_t, int> ends;  // how many times each epoch ended
  std::function<void(Model&, std::int64_t, const Logs&)> on_epoch_trained = {};
};

// A model with a learning rate that makes the validation loss go up and down.
Sequential small_model() {
  Sequential model = make_dropout_model();
  CompileOptions options = with_adam();
  options.optimizer = Adam({.learning_rate = 0.3});
  model.compile(options);
  return model;
}

class StoppedAround : public ::testing::TestWithParam<int> {};

// Parameter: which call of options.interrupted after the steps of the second epoch kills or
// interrupts the run; 0 is before the validation, later ones are between its batches.
TEST_P(StoppedAround, AValidationTheRunContinuesUnchanged) {
  const TemporaryFolder folder;
  const Dataset batches = shuffled_batches(make_problem(100));
  const Problem rest = make_problem(60, 9);
  const Dataset validation = Dataset::from_tensor_slices({rest.x, rest.y}).batch(16);
  Training straight(folder / "straight");
  Sequential expected = small_model();
  const History whole = expected.fit(batches, straight.options(validation, false));
  ASSERT_GE(whole.epochs.size(), 3u);

  for (const bool killed : {false, true}) {
    Training run(folder / (killed ? "killed" : "interrupted"));
    int questions = -1;
    run.on_epoch_trained = [&](Model&, std::int64_t epoch, const Logs& logs) {
      EXPECT_FALSE(logs.has("val_loss"));
      if (epoch == 1) questions = 0;
    };
    FitOptions options = run.options(validation, false);
    options.interrupted = [&] {
      if (questions < 0 || questions++ < GetParam()) return false;
      if (killed) throw Killed();
      return true;
    };
    Sequential stopped = small_model();
    if (killed) {
      EXPECT_THROW(stopped.fit(batches, options), Killed);
    } else {
      EXPECT_TRUE(stopped.fit(batches, options).interrupted);
    }
    EXPECT_EQ(run.ends[1], 0);
    run.on_epoch_trained = {};
    Sequential resumed = small_model();
    const History rest_of = resumed.fit(batches, run.options(validation, true));
    EXPECT_TRUE(same_weights(expected, resumed)) << killed;
    EXPECT_EQ(run.log(), straight.log()) << killed;
    EXPECT_EQ(run.ends, straight.ends) << killed;
    EXPECT_EQ(rest_of.epochs.front().epoch, 1);
    EXPECT_EQ(rest_of.series("val_loss").back(), whole.series("val_loss").back());
    EXPECT_EQ(rest_of.series("loss").front(), whole.series("loss")[1]);
    EXPECT_EQ(rest_of.epochs.size() + 1, whole.epochs.size());
  }
}

INSTANTIATE_TEST_SUITE_P(Questions, StoppedAround, ::testing::Values(0, 1, 3));

TEST(EpochOrder, ABadLabelDeepInTheValidationDataLosesNoEpoch) {
  const TemporaryFolder folder;
  const Dataset batches = shuffled_batches(make_problem(100));
  Problem bad = make_problem(60, 9);
  const Dataset good = Dataset::from_tensor_slices({bad.x.clone(), bad.y.clone()}).batch(16);
  bad.y.values<std::int32_t>()[50] = 77;
  Training run(folder / "run");
  Sequential model = small_model();
  const std::string message = message_of<DataError>([&] {
    model.fit(batches, run.options(Dataset::from_tensor_slices({bad.x, bad.y}).batch(16), false));
  });
  EXPECT_NE(message.find("[validation] batch 3"), std::string::npos) << message;
  ASSERT_TRUE(std::filesystem::exists(folder / "run" / "model"));
  Sequential expected = small_model();
  Training straight(folder / "straight");
  expected.fit(batches, straight.options(good, false));
  Sequential resumed = small_model();
  resumed.fit(batches, run.options(good, true));
  EXPECT_TRUE(same_weights(expected, resumed));
}

TEST(EpochOrder, UnusableValidationDataIsRefusedBeforeTheFirstStep) {
  const Dataset batches = shuffled_batches(make_problem(64));
  const auto refused = [&](Tensor x, Tensor y) {
    Sequential model = small_model();
    const Dataset bad = Dataset::from_tensor_slices({std::move(x), std::move(y)}).batch(8);
    const std::string message =
        message_of<Error>([&] { model.fit(batches, {.validation_data = bad}); });
    EXPECT_EQ(model.step(), 0) << message;
    return message;
  };
  const Problem data = make_problem(16);
  Tensor out_of_range = data.y.clone();
  out_of_range.values<std::int32_t>()[3] = 9;
  const std::string label = refused(data.x, out_of_range);
  EXPECT_NE(label.find("[validation] batch 0"), std::string::npos) << label;
  EXPECT_NE(label.find("9"), std::string::npos) << label;
  const std::string shape = refused(Tensor(DType::F32, {16, kFeatures + 1}), data.y);
  EXPECT_NE(shape.find("7"), std::string::npos) << shape;
  EXPECT_NE(refused(data.x, Tensor(DType::I32, {16, 2})), "no exception");
}

TEST(EpochOrder, AStopInTheMiddleOfAnEpochIsSavedAndResumed) {
  const TemporaryFolder folder;
  const Dataset batches = shuffled_batches(make_problem(100));  // 7 steps per epoch
  const Dataset validation = shuffled_batches(make_problem(40, 9));
  Training straight(folder / "straight");
  Sequential expected = small_model();
  expected.fit(batches, straight.options(validation, false));
  for (const bool interrupted : {false, true}) {
    Training run(folder / (interrupted ? "interrupted" : "stopped"));
    Sequential stopped = small_model();
    FitOptions options = run.options(validation, false);
    if (interrupted) {
      options.interrupted = [&] { return stopped.step() == 10; };
    } else {
      options.callbacks.push_back(
          LambdaCallback({.on_batch_end = [](Model& model, std::int64_t, const BatchLogs&) {
            if (model.step() == 10) model.stop_training();
          }}));
    }
    const History history = stopped.fit(batches, options);
    EXPECT_EQ(history.interrupted, interrupted);
    EXPECT_EQ(history.epochs.back().logs.has("val_loss"), !interrupted);
    Sequential resumed = small_model();
    resumed.fit(batches, run.options(validation, true));
    EXPECT_TRUE(same_weights(expected, resumed)) << interrupted;
    EXPECT_EQ(run.log(), straight.log()) << interrupted;
  }
}

TEST(EpochOrder, WithStepsPerEpochAnInterruptedValidationContinuesToo) {
  const TemporaryFolder folder;
  const Dataset batches = shuffled_batches(make_problem(100));
  const Dataset validation = shuffled_batches(make_problem(40, 9));
  const auto options = [&](Training& run, bool resumes) {
    FitOptions options = run.options(validation, resumes);
    options.steps_per_epoch = 5;
    return options;
  };
  Training straight(folder / "straight");
  Sequential expected = small_model();
  expected.fit(batches, options(straight, false));
  Training run(folder / "run");
  bool now = false;
  run.on_epoch_trained = [&](Model&, std::int64_t epoch, const Logs&) { now = epoch == 1; };
  FitOptions interrupted = options(run, false);
  interrupted.interrupted = [&] { return now; };
  Sequential stopped = small_model();
  stopped.fit(batches, interrupted);
  run.on_epoch_trained = {};
  Sequential resumed = small_model();
  resumed.fit(batches, options(run, true));
  EXPECT_TRUE(same_weights(expected, resumed));
  EXPECT_EQ(run.log(), straight.log());
}

}  // namespace
}  // namespace lockstep::testing

// Separate models on separate devices at the same time.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <new>
#include <sstream>
#include <streambuf>

#include "lockstep/profile/recorder.h"
#include "train/problem.h"

namespace lockstep::testing {
namespace {

const std::vector<std::string> kTwo = {"cpu:0", "cpu:1"};

Model compiled(Model model, double rate = 0.01, std::uint64_t seed = 3,
               const Strategy& strategy = {}) {
  model.compile({.strategy = strategy,
                 .optimizer = Adam({.learning_rate = rate}),
                 .loss = SparseCategoricalCrossentropy({.from_logits = true}),
                 .metrics = {SparseCategoricalAccuracy({.name = "accuracy"})},
                 .seed = seed});
  return model;
}

// Models with different layers, rates and seeds.
Model make_numbered(std::size_t i, const Strategy& strategy = {}) {
  return compiled(i % 2 == 0 ? make_model() : make_dropout_model(),
                  0.005 * static_cast<double>(i + 1), i, strategy);
}

std::vector<Model> make_models(std::size_t count) {
  std::vector<Model> models;
  for (std::size_t i = 0; i < count; ++i) models.push_back(make_numbered(i));
  return models;
}

std::vector<TrainJob> make_jobs(const std::vector<Model>& models, const Dataset& batches,
                                const FitOptions& fit = {.epochs = 3}) {
  std::vector<TrainJob> jobs;
  for (const Model& model : models) {
    jobs.push_back({.name = "job " + std::to_string(jobs.size()),
                    .model = model,
                    .batches = batches,
                    .fit = fit});
  }
  return jobs;
}

// The result of train_many must equal that of fit for this model alone on the device.
void expect_as_alone(const TrainResult& result, const Model& trained, std::size_t number,
                     const Dataset& batches, int logical_cpus) {
  ASSERT_EQ(result.error, "");
  Model alone = make_numbered(
      number, OneDeviceStrategy({.device = result.device, .logical_cpus = logical_cpus}));
  const History history = alone.fit(batches, {.epochs = 3});
  EXPECT_EQ(result.history->series("loss"), history.series("loss")) << result.name;
  EXPECT_TRUE(same_weights(trained, alone)) << result.name;
}

TEST(TrainMany, GivesTheBitsOfEveryModelAloneOnSuchADevice) {
  const Dataset batches = shuffled_batches(make_problem(120));
  const std::vector<Model> models = make_models(2);
  const std::vector<TrainResult> results =
      train_many(make_jobs(models, batches), {.devices = kTwo});
  EXPECT_NE(results[0].device, results[1].device);
  for (std::size_t i = 0; i < 2; ++i) expect_as_alone(results[i], models[i], i, batches, 2);
}

TEST(TrainMany, MoreModelsThanDevicesTakeTurns) {
  const Dataset batches = shuffled_batches(make_problem(90));
  const std::vector<Model> models = make_models(7);
  const std::vector<TrainResult> results =
      train_many(make_jobs(models, batches), {.devices = kTwo});
  for (std::size_t i = 0; i < results.size(); ++i) {
    EXPECT_EQ(results[i].name, "job " + std::to_string(i));
    EXPECT_EQ(std::ranges::count(kTwo, results[i].device), 1) << results[i].device;
    EXPECT_GT(results[i].seconds, 0.0);
    expect_as_alone(results[i], models[i], i, batches, 2);
  }
}

TEST(TrainMany, TakesTheDevicesThatAreNamed) {
  const Dataset batches = shuffled_batches(make_problem(60));
  const std::vector<Model> models = make_models(3);
  const std::vector<TrainResult> results =
      train_many(make_jobs(models, batches), {.devices = {"cpu:2", "cpu:5"}});
  for (std::size_t i = 0; i < results.size(); ++i) {
    EXPECT_TRUE(results[i].device == "cpu:2" || results[i].device == "cpu:5") << results[i].device;
    expect_as_alone(results[i], models[i], i, batches, 6);
  }
}

TEST(TrainMany, WithoutNamesTheCoresAreSplitOverTheJobs) {
  const Dataset batches = shuffled_batches(make_problem(60));
  const std::size_t cores = available_cores().size();
  for (const std::size_t count : {std::size_t{1}, cores, cores + 1}) {
    const std::vector<Model> models = make_models(count);
    const std::vector<TrainResult> results = train_many(make_jobs(models, batches));
    const auto devices = static_cast<int>(std::min(count, cores));
    for (std::size_t i = 0; i < count; ++i) {
      expect_as_alone(results[i], models[i], i, batches, devices);
    }
  }
}

TEST(TrainMany, AJobThatFailsIsNamedAndLeavesTheOthersAlone) {
  const Problem problem = make_problem(96);
  const Dataset batches = shuffled_batches(problem);
  Tensor labels = problem.y.clone();
  labels.values<std::int32_t>()[50] = 99;
  const Dataset bad = Dataset::from_tensor_slices({problem.x, labels}).batch(16);

  const std::vector<Model> models = make_models(4);
  std::vector<TrainJob> jobs = make_jobs(models, batches);
  jobs[1].batches = bad;
  const std::vector<TrainResult> results = train_many(jobs, {.devices = kTwo});
  EXPECT_FALSE(results[1].history);
  EXPECT_NE(results[1].error.find("99"), std::string::npos) << results[1].error;
  EXPECT_NE(results[1].error.find("epoch 0, step 3"), std::string::npos) << results[1].error;
  EXPECT_NE(table(results).find("job 1"), std::string::npos);
  EXPECT_NE(table(results).find("failed: [fit] epoch 0, step 3"), std::string::npos);

  for (std::size_t i : {0u, 2u, 3u}) expect_as_alone(results[i], models[i], i, batches, 2);

  // The failed model has the state after its last good step and can be trained further.
  Model failed = models[1];
  EXPECT_EQ(failed.step(), 3);
  failed.fit(batches);
  EXPECT_EQ(failed.step(), 9);
}

TEST(TrainMany, WhateverIsThrownBecomesTheResultOfItsJob) {
  struct NoMessage : std::exception {
    const char* what() const noexcept override { return ""; }
  };
  const std::vector<std::function<void()>> throwers = {
      [] { throw std::bad_alloc(); }, [] { throw 7; }, [] { throw NoMessage(); },
      [] { throw std::runtime_error("the user's own"); }};
  const std::vector<std::string> texts = {"out of memory", "an exception that is no std::exception",
                                          "an exception without a message", "the user's own"};
  std::vector<TrainJob> jobs = make_jobs(make_models(5), shuffled_batches(make_problem(48)));
  for (std::size_t i = 0; i < throwers.size(); ++i) {
    jobs[i].fit.callbacks = {LambdaCallback(
        {.on_batch_end = [thrower = throwers[i]](Model&, std::int64_t step, const BatchLogs&) {
          if (step == 1) thrower();
        }})};
  }
  const std::vector<TrainResult> results = train_many(jobs, {.devices = kTwo});
  for (std::size_t i = 0; i < texts.size(); ++i) EXPECT_EQ(results[i].error, texts[i]);
  EXPECT_EQ(results[4].error, "");
  EXPECT_EQ(results[4].history->epochs.size(), 3u);
}

TEST(TrainMany, AModelStaysUsableWhereItWasTrained) {
  const Problem problem = make_problem(90);
  const Dataset batches = shuffled_batches(problem);
  const Dataset validation = Dataset::from_tensor_slices({problem.x, problem.y}).batch(32);
  std::vector<Model> models = make_models(3);
  const std::vector<TrainResult> results = train_many(
      make_jobs(models, batches, {.epochs = 2, .validation_data = validation}), {.devices = kTwo});
  for (std::size_t i = 0; i < models.size(); ++i) {
    EXPECT_EQ(models[i].evaluate(validation)["loss"], results[i].history->series("val_loss")[1]);
    EXPECT_EQ(models[i].predict(problem.x).shape(), (Shape{90, kClasses}));
    EXPECT_EQ(models[i].recorder().tracks().empty(), false);
  }
  // After compiling again it runs on all cores, with the same values.
  const std::vector<Tensor> before = models[0].weights();
  compiled(models[0]);
  for (std::size_t i = 0; i < before.size(); ++i) {
    EXPECT_TRUE(models[0].weights()[i].same_bits(before[i]));
  }
  models[0].fit(batches);
  EXPECT_EQ(models[0].step(), 6);
}

TEST(TrainMany, ASecondCallGoesOnWhereTheFirstStopped) {
  const Dataset batches = shuffled_batches(make_problem(90));
  const std::vector<Model> models = make_models(3);
  train_many(make_jobs(models, batches, {.epochs = 1}), {.devices = kTwo});
  const std::vector<TrainResult> results =
      train_many(make_jobs(models, batches, {.epochs = 3, .initial_epoch = 1}), {.devices = kTwo});
  const std::vector<Model> whole = make_models(3);
  train_many(make_jobs(whole, batches), {.devices = kTwo});
  for (std::size_t i = 0; i < models.size(); ++i) {
    EXPECT_EQ(results[i].history->epochs.size(), 2u);
    EXPECT_TRUE(same_weights(models[i], whole[i])) << results[i].name;
  }
}

TEST(TrainMany, TakesAlongTheValuesThatAModelHas) {
  const Problem problem = make_problem(60);
  const Dataset batches = shuffled_batches(problem);
  std::vector<Model> models = {compiled(make_model(), 0.0), compiled(make_model(), 0.0, 8)};
  // A function that calls both puts them into one session.
  Function both(models, [&](Value x) { return models[0](x) + models[1](x); });
  const Tensor before = both(problem.x);
  train_many(make_jobs(models, batches, {.epochs = 1}), {.devices = kTwo});
  Tensor after = models[0].predict(problem.x).clone();
  const Tensor second = models[1].predict(problem.x);
  for (std::size_t i = 0; i < after.values<float>().size(); ++i) {
    EXPECT_NEAR(before.values<float>()[i], after.values<float>()[i] + second.values<float>()[i],
                1e-5f);
  }
}

TEST(TrainMany, RefusesJobsThatCannotRunSideBySide) {
  const Dataset batches = shuffled_batches(make_problem(32));
  const auto refused = [&](std::vector<TrainJob> jobs, const TrainManyOptions& options = {}) {
    const std::string message = message_of<UsageError>([&] { train_many(jobs, options); });
    for (const TrainJob& job : jobs) EXPECT_FALSE(job.model.built());
    return message;
  };
  const auto pair = [&](const Model& a, const Model& b) {
    return std::vector<TrainJob>{{.name = "a", .model = a, .batches = batches},
                                 {.name = "b", .model = b, .batches = batches}};
  };
  const auto fresh = [] { return compiled(make_model()); };
  const auto has = [](const std::string& text, const char* part) {
    return text.find(part) != std::string::npos ? ::testing::AssertionSuccess()
                                                : ::testing::AssertionFailure() << text;
  };
  EXPECT_TRUE(has(refused({}), "there are no jobs"));
  EXPECT_TRUE(has(refused(pair(fresh(), make_model())), "the model of 'b' is not compiled"));
  const Model twice = fresh();
  EXPECT_TRUE(has(refused(pair(twice, twice)), "'a' and 'b' have the same model"));

  const Layer dense = Dense({.units = kClasses, .name = "head"});
  EXPECT_TRUE(has(refused(pair(compiled(Sequential({dense})), compiled(Sequential({dense})))),
                  "'a' and 'b' have the same layer 'head'"));
  const CompileOptions shared = with_adam();
  Sequential first = make_model();
  Sequential second = make_model();
  first.compile(shared);
  second.compile(shared);
  EXPECT_TRUE(has(refused(pair(first, second)), "the same optimizer"));

  Sequential placed = make_model();
  CompileOptions options = with_adam();
  options.strategy = OneDeviceStrategy();
  placed.compile(options);
  EXPECT_TRUE(has(refused(pair(fresh(), placed)), "'b' is compiled for a strategy"));

  std::vector<TrainJob> named = pair(fresh(), fresh());
  named[1].name = "a";
  EXPECT_TRUE(has(refused(named), "jobs 1 and 2 are both called 'a'"));
  named[0].name = "model 2";
  named[1].name = "";
  EXPECT_TRUE(has(refused(named), "both called 'model 2'"));

  std::vector<TrainJob> followed = pair(fresh(), fresh());
  followed[0].fit.callbacks = followed[1].fit.callbacks = {TerminateOnNaN()};
  EXPECT_TRUE(has(refused(followed), "the same callback"));

  EXPECT_TRUE(has(refused(pair(fresh(), fresh()), {.devices = {"gpu:0"}}), "no device gpu:0"));
  EXPECT_TRUE(has(refused(pair(fresh(), fresh()), {.devices = {"cpu:0", "cpu:0"}}), "named twice"));
  EXPECT_TRUE(has(refused(pair(fresh(), fresh()), {.devices = {"cpu:2"}, .logical_cpus = 2}),
                  "split into 2"));
}

TEST(TrainMany, RefusesAModelThatFitIsRunningOn) {
  const Dataset batches = shuffled_batches(make_problem(32));
  Model model = compiled(make_model());
  std::string message;
  const CallbackRef nested =
      LambdaCallback({.on_epoch_end = [&](Model& self, std::int64_t, const Logs&) {
        message = message_of<UsageError>(
            [&] { train_many({{.name = "again", .model = self, .batches = batches}}); });
      }});
  model.fit(batches, {.callbacks = {nested}});
  EXPECT_NE(message.find("already running on the model of 'again'"), std::string::npos) << message;
}

TEST(TrainMany, WritesALineWhenAJobBeginsAndWhenItEnds) {
  std::vector<TrainJob> jobs = make_jobs(make_models(3), shuffled_batches(make_problem(32)));
  jobs[0].name = "";
  jobs[2].fit.epochs = -1;
  std::ostringstream stream;
  train_many(jobs, {.devices = {"cpu:0"}, .progress = &stream});
  std::istringstream lines(stream.str());
  std::vector<std::string> seen;
  for (std::string line; std::getline(lines, line);) seen.push_back(line);
  ASSERT_EQ(seen.size(), 6u) << stream.str();
  EXPECT_EQ(seen[0], "model 1: begins on cpu:0 (1 of 3)");
  EXPECT_TRUE(seen[1].starts_with("model 1: 3 epochs on cpu:0 in ")) << seen[1];
  EXPECT_NE(seen[1].find(" s  loss "), std::string::npos) << seen[1];
  EXPECT_NE(seen[1].find("  accuracy "), std::string::npos) << seen[1];
  EXPECT_EQ(seen[4], "job 2: begins on cpu:0 (3 of 3)");
  EXPECT_TRUE(seen[5].starts_with("job 2: failed on cpu:0 after ")) << seen[5];
  EXPECT_NE(seen[5].find("must not be negative"), std::string::npos) << seen[5];
}

// Keeps what is written, and lets another thread wait until a given text has been written.
class WatchedStream : public std::streambuf {
 public:
  bool wait_for(const std::string& part) {
    std::unique_lock lock(mutex_);
    return written_.wait_for(lock, std::chrono::minutes(1),
                             [&] { return text_.find(part) != std::string::npos; });
  }
  std::string text() {
    const std::lock_guard lock(mutex_);
    return text_;
  }

 protected:
  int_type overflow(int_type c) override {
    const char character = traits_type::to_char_type(c);
    xsputn(&character, 1);
    return c;
  }
  std::streamsize xsputn(const char* text, std::streamsize count) override {
    const std::lock_guard lock(mutex_);
    text_.append(text, static_cast<std::size_t>(count));
    written_.notify_all();
    return count;
  }

 private:
  std::mutex mutex_;
  std::condition_variable written_;
  std::string text_;
};

TEST(TrainMany, OnATerminalWhatRunsIsDrawnOverAndWhatHasEndedStays) {
  std::vector<TrainJob> jobs = make_jobs(make_models(2), shuffled_batches(make_problem(32)));
  WatchedStream watched;
  std::ostream stream(&watched);
  // The first job waits in its second step until the first step has been drawn.
  jobs[0].fit.callbacks = {
      LambdaCallback({.on_batch_end = [&](Model&, std::int64_t step, const BatchLogs&) {
        if (step != 1) return;
        EXPECT_TRUE(watched.wait_for("job 0  cpu:0  epoch 1/3  step 1/2  loss "));
      }})};
  train_many(jobs, {.devices = {"cpu:0"}, .progress = &stream, .terminal = true});
  const std::string text = watched.text();
  const std::size_t drawn = text.find("samples/s\n1 running, 1 waiting, 0 done, 0 failed\n");
  const std::size_t over = text.find("\x1b[2A\x1b[J", drawn);
  EXPECT_NE(drawn, std::string::npos) << text;
  EXPECT_NE(over, std::string::npos) << text;
  for (const TrainJob& job : jobs) {
    const std::string ended = job.name + ": 3 epochs on cpu:0";
    EXPECT_NE(text.find(ended), std::string::npos) << text;
    EXPECT_EQ(text.find(ended), text.rfind(ended)) << text;
    EXPECT_GT(text.find(ended), over) << text;
  }
  EXPECT_EQ(text.find("begins"), std::string::npos) << text;
}

// Fails on every write.
class ClosedStream : public std::streambuf {
 protected:
  int_type overflow(int_type) override { return traits_type::eof(); }
};

TEST(TrainMany, AnErrorOfTheStreamStopsEverythingAndReachesTheCaller) {
  ClosedStream closed;
  std::ostream stream(&closed);
  stream.exceptions(std::ios::badbit | std::ios::failbit);
  const Dataset batches = shuffled_batches(make_problem(32));
  // Without the error they would run forever.
  std::vector<Model> models = make_models(3);
  EXPECT_THROW(train_many(make_jobs(models, batches, {.epochs = 1'000'000'000}),
                          {.devices = kTwo, .progress = &stream}),
               std::ios_base::failure);
  for (Model& model : models) {
    const std::int64_t step = model.step();
    model.fit(batches);
    EXPECT_EQ(model.step(), step + 2);
  }
}

TEST(TrainManyTable, HasALineForEveryResult) {
  History good;
  Logs logs;
  logs.set("loss", 0.125);
  logs.set("accuracy", 0.96875);
  logs.set("lr", 0.1);
  logs.set("seconds", 2);
  logs.set("samples_per_s", 1234.4);
  good.epochs = {{.epoch = 0, .logs = logs}, {.epoch = 1, .logs = logs}};
  History other;
  Logs validated;
  validated.set("loss", 1.5e-6);
  validated.set("val_loss", 12.0);
  validated.set("samples_per_s", 99.0);
  other.epochs = {{.epoch = 0, .logs = validated}};
  std::vector<TrainResult> results(4);
  results[0] = {.name = "rate 0.1", .device = "cpu:0", .history = good, .seconds = 3.25};
  results[1] = {.name = "größer", .device = "cpu:1", .history = other, .seconds = 12.04};
  results[2] = {.name = "broken", .device = "cpu:10", .error = "[fit] bad\nlabel"};
  results[3] = {.name = "none", .device = "cpu:1", .history = History(), .seconds = 0.01};
  EXPECT_EQ(table(results),
            "name      device  epochs       loss  accuracy  val_loss  samples/s  seconds\n"
            "rate 0.1  cpu:0        2     0.1250    0.9688         -       1234      3.2\n"
            "größer    cpu:1        1  1.500e-06         -   12.0000         99     12.0\n"
            "broken    cpu:10  failed: [fit] bad label\n"
            "none      cpu:1        0          -         -         -          -      0.0\n");
}

}  // namespace
}  // namespace lockstep::testing

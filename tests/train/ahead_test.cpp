// Training on an asynchronous device: a step is in flight while the results of the previous one are
// read, and the numbers are the same.
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <limits>
#include <mutex>

#include "late_device.h"
#include "lockstep/runtime/session.h"
#include "lockstep/train/distributed.h"
#include "lockstep/train/function.h"
#include "lockstep/train/strategy_impl.h"
#include "temporary_folder.h"
#include "train/parts.h"
#include "train/problem.h"

namespace lockstep::testing {
namespace {

constexpr std::int64_t kBatch = 16;
constexpr std::int64_t kSamples = 6 * kBatch + 5;  // the last of 7 batches is short

CompileOptions on(LateDevice& device) {
  CompileOptions options = with_adam();
  options.device = &device;
  options.kernels = &cpu_kernels();
  return options;
}

CompileOptions on_host() {
  CompileOptions options = with_adam();
  options.device = &LateDevice::core();
  options.kernels = &cpu_kernels();
  return options;
}

// The loss of every batch, and the other arguments of its callback.
struct Seen {
  std::vector<double> losses;
  std::vector<std::int64_t> steps;
  std::vector<std::int64_t> samples_in_epoch;
  std::vector<std::string> order;

  CallbackRef callback(bool needs_sync) {
    return LambdaCallback(
        {.on_epoch_begin = [this](Model&, std::int64_t) { order.push_back("begin"); },
         .on_epoch_end = [this](Model&, std::int64_t, const Logs&) { order.push_back("end"); },
         .on_batch_end =
             [this](Model&, std::int64_t step, const BatchLogs& logs) {
               losses.push_back(logs.loss());
               steps.push_back(step);
               samples_in_epoch.push_back(logs.samples_in_epoch());
               order.push_back(fmt::format("{}", step));
             },
         .needs_sync = needs_sync});
  }
  bool operator==(const Seen&) const = default;
};

class RunningAhead : public ::testing::TestWithParam<LateDevice::Copies> {
 protected:
  LateDevice device_{GetParam()};
};
INSTANTIATE_TEST_SUITE_P(Copies, RunningAhead,
                         ::testing::Values(LateDevice::Copies::Late, LateDevice::Copies::Early),
                         [](const auto& info) {
                           return info.param == LateDevice::Copies::Late ? "Late" : "Early";
                         });

TEST_P(RunningAhead, GivesTheBitsOfTheHost) {
  const Problem data = make_problem(kSamples);
  const auto train = [&](const CompileOptions& options, Seen& seen) {
    Sequential model = make_dropout_model();
    model.compile(options);
    const History history =
        model.fit(shuffled_batches(data), {.epochs = 3,
                                           .validation_data = shuffled_batches(data, 40),
                                           .callbacks = {seen.callback(false)}});
    return std::pair(model, history);
  };
  Seen here;
  Seen there;
  const auto [on_cpu, expected] = train(on_host(), here);
  const auto [late, history] = train(on(device_), there);
  EXPECT_EQ(device_.max_in_flight(), 2) << "the host did not run ahead";
  EXPECT_TRUE(same_weights(on_cpu, late));
  EXPECT_EQ(here, there);
  EXPECT_EQ(here.losses.size(), 21u);
  for (const char* name : {"loss", "sparse_categorical_accuracy", "val_loss", "lr"}) {
    EXPECT_EQ(expected.series(name), history.series(name)) << name;
  }
  EXPECT_EQ(expected.steps, history.steps);
  EXPECT_EQ(expected.samples, history.samples);
}

TEST_P(RunningAhead, ACallbackThatLooksAtTheModelSeesItBehindItsStep) {
  const Problem data = make_problem(kSamples);
  const auto train = [&](const CompileOptions& options, std::vector<std::vector<Tensor>>& seen) {
    Sequential model = make_model();
    model.compile(options);
    const auto look = [&](Model& now, std::int64_t, const BatchLogs& logs) {
      seen.push_back(now.weights());
      seen.back().push_back(Tensor::scalar(logs.running().at("loss")));
      if (now.step() == 10) now.stop_training();
    };
    model.fit(shuffled_batches(data),
              {.epochs = 3, .callbacks = {LambdaCallback({.on_batch_end = look})}});
    EXPECT_EQ(model.step(), 10);
  };
  std::vector<std::vector<Tensor>> here;
  std::vector<std::vector<Tensor>> there;
  train(on_host(), here);
  train(on(device_), there);
  EXPECT_EQ(device_.max_in_flight(), 1);
  ASSERT_EQ(here.size(), 10u);
  ASSERT_EQ(there.size(), 10u);
  for (std::size_t step = 0; step < here.size(); ++step) {
    for (std::size_t i = 0; i < here[step].size(); ++i) {
      EXPECT_TRUE(here[step][i].same_bits(there[step][i])) << "step " << step;
    }
  }
}

// Planning autotunes kernels and may evict compiled steps.
TEST_P(RunningAhead, NothingIsPlannedWhileAStepIsInFlight) {
  const auto images = [](std::int64_t side) {
    const Tensor x(DType::F32, {3 * kBatch, side, side, 2});
    return Dataset::from_tensor_slices({x, make_problem(3 * kBatch).y}).batch(kBatch);
  };
  const Dataset batches = images(4).concatenate(images(6));  // as many samples in each
  Sequential model({GlobalAveragePooling2D(), Dense({.units = kClasses})});
  model.compile(on(device_));
  Seen seen;
  const History history = model.fit(batches, {.callbacks = {seen.callback(false)}});
  EXPECT_EQ(history.steps, 6);
  EXPECT_EQ(history.planned, 2);
  EXPECT_EQ(device_.max_in_flight(), 2) << "the host did not run ahead";
  model.evaluate(batches);
  EXPECT_EQ(device_.in_flight_when_allocated(), 0);
}

// A moving mean is not finite, but the loss is: no state is good, and it must not be checked again
// at every step.
TEST_P(RunningAhead, AStateThatIsNotGoodIsNotCopiedInEveryStep) {
  Sequential model({Dense({.units = 4}), BatchNormalization(), Dense({.units = kClasses})});
  model.compile(on(device_));
  model.build({kFeatures});
  for (const VariableRef& variable : model.variables()) {
    if (!variable->name.ends_with("moving_mean")) continue;
    Tensor mean(DType::F32, variable->shape);
    std::ranges::fill(mean.values<float>(), std::numeric_limits<float>::quiet_NaN());
    model.set_value(variable, mean);
  }
  Seen seen;
  const History history =
      model.fit(shuffled_batches(make_problem(6 * kBatch)),
                {.callbacks = {seen.callback(false)}, .on_nan = OnNaN::Restore});
  EXPECT_EQ(history.restores, 0);
  EXPECT_EQ(history.steps, 6);
  EXPECT_EQ(device_.max_in_flight(), 2) << "the host did not run ahead";
}

TEST_P(RunningAhead, CheckpointsEveryFewStepsAreThoseOfTheirStep) {
  const Problem data = make_problem(kSamples);
  const TemporaryFolder folder;
  const auto train = [&](const CompileOptions& options, const std::string& name) {
    Sequential model = make_model();
    model.compile(options);
    model.fit(shuffled_batches(data),
              {.epochs = 2,
               .callbacks = {ModelCheckpoint(
                   {.path = (folder / name).string() + "-{step}", .every_steps = 3})}});
  };
  train(on_host(), "here");
  train(on(device_), "there");
  EXPECT_EQ(device_.max_in_flight(), 2);
  for (const int step : {3, 6, 9, 12}) {
    const auto load = [&](const char* name) {
      Sequential model = make_model();
      model.compile(on_host());
      model.build({kFeatures});
      model.load((folder / fmt::format("{}-{}", name, step)).string());
      return model;
    };
    EXPECT_TRUE(same_weights(load("here"), load("there"))) << "step " << step;
  }
}

TEST_P(RunningAhead, AnErrorNamesItsOwnStepAndLaterOnesAreNotTold) {
  Problem data = make_problem(6 * kBatch);
  const std::int32_t right = data.y.values<std::int32_t>()[3 * kBatch + 2];
  data.y.values<std::int32_t>()[3 * kBatch + 2] = 99;
  const Dataset batches = Dataset::from_tensor_slices({data.x, data.y}).batch(kBatch);
  Sequential model = make_model();
  model.compile(on(device_));
  Seen seen;
  const std::string message =
      message_of<DataError>([&] { model.fit(batches, {.callbacks = {seen.callback(false)}}); });
  EXPECT_NE(message.find("[fit] epoch 0, step 3:"), std::string::npos) << message;
  EXPECT_NE(message.find("99"), std::string::npos) << message;
  EXPECT_EQ(seen.steps, (std::vector<std::int64_t>{0, 1, 2}));
  EXPECT_EQ(device_.max_in_flight(), 2);

  const std::string evaluating = message_of<DataError>([&] { model.evaluate(batches); });
  EXPECT_NE(evaluating.find("[evaluate] batch 3:"), std::string::npos) << evaluating;
  data.y.values<std::int32_t>()[3 * kBatch + 2] = right;
  EXPECT_NO_THROW(model.fit(batches, {}));
  EXPECT_NO_THROW(model.evaluate(batches));
}

TEST_P(RunningAhead, AnErrorOfTheInputComesBehindTheStepBefore) {
  const Problem data = make_problem(4 * kBatch);
  const Dataset batches = Dataset::from_tensor_slices({data.x, data.y})
                              .batch(kBatch)
                              .enumerate()
                              .map([](const Element& element) {
                                if (element[0].item() == 3) fail<DataError>("record 3 is broken");
                                return Element({element[1], element[2]});
                              });
  Sequential model = make_model();
  model.compile(on(device_));
  Seen seen;
  const std::string message =
      message_of<DataError>([&] { model.fit(batches, {.callbacks = {seen.callback(false)}}); });
  EXPECT_NE(message.find("record 3 is broken"), std::string::npos) << message;
  EXPECT_EQ(seen.steps, (std::vector<std::int64_t>{0, 1, 2}));
}

TEST_P(RunningAhead, TheFirstLossThatIsNotFiniteIsFoundAtItsStep) {
  Problem data = make_problem(5 * kBatch);
  data.x.values<float>()[2 * kBatch * kFeatures] = std::numeric_limits<float>::quiet_NaN();
  const Dataset batches = Dataset::from_tensor_slices({data.x, data.y}).batch(kBatch);
  Sequential model = make_model();
  model.compile(on(device_));
  EXPECT_EQ(model.fit(batches, {}).first_non_finite_step, 2);
  Sequential stopped = make_model();
  stopped.compile(on(device_));
  EXPECT_EQ(stopped.fit(batches, {.callbacks = {TerminateOnNaN()}}).steps, 3);
}

TEST_P(RunningAhead, PredictAndEvaluateGiveWhatTheHostGives) {
  const Problem data = make_problem(kSamples);
  Sequential here = make_model();
  here.compile(on_host());
  Sequential there = make_model();
  there.compile(on(device_));
  const Dataset inputs = Dataset::from_tensor_slices({data.x}).batch(kBatch);
  EXPECT_TRUE(here.predict(inputs).same_bits(there.predict(inputs)));
  const Dataset batches = Dataset::from_tensor_slices({data.x, data.y}).batch(kBatch);
  EXPECT_EQ(here.evaluate(batches).at("loss"), there.evaluate(batches).at("loss"));
  EXPECT_EQ(device_.max_in_flight(), 2);
}

// The addresses that samples were written to, by any thread.
class WrittenPlaces {
 public:
  void add(std::span<Tensor> to) {
    const std::lock_guard lock(mutex_);
    for (const Tensor& each : to) places_.insert(each.raw());
  }
  bool contains(const std::byte* place) const { return places_.contains(place); }

 private:
  std::mutex mutex_;
  std::set<const std::byte*> places_;
};

Dataset watched_batches(const Problem& data, WrittenPlaces& written) {
  const auto write = [&written](const Element& element, RandomSequence&, std::span<Tensor> to) {
    for (std::size_t i = 0; i < to.size(); ++i) to[i].copy_from(element[i]);
    written.add(to);
  };
  return Dataset::from_tensor_slices({data.x, data.y})
      .map_into(write, {.spec = {{DType::F32, {kFeatures}}, {DType::I32, {}}}})
      .batch(2 * kBatch)  // labels of less than 64 bytes would be copied by the host
      .prefetch();
}

TEST_P(RunningAhead, TheDeviceReadsSamplesWhereTheyWereWritten) {
  const Problem data = make_problem(kSamples);
  WrittenPlaces written;
  const Dataset batches = watched_batches(data, written);
  Sequential model = make_model();
  model.compile(on(device_));
  model.fit(batches, {.epochs = 2});
  ASSERT_FALSE(device_.sources().empty());
  // The last batch has 5 rows, whose labels are 20 bytes, copied by the host.
  int elsewhere = 0;
  for (const std::byte* source : device_.sources()) elsewhere += written.contains(source) ? 0 : 1;
  EXPECT_EQ(elsewhere, 1) << "of " << device_.sources().size();
  EXPECT_GE(device_.sources().size(), 4u);
}

// One replica on such a device, or on the host, for custom loops.
class LateStrategy final : public Strategy {
 public:
  explicit LateStrategy(Device& device) : Strategy(made(device)) {}

 private:
  static StrategyImpl made(Device& device) {
    const auto world = std::make_shared<World>(&device);
    return {.world = world,
            .session = std::make_shared<Session>(SessionOptions{
                .world = world, .kernels = &cpu_kernels(), .seed = with_adam().seed})};
  }
};

TEST_P(RunningAhead, InALoopOfOnesOwnTheDeviceReadsSamplesWhereTheyWereWritten) {
  const Problem data = make_problem(kSamples);
  for (const bool from_function : {false, true}) {
    SCOPED_TRACE(from_function ? "batch after batch" : "in pieces");
    WrittenPlaces written;
    const Dataset batches = watched_batches(data, written);
    LateDevice device(GetParam());
    const LateStrategy strategy(device);
    Sequential model = make_model();
    const Optimizer optimizer = Adam({.learning_rate = 0.01});
    Function step = strategy.function([&](Value x, Value y) {
      const LossPair loss =
          sparse_categorical_crossentropy(y, model(x, {.training = true}), {.from_logits = true});
      optimizer.apply(gradients(loss, model.trainable_variables()));
      return loss;
    });
    auto dealt =
        from_function
            ? strategy.distribute_from_function([&](const InputContext&) { return batches; })
            : strategy.distribute(batches);
    for (int epoch = 0; epoch < 2; ++epoch) {
      for (auto& [x, y] : dealt) strategy.run(step, x, y);
    }
    // The last batch has 5 rows, whose labels are 20 bytes, copied by the host.
    int elsewhere = 0;
    for (const std::byte* source : device.sources()) elsewhere += written.contains(source) ? 0 : 1;
    EXPECT_EQ(elsewhere, 1) << "of " << device.sources().size();
    EXPECT_GE(device.sources().size(), 4u);

    Sequential expected = make_model();
    expected.compile(on_host());
    expected.fit(Dataset::from_tensor_slices({data.x, data.y}).batch(2 * kBatch), {.epochs = 2});
    EXPECT_TRUE(same_weights(expected, model));
  }
}

// A loop that reads losses at its end returns from every run while the device is still at work.
TEST_P(RunningAhead, ALoopOfOnesOwnIsAStepAheadUnlessItReadsTheLoss) {
  const Problem data = make_problem(6 * kBatch);
  const auto train = [&](Device& device, bool read_at_once, const std::function<void()>& ran) {
    const LateStrategy strategy(device);
    Sequential model = make_model();
    const Optimizer optimizer = Adam({.learning_rate = 0.01});
    Function step = strategy.function([&](Value x, Value y) {
      const LossPair loss =
          sparse_categorical_crossentropy(y, model(x, {.training = true}), {.from_logits = true});
      optimizer.apply(gradients(loss, model.trainable_variables()));
      return loss;
    });
    std::vector<PerReplica> results;
    for (auto& [x, y] :
         strategy.distribute(Dataset::from_tensor_slices({data.x, data.y}).batch(kBatch))) {
      results.push_back(strategy.run(step, x, y));
      ran();
      if (read_at_once) strategy.reduce(ReduceOp::Mean, results.back());
    }
    std::vector<double> losses;
    for (const PerReplica& loss : results) {
      losses.push_back(strategy.reduce(ReduceOp::Mean, loss));
    }
    EXPECT_EQ(losses.size(), 6u);
    return std::pair(losses, model);
  };
  const auto [expected, on_cpu] = train(LateDevice::core(), true, [] {});
  const auto [losses, late] =
      train(device_, false, [&] { EXPECT_EQ(device_.in_flight(), 1) << "the run was waited for"; });
  EXPECT_EQ(device_.max_in_flight(), 2) << "the host did not run ahead";
  EXPECT_EQ(losses, expected);
  EXPECT_TRUE(same_weights(on_cpu, late));

  LateDevice asked(GetParam());
  EXPECT_EQ(train(asked, true, [] {}).first, expected);
  EXPECT_EQ(asked.max_in_flight(), 1);
}

TEST_P(RunningAhead, ThePartsOfTheTimeAddUp) {
  const Problem data = make_problem(kSamples);
  Sequential model = make_model();
  model.compile(on(device_));
  const History history = model.fit(shuffled_batches(data), {.epochs = 4});
  const Attribution& part = history.attribution;
  EXPECT_NEAR(sum_of(part), 1.0, 1e-9);
  EXPECT_GT(part.compute, 0.0);
  EXPECT_GE(part.input, 0.0);
  EXPECT_EQ(history.step_ms.size(), 4u * 7u - 2u);  // without the planned ones
}

}  // namespace
}  // namespace lockstep::testing

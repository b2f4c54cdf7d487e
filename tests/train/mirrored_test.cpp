// One model on several replicas gives the same results as on one.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cmath>

#include "lockstep/train/model_impl.h"
#include "train/parts.h"
#include "train/replica_runs.h"

namespace lockstep::testing {
namespace {

using MakeModel = std::function<Model()>;

Model make_mlp() {
  return Sequential({Flatten(), Dense({.units = 24, .activation = "relu"}), Dropout({.rate = 0.3}),
                     Dense({.units = 4})});
}

Model make_lenet() {
  return Sequential({Conv2D({.filters = 8, .kernel_size = 3, .activation = "relu"}), MaxPooling2D(),
                     Conv2D({.filters = 16, .kernel_size = 3, .activation = "relu"}), Flatten(),
                     Dropout({.rate = 0.25}), Dense({.units = 24, .activation = "relu"}),
                     Dense({.units = 4})});
}

CompileOptions options(const Strategy& strategy, Optimizer optimizer = Adam()) {
  return {.strategy = strategy,
          .optimizer = std::move(optimizer),
          .loss = SparseCategoricalCrossentropy({.from_logits = true}),
          .metrics = {SparseCategoricalAccuracy({.name = "accuracy"})},
          .seed = 3};
}

// Shuffled samples, augmented with noise that depends on the sample and not on the replica, in
// batches of 13: no number of replicas divides them, and the last one has 5.
Dataset uneven_batches(const Samples& samples) {
  const RandomMapFunction noisy = [](const Element& sample, RandomSequence& random) {
    Element result = sample;
    result[0] = sample[0].clone();
    for (float& value : result[0].values<float>()) value += 0.1f * (random.uniform() - 0.5f);
    return result;
  };
  return Dataset::from_tensor_slices({samples.x, samples.y, samples.weight})
      .shuffle({.buffer = 70, .seed = 2})
      .map(noisy, {.seed = 5})
      .batch(13)
      .prefetch();
}

struct Trained {
  std::vector<double> losses;
  std::vector<std::vector<float>> weights;
  Logs evaluated;
  std::vector<double> epochs;
};

Trained train(const MakeModel& make, int replicas, std::int64_t epochs,
              const Optimizer& optimizer = Adam()) {
  const Samples samples = make_samples(70);
  Model model = make();
  model.compile(options(mirrored(replicas), optimizer));
  LossesOf losses;
  const History history =
      model.fit(uneven_batches(samples), {.epochs = epochs, .callbacks = {losses.callback()}});
  return {.losses = losses.losses,
          .weights = weights_of(model),
          .evaluated = model.evaluate(uneven_batches(samples)),
          .epochs = history.series("loss")};
}

void expect_close(const std::vector<double>& a, const std::vector<double>& b, double tolerance) {
  ASSERT_EQ(a.size(), b.size());
  for (std::size_t i = 0; i < a.size(); ++i) {
    EXPECT_NEAR(a[i], b[i], tolerance * (1 + std::abs(a[i]))) << "step " << i;
  }
}

class EveryNumberOfReplicas : public ::testing::TestWithParam<int> {};

TEST_P(EveryNumberOfReplicas, GivesTheLossesOfOneOverFiftySteps) {
  for (const MakeModel& make : {MakeModel(make_mlp), MakeModel(make_lenet)}) {
    const Trained one = train(make, 1, 9);
    const Trained many = train(make, GetParam(), 9);
    ASSERT_GE(one.losses.size(), 50u);
    expect_close(one.losses, many.losses, 1e-5);
    expect_close(one.epochs, many.epochs, 1e-5);
    EXPECT_NEAR(one.evaluated["loss"], many.evaluated["loss"], 1e-4);
    EXPECT_DOUBLE_EQ(one.evaluated["accuracy"], many.evaluated["accuracy"]);
    EXPECT_LT(one.losses.back(), 0.7 * one.losses.front());
  }
}

INSTANTIATE_TEST_SUITE_P(Mirrored, EveryNumberOfReplicas, ::testing::Values(2, 3, 4));

TEST(Mirrored, TheSameNumberOfReplicasGivesTheSameBits) {
  const Trained once = train(make_lenet, 3, 2);
  const Trained again = train(make_lenet, 3, 2);
  EXPECT_EQ(once.losses, again.losses);
  EXPECT_EQ(once.weights, again.weights);
}

TEST(Mirrored, ClipsByTheNormOfAllReplicasGradients) {
  const Optimizer clipped[] = {SGD({.learning_rate = 0.1, .global_clipnorm = 0.05}),
                               SGD({.learning_rate = 0.1, .global_clipnorm = 0.05})};
  const Trained one = train(make_mlp, 1, 2, clipped[0]);
  const Trained two = train(make_mlp, 2, 2, clipped[1]);
  expect_close(one.losses, two.losses, 1e-5);
}

TEST(Mirrored, BucketsOfAnySizeGiveTheSameBits) {
  const Samples samples = make_samples(40);
  std::vector<std::vector<std::vector<float>>> weights;
  for (const std::size_t bytes : {std::size_t{1}, std::size_t{500}, std::size_t{1} << 30}) {
    Model model = make_lenet();
    model.compile(options(mirrored(2, {.buckets = {.first_bytes = bytes, .bytes = bytes}})));
    model.fit(uneven_batches(samples), {.epochs = 2});
    weights.push_back(weights_of(model));
  }
  EXPECT_EQ(weights[0], weights[1]);
  EXPECT_EQ(weights[0], weights[2]);
}

TEST(Mirrored, PiecesThatFollowTheSpeedsGiveTheLossesOfEvenOnes) {
  const Samples samples = make_samples(64);
  const Dataset batches = Dataset::from_tensor_slices({samples.x, samples.y}).batch(16).repeat();
  std::vector<std::vector<double>> losses;
  for (const Balance balance : {Balance::Even, Balance::Auto}) {
    Model model = make_mlp();
    model.compile(options(mirrored(3, {.balance = balance})));
    LossesOf seen;
    const CallbackRef uneven =
        LambdaCallback({.on_batch_end = [&](Model& trained, std::int64_t step, const BatchLogs&) {
          if (balance == Balance::Even || step % 10 != 0) return;
          // Reports that the last replica gets slower and slower.
          const std::vector<Piece> pieces = impl_of(trained).balancer->split(16);
          std::vector<double> seconds;
          for (std::size_t r = 0; r < pieces.size(); ++r) {
            const double each = r == 2 ? 1.0 + static_cast<double>(step) : 1.0;
            seconds.push_back(each * static_cast<double>(pieces[r].size()));
          }
          for (int i = 0; i < 8; ++i) impl_of(trained).balancer->observe(pieces, seconds);
        }});
    const History history =
        model.fit(batches, {.steps_per_epoch = 40, .callbacks = {seen.callback(), uneven}});
    if (balance == Balance::Auto) {
      EXPECT_LT(history.replicas[2].samples, history.replicas[0].samples);
    }
    losses.push_back(seen.losses);
  }
  expect_close(losses[0], losses[1], 1e-5);
}

TEST(Mirrored, MoreBucketsThanCanBeInFlightAtOnce) {
  const Samples samples = make_samples(8);
  std::vector<Layer> layers = {Flatten()};
  for (int i = 0; i < 50; ++i) layers.push_back(Dense({.units = 6, .activation = "tanh"}));
  layers.push_back(Dense({.units = 4}));
  std::vector<std::vector<double>> losses;
  for (int replicas : {1, 3}) {
    Sequential model(layers);
    model.compile(options(mirrored(replicas, {.buckets = {.first_bytes = 1, .bytes = 1}})));
    LossesOf seen;
    model.fit(Dataset::from_tensor_slices({samples.x, samples.y}).batch(7).repeat(),
              {.steps_per_epoch = 20, .callbacks = {seen.callback()}});
    losses.push_back(seen.losses);
  }
  expect_close(losses[0], losses[1], 1e-5);
}

// A bias per position in a sample, (1, positions): on a replica with one sample, its gradient is
// complete at another point of the graph than on the other replicas.
class PlaceBias final : public LayerBase {
 public:
  std::string kind() const override { return "PlaceBias"; }
  void build(std::span<const ValueType> inputs) override {
    bias_ = add_variable("bias", Shape{1, inputs[0].shape[1]}, {});
  }
  Value call(std::span<const Value> inputs, const CallOptions&) override {
    return only(inputs) + only(inputs).graph().variable(bias_);
  }

 private:
  VariableRef bias_;
};

TEST(Mirrored, ReplicasCutTheirGradientsAlikeWhateverTheirGraphs) {
  const Samples samples = make_samples(13);
  std::vector<std::vector<double>> losses;
  for (int replicas : {1, 4}) {  // 4, 4, 4 and 1 samples
    Sequential model({Flatten(), Dense({.units = 4, .activation = "tanh"}), make_layer<PlaceBias>(),
                      Dense({.units = 4, .activation = "tanh"}), make_layer<PlaceBias>(),
                      Dense({.units = 4})});
    model.compile(options(mirrored(replicas, {.buckets = {.first_bytes = 100, .bytes = 100}})));
    LossesOf seen;
    model.fit(Dataset::from_tensor_slices({samples.x, samples.y}).batch(13).repeat(),
              {.steps_per_epoch = 20, .callbacks = {seen.callback()}});
    losses.push_back(seen.losses);
  }
  expect_close(losses[0], losses[1], 1e-5);
}

TEST(Mirrored, ReplicasWithoutSamplesTakePartAndAddNothing) {
  const Samples samples = make_samples(10);
  const Dataset batches =
      Dataset::from_tensor_slices({samples.x, samples.y}).batch(4);  // of 4 samples, and of 2
  std::vector<std::vector<double>> losses;
  std::vector<double> accuracies;
  for (int replicas : {1, 4}) {
    for (const MakeModel& make : {MakeModel(make_mlp), MakeModel(make_lenet)}) {
      Model model = make();
      model.compile(options(mirrored(replicas)));
      LossesOf seen;
      model.fit(batches, {.epochs = 3, .callbacks = {seen.callback()}});
      losses.push_back(seen.losses);
      accuracies.push_back(model.evaluate(batches)["accuracy"]);
    }
  }
  expect_close(losses[0], losses[2], 1e-5);
  expect_close(losses[1], losses[3], 1e-5);
  EXPECT_EQ(accuracies[0], accuracies[2]);
  EXPECT_EQ(accuracies[1], accuracies[3]);
}

// Three samples per batch: a fourth replica has none and must not affect the others.
TEST(Mirrored, BatchNormWithoutSamplesAddsNothing) {
  const Samples samples = make_samples(6);
  for (const bool synchronized : {false, true}) {
    std::vector<std::vector<std::vector<float>>> weights;
    std::vector<std::vector<double>> losses;
    for (const int replicas : {3, 4}) {
      Sequential model({Conv2D({.filters = 8, .kernel_size = 3}),
                        BatchNormalization({.synchronized = synchronized}), Activation("relu"),
                        Flatten(), Dense({.units = 4})});
      // Not Adam, which makes steps of the rounding in the bias's gradient: that is 0, since the
      // norm takes the mean away.
      model.compile(options(mirrored(replicas), SGD({.learning_rate = 0.05})));
      LossesOf seen;
      model.fit(Dataset::from_tensor_slices({samples.x, samples.y}).batch(3),
                {.epochs = 2, .callbacks = {seen.callback()}});
      weights.push_back(weights_of(model));
      losses.push_back(seen.losses);
    }
    expect_close(losses[0], losses[1], 1e-6);
    ASSERT_EQ(weights[0].size(), weights[1].size());
    for (std::size_t v = 0; v < weights[0].size(); ++v) {
      ASSERT_EQ(weights[0][v].size(), weights[1][v].size());
      for (std::size_t i = 0; i < weights[0][v].size(); ++i) {
        EXPECT_NEAR(weights[0][v][i], weights[1][v][i], 1e-6) << "variable " << v << " " << i;
      }
    }
  }
}

TEST(Mirrored, AReplicaThatNeverHasSamplesLeavesTheMovingStatisticsAlone) {
  const Samples samples = make_samples(4);
  std::vector<Logs> evaluated;
  std::vector<double> means;
  for (int replicas : {2, 3}) {  // 2 + 2, and 2 + 2 + 0 samples
    Sequential model({BatchNormalization({.momentum = 0.5}), Flatten(), Dense({.units = 4})});
    model.compile(options(mirrored(replicas), SGD({.learning_rate = 0.01})));
    const Dataset batches = Dataset::from_tensor_slices({samples.x, samples.y}).batch(4);
    model.fit(batches, {.epochs = 3});
    evaluated.push_back(model.evaluate(batches));
    for (const VariableRef& variable : model.variables()) {
      if (variable->name.ends_with("moving_mean")) means.push_back(model.value(variable).item());
    }
  }
  EXPECT_NEAR(means[0], means[1], 1e-6);
  EXPECT_NEAR(evaluated[0]["loss"], evaluated[1]["loss"], 1e-5);
}

TEST(Mirrored, PredictGivesEverySampleOnceAndInOrder) {
  const Samples samples = make_samples(23);
  Model one = make_lenet();
  one.compile(options(mirrored(1)));
  Model three = make_lenet();
  three.compile(options(mirrored(3)));
  const Tensor a = one.predict(samples.x, {.batch_size = 10});
  const Tensor b = three.predict(samples.x, {.batch_size = 10});
  ASSERT_EQ(a.shape(), b.shape());
  for (std::size_t i = 0; i < a.values<float>().size(); ++i) {
    EXPECT_NEAR(a.values<float>()[i], b.values<float>()[i], 1e-5f);
  }
}

TEST(Mirrored, InitialWeightsAreThoseOfTheFirstReplica) {
  const Samples samples = make_samples(8);
  auto calls = std::make_shared<std::atomic<int>>(0);
  const Initializer whimsical = [calls](Tensor& target, std::uint64_t) {
    std::ranges::fill(target.values<float>(), 0.01f * static_cast<float>(++*calls));
  };
  Sequential model({Flatten(), Dense({.units = 4, .kernel_initializer = whimsical})});
  const Strategy strategy = mirrored(3);
  model.compile(options(strategy));  // compares the replicas after every step
  model.fit(Dataset::from_tensor_slices({samples.x, samples.y}).batch(8), {.epochs = 2});
  EXPECT_GE(*calls, impl_of(strategy).world->local_size());
}

TEST(Mirrored, RegularisationCountsOnce) {
  const auto make = [] {
    return Sequential({Flatten(), Dense({.units = 4, .kernel_regularizer = L2(0.1)})});
  };
  const Trained one = train(make, 1, 1);
  const Trained three = train(make, 3, 1);
  expect_close(one.losses, three.losses, 1e-5);
}

TEST(Mirrored, MovingStatisticsAreTheMeanOverTheReplicas) {
  const Samples samples = make_samples(8);
  const auto make = [] {
    return Sequential({BatchNormalization({.momentum = 0.0}), Flatten(), Dense({.units = 4})});
  };
  Sequential model = make();
  model.compile(options(mirrored(2), SGD({.learning_rate = 0.0})));
  model.fit(Dataset::from_tensor_slices({samples.x, samples.y}).batch(8), {});
  // With momentum 0 the moving mean of a replica is the mean of its four samples.
  double mean = 0;
  for (float value : samples.x.values<float>()) mean += value;
  mean /= static_cast<double>(samples.x.elements());
  for (const VariableRef& variable : model.variables()) {
    if (variable->name.find("moving_mean") == std::string::npos) continue;
    EXPECT_NEAR(model.value(variable).item(), mean, 1e-6);
  }
}

// A residual network with statistics over all replicas.
Model make_small_resnet() {
  const auto conv = [](int filters, int stride) {
    return Conv2D({.filters = filters, .kernel_size = 3, .strides = stride, .padding = "same"});
  };
  const auto norm = [] { return BatchNormalization({.synchronized = true}); };
  const Symbol input = Input({.shape = {12, 12, 1}});
  Symbol x = Activation("relu")(norm()(conv(8, 1)(input)));
  for (int filters : {8, 16}) {
    const int stride = filters / 8;
    Symbol shortcut = x;
    if (stride > 1) shortcut = norm()(conv(filters, stride)(x));
    const Symbol inner = Activation("relu")(norm()(conv(filters, stride)(x)));
    x = Activation("relu")(Add()({norm()(conv(filters, 1)(inner)), shortcut}));
  }
  return Model(input, Dense({.units = 4})(GlobalAveragePooling2D()(x)));
}

TEST_P(EveryNumberOfReplicas, GivesTheLossesOfOneWithSynchronisedBatchNorm) {
  const Optimizer optimizers[] = {SGD({.learning_rate = 0.01, .momentum = 0.9}),
                                  SGD({.learning_rate = 0.01, .momentum = 0.9})};
  const Trained one = train(make_small_resnet, 1, 9, optimizers[0]);
  const Trained many = train(make_small_resnet, GetParam(), 9, optimizers[1]);
  ASSERT_GE(one.losses.size(), 50u);
  expect_close(one.losses, many.losses, 1e-5);
  EXPECT_NEAR(one.evaluated["loss"], many.evaluated["loss"], 1e-3);
}

TEST(Mirrored, AnErrorOfOneReplicaNamesItAndLeavesTheModelAsItWas) {
  Samples samples = make_samples(16);
  Model model = make_mlp();
  model.compile(options(mirrored(2)));
  const Dataset good = Dataset::from_tensor_slices({samples.x, samples.y}).batch(8);
  model.fit(good, {});
  const auto before = weights_of(model);

  Tensor labels = samples.y.clone();
  labels.values<std::int32_t>()[6] = 99;  // in the second half of the first batch
  const Dataset bad = Dataset::from_tensor_slices({samples.x, labels}).batch(8);
  try {
    model.fit(bad, {});
    FAIL() << "a label out of range was trained on";
  } catch (const DataError& error) {
    EXPECT_NE(std::string(error.what()).find("replica 1 on cpu:1"), std::string::npos)
        << error.what();
    EXPECT_NE(std::string(error.what()).find("99"), std::string::npos) << error.what();
  }
  EXPECT_EQ(weights_of(model), before);
  model.fit(good, {});  // the replicas still work
  EXPECT_NE(weights_of(model), before);
}

TEST(Mirrored, EveryReplicasTimeIsDividedWholly) {
  const Samples samples = make_samples(64);
  Model model = make_lenet();
  const Strategy strategy = mirrored(2);
  model.compile(options(strategy));
  const History history =
      model.fit(Dataset::from_tensor_slices({samples.x, samples.y}).batch(16), {.epochs = 4});
  ASSERT_EQ(history.replicas.size(), 2u);
  std::int64_t samples_seen = 0;
  for (const ReplicaTime& replica : history.replicas) {
    const Attribution& a = replica.attribution;
    EXPECT_NEAR(sum_of(a), 1.0, 0.02);
    EXPECT_GT(a.compute, 0.0);
    EXPECT_GT(a.communication + a.wait, 0.0);
    samples_seen += replica.samples;
  }
  // Host time is the unexplained rest of the whole call. Within a step nothing may be unexplained:
  // the recorded spans must add up to its wall time.
  std::vector<std::string> own;  // a worker has the tracks of its own replicas
  for (const int r : replicas_here(strategy)) own.push_back(fmt::format("replica {}", r));
  for (const Track* track : model.recorder().tracks()) {
    if (std::ranges::count(own, track->name()) == 0) continue;
    std::vector<double> covered;  // per step; the median counts, since a thread may lose its core
    double recorded = 0;
    std::int64_t asked = 0;
    for (const Span& span : track->spans()) {
      recorded += static_cast<double>(span.end_ns - span.begin_ns);
      if (std::string_view(span.name) == "wake") asked = span.begin_ns;
      if (std::string_view(span.name) != "join") continue;
      covered.push_back(recorded / static_cast<double>(span.end_ns - asked));
      recorded = 0;
    }
    ASSERT_EQ(std::ssize(covered), history.steps);
    std::ranges::sort(covered);
    EXPECT_NEAR(covered[covered.size() / 2], 1.0, 0.02) << track->name();
  }
  EXPECT_EQ(history.replicas[1].device, strategy.devices()[1]);
  EXPECT_EQ(samples_seen, history.samples);
  std::vector<std::string> tracks;
  for (const Track* track : model.recorder().tracks()) tracks.push_back(track->name());
  EXPECT_EQ(std::ranges::count(tracks, "host"), 1);
  for (const std::string& name : own) {
    EXPECT_EQ(std::ranges::count(tracks, name), 1) << name;
    EXPECT_EQ(std::ranges::count(tracks, name + " communication"), 1) << name;
  }
}

TEST(Mirrored, ACheckpointGoesOnOnAnotherNumberOfReplicas) {
  const Samples samples = make_samples(40);
  const auto file = std::filesystem::path(::testing::TempDir()) / "mirrored_resume.safetensors";
  Model whole = make_mlp();
  whole.compile(options(mirrored(2)));
  LossesOf expected;
  whole.fit(uneven_batches(samples), {.epochs = 4, .callbacks = {expected.callback()}});

  Model first = make_mlp();
  first.compile(options(mirrored(2)));
  LossesOf losses;
  const CallbackRef stop =
      LambdaCallback({.on_batch_end = [&](Model& model, std::int64_t, const BatchLogs&) {
        if (model.step() != 6) return;
        model.save(file);
        model.stop_training();
      }});
  first.fit(uneven_batches(samples), {.epochs = 4, .callbacks = {losses.callback(), stop}});
  Model second = make_mlp();
  second.compile(options(mirrored(3)));
  second.fit(uneven_batches(samples),
             {.epochs = 4, .callbacks = {losses.callback()}, .resume = file});
  std::filesystem::remove(file);
  expect_close(expected.losses, losses.losses, 1e-5);
}

TEST(Mirrored, TheReportNamesASlowReplica) {
  History history;
  history.seconds = 1;
  history.replicas = {
      {.device = "cpu:0", .attribution = {.compute = 0.6, .wait = 0.4}, .samples = 10},
      {.device = "cpu:1", .attribution = {.compute = 1.0}, .samples = 10}};
  EXPECT_NE(history.report().find("cpu:1 is the slowest replica: cpu:0 waited for it 40%"),
            std::string::npos)
      << history.report();
}

TEST(Mirrored, ReplicasGoOnBehindAnErrorOfOne) {
  const Strategy strategy = mirrored(4);
  Function take = strategy.function([](const ReplicaContext& context, Value table, Value index) {
    return context.all_reduce(ReduceOp::Sum, reduce_sum(gather(table, index)));
  });
  const Tensor table = Tensor::of(std::vector<float>{1, 2}, {2});
  const Tensor good = Tensor::of(std::vector<std::int32_t>{1}, {1});
  const Tensor bad = Tensor::of(std::vector<std::int32_t>{7}, {1});
  for (int round = 0; round < 3; ++round) {
    EXPECT_THROW(strategy.run(take, table, values_here(strategy, {good, good, bad, good})),
                 DataError);
    const PerReplica sums = strategy.run(take, table, good);
    EXPECT_EQ(sums.values().size(), replicas_here(strategy).size());
    for (const Tensor& sum : sums.values()) EXPECT_EQ(sum.item(), 8.0);
  }
}

TEST(OneDevice, TrainsAsWithoutAStrategy) {
  const Samples samples = make_samples(30);
  std::vector<std::vector<std::vector<float>>> weights;
  for (const Strategy& strategy :
       {Strategy(), Strategy(OneDeviceStrategy()),
        Strategy(OneDeviceStrategy({.device = "cpu:0", .logical_cpus = 2}))}) {
    Model model = make_mlp();
    model.compile(options(strategy));
    model.fit(uneven_batches(samples), {.epochs = 2});
    weights.push_back(weights_of(model));
  }
  EXPECT_EQ(weights[0], weights[1]);
  EXPECT_EQ(weights[0], weights[2]);
}

}  // namespace
}  // namespace lockstep::testing

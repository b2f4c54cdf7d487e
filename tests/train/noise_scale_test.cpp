// The gradient noise scale that fit measures, against its definition computed the expensive way,
// and against the bits of training without it.
#include <gtest/gtest.h>

#include <cmath>

#include "lockstep/comm/gloo/gloo_wire.h"
#include "lockstep/train/noise_sampler.h"
#include "train/problem.h"
#include "train/replica_runs.h"
#include "train/worker_processes.h"

namespace lockstep::testing::noise {
namespace {

using Vector = std::vector<double>;

Vector flat(const std::vector<Tensor>& tensors) {
  Vector all;
  for (const Tensor& tensor : tensors) {
    for (const float value : tensor.values<float>()) all.push_back(static_cast<double>(value));
  }
  return all;
}

double squared_norm(const Vector& v) {
  double sum = 0;
  for (const double x : v) sum += x * x;
  return sum;
}

CompileOptions with_sgd(double rate, const Strategy& strategy = OneDeviceStrategy()) {
  return {.strategy = strategy,
          .optimizer = SGD({.learning_rate = rate}),
          .loss = SparseCategoricalCrossentropy({.from_logits = true}),
          .seed = 3};
}

struct Rows {
  Tensor x, y, weight;

  Rows some(const std::vector<std::int64_t>& which) const {
    const auto pick = [&](const Tensor& all) {
      Tensor some(all.dtype(), all.shape().with(0, std::ssize(which)));
      const std::size_t row = all.bytes() / static_cast<std::size_t>(all.shape()[0]);
      for (std::size_t i = 0; i < which.size(); ++i) {
        std::memcpy(some.raw() + i * row, all.raw() + static_cast<std::size_t>(which[i]) * row,
                    row);
      }
      return some;
    };
    return {pick(x), pick(y), pick(weight)};
  }
  Rows between(std::int64_t begin, std::int64_t end) const {
    std::vector<std::int64_t> which;
    for (std::int64_t i = begin; i < end; ++i) which.push_back(i);
    return some(which);
  }
};

constexpr std::int64_t kPopulation = 48;

Rows population() {
  const Problem problem = make_problem(kPopulation);
  RandomSequence random(9, 9);
  Tensor weight(DType::F32, {kPopulation});
  for (float& w : weight.values<float>()) w = 0.25f + 1.5f * random.uniform();
  return {problem.x, problem.y, weight};
}

// The mean gradient over rows at the weights that a new model has: a step of SGD at rate 1
// subtracts it from them.
class GradientOf {
 public:
  GradientOf() {
    model_.compile(with_sgd(1.0));
    model_.build({kFeatures});
    start_ = model_.weights();
  }
  Vector operator()(const Rows& rows) {
    model_.set_weights(start_);
    model_.train_on_batch(rows.x, rows.y, {.sample_weight = rows.weight});
    const Vector before = flat(start_);
    Vector gradient = flat(model_.weights());
    for (std::size_t i = 0; i < before.size(); ++i) gradient[i] = before[i] - gradient[i];
    return gradient;
  }

 private:
  Sequential model_ = make_model();
  std::vector<Tensor> start_;
};

// Of the whole population: from the gradient of every sample.
double true_noise_scale(const Rows& all) {
  GradientOf gradient_of;
  Vector mean;
  double squares = 0;
  for (std::int64_t i = 0; i < kPopulation; ++i) {
    const Vector g = gradient_of(all.between(i, i + 1));
    mean.resize(g.size(), 0.0);
    for (std::size_t e = 0; e < g.size(); ++e) mean[e] += g[e] / kPopulation;
    squares += squared_norm(g) / kPopulation;
  }
  return (squares - squared_norm(mean)) / squared_norm(mean);
}

NoiseScale measured(const Dataset& batches, int replicas, const std::function<Model()>& make,
                    std::int64_t every = 1) {
  Model model = make();
  model.compile(with_sgd(0.0, mirrored(replicas)));
  return model.fit(batches, {.epochs = 1, .noise_scale_every = every}).noise_scale.value();
}

class NoiseScaleOf : public ::testing::TestWithParam<int> {};

// Samples are drawn with replacement, as the definition has it, in batches of 13, which no number
// of replicas divides; the last one has 1.
TEST_P(NoiseScaleOf, ReplicasMatchesItsDefinitionWithinItsUncertainty) {
  const Rows all = population();
  const double truth = true_noise_scale(all);
  RandomSequence random(17, 4);
  std::vector<std::int64_t> drawn;
  for (int i = 0; i < 13 * 400 + 1; ++i) {
    drawn.push_back(static_cast<std::int64_t>(random.below(kPopulation)));
  }
  const Rows rows = all.some(drawn);
  const NoiseScale found =
      measured(Dataset::from_tensor_slices({rows.x, rows.y, rows.weight}).batch(13), GetParam(),
               [] { return make_model(); });
  EXPECT_EQ(found.samples, 400);  // there is nothing to compare in a batch of 1
  EXPECT_LE(found.low, truth);
  EXPECT_GE(found.high, truth);
  EXPECT_LT(found.high - found.low, truth);  // or it would say little
}

// One batch again and again, so that nothing is left to chance.
TEST_P(NoiseScaleOf, ReplicasIsExactForPiecesOfDifferentSizes) {
  const Rows batch = population().between(0, 13);
  const std::vector<Piece> parts = split_evenly(13, GetParam() == 1 ? 2 : GetParam());
  GradientOf gradient_of;
  std::vector<PieceGradient> pieces;
  for (const Piece& part : parts) {
    pieces.push_back({static_cast<double>(part.size()),
                      squared_norm(gradient_of(batch.between(part.begin, part.end)))});
  }
  const NoiseSample expected = noise_sample(pieces, squared_norm(gradient_of(batch))).value();

  std::vector<std::int64_t> repeated;
  for (int i = 0; i < 13 * 6; ++i) repeated.push_back(i % 13);
  const Rows rows = batch.some(repeated);
  const NoiseScale found =
      measured(Dataset::from_tensor_slices({rows.x, rows.y, rows.weight}).batch(13), GetParam(),
               [] { return make_model(); });
  EXPECT_NEAR(found.trace, expected.trace, 1e-3 * expected.trace);
  EXPECT_NEAR(found.squared_gradient, expected.squared_gradient,
              1e-3 * std::abs(expected.squared_gradient) + 1e-4 * expected.trace);
  EXPECT_EQ(found.samples, 6);
}

INSTANTIATE_TEST_SUITE_P(NoiseScaleIn, NoiseScaleOf, ::testing::Values(1, 2, 4));

// The masks of dropout depend on a sample's place in the global batch, and each half has its own
// statistics in batch norm, as each replica has.
TEST(NoiseScaleInFit, OfOneReplicaIsThatOfTwo) {
  const Problem data = make_problem(13 * 12);
  const Dataset rows = Dataset::from_tensor_slices({data.x, data.y}).batch(13);
  const Problem images = make_images(13 * 8);
  const Dataset pictures = Dataset::from_tensor_slices({images.x, images.y}).batch(13);
  const auto expect_same = [](const Dataset& batches, const std::function<Model()>& make) {
    const NoiseScale one = measured(batches, 1, make);
    const NoiseScale two = measured(batches, 2, make);
    EXPECT_NEAR(one.trace, two.trace, 1e-3 * two.trace);
    EXPECT_NEAR(one.squared_gradient, two.squared_gradient,
                1e-3 * std::abs(two.squared_gradient) + 1e-4 * two.trace);
    EXPECT_EQ(one.samples, two.samples);
  };
  expect_same(rows, [] { return make_dropout_model(); });
  expect_same(pictures, [] { return make_conv_model(); });
}

struct Trained {
  std::vector<double> losses;
  std::vector<Tensor> weights;
  std::optional<NoiseScale> noise;
  std::int64_t steps = 0;
  std::int64_t overflowed = 0;
};

Trained train(const std::function<Model()>& make, CompileOptions options, const Dataset& batches,
              std::int64_t every) {
  Model model = make();
  model.compile(std::move(options));
  LossesOf losses;
  const History history = model.fit(
      batches, {.epochs = 2, .callbacks = {losses.callback()}, .noise_scale_every = every});
  return {.losses = losses.losses,
          .weights = model.weights(),
          .noise = history.noise_scale,
          .steps = history.steps,
          .overflowed = history.overflowed_steps};
}

// Whichever steps are sampled.
Trained expect_same_bits(const std::function<Model()>& make, const CompileOptions& options,
                         const Dataset& batches) {
  const Trained plain = train(make, options, batches, 0);
  EXPECT_FALSE(plain.noise);
  Trained every;
  for (const std::int64_t steps : {3, 1}) {
    every = train(make, options, batches, steps);
    EXPECT_EQ(every.losses, plain.losses);
    EXPECT_EQ(every.weights.size(), plain.weights.size());
    for (std::size_t i = 0; i < plain.weights.size(); ++i) {
      EXPECT_TRUE(every.weights[i].same_bits(plain.weights[i])) << i << ", every " << steps;
    }
  }
  EXPECT_TRUE(every.noise);
  return every;
}

class NoiseScaleAmong : public ::testing::TestWithParam<int> {};

TEST_P(NoiseScaleAmong, ReplicasChangesNoBitOfTraining) {
  const auto options = [&](const Optimizer& optimizer, const std::string& precision = "float32") {
    CompileOptions with = with_adam();
    with.strategy = mirrored(GetParam());
    with.optimizer = optimizer;
    with.precision = precision;
    return with;
  };
  const Dataset rows = shuffled_batches(make_problem(70), 13);
  const Dataset images = shuffled_batches(make_images(70), 13);
  const auto dropout = [] { return make_dropout_model(); };
  const auto conv = [] { return make_conv_model(); };
  expect_same_bits(dropout, options(Adam(0.01)), rows);
  expect_same_bits(dropout, options(SGD({.learning_rate = 0.1, .global_clipnorm = 0.5})), rows);
  expect_same_bits(conv, options(SGD({.learning_rate = 0.1, .momentum = 0.9})), images);
  expect_same_bits(conv, options(Adam(0.01), "mixed_bfloat16"), images);
}

// Gradients of steps that overflowed are left out; of the others, the scale is divided out.
TEST_P(NoiseScaleAmong, ReplicasLeavesOutWhatOverflows) {
  const Dataset images = shuffled_batches(make_images(26 * 13), 26);
  const auto conv = [] { return make_conv_model(); };
  CompileOptions options = with_adam();
  options.strategy = mirrored(GetParam());
  options.optimizer = SGD({.learning_rate = 0.0});
  const Trained whole = train(conv, options, images, 1);
  options.precision = "mixed_float16";
  options.loss_scale = {.initial = 4294967296.0, .growth_steps = 3};
  const Trained half = expect_same_bits(conv, options, images);
  EXPECT_GT(half.overflowed, 3);
  if (GetParam() > 1) {
    EXPECT_EQ(half.noise->samples, half.steps - half.overflowed);
  } else {  // halves of a batch overflow a little later or earlier than the whole of it
    EXPECT_LE(half.noise->samples, half.steps - half.overflowed + 2);
    EXPECT_LT(half.noise->samples, half.steps);
  }
  EXPECT_NEAR(half.noise->trace, whole.noise->trace, 0.15 * whole.noise->trace);
}

INSTANTIATE_TEST_SUITE_P(NoiseScaleIn, NoiseScaleAmong, ::testing::Values(1, 2, 3));

TEST(NoiseScaleOverProcesses, IsThatOfReplicasInOneProcess) {
  expect_success("NoiseScaleIn/NoiseScaleOf.*:NoiseScaleIn/NoiseScaleAmong.*Bit*/1", 2);
}

TEST(NoiseScaleOverGloo, IsThatOfReplicasInOneProcess) {
  if (!has_gloo()) GTEST_SKIP() << "this build has no Gloo";
  expect_success("NoiseScaleIn/NoiseScaleOf.ReplicasIsExact*/1", 2, {}, Over::Gloo);
}

TEST(NoiseScaleInFit, IsInTheReportAndForCallbacks) {
  const Problem data = make_problem(64);
  Sequential model = make_model();
  model.compile(with_adam());
  int seen = 0;
  const CallbackRef look =
      LambdaCallback({.on_epoch_end = [&](Model& of, std::int64_t, const Logs&) {
        if (of.noise_scale()) ++seen;
      }});
  const History history = model.fit(
      data.x, data.y, {.epochs = 3, .callbacks = {look}, .noise_scale_every = 1, .batch_size = 8});
  EXPECT_EQ(seen, 3);
  EXPECT_FALSE(model.noise_scale());  // fit has ended
  EXPECT_NE(history.report().find("gradient noise scale: "), std::string::npos) << history.report();
  EXPECT_EQ(history.batch_size, 8);
  EXPECT_EQ(history.noise_scale->samples, 24);
}

TEST(NoiseScaleInFit, ANegativeNumberOfStepsIsRejected) {
  const Problem data = make_problem(16);
  Sequential model = make_model();
  model.compile(with_adam());
  const std::string message =
      message_of<UsageError>([&] { model.fit(data.x, data.y, {.noise_scale_every = -2}); });
  EXPECT_NE(message.find("noise_scale_every is -2"), std::string::npos) << message;
}

// Steps of a second. A sample with norms makes its step take `cost` longer, and the one after it a
// third of that; one besides the step takes `cost`. Compiling takes five seconds.
struct Simulated {
  int samples = 0;
  double largest_share = 0;  // of the time that went into sampling, at any moment
  double share = 0;          // in the end
};

struct Simulation {
  double cost = 0;
  int steps = 50000;
  bool beside = false;
  double jitter = 0;  // at most so much is added to a step
  double drift = 0;   // steps take so much longer in the second quarter of every thousand
};

Simulated simulate(const Simulation& given) {
  using Step = NoiseSampler::Step;
  NoiseSampler sampler(std::nullopt);
  sampler.compiled_plain(5.0);
  RandomSequence random(1, 2);
  Simulated result;
  double elapsed = 0, spent = 0;
  bool compiled = false, after = false;
  for (int step = 0; step < given.steps; ++step) {
    const bool sampled = sampler.due(step, compiled);
    if (sampled && !compiled) {
      sampler.compiled_sample(5.0);
      spent += 5.0;
      elapsed += 5.0;
      compiled = true;
    }
    const double more = sampled ? given.cost : after ? given.cost / 3 : 0.0;
    const double load = step % 1000 / 250 == 1 ? given.drift : 0.0;
    const double seconds = 1.0 + load + more + given.jitter * random.uniform();
    after = sampled && !given.beside;
    if (sampled && given.beside) sampler.sample_took(given.cost);
    sampler.step_took(seconds, !sampled       ? Step::Plain
                               : given.beside ? Step::BesideSample
                                              : Step::WithNorms);
    elapsed += seconds;
    spent += more;
    result.samples += sampled ? 1 : 0;
    if (!sampled) result.largest_share = std::max(result.largest_share, spent / elapsed);
  }
  result.share = spent / elapsed;
  return result;
}

TEST(NoiseSampler, SpendsOnePercentOfTheTimeWhateverASampleCosts) {
  for (const bool beside : {false, true}) {
    for (const double cost : {0.05, 0.3, 1.2, 1.5}) {
      const Simulated result = simulate({.cost = cost, .beside = beside});
      EXPECT_LE(result.largest_share, 0.0101) << cost;
      EXPECT_GT(result.share, 0.0075) << cost;
      EXPECT_GT(result.samples, 200) << cost;
    }
  }
}

// Steps that vary make samples seem dearer, never cheaper.
TEST(NoiseSampler, SpendsNoMoreWhereStepsVaryOrTheMachineIsBusyAtTimes) {
  for (const bool beside : {false, true}) {
    for (const double cost : {0.05, 0.3, 1.0}) {
      for (const double jitter : {0.1, 0.5, 1.0}) {
        const Simulated result =
            simulate({.cost = cost, .beside = beside, .jitter = jitter, .drift = 1.0});
        EXPECT_LE(result.share, 0.0101) << cost << " " << jitter << " " << beside;
        EXPECT_GT(result.share, 0.002) << cost << " " << jitter << " " << beside;
      }
    }
  }
}

TEST(NoiseSampler, ARunThatIsTooShortForCompilingIsNotSampled) {
  EXPECT_EQ(simulate({.cost = 0.1, .steps = 400}).samples, 0);
  EXPECT_GT(simulate({.cost = 0.1, .steps = 1000}).samples, 0);
}

TEST(NoiseSampler, TakesTheStepsThatWereChosenAndNoneIfSwitchedOff) {
  const NoiseSampler fourth(4);
  EXPECT_TRUE(fourth.due(0, false));
  EXPECT_FALSE(fourth.due(3, true));
  EXPECT_TRUE(fourth.due(8, true));
  NoiseSampler off(0);
  for (int step = 0; step < 1000; ++step) {
    off.step_took(1.0, NoiseSampler::Step::Plain);
    EXPECT_FALSE(off.due(step, true));
  }
}

}  // namespace
}  // namespace lockstep::testing::noise

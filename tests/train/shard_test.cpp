// Slots, gradients and parameters of which every replica keeps a slice (ZeRO 1 to 3): the same bits
// as with whole ones, in less memory.
#include <gtest/gtest.h>

#include <cmath>

#include "lockstep/train/model_impl.h"
#include "temporary_folder.h"
#include "train/replica_runs.h"

namespace lockstep::testing {
namespace {

// No number of replicas divides its parameters.
Model make_shard_cnn() {
  return Sequential({Conv2D({.filters = 7, .kernel_size = 3, .activation = "relu"}),
                     BatchNormalization(), MaxPooling2D(), Flatten(), Dropout({.rate = 0.25}),
                     Dense({.units = 19, .activation = "relu"}), Dense({.units = 4})});
}

CompileOptions sharded(int shard, int replicas, Optimizer optimizer,
                       std::string precision = "float32") {
  return {.strategy = mirrored(replicas, {.buckets = {.first_bytes = 300, .bytes = 2000}}),
          .optimizer = std::move(optimizer),
          .loss = SparseCategoricalCrossentropy({.from_logits = true}),
          .metrics = {SparseCategoricalAccuracy({.name = "accuracy"})},
          .precision = std::move(precision),
          .shard = shard,
          .seed = 3};
}

// Of 13, and a last one of 5.
Dataset shard_batches(std::int64_t count = 44) {
  const Samples samples = make_samples(count);
  return Dataset::from_tensor_slices({samples.x, samples.y, samples.weight})
      .shuffle({.buffer = 70, .seed = 2})
      .batch(13);
}

struct ShardRun {
  std::vector<double> losses;
  std::vector<std::vector<float>> weights;
  std::vector<std::vector<float>> slots;
  Logs evaluated;
};

std::vector<std::vector<float>> slots_of(const Model& model, const Optimizer& optimizer) {
  std::vector<std::vector<float>> all;
  for (const VariableRef& variable : optimizer.variables()) {
    if (variable->dtype != DType::F32) continue;
    const Tensor value = model.value(variable);
    all.emplace_back(value.values<float>().begin(), value.values<float>().end());
  }
  return all;
}

ShardRun train_sharded(const CompileOptions& options, std::int64_t epochs = 2) {
  Model model = make_shard_cnn();
  model.compile(options);
  LossesOf losses;
  model.fit(
      shard_batches(),
      {.epochs = epochs, .validation_data = shard_batches(20), .callbacks = {losses.callback()}});
  return {.losses = losses.losses,
          .weights = weights_of(model),
          .slots = slots_of(model, options.optimizer),
          .evaluated = model.evaluate(shard_batches())};
}

void expect_same_run(const ShardRun& a, const ShardRun& b) {
  EXPECT_EQ(a.losses, b.losses);
  EXPECT_EQ(a.weights, b.weights);
  EXPECT_EQ(a.slots, b.slots);
  EXPECT_EQ(a.evaluated["loss"], b.evaluated["loss"]);
}

struct ShardCase {
  int shard;
  int replicas;
};
void PrintTo(const ShardCase& test, std::ostream* out) {
  *out << "shard " << test.shard << " on " << test.replicas;
}
class Sharded : public ::testing::TestWithParam<ShardCase> {};
INSTANTIATE_TEST_SUITE_P(, Sharded,
                         ::testing::Values(ShardCase{1, 2}, ShardCase{3, 2}, ShardCase{2, 3},
                                           ShardCase{3, 4}));

TEST_P(Sharded, TrainingGivesTheBitsOfReplicas) {
  const int shard = GetParam().shard;
  const int replicas = GetParam().replicas;
  using Make = Optimizer (*)();
  for (const Make make : {Make([] { return Adam(); }), Make([] { return SGD(0.05); }),
                          Make([] { return SGD({.learning_rate = 0.05, .momentum = 0.9}); }),
                          Make([] { return AdamW(1e-3, {.clipvalue = 0.01}); })}) {
    const ShardRun plain = train_sharded(sharded(0, replicas, make()));
    expect_same_run(train_sharded(sharded(shard, replicas, make())), plain);
    EXPECT_NE(plain.losses.front(), plain.losses.back());
  }
}

TEST_P(Sharded, MixedPrecisionGivesTheBitsOfReplicas) {
  const int shard = GetParam().shard;
  const int replicas = GetParam().replicas;
  for (const char* precision : {"mixed_bfloat16", "mixed_float16"}) {
    const ShardRun plain = train_sharded(sharded(0, replicas, Adam(), precision));
    expect_same_run(train_sharded(sharded(shard, replicas, Adam(), precision)), plain);
  }
}

TEST_P(Sharded, NormsAgreeToRounding) {
  const int shard = GetParam().shard;
  const int replicas = GetParam().replicas;
  using Make = Optimizer (*)();
  for (const Make make : {Make([] { return LARS({.learning_rate = 1.0, .trust = 0.02}); }),
                          Make([] { return LAMB({.learning_rate = 1e-2}); }),
                          Make([] { return Adam({.clipnorm = 0.1}); }),
                          Make([] { return Adam({.global_clipnorm = 0.1}); })}) {
    const ShardRun plain = train_sharded(sharded(0, replicas, make()));
    const ShardRun sliced = train_sharded(sharded(shard, replicas, make()));
    ASSERT_EQ(plain.losses.size(), sliced.losses.size());
    for (std::size_t i = 0; i < plain.losses.size(); ++i) {
      EXPECT_NEAR(plain.losses[i], sliced.losses[i], 1e-4) << "step " << i;
    }
  }
}

// With the bits of what whole state gives on the same replicas.
TEST_P(Sharded, ACheckpointGoesOnWithAnyOtherShardOnAnyOtherNumber) {
  const int shard = GetParam().shard;
  const int replicas = GetParam().replicas;
  const TemporaryFolder folder;
  const auto file = folder / "checkpoint.safetensors";
  // Six steps one way, the rest of two epochs another way.
  const auto run = [&](int first_shard, int then_shard, int then_replicas) {
    Model first = make_shard_cnn();
    first.compile(sharded(first_shard, replicas, Adam()));
    const CallbackRef stop =
        LambdaCallback({.on_batch_end = [&](Model& model, std::int64_t, const BatchLogs&) {
          if (model.step() != 6) return;
          model.save(file);
          model.stop_training();
        }});
    first.fit(shard_batches(), {.epochs = 2, .callbacks = {stop}});
    Model second = make_shard_cnn();
    const Optimizer optimizer = Adam();
    second.compile(sharded(then_shard, then_replicas, optimizer));
    LossesOf losses;
    second.fit(shard_batches(), {.epochs = 2, .callbacks = {losses.callback()}, .resume = file});
    return ShardRun{.losses = losses.losses,
                    .weights = weights_of(second),
                    .slots = slots_of(second, optimizer),
                    .evaluated = second.evaluate(shard_batches())};
  };
  for (const int other : {2, 3}) {
    const ShardRun plain = run(0, 0, other);
    EXPECT_EQ(plain.losses.size(), 2u);
    expect_same_run(run(shard, 0, other), plain);
    expect_same_run(run(0, shard, other), plain);
    expect_same_run(run(shard, 4 - shard, other), plain);
  }
}

TEST_P(Sharded, WeightsAreReadSetSavedAndUsedAsIfTheyWereWhole) {
  const int shard = GetParam().shard;
  const int replicas = GetParam().replicas;
  const TemporaryFolder folder;
  Model plain = make_shard_cnn();
  plain.compile(sharded(0, replicas, Adam()));
  Model sliced = make_shard_cnn();
  sliced.compile(sharded(shard, replicas, Adam()));
  for (Model* model : {&plain, &sliced}) model->fit(shard_batches(), {.epochs = 1});
  EXPECT_EQ(weights_of(sliced), weights_of(plain));
  const Samples samples = make_samples(9);
  EXPECT_TRUE(sliced.predict(samples.x).same_bits(plain.predict(samples.x)));
  sliced.save_weights(folder / "weights.safetensors");
  Model other = make_shard_cnn();
  other.compile(sharded(shard, replicas, Adam()));
  other.fit(shard_batches(), {.epochs = 1});
  other.fit(shard_batches(), {.epochs = 1});
  EXPECT_NE(weights_of(other), weights_of(plain));
  other.load_weights(folder / "weights.safetensors");
  EXPECT_EQ(weights_of(other), weights_of(plain));
  EXPECT_TRUE(other.predict(samples.x).same_bits(plain.predict(samples.x)));
}

// Fewer parameters than replicas, and batches with fewer samples than replicas.
TEST_P(Sharded, TinyModelsAndBatchesGiveTheBitsOfReplicas) {
  const int shard = GetParam().shard;
  const int replicas = GetParam().replicas;
  const auto run = [&](int with) {
    Model model = Sequential({Dense({.units = 1, .use_bias = false})});
    CompileOptions options = sharded(with, replicas, Adam(0.1));
    options.loss = MeanSquaredError();
    options.metrics = {};
    model.compile(options);
    Tensor x(DType::F32, {3, 1});
    Tensor y(DType::F32, {3, 1});
    for (int i = 0; i < 3; ++i) {
      x.values<float>()[static_cast<std::size_t>(i)] = static_cast<float>(i + 1);
      y.values<float>()[static_cast<std::size_t>(i)] = static_cast<float>(2 * i + 2);
    }
    model.fit(Dataset::from_tensor_slices({x, y}).batch(2), {.epochs = 3});
    return weights_of(model);
  };
  EXPECT_EQ(run(shard), run(0));
}

TEST_P(Sharded, LoopsOfTheUsersOwnGiveTheBitsOfReplicas) {
  const int shard = GetParam().shard;
  const int replicas = GetParam().replicas;
  const auto run = [&](int with) {
    const Strategy strategy = mirrored(replicas);
    Model model =
        Sequential({Flatten(), Dense({.units = 17, .activation = "relu"}), Dense({.units = 4})});
    const Optimizer optimizer = Adam({.learning_rate = 1e-2});
    auto step = strategy.function(
        [&](Value images, Value labels) {
          const LossPair loss = sparse_categorical_crossentropy(
              labels, model(images, {.training = true}), {.from_logits = true});
          optimizer.apply(gradients(loss, model.trainable_variables()));
          return loss;
        },
        {.shard = with});
    const Samples samples = make_samples(36);
    for (auto& batch :
         strategy.distribute(Dataset::from_tensor_slices({samples.x, samples.y}).batch(12))) {
      strategy.run(step, batch[0], batch[1]);
    }
    return weights_of(model);
  };
  EXPECT_EQ(run(shard), run(0));
}

// Measuring it changes no bit, and it is that of whole gradients.
TEST_P(Sharded, TheNoiseScaleIsThatOfReplicas) {
  const int shard = GetParam().shard;
  const int replicas = GetParam().replicas;
  const auto run = [&](int with, std::int64_t every, std::optional<NoiseScale>* noise) {
    Model model = make_shard_cnn();
    model.compile(sharded(with, replicas, Adam()));
    const History history = model.fit(shard_batches(), {.epochs = 2, .noise_scale_every = every});
    *noise = history.noise_scale;
    return weights_of(model);
  };
  std::optional<NoiseScale> none;
  std::optional<NoiseScale> of_replicas;
  std::optional<NoiseScale> of_slices;
  const auto plain = run(0, 0, &none);
  EXPECT_EQ(run(0, 1, &of_replicas), plain);
  EXPECT_EQ(run(shard, 1, &of_slices), plain);
  ASSERT_TRUE(of_replicas && of_slices);
  EXPECT_EQ(of_slices->samples, of_replicas->samples);
  EXPECT_NEAR(of_slices->trace, of_replicas->trace, 1e-3 * std::abs(of_replicas->trace));
}

// The newest step decides how state is stored.
TEST(ShardedAgain, CompiledWithAnotherShardAModelGoesOn) {
  std::vector<std::vector<std::vector<float>>> results;
  for (const auto& shards :
       {std::vector<int>{0, 0, 0}, std::vector<int>{1, 3, 0}, std::vector<int>{3, 2, 3}}) {
    Model model = make_shard_cnn();
    const Optimizer optimizer = Adam();
    for (const int shard : shards) {
      model.compile(sharded(shard, 2, optimizer));
      model.fit(shard_batches(), {.epochs = 1});
    }
    results.push_back(weights_of(model));
  }
  EXPECT_EQ(results[1], results[0]);
  EXPECT_EQ(results[2], results[0]);
}

// Bytes per parameter that a rank keeps with Adam: the parameter and two slots. What is planned is
// what is allocated.
TEST(ShardedMemory, ShrinksWithTheReplicasAndIsWhatWasPlanned) {
  const std::int64_t width = 256;
  const auto make = [&] {
    return Sequential({Flatten(), Dense({.units = width, .activation = "relu"}),
                       Dense({.units = width, .activation = "relu"}), Dense({.units = 4})});
  };
  const double parameters =
      static_cast<double>(144 * width + width + width * width + width + width * 4 + 4);
  for (const int replicas : {2, 4}) {
    std::size_t whole = 0;
    for (const int shard : {0, 1, 2, 3}) {
      Model model = make();
      model.compile(sharded(shard, replicas, Adam()));
      const Samples samples = make_samples(8);
      model.fit(Dataset::from_tensor_slices({samples.x, samples.y}).batch(8), {.epochs = 1});
      Session& session = impl_of(model).session();
      const Batch batch{.inputs = {samples.x}, .labels = samples.y, .sample_weight = {}};
      const CompiledStep& step = impl_of(model).step_for(
          request_step(session.world(), impl_of(model).options.optimizer,
                       batch.step(StepMode::Train), split_evenly(8, replicas)));
      const double expected = shard == 0  ? 12.0
                              : shard < 3 ? 4.0 + 8.0 / replicas
                                          : 12.0 / replicas;
      std::size_t most = 0;  // of the replicas: slices may differ by a cache line
      for (const RankStep* rank : step.ranks) {
        const Plan& plan = rank->plan();
        const double per_parameter = static_cast<double>(plan.variable_bytes) / parameters;
        EXPECT_NEAR(per_parameter, expected, 0.02) << "shard " << shard << " on " << replicas;
        most = std::max(most, plan.variable_bytes + plan.arena_bytes + plan.input_output_bytes);
      }
      EXPECT_EQ(session.resident_bytes(), most) << "shard " << shard << " on " << replicas;
      EXPECT_TRUE(shard == 0 || most < whole) << "shard " << shard << " on " << replicas;
      if (shard == 0) whole = most;
    }
  }
}

TEST(ShardedOnOne, ReplicaChangesNothing) {
  const ShardRun plain = train_sharded(sharded(0, 1, Adam()));
  for (const int shard : {1, 2, 3}) {
    expect_same_run(train_sharded(sharded(shard, 1, Adam())), plain);
  }
}

}  // namespace
}  // namespace lockstep::testing

// User-defined steps on several replicas.
#include <gtest/gtest.h>

#include "train/replica_runs.h"

namespace lockstep::testing {
namespace {

// Runs a custom loop and returns its losses.
std::vector<double> custom_loop(int replicas, Model model) {
  const Samples samples = make_samples(50);
  const Strategy strategy = mirrored(replicas);
  Optimizer optimizer = Adam();
  Function step = strategy.function([&](Value images, Value labels) {
    const Value logits = model(images, {.training = true});
    const LossPair loss = sparse_categorical_crossentropy(labels, logits, {.from_logits = true});
    optimizer.apply(gradients(loss, model.trainable_variables()));
    return loss;
  });
  std::vector<double> losses;
  for (int epoch = 0; epoch < 3; ++epoch) {
    for (auto& [images, labels] :
         strategy.distribute(Dataset::from_tensor_slices({samples.x, samples.y}).batch(13))) {
      const PerReplica loss = strategy.run(step, images, labels);
      losses.push_back(strategy.reduce(ReduceOp::Mean, loss));
    }
  }
  return losses;
}

Model small_model() {
  return Sequential({Flatten(), Dense({.units = 8, .activation = "relu"}), Dropout({.rate = 0.2}),
                     Dense({.units = 4})});
}

TEST(CustomLoop, GivesTheLossesOfOneReplicaOnUnevenBatches) {
  const std::vector<double> one = custom_loop(1, small_model());
  const std::vector<double> three = custom_loop(3, small_model());
  ASSERT_EQ(one.size(), three.size());
  for (std::size_t i = 0; i < one.size(); ++i) EXPECT_NEAR(one[i], three[i], 1e-5);
  EXPECT_LT(one.back(), one.front());
}

TEST(CustomLoop, TrainsTheModelThatItCalls) {
  Model model = small_model();
  custom_loop(2, model);
  const Samples samples = make_samples(50);
  model.compile({.optimizer = SGD(), .loss = SparseCategoricalCrossentropy({.from_logits = true})});
  const Logs trained = model.evaluate(samples.x, samples.y);
  Model fresh = small_model();
  fresh.compile({.optimizer = SGD(), .loss = SparseCategoricalCrossentropy({.from_logits = true})});
  EXPECT_LT(trained["loss"], fresh.evaluate(samples.x, samples.y)["loss"]);
}

// One model gets a batch that leaves the second replica without samples, the other has samples on
// both: each updates its averages from the replicas that have samples.
TEST(CustomLoop, NormsCountTheReplicasThatHaveSamplesEachForItself) {
  const auto make = [] {
    return Sequential({BatchNormalization({.momentum = 0.5}), Dense({.units = 2})});
  };
  Model few = make();
  Model all = make();
  Optimizer of_few = SGD();
  Optimizer of_all = SGD();
  const Strategy strategy = mirrored(2);
  Function step = strategy.function([&](Value x, Value x_labels, Value z, Value z_labels) {
    const LossPair loss = sparse_categorical_crossentropy(x_labels, few(x, {.training = true}),
                                                          {.from_logits = true});
    of_few.apply(gradients(loss, few.trainable_variables()));
    const LossPair other = sparse_categorical_crossentropy(z_labels, all(z, {.training = true}),
                                                           {.from_logits = true});
    of_all.apply(gradients(other, all.trainable_variables()));
    return other;
  });
  const auto rows = [](std::vector<float> values) {
    const auto count = static_cast<std::int64_t>(values.size()) / 2;
    return Tensor::of(values, {count, 2});
  };
  const auto labels = [](std::int64_t count) { return Tensor(DType::I64, {count}); };
  const PerReplica x = values_here(strategy, {rows({1, 2, 3, 4}), rows({})});
  const PerReplica z = values_here(strategy, {rows({0, 1, 2, 1}), rows({3, 5})});
  strategy.run(step, x, values_here(strategy, {labels(2), labels(0)}), z,
               values_here(strategy, {labels(2), labels(1)}));
  const auto moving_mean = [](Model& model) {
    std::vector<float> mean;
    for (const VariableRef& variable : model.variables()) {
      if (!variable->name.ends_with("moving_mean")) continue;
      const Tensor value = model.value(variable);
      mean.assign(value.values<float>().begin(), value.values<float>().end());
    }
    return mean;
  };
  EXPECT_EQ(moving_mean(few), (std::vector<float>{1, 1.5}));  // half of (2, 3)
  EXPECT_EQ(moving_mean(all), (std::vector<float>{1, 1.5}));  // half of the mean of (1, 1), (3, 5)
}

TEST(CustomLoop, FindsTheMemoryOfVariablesThatItUsesWithoutCallingTheModel) {
  Model model = small_model();
  model.build({12, 12, 1});
  const VariableRef kernel = model.trainable_variables().front();
  model.set_value(kernel, Tensor(kernel->dtype, kernel->shape));
  const Strategy strategy = mirrored(2);
  Function norm = strategy.function([&](const ReplicaContext& context) {
    return reduce_sum(square(context.graph().variable(kernel)));
  });
  const PerReplica norms = strategy.run(norm);
  EXPECT_EQ(norms.values().size(), replicas_here(strategy).size());
  for (const Tensor& value : norms.values()) EXPECT_EQ(value.item(), 0.0);
}

// The second replica fails at the end of its backward pass, when updates of early buckets may
// already have been applied.
TEST(CustomLoop, AfterAnErrorInTheBackwardPassAllReplicasAreEqualAgain) {
  const Strategy strategy = mirrored(2, {.buckets = {.first_bytes = 1, .bytes = 1}});
  Sequential model({Flatten(), Dense({.units = 32}), Dense({.units = 32}), Dense({.units = 4})});
  Optimizer optimizer = SGD({.learning_rate = 0.1});
  Function step = strategy.function([&](Value images, Value labels, Value index) {
    const LossPair loss = sparse_categorical_crossentropy(labels, model(images, {.training = true}),
                                                          {.from_logits = true});
    const Gradients found = gradients(loss, model.trainable_variables());
    optimizer.apply(found);
    // Runs after the last gradient, which is that of the first layer.
    const Value late = cast(reduce_sum(found.sums.front()) * 0.0, DType::I32);
    return gather(found.sums.back(), index + late);
  });
  const Samples samples = make_samples(16);
  const auto run = [&](std::int32_t index) {
    const Tensor good = Tensor::of(std::vector<std::int32_t>{1}, {1});
    const Tensor second = Tensor::of(std::vector<std::int32_t>{index}, {1});
    for (auto& [x, y] :
         strategy.distribute(Dataset::from_tensor_slices({samples.x, samples.y}).batch(16))) {
      strategy.run(step, x, y, values_here(strategy, {good, second}));
    }
  };
  run(2);
  Session& session = *impl_of(strategy).session;
  session.expect_mirrored();
  // Whether the first replica has applied them by then is a race: many rounds, so that some have.
  for (int round = 0; round < 30; ++round) {
    EXPECT_THROW(run(99), DataError);
    session.expect_mirrored();
    run(0);
    session.expect_mirrored();
  }
}

TEST(ReplicaContext, KnowsTheReplicaAndAddsUp) {
  const Strategy strategy = mirrored(3);
  Function step = strategy.function([&](const ReplicaContext& context, Value x) {
    const Value id = cast(context.replica_id(), DType::F32);
    const Value sum = context.all_reduce(ReduceOp::Sum, reduce_sum(x) + id);
    const Value mean = context.all_reduce(ReduceOp::Mean, id);
    return std::vector<Value>{id, sum, mean, x};
  });
  const PerReplica x = values_here(strategy, {Tensor::of(std::vector<float>{1, 2}, {2}),
                                              Tensor::of(std::vector<float>{3, 4}, {2}),
                                              Tensor::of(std::vector<float>{5}, {1})});
  const std::vector<PerReplica> results = strategy.run_all(step, {x});
  ASSERT_EQ(results.size(), 4u);
  const std::vector<int> here = replicas_here(strategy);
  ASSERT_EQ(results[0].values().size(), here.size());
  for (std::size_t i = 0; i < here.size(); ++i) {
    EXPECT_EQ(results[0].values()[i].item(), here[i]);
    EXPECT_EQ(results[1].values()[i].item(), 1 + 2 + 3 + 4 + 5 + 0 + 1 + 2);
    EXPECT_EQ(results[2].values()[i].item(), 1);
  }
  EXPECT_EQ(strategy.gather(results[3]).shape(), Shape{5});
  EXPECT_EQ(static_cast<double>(strategy.reduce(ReduceOp::Sum, results[0])), 3);
  EXPECT_EQ(static_cast<double>(strategy.reduce(ReduceOp::Mean, results[0])), 1);
}

TEST(Reduce, OverAxisZeroDividesByTheTrueNumberOfElements) {
  const Strategy strategy = mirrored(2);
  const PerReplica uneven = values_here(strategy, {Tensor::of(std::vector<float>{1, 2, 3, 4}, {4}),
                                                   Tensor::of(std::vector<float>{10, 10}, {2})});
  EXPECT_EQ(static_cast<double>(strategy.reduce(ReduceOp::Mean, uneven, {.axis = 0})), 5);
  EXPECT_EQ(static_cast<double>(strategy.reduce(ReduceOp::Sum, uneven, {.axis = 0})), 30);
  EXPECT_THROW(strategy.reduce(ReduceOp::Mean, uneven), UsageError);
  const PerReplica with_empty =
      values_here(strategy, {Tensor::of(std::vector<float>{2, 4}, {2}), Tensor(DType::F32, {0})});
  EXPECT_EQ(static_cast<double>(strategy.reduce(ReduceOp::Mean, with_empty, {.axis = 0})), 3);
}

TEST(CustomLoop, FunctionsOfOneStrategyShareTheirVariables) {
  const Strategy strategy = mirrored(2);
  auto made = std::make_shared<Variable>();
  made->name = "count";
  made->placement = Placement::local();  // every replica counts for itself
  const VariableRef count = made;
  Function add = strategy.function([&](Value x) { assign(count, x.graph().variable(count) + x); });
  Function read = strategy.function(
      [&](const ReplicaContext& context) { return context.graph().variable(count) * 1.0; });
  strategy.run(add, values_here(strategy, {Tensor::scalar(1.0f), Tensor::scalar(2.0f)}));
  const PerReplica counted = strategy.run(read);
  const std::vector<int> here = replicas_here(strategy);
  ASSERT_EQ(counted.values().size(), here.size());
  for (std::size_t i = 0; i < here.size(); ++i) {
    EXPECT_EQ(counted.values()[i].item(), here[i] + 1.0);
  }
}

TEST(CustomLoop, AverageLossesOfTheReplicasAddUpToTheMean) {
  const Strategy strategy = mirrored(3);
  Function loss = strategy.function([](Value x) { return compute_average_loss(x, 4); });
  const Tensor x = Tensor::of(std::vector<float>{1, 2, 3, 6}, {4});
  for (auto& [values] : strategy.distribute<1>(Dataset::from_tensor_slices({x}).batch(4))) {
    EXPECT_EQ(static_cast<double>(strategy.reduce(ReduceOp::Sum, strategy.run(loss, values))), 3);
  }
}

TEST(Distribute, SplitsAsTfDistributeDoes) {
  const Strategy strategy = mirrored(3);
  const Tensor x = Tensor::of(std::vector<std::int32_t>{0, 1, 2, 3}, {4});
  for (auto& [values] : strategy.distribute<1>(Dataset::from_tensor_slices({x}).batch(4))) {
    const std::vector<int> here = replicas_here(strategy);
    ASSERT_EQ(values.values().size(), here.size());
    for (std::size_t i = 0; i < here.size(); ++i) {
      EXPECT_EQ(values.values()[i].elements(), here[i] < 2 ? 2 : 0) << "replica " << here[i];
    }
    EXPECT_EQ(strategy.gather(values).values<std::int32_t>()[3], 3);
  }
}

TEST(Distribute, FromAFunctionDealsOutBatchesAsTheyAre) {
  const Strategy strategy = mirrored(2);
  const Tensor x = Tensor::of(std::vector<std::int32_t>{0, 1, 2, 3, 4, 5, 6}, {7});
  std::vector<std::vector<std::int32_t>> seen;
  const std::vector<std::vector<std::int32_t>> dealt{{0, 1, 2}, {3, 4, 5}, {6}, {}};
  std::vector<std::vector<std::int32_t>> expected;
  const auto batches = [&](const InputContext& context) {
    EXPECT_EQ(context.num_replicas_in_sync, 2);
    EXPECT_EQ(context.per_replica_batch_size(6), 3);
    EXPECT_THROW(context.per_replica_batch_size(7), UsageError);
    // A worker reads batches of its own.
    return Dataset::from_tensor_slices({x}).batch(3).shard(context.num_input_pipelines,
                                                           context.input_pipeline_id);
  };
  std::size_t step = 0;
  for (auto& [values] : strategy.distribute_from_function<1>(batches)) {
    for (const Tensor& value : values.values()) {
      const auto part = value.values<std::int32_t>();
      seen.emplace_back(part.begin(), part.end());
    }
    for (const int r : replicas_here(strategy)) {
      expected.push_back(dealt.at(2 * step + static_cast<std::size_t>(r)));
    }
    ++step;
  }
  EXPECT_EQ(step, 2u);
  EXPECT_EQ(seen, expected);
}

TEST(StrategyFunction, RefusesWhatDoesNotFit) {
  const Strategy strategy = mirrored(2);
  const Strategy other = mirrored(2);
  Function step = strategy.function([](Value x) { return x; });
  const Tensor x = Tensor::of(std::vector<float>{1, 2}, {2});
  EXPECT_THROW(other.run(step, x), UsageError);
  EXPECT_THROW(step(x), UsageError);
  EXPECT_THROW(strategy.distribute(Dataset::from_tensor_slices({x}).batch(2)).begin(), UsageError);
}

TEST(Mirrored, DevicesThatAreNotThereAreNamed) {
  EXPECT_THROW(MirroredStrategy({.devices = {"gpu:0"}}), UsageError);
  EXPECT_THROW(MirroredStrategy({.devices = {"cpu:0", "cpu:0"}}), UsageError);
  EXPECT_THROW(MirroredStrategy({.devices = {"cpu:3"}, .logical_cpus = 2}), UsageError);
  EXPECT_EQ(MirroredStrategy().num_replicas_in_sync(), 1);
  std::vector<std::string> expected{"cpu:0", "cpu:1", "cpu:2"};
  if (TestWorker::current() != nullptr) {  // the second one has two of them
    expected = {"cpu:0 of worker 0", "cpu:1 of worker 1", "cpu:2 of worker 1"};
  }
  EXPECT_EQ(mirrored(3).devices(), expected);
}

}  // namespace
}  // namespace lockstep::testing

// Accumulator: a custom loop over micro-batches equals one over large batches, on any number of
// replicas.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "lockstep/train/accumulator.h"
#include "train/problem.h"
#include "train/replica_runs.h"

namespace lockstep::testing {
namespace {

struct AccumulatorRun {
  std::vector<double> losses;  // of every step, over all its samples
  std::vector<std::vector<float>> weights;
};

// Steps of 12 samples in micro-batches of these sizes, or whole.
AccumulatorRun run_accumulator(const std::function<Model()>& make, int replicas,
                               const std::vector<std::int64_t>& sizes) {
  const Samples samples = make_samples(48);
  const Strategy strategy = mirrored(replicas);
  Model model = make();
  model.build({12, 12, 1});
  const Optimizer optimizer = Adam({.learning_rate = 0.01});
  Accumulator step(strategy, [&](Value x, Value y) {
    const LossPair loss =
        sparse_categorical_crossentropy(y, model(x, {.training = true}), {.from_logits = true});
    optimizer.apply(gradients(loss, model.trainable_variables()));
    return loss;
  });
  AccumulatorRun run;
  for (int pass = 0; pass < 3; ++pass) {
    for (std::int64_t begin = 0; begin < 48; begin += 12) {
      double sum = 0;
      std::int64_t first = begin;
      for (std::size_t i = 0; i < sizes.size(); ++i) {
        std::vector<Tensor> x, y;
        for (const Piece& piece : split_evenly(sizes[i], replicas)) {
          x.push_back(samples.x.rows(first + piece.begin, piece.size()));
          y.push_back(samples.y.rows(first + piece.begin, piece.size()));
        }
        first += sizes[i];
        const PerReplica mine = values_here(strategy, x), labels = values_here(strategy, y);
        EXPECT_EQ(step.added(), static_cast<std::int64_t>(i));
        const PerReplica loss =
            i + 1 == sizes.size() ? step.update(mine, labels) : step.add(mine, labels);
        if (sizes[i] > 0) {
          const double mean = strategy.reduce(ReduceOp::Mean, loss);
          sum += mean * static_cast<double>(sizes[i]);
        }
      }
      EXPECT_EQ(step.added(), 0);
      run.losses.push_back(sum / 12);
    }
  }
  run.weights = weights_of(model);
  return run;
}

void expect_same_run(const AccumulatorRun& a, const AccumulatorRun& b, double tolerance) {
  ASSERT_EQ(a.losses.size(), b.losses.size());
  for (std::size_t i = 0; i < a.losses.size(); ++i) {
    EXPECT_NEAR(a.losses[i], b.losses[i], tolerance * (1 + a.losses[i])) << "step " << i;
  }
  for (std::size_t v = 0; v < a.weights.size(); ++v) {
    for (std::size_t i = 0; i < a.weights[v].size(); ++i) {
      ASSERT_NEAR(a.weights[v][i], b.weights[v][i], 20 * tolerance) << v;
    }
  }
}

Model accumulator_cnn() {
  return Sequential({Conv2D({.filters = 8, .activation = "relu"}), MaxPooling2D(), Flatten(),
                     Dropout({.rate = 0.25}), Dense({.units = 4})});
}

TEST(Accumulator, AnyMicroBatchesEqualTheWholeBatchOnAnyNumberOfReplicas) {
  const AccumulatorRun whole = run_accumulator(accumulator_cnn, 1, {12});
  EXPECT_LT(whole.losses.back(), whole.losses.front());
  for (const int replicas : {1, 2, 3}) {
    for (const std::vector<std::int64_t>& sizes :
         {std::vector<std::int64_t>{12}, {4, 4, 4}, {5, 1, 6}, {7, 0, 5}}) {
      expect_same_run(whole, run_accumulator(accumulator_cnn, replicas, sizes), 1e-5);
    }
  }
}

TEST(Accumulator, WithBatchNormEqualsReplicas) {
  const auto make = []() -> Model {
    return Sequential({Conv2D({.filters = 8, .use_bias = false}), BatchNormalization(),
                       Activation("relu"), GlobalAveragePooling2D(), Dense({.units = 4})});
  };
  expect_same_run(run_accumulator(make, 4, {12}), run_accumulator(make, 1, {3, 3, 3, 3}), 1e-6);
}

TEST(Accumulator, ForgetsWhatWasAddedUpWhenARunFails) {
  const Problem data = make_problem(16);
  Tensor wrong = data.y.clone();
  wrong.values<std::int32_t>()[3] = 99;
  const auto train = [&](bool disturbed) {
    const Strategy strategy = mirrored(1);
    Model model = make_model();
    model.build({kFeatures});
    const Optimizer optimizer = SGD({.learning_rate = 0.1});
    Accumulator step(strategy, [&](Value x, Value y) {
      optimizer.apply(gradients(
          sparse_categorical_crossentropy(y, model(x, {.training = true}), {.from_logits = true}),
          model.trainable_variables()));
    });
    if (disturbed) {
      step.add(data.x.rows(8, 8), data.y.rows(8, 8));
      EXPECT_THROW(step.add(data.x, wrong), DataError);
      EXPECT_EQ(step.added(), 0);
      step.add(data.x.rows(8, 8), data.y.rows(8, 8));
      step.reset();
    }
    step.add(data.x.rows(0, 8), data.y.rows(0, 8));
    step.update(data.x.rows(8, 8), data.y.rows(8, 8));
    return weights_of(model);
  };
  EXPECT_EQ(train(true), train(false));
}

TEST(Accumulator, SaysWhatABodyLacks) {
  const Strategy strategy = mirrored(1);
  Model model = make_model();
  model.build({kFeatures});
  Accumulator step(strategy, [&](Value x) { return model(x); });
  const std::string message = message_of<UsageError>([&] {
    step.add(Tensor(DType::F32, {2, kFeatures}));
  });
  EXPECT_NE(message.find("no gradients to add up"), std::string::npos) << message;
}

}  // namespace
}  // namespace lockstep::testing

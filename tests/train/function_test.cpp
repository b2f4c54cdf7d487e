#include <gtest/gtest.h>

#include <limits>

#include "train/problem.h"

namespace lockstep::testing {
namespace {

TEST(Function, AStepOfTheUsersOwnEqualsFit) {
  const Problem data = make_problem(48);
  const Dataset batches = Dataset::from_tensor_slices({data.x, data.y}).batch(16);
  Sequential fitted = make_model();
  fitted.compile(with_adam());
  fitted.fit(batches, {.epochs = 2});

  Sequential model = make_model();
  model.compile(with_adam());
  const Optimizer optimizer = Adam({.learning_rate = 0.01});
  int traces = 0;
  Function step(model, [&](Value x, Value y) {
    ++traces;
    const Value logits = model(x, {.training = true});
    const LossPair loss = sparse_categorical_crossentropy(y, logits, {.from_logits = true});
    optimizer.apply(gradients(loss, model.trainable_variables()));
    return loss;
  });
  std::vector<double> losses;
  for (std::uint64_t epoch = 0; epoch < 2; ++epoch) {
    const auto iterator = batches.iterator(epoch);
    while (const auto batch = iterator->next()) {
      losses.push_back(step((*batch)[0], (*batch)[1]).item());
    }
  }
  EXPECT_EQ(traces, 1);
  EXPECT_EQ(losses.size(), 6u);
  EXPECT_LT(losses.back(), losses.front());
  EXPECT_EQ(model.step(), 6);
  EXPECT_TRUE(same_weights(fitted, model));
}

TEST(Function, AnotherSignatureIsTracedAgainOnTheSameVariables) {
  const Problem data = make_problem(10);
  Sequential model = make_model();
  int traces = 0;
  Function forward(model, [&](Value x) {
    ++traces;
    return model(x);
  });
  const Tensor whole = forward(data.x);
  const Tensor part = forward(data.x.rows(0, 4));
  EXPECT_EQ(traces, 2);
  EXPECT_EQ(part.shape(), (Shape{4, kClasses}));
  for (std::size_t i = 0; i < 4 * kClasses; ++i) {
    EXPECT_NEAR(part.values<float>()[i], whole.values<float>()[i], 1e-6);
  }
  forward(data.x);
  EXPECT_EQ(traces, 2);
}

TEST(Function, SeveralResultsComeBackInOrder) {
  Sequential model = make_model();
  Function both(model, [](Value a, Value b) { return std::vector<Value>{a + b, a * b}; });
  const std::vector<Tensor> results =
      both.run({Tensor::of<float>({2, 3}, {2}), Tensor::of<float>({5, 7}, {2})});
  ASSERT_EQ(results.size(), 2u);
  EXPECT_EQ(results[0].values<float>()[1], 10.0f);
  EXPECT_EQ(results[1].values<float>()[0], 10.0f);
  EXPECT_THROW(both(results[0], results[1]), UsageError);  // operator() needs one result
  EXPECT_THROW(both.run({results[0]}), UsageError);
}

TEST(Function, TakesFloatsForClassNumbersOnlyWhereTheyAreWhole) {
  const Problem data = make_problem(8);
  Sequential model = make_model();
  model.build({kFeatures});
  Function loss(model, [&](Value x, Value y) {
    return sparse_categorical_crossentropy(y, model(x), {.from_logits = true});
  });
  Tensor labels = data.y.cast(DType::F32);
  EXPECT_EQ(loss(data.x, labels).item(), loss(data.x, data.y).item());
  for (const float bad : {0.5f, -0.5f, std::numeric_limits<float>::quiet_NaN(),
                          std::numeric_limits<float>::infinity()}) {
    labels.values<float>()[3] = bad;
    EXPECT_THROW(loss(data.x, labels), DataError) << bad;
  }
}

// Two models trained by one function keep their earlier values, and both are trained.
TEST(Function, TrainsTwoModelsTogether) {
  const Problem data = make_problem(32);
  Sequential first({Dense({.units = 4, .activation = "relu", .name = "first"})});
  Sequential second({Dense({.units = kClasses, .name = "second"})});
  const Tensor before = first.predict(data.x);
  const Optimizer optimizer = SGD({.learning_rate = 0.1});
  Function step(std::vector<Model>{first, second}, [&](Value x, Value y) {
    const LossPair loss =
        sparse_categorical_crossentropy(y, second(first(x)), {.from_logits = true});
    std::vector<VariableRef> parameters = first.trainable_variables();
    for (const VariableRef& variable : second.trainable_variables()) parameters.push_back(variable);
    optimizer.apply(gradients(loss, parameters));
    return loss;
  });
  const double start = step(data.x, data.y).item();
  double end = start;
  for (int i = 0; i < 20; ++i) end = step(data.x, data.y).item();
  EXPECT_LT(end, start);
  EXPECT_FALSE(first.predict(data.x).same_bits(before));
}

TEST(Function, FollowsAModelThatIsCompiledAgain) {
  const Problem data = make_problem(16);
  Sequential model = make_model();
  Function forward(model, [&](Value x) { return model(x); });
  const Tensor before = forward(data.x);
  model.compile(with_adam());
  EXPECT_TRUE(forward(data.x).same_bits(before));
  model.fit(data.x, data.y);
  EXPECT_TRUE(forward(data.x).same_bits(model.predict(data.x, {.batch_size = 16})));
  EXPECT_FALSE(forward(data.x).same_bits(before));
}

}  // namespace
}  // namespace lockstep::testing

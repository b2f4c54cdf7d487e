// A softmax or sigmoid that is certain of the wrong class must still learn, however it is connected
// to the loss.
#include <gtest/gtest.h>

#include <cmath>
#include <sstream>

#include "train/problem.h"

namespace lockstep::testing {
namespace {

constexpr int kSteps = 24;

// The losses of gradient descent at rate 1, if the logit of the wrong one of two classes is larger
// by d.
std::vector<double> losses_of_softmax() {
  std::vector<double> losses;
  for (double d = 20; losses.size() < kSteps; d -= 2 / (1 + std::exp(-d))) {
    losses.push_back(std::log1p(std::exp(d)));
  }
  return losses;
}

void expect_losses(const History& history, double tolerance = 1e-5) {
  const std::vector<double> expected = losses_of_softmax(), found = history.series("loss");
  ASSERT_EQ(found.size(), expected.size());
  for (std::size_t i = 0; i < found.size(); ++i) {
    EXPECT_NEAR(found[i], expected[i], tolerance * std::max(1.0, expected[i])) << "step " << i;
  }
}

Tensor one() {
  return Tensor::of(std::vector<float>{1}, {1, 1});
}
Tensor class_1() {
  return Tensor::of(std::vector<std::int64_t>{1}, {1});
}
Tensor wrong_weights() {
  return Tensor::of(std::vector<float>{20, 0}, {1, 2});
}

Layer sure(const std::string& activation = "softmax") {
  return Dense({.units = 2, .activation = activation, .use_bias = false});
}

History train(Model model, const std::string& precision = "float32", const Loss& loss = {}) {
  model.compile({.optimizer = SGD({.learning_rate = 1.0}),
                 .loss = loss.defined() ? loss : SparseCategoricalCrossentropy(),
                 .precision = precision});
  model.build({1});
  model.set_weights({wrong_weights()});
  EXPECT_NEAR(model.evaluate(one(), class_1())["loss"], 20, 1e-4);
  return model.fit(one(), class_1(), {.epochs = kSteps});
}

TEST(Saturated, AFusedSoftmaxLearns) {
  expect_losses(train(Sequential({sure()})));
}

TEST(Saturated, AnActivationLayerLearns) {
  expect_losses(train(Sequential({sure(""), Activation("softmax")})));
}

TEST(Saturated, AFunctionalModelLearns) {
  const Symbol input = Input({.shape = {1}});
  expect_losses(train(Model(input, sure()(input))));
}

TEST(Saturated, ANestedModelLearns) {
  expect_losses(train(Sequential({Sequential({sure()})})));
}

TEST(Saturated, LearnsInMixedPrecision) {
  // With 8 bits of mantissa, logits up to 20 are rounded by at most 2^-5.
  expect_losses(train(Sequential({sure()}), "mixed_bfloat16"), 1.0 / 32);
}

TEST(Saturated, ACustomStepLearns) {
  Sequential model({sure()});
  model.build({1});
  model.set_weights({wrong_weights()});
  const Optimizer optimizer = SGD({.learning_rate = 1.0});
  Function step(model, [&](Value x, Value y) {
    const LossPair loss = sparse_categorical_crossentropy(y, model(x, {.training = true}));
    optimizer.apply(gradients(loss, model.trainable_variables()));
    return loss;
  });
  for (const double expected : losses_of_softmax()) {
    EXPECT_NEAR(step(one(), class_1()).item(), expected, 1e-5 * std::max(1.0, expected));
  }
}

TEST(Saturated, ASigmoidLearns) {
  Sequential model({Dense({.units = 1, .activation = "sigmoid", .use_bias = false})});
  model.compile({.optimizer = SGD({.learning_rate = 2.0}), .loss = BinaryCrossentropy()});
  model.build({1});
  model.set_weights({Tensor::of(std::vector<float>{20}, {1, 1})});
  const Tensor zero = Tensor::of(std::vector<float>{0}, {1, 1});
  expect_losses(model.fit(one(), zero, {.epochs = kSteps}));
}

std::string notes(const std::string& activation, const Loss& loss) {
  Sequential model({sure(activation)});
  model.compile({.optimizer = SGD(), .loss = loss});
  std::ostringstream shown;
  model.fit(one(), class_1(), {.epochs = 2, .callbacks = {ProgressBar(shown)}});
  const std::string text = shown.str();
  std::string found;
  for (const std::string& remark : model.remarks()) {
    const std::size_t place = text.find("note: " + remark + "\n");
    EXPECT_NE(place, std::string::npos) << text;
    EXPECT_EQ(text.find(remark, place + 10), std::string::npos) << "printed twice: " << text;
    found += remark;
  }
  return found;
}

TEST(Remarks, FitReportsALossThatDoesNotMatchTheOutput) {
  EXPECT_NE(notes("softmax", SparseCategoricalCrossentropy({.from_logits = true}))
                .find("was told from_logits = true"),
            std::string::npos);
  EXPECT_NE(notes("", SparseCategoricalCrossentropy()).find("expects probabilities"),
            std::string::npos);
  EXPECT_EQ(notes("softmax", SparseCategoricalCrossentropy()), "");
  EXPECT_EQ(notes("", SparseCategoricalCrossentropy({.from_logits = true})), "");
}

}  // namespace
}  // namespace lockstep::testing

// Weights of models that know the shapes of their inputs, before they have seen any data.
#include <gtest/gtest.h>

#include "temporary_folder.h"
#include "train/problem.h"

namespace lockstep::testing {
namespace {

Model functional_model() {
  const Symbol input = Input({.shape = {kFeatures}});
  return {input, Dense({.units = kClasses})(Dense({.units = 4})(input))};
}

Sequential with_input() {
  return Sequential(
      {InputLayer({.shape = {kFeatures}}), Dense({.units = 4}), Dense({.units = kClasses})});
}

std::vector<Model> known_models() {
  return {functional_model(), with_input()};
}

TEST(Weights, ExistAsSoonAsTheInputShapeIsKnown) {
  for (const Model& model : known_models()) {
    EXPECT_TRUE(model.built());
    EXPECT_EQ(model.variables().size(), 4u);
    EXPECT_EQ(model.trainable_variables().size(), 4u);
    EXPECT_EQ(model.parameter_count(), kFeatures * 4 + 4 + 4 * kClasses + kClasses);
    EXPECT_NE(model.summary().find("43"), std::string::npos) << model.summary();
    const std::vector<Tensor> weights = model.weights();
    ASSERT_EQ(weights.size(), 4u);
    EXPECT_EQ(weights[0].shape(), (Shape{kFeatures, 4}));
  }
}

TEST(Weights, CanBeSetSavedAndLoadedBeforeCompile) {
  const TemporaryFolder folder;
  const std::filesystem::path file = folder / "weights.safetensors";
  for (Model model : known_models()) {
    std::vector<Tensor> weights = model.weights();
    weights[1] = Tensor::of(std::vector<float>{1, 2, 3, 4}, {4});
    model.set_weights(weights);
    model.save_weights(file);
    Model other = functional_model();
    other.load_weights(file);
    EXPECT_TRUE(same_weights(model, other));
    // compile keeps the weights, whatever its seed.
    other.compile(with_adam(/*seed=*/9));
    EXPECT_TRUE(same_weights(model, other));
  }
}

TEST(Weights, ASequentialWithAnInputStillGrows) {
  Sequential model({InputLayer({.shape = {kFeatures}}), Dense({.units = 4})});
  EXPECT_EQ(model.variables().size(), 2u);
  model.add(Dense({.units = kClasses}));
  EXPECT_EQ(model.variables().size(), 4u);
  model.compile(with_adam());
  const Problem data = make_problem(8);
  EXPECT_EQ(model.fit(data.x, data.y).epochs.size(), 1u);
  EXPECT_EQ(model.predict(data.x).shape(), (Shape{8, kClasses}));
}

TEST(Weights, NeedAKnownInputShape) {
  Sequential model({Dense({.units = 4})});
  EXPECT_FALSE(model.built());
  EXPECT_THROW(model.weights(), UsageError);
  EXPECT_TRUE(model.variables().empty());
}

TEST(Gradients, OfNoVariablesAreRefused) {
  const Problem data = make_problem(8);
  const Optimizer optimizer = SGD();
  Sequential model = make_model();
  Sequential unbuilt = make_model();
  Function step(model, [&](Value x, Value y) {
    const LossPair loss =
        sparse_categorical_crossentropy(y, model(x, {.training = true}), {.from_logits = true});
    optimizer.apply(gradients(loss, unbuilt.trainable_variables()));
    return loss;
  });
  try {
    step(data.x, data.y);
    ADD_FAILURE() << "a step that trains nothing ran";
  } catch (const UsageError& error) {
    EXPECT_NE(std::string(error.what()).find("[gradients] there are no variables to train"),
              std::string::npos)
        << error.what();
  }
}

}  // namespace
}  // namespace lockstep::testing

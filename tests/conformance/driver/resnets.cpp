// ResNets with given weights: logits, a loss with its gradients, and a few training steps.
#include <algorithm>

#include "conformance/driver/case.h"

namespace conformance {
namespace {

ls::Model resnet_of(const Case& c) {
  const ls::Shape& images = c.input("images").shape();
  return ls::applications::ResNet(c.options.at("depth").get<int>(),
                                  {.input_shape = {images[1], images[2], images[3]},
                                   .classes = c.options.at("classes").get<std::int64_t>(),
                                   .small_input = c.option("small_input", false)});
}

}  // namespace

// Inputs: images, labels, and "weight/<name>" for each variable. Results: the logits of inference;
// with the option "gradients" also those of training, the loss, and the gradients of the variables
// listed there ("all": every one); with "steps" the losses of that many steps of SGD on the same
// batch, and the last layer's weights and all moving means after them.
Tensors run_resnet(const Case& c) {
  ls::Model model = resnet_of(c);
  model.compile({.optimizer = ls::SGD({.learning_rate = 0.01, .momentum = 0.9}),
                 .loss = ls::SparseCategoricalCrossentropy({.from_logits = true})});
  const ls::Tensor &images = c.input("images"), &labels = c.input("labels");
  const ls::Shape& shape = images.shape();
  model.build({shape[1], shape[2], shape[3]});
  for (const ls::VariableRef& variable : model.variables()) {
    model.set_value(variable, c.input("weight/" + variable->name));
  }
  Tensors results = {{"inference", model.predict_on_batch(images)}};

  const auto wanted = c.option("gradients", std::vector<std::string>{});
  std::vector<ls::VariableRef> parameters;
  for (const ls::VariableRef& variable : model.trainable_variables()) {
    const bool all = !wanted.empty() && wanted.front() == "all";
    if (all || std::ranges::count(wanted, variable->name) > 0) parameters.push_back(variable);
  }
  if (!parameters.empty()) {
    ls::Function step(model, [&](ls::Value x, ls::Value y) {
      const ls::Value logits = model(x, {.training = true});
      const ls::LossPair loss = ls::SparseCategoricalCrossentropy({.from_logits = true})(y, logits);
      std::vector<ls::Value> targets;
      for (const auto& parameter : parameters) targets.push_back(x.graph().variable(parameter));
      const ls::Value mean = ls::div(loss.sum, loss.weight);
      std::vector<ls::Value> values = {logits, mean};
      for (const ls::Value& gradient : ls::gradients(mean, targets)) values.push_back(gradient);
      return values;
    });
    const std::vector<ls::Tensor> values = step.run({images, labels});
    results.emplace("training", values[0]);
    results.emplace("loss", values[1]);
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      results.emplace("gradient/" + parameters[i]->name, values[i + 2]);
    }
  }

  const auto steps = c.option("steps", std::int64_t{0});
  if (steps > 0) {
    for (const ls::VariableRef& variable : model.variables()) {
      model.set_value(variable, c.input("weight/" + variable->name));
    }
    std::vector<float> losses;
    for (std::int64_t i = 0; i < steps; ++i) {
      losses.push_back(static_cast<float>(model.train_on_batch(images, labels)["loss"]));
    }
    results.emplace("losses", ls::Tensor::of(losses, ls::Shape{steps}));
    for (const ls::VariableRef& variable : model.variables()) {
      const bool last = variable->name.starts_with("fc/");
      const bool mean = variable->name.ends_with("moving_mean");
      if (last || mean) results.emplace("after/" + variable->name, model.value(variable));
    }
  }
  return results;
}

}  // namespace conformance

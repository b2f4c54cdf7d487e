// Losses: the mean, the loss of each example, and the gradient with respect to the predictions.
#include "conformance/driver/case.h"

namespace conformance {

ls::Loss make_loss(const std::string& name, const Json& options) {
  const ls::CrossentropyOptions crossentropy{
      .from_logits = options.value("from_logits", false),
      .label_smoothing = options.value("label_smoothing", 0.0)};
  if (name == "sparse_categorical_crossentropy") {
    return ls::SparseCategoricalCrossentropy(crossentropy);
  }
  if (name == "categorical_crossentropy") return ls::CategoricalCrossentropy(crossentropy);
  if (name == "binary_crossentropy") return ls::BinaryCrossentropy(crossentropy);
  if (name == "huber") return ls::Huber({.delta = options.value("delta", 1.0)});
  return ls::loss_by_name(name);
}

// Inputs: labels, predictions, optionally sample_weight. With the option "activation" the loss
// is that of activation(predictions), and the gradient is taken with respect to its input.
Tensors run_loss(const Case& c) {
  const bool weighted = c.has("sample_weight");
  const std::string activation = c.option<std::string>("activation", "");
  const ls::OneDeviceStrategy strategy;
  ls::Function step = strategy.function([&](std::span<const ls::Value> values) {
    const ls::Value labels = values[0], scores = values[1];
    const ls::Value predictions = activation.empty() ? scores : ls::activate(scores, activation);
    const ls::Value weights = weighted ? values[2] : ls::Value();
    const ls::Loss loss = make_loss(c.what, c.options);
    const ls::LossPair pair = loss(labels, predictions, weights);
    const ls::Value mean = ls::div(pair.sum, pair.weight);
    const std::vector<ls::Value> gradient = ls::gradients(mean, std::vector{scores});
    return std::vector{mean, loss.per_example(labels, predictions), gradient[0]};
  });
  std::vector<ls::PerReplica> arguments = {c.input("labels"), c.input("predictions")};
  if (weighted) arguments.emplace_back(c.input("sample_weight"));
  const std::vector<ls::PerReplica> results = strategy.run_all(step, arguments);
  return {{"loss", results[0].at(0)},
          {"per_example", results[1].at(0)},
          {"gradient", results[2].at(0)}};
}

}  // namespace conformance

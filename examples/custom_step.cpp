// A custom training step: what happens between the batch and the update is a plain function, traced
// once and then run as one plan.
//
//   custom_step [--quick]
#include <lockstep/lockstep.h>

#include <iostream>
#include <string_view>

namespace ls = lockstep;

int main(int argc, char** argv) try {
  const bool quick = argc > 1 && std::string_view(argv[1]) == "--quick";
  const auto samples = ls::datasets::synthetic({.count = quick ? 256 : 4096, .seed = 1});
  const auto batches = samples.shuffle({.buffer = 4096, .seed = 1}).batch(32);

  ls::Model model =
      ls::applications::MLP({.input_shape = {28, 28, 1}, .hidden = {64}, .classes = 10});
  const ls::Optimizer optimizer = ls::SGD({.learning_rate = 0.05, .momentum = 0.9});

  ls::Function step(model, [&](ls::Value images, ls::Value labels) {
    const ls::Value logits = model(images, {.training = true});
    ls::LossPair loss = ls::sparse_categorical_crossentropy(
        labels, logits, {.from_logits = true});  // (sum, weight)
    // A custom penalty: logits should stay small.
    loss.sum = loss.sum + ls::reduce_sum(ls::square(logits)) * 1e-4;
    optimizer.apply(ls::gradients(loss, model.trainable_variables()));
    return loss;
  });

  for (std::uint64_t epoch = 0; epoch < (quick ? 2 : 20); ++epoch) {
    double sum = 0.0;
    int steps = 0;
    const auto iterator = batches.iterator(epoch);
    while (const auto batch = iterator->next()) {
      sum += step((*batch)[0], (*batch)[1]).item();
      ++steps;
    }
    std::cout << "epoch " << epoch + 1 << ": loss " << sum / steps << '\n';
  }
} catch (const ls::Error& error) {
  std::cerr << error.what() << '\n';
  return 2;
}

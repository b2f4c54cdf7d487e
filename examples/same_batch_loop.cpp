// A loop over a data set that is not distributed: every replica gets the whole batch, so two
// replicas do the same work twice. custom_loop shows how to split batches.
//
//   same_batch_loop [--quick]
#include <lockstep/lockstep.h>

#include <iostream>
#include <string_view>

namespace ls = lockstep;

int main(int argc, char** argv) try {
  const bool quick = argc > 1 && std::string_view(argv[1]) == "--quick";
  const auto samples = ls::datasets::synthetic({.sample = {20}, .count = quick ? 128 : 4096});
  const auto one_hot = [](const ls::Tensor& x, const ls::Tensor& y) -> ls::Element {
    return {x, ls::to_categorical(y, 10)};
  };
  const auto dataset = samples.batch(32).map(one_hot);

  const ls::MirroredStrategy strategy({"cpu:0", "cpu:1"});
  ls::Sequential model({
      ls::Dense(64, {.activation = "relu"}),
      ls::Dense(10, {.activation = "softmax"}),
  });
  const ls::Optimizer optimizer = ls::Adam();

  ls::Function train_step = strategy.function([&](ls::Value inputs, ls::Value labels) {
    const ls::LossPair loss = ls::categorical_crossentropy(labels, model(inputs));
    optimizer.apply(ls::gradients(loss, model.trainable_variables()));
    return loss;
  });

  double loss = 0;
  for (const auto& [inputs, labels] : dataset) {
    loss = strategy.reduce(ls::ReduceOp::Mean, strategy.run(train_step, inputs, labels));
  }
  std::cout << "loss of the last step: " << loss << '\n';
} catch (const ls::Error& error) {
  std::cerr << error.what() << '\n';
  return 2;
}

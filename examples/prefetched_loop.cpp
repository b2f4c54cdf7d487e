// The loop of same_batch_loop with batches that are prefetched while the step runs, and split over
// the replicas.
//
//   prefetched_loop [--quick]
#include <lockstep/lockstep.h>

#include <iostream>
#include <string_view>

#include "points.h"

namespace ls = lockstep;

int main(int argc, char** argv) try {
  const bool quick = argc > 1 && std::string_view(argv[1]) == "--quick";
  const auto [images, classes] = make_points(quick ? 320 : 10'000);
  const auto dataset = ls::Dataset::from_tensor_slices({images, ls::to_categorical(classes, 10)})
                           .batch(64)
                           .prefetch(ls::AUTOTUNE);

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

  auto batches = strategy.distribute(dataset);
  for (int epoch = 0; epoch < (quick ? 1 : 5); ++epoch) {
    double loss = 0;
    for (auto& [inputs, labels] : batches) {
      loss = strategy.reduce(ls::ReduceOp::Mean, strategy.run(train_step, inputs, labels));
    }
    std::cout << "epoch " << epoch + 1 << ": loss of the last step " << loss << '\n';
  }
} catch (const ls::Error& error) {
  std::cerr << error.what() << '\n';
  return 2;
}

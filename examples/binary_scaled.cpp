// binary_pipeline with a global batch that grows with the number of replicas: each gets 32 samples
// per step.
//
//   binary_scaled [--quick]
#include <lockstep/lockstep.h>

#include <iostream>
#include <string_view>

#include "points.h"

namespace ls = lockstep;

namespace {

ls::Sequential create_model() {
  return ls::Sequential({
      ls::Input({10}),
      ls::Dense(10, {.activation = "relu"}),
      ls::Dense(1, {.activation = "sigmoid"}),
  });
}

}  // namespace

int main(int argc, char** argv) try {
  const bool quick = argc > 1 && std::string_view(argv[1]) == "--quick";
  const ls::MirroredStrategy strategy({"cpu:0", "cpu:1"});
  const std::int64_t global_batch = 32 * strategy.num_replicas_in_sync();
  const ls::Sequential model = create_model();
  const ls::Optimizer optimizer = ls::Adam(0.01);
  const ls::Loss loss_function = ls::BinaryCrossentropy();

  ls::Function train_step = strategy.function([&](ls::Value inputs, ls::Value labels) {
    const ls::LossPair loss = loss_function(labels, model(inputs));
    optimizer.apply(ls::gradients(loss, model.trainable_variables()));
    return loss;
  });

  const auto [x, y] = make_pairs(1000, ls::DType::F32);
  auto batches = strategy.distribute(ls::Dataset::from_tensor_slices({x, y})
                                         .shuffle(1000)
                                         .batch(global_batch)
                                         .prefetch(ls::AUTOTUNE));

  for (int epoch = 0; epoch < (quick ? 2 : 10); ++epoch) {
    double loss = 0;
    for (auto& [inputs, labels] : batches) {
      loss = strategy.reduce(ls::ReduceOp::Mean, strategy.run(train_step, inputs, labels));
    }
    std::cout << "epoch " << epoch + 1 << " completed, loss " << loss << '\n';
  }
} catch (const ls::Error& error) {
  std::cerr << error.what() << '\n';
  return 2;
}

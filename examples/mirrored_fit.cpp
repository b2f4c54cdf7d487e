// One model on two devices of a machine. With a strategy passed to compile, fit, evaluate and
// predict are called as before: each batch is split over the replicas, gradients are all-reduced,
// and all replicas make the same update. On CPUs the devices are logical: half of the cores each.
//
//   mirrored_fit [--quick | --full] [folder with the IDX files of Fashion-MNIST]
#include <lockstep/lockstep.h>

#include <iostream>
#include <string_view>

namespace ls = lockstep;

int main(int argc, char** argv) try {
  std::int64_t samples = 3'200;
  ls::datasets::FashionMnistOptions files;
  for (int i = 1; i < argc; ++i) {
    const std::string_view argument = argv[i];
    if (argument == "--quick") {
      samples = 640;
    } else if (argument == "--full") {
      samples = 60'000;
    } else {
      files.directory = argv[i];
    }
  }
  const auto [train, test] = ls::datasets::fashion_mnist(files);

  const ls::MirroredStrategy strategy({.devices = {"cpu:0", "cpu:1"}});
  const int replicas = strategy.num_replicas_in_sync();
  const std::int64_t global_batch = 32 * replicas;

  ls::Model model = ls::applications::LeNet({.input_shape = {28, 28, 1}, .classes = 10});
  // The rate for a batch of 32, scaled in proportion to the batch, with a few steps of warm-up.
  const ls::Schedule rate = ls::scaled(5e-4, {.replicas = replicas, .warm_up_steps = 10});
  model.compile({.strategy = strategy,
                 .optimizer = ls::Adam({.learning_rate = rate}),
                 .loss = ls::SparseCategoricalCrossentropy({.from_logits = true}),
                 .metrics = {ls::SparseCategoricalAccuracy({.name = "accuracy"})},
                 .seed = 1});
  std::cout << replicas << " replicas, global batch " << global_batch << '\n';

  const auto batches = train.take(samples)
                           .shuffle({.buffer = samples, .seed = 1})
                           .batch(global_batch)
                           .prefetch(ls::AUTOTUNE);
  const auto validation = test.take(samples / 4).batch(250);
  const ls::History history = model.fit(
      batches,
      {.epochs = 2, .validation_data = validation, .callbacks = {ls::ProgressBar(std::cout)}});
  // Per replica: time for compute, communication, input, and waiting for the other replica.
  std::cout << history.report();
} catch (const ls::Error& error) {
  std::cerr << error.what() << '\n';
  return 2;
}

// A custom loop on several replicas: the strategy splits batches, runs a traced step on every
// replica's piece, and reduces the results to one value.
//
//   custom_loop [--quick] [folder with the IDX files of Fashion-MNIST]
#include <lockstep/lockstep.h>

#include <iostream>
#include <string_view>

namespace ls = lockstep;

int main(int argc, char** argv) try {
  bool quick = false;
  ls::datasets::FashionMnistOptions files;
  for (int i = 1; i < argc; ++i) {
    if (std::string_view(argv[i]) == "--quick") {
      quick = true;
    } else {
      files.directory = argv[i];
    }
  }
  auto [train, test] = ls::datasets::fashion_mnist(files);
  train = train.take(quick ? 500 : 20'000);
  test = test.take(quick ? 250 : 5'000);

  const ls::MirroredStrategy strategy({.devices = {"cpu:0", "cpu:1"}});
  ls::Model model =
      ls::applications::MLP({.input_shape = {28, 28, 1}, .hidden = {128}, .classes = 10});
  const ls::Optimizer optimizer = ls::Adam({.learning_rate = 2e-3});

  // Written for one replica and its piece of the batch. apply sums the gradients over all replicas
  // and divides by the number of samples on all of them.
  ls::Function train_step = strategy.function([&](ls::Value images, ls::Value labels) {
    const ls::Value logits = model(images, {.training = true});
    const ls::LossPair loss = ls::sparse_categorical_crossentropy(
        labels, logits, {.from_logits = true});  // (sum, weight)
    optimizer.apply(ls::gradients(loss, model.trainable_variables()));
    return loss;
  });

  // Per sample, 1 if the prediction is right, else 0.
  ls::Function hits = strategy.function([&](ls::Value images, ls::Value labels) {
    const ls::Value guesses = ls::argmax(model(images));
    return ls::cast(ls::equal(guesses, ls::cast(labels, ls::DType::I64)), ls::DType::F32);
  });

  // Batches have the global size. The last one of an epoch is shorter and may give the replicas
  // unequal pieces; means are still over samples, never means of means.
  auto batches = strategy.distribute(train.shuffle({.buffer = 20'000, .seed = 1}).batch(64));
  auto test_batches = strategy.distribute(test.batch(512));
  for (int epoch = 0; epoch < 3; ++epoch) {
    double loss = 0;
    int steps = 0;
    for (auto& [images, labels] : batches) {
      const ls::PerReplica losses = strategy.run(train_step, images, labels);
      loss += strategy.reduce(ls::ReduceOp::Mean, losses);
      ++steps;
    }
    double right = 0;
    double all = 0;
    for (auto& [images, labels] : test_batches) {
      const ls::Tensor each = strategy.gather(strategy.run(hits, images, labels));
      for (const float hit : each.values<float>()) right += hit;
      all += static_cast<double>(each.elements());
    }
    std::cout << "epoch " << epoch + 1 << ": loss " << loss / steps << ", test accuracy "
              << right / all << '\n';
  }
} catch (const ls::Error& error) {
  std::cerr << error.what() << '\n';
  return 2;
}

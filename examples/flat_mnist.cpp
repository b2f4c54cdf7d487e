// Images as rows of 784 numbers and one-hot labels, on two replicas: reshape, to_categorical, fit,
// evaluate.
//
//   flat_mnist [--quick] [folder with the IDX files of MNIST or Fashion-MNIST]
#include <lockstep/lockstep.h>

#include <iostream>
#include <string_view>

namespace ls = lockstep;

namespace {

struct Images {
  ls::Tensor x, y;
};

// Loads a data set into one pair of tensors. Its images are already floats from 0 to 1.
Images load(const ls::Dataset& dataset, std::int64_t count) {
  Images images;
  for (const auto& [x, y] : dataset.take(count).batch(count)) {
    images = {x.reshaped({x.shape()[0], 784}), ls::to_categorical(y, 10)};
  }
  return images;
}

}  // namespace

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
  const auto [train, test] = ls::datasets::fashion_mnist(files);
  const auto [x_train, y_train] = load(train, quick ? 640 : 60'000);
  const auto [x_test, y_test] = load(test, quick ? 320 : 10'000);

  const ls::MirroredStrategy strategy({"cpu:0", "cpu:1"});
  ls::Sequential model({
      ls::Input({784}),
      ls::Dense(128, {.activation = "relu"}),
      ls::Dense(10),
  });
  model.compile({.strategy = strategy,
                 .optimizer = "adam",
                 .loss = ls::CategoricalCrossentropy({.from_logits = true}),
                 .metrics = {"accuracy"}});
  model.fit(x_train, y_train, {.epochs = quick ? 1 : 10, .batch_size = 32});
  std::cout << model.evaluate(x_test, y_test, {.verbose = 0}) << '\n';
} catch (const ls::Error& error) {
  std::cerr << error.what() << '\n';
  return 2;
}

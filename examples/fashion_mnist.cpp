// Trains a small convolutional network on Fashion-MNIST: compile, fit, evaluate, save.
//
//   fashion_mnist [--quick] [folder with the IDX files]
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
  if (quick) {
    train = train.take(512);
    test = test.take(256);
  }

  ls::Sequential model({
      ls::Conv2D({.filters = 32, .kernel = 3, .activation = "relu"}),
      ls::MaxPool2D({.pool = 2}),
      ls::Conv2D({.filters = 64, .kernel = 3, .activation = "relu"}),
      ls::MaxPool2D({.pool = 2}),
      ls::Flatten(),
      ls::Dropout({.rate = 0.3}),
      ls::Dense({.units = 10}),
  });
  model.compile({.optimizer = ls::Adam({.learning_rate = 1e-3}),
                 .loss = ls::SparseCategoricalCrossentropy({.from_logits = true}),
                 .metrics = {ls::SparseCategoricalAccuracy()},
                 .seed = 1});

  const auto batches =
      train.shuffle({.buffer = 60'000, .seed = 1}).batch(64).prefetch(ls::AUTOTUNE);
  const auto validation = test.batch(256);
  const ls::History history = model.fit(batches, {.epochs = quick ? 1 : 5,
                                                  .validation_data = validation,
                                                  .callbacks = {ls::ProgressBar(std::cout)}});
  std::cout << model.summary() << history.report();

  const ls::Logs result = model.evaluate(validation);
  std::cout << "accuracy on the test set: " << result["sparse_categorical_accuracy"] << '\n';
  model.save_weights("fashion_mnist.safetensors");
} catch (const ls::Error& error) {
  std::cerr << error.what() << '\n';
  return 2;
}

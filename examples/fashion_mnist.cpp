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
      ls::Conv2D(32, 3, {.activation = "relu"}),
      ls::MaxPooling2D(2),
      ls::Conv2D(64, 3, {.activation = "relu"}),
      ls::MaxPooling2D(2),
      ls::Flatten(),
      ls::Dropout(0.3),
      ls::Dense(10, {.activation = "softmax"}),
  });
  model.compile({.optimizer = "adam",
                 .loss = "sparse_categorical_crossentropy",
                 .metrics = {"accuracy"},
                 .seed = 1});

  const auto batches = train.shuffle(60'000, {.seed = 1}).batch(64).prefetch(ls::AUTOTUNE);
  const auto validation = test.batch(256);
  const ls::History history =
      model.fit(batches, {.epochs = quick ? 1 : 5, .validation_data = validation});
  std::cout << model.summary() << history.report();

  const ls::Logs result = model.evaluate(validation, {.verbose = 0});
  std::cout << "accuracy on the test set: " << result["accuracy"] << '\n';
  model.save_weights("fashion_mnist.safetensors");
} catch (const ls::Error& error) {
  std::cerr << error.what() << '\n';
  return 2;
}

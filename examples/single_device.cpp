// The baseline: a model, compile, fit on tensors, on one device.
//
//   single_device [--quick]
#include <lockstep/lockstep.h>

#include <iostream>
#include <string_view>

#include "points.h"

namespace ls = lockstep;

int main(int argc, char** argv) try {
  const bool quick = argc > 1 && std::string_view(argv[1]) == "--quick";
  const auto [x_train, classes] = make_points(quick ? 320 : 10'000);
  const ls::Tensor y_train = ls::to_categorical(classes, 10);

  ls::Sequential model({
      ls::Dense(64, {.activation = "relu"}),
      ls::Dense(10, {.activation = "softmax"}),
  });
  model.compile({.optimizer = "adam", .loss = "categorical_crossentropy", .metrics = {"accuracy"}});
  model.fit(x_train, y_train, {.epochs = quick ? 2 : 10, .batch_size = 32});
} catch (const ls::Error& error) {
  std::cerr << error.what() << '\n';
  return 2;
}

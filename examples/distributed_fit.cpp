// fit on a data set that a strategy distributes. Labels are class numbers, and the last layer gives
// probabilities.
//
//   distributed_fit [--quick]
#include <lockstep/lockstep.h>

#include <iostream>
#include <string_view>

#include "points.h"

namespace ls = lockstep;

int main(int argc, char** argv) try {
  const bool quick = argc > 1 && std::string_view(argv[1]) == "--quick";
  const auto [x_train, y_train] = make_points(quick ? 320 : 10'000);

  const ls::MirroredStrategy strategy({"cpu:0", "cpu:1"});
  ls::Sequential model({
      ls::Dense(128, {.activation = "relu"}),
      ls::Dense(10, {.activation = "softmax"}),
  });
  model.compile(
      {.strategy = strategy, .optimizer = "adam", .loss = "sparse_categorical_crossentropy"});

  const auto dataset = ls::Dataset::from_tensor_slices({x_train, y_train}).batch(32);
  model.fit(strategy.distribute(dataset), {.epochs = quick ? 2 : 10});
} catch (const ls::Error& error) {
  std::cerr << error.what() << '\n';
  return 2;
}

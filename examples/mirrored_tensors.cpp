// single_device on every GPU of the machine, or on groups of its cores: adds a strategy to compile,
// and a batch that grows with the number of replicas.
//
//   mirrored_tensors [--quick] [devices: "cpu:0" "cpu:1", "cuda:0", …]
#include <lockstep/lockstep.h>

#include <iostream>
#include <string_view>

#include "points.h"

namespace ls = lockstep;

int main(int argc, char** argv) try {
  bool quick = false;
  std::vector<std::string> devices;
  for (int i = 1; i < argc; ++i) {
    if (std::string_view(argv[i]) == "--quick") {
      quick = true;
    } else {
      devices.emplace_back(argv[i]);
    }
  }
  if (quick) devices = {"cpu:0", "cpu:1"};
  const auto [x_train, classes] = make_points(quick ? 320 : 10'000);
  const ls::Tensor y_train = ls::to_categorical(classes, 10);

  const ls::MirroredStrategy strategy(devices);  // no names: every GPU, or else all cores
  ls::Sequential model({
      ls::Dense(64, {.activation = "relu"}),
      ls::Dense(10, {.activation = "softmax"}),
  });
  model.compile({.strategy = strategy,
                 .optimizer = "adam",
                 .loss = "categorical_crossentropy",
                 .metrics = {"accuracy"}});
  std::cout << strategy.num_replicas_in_sync() << " replicas\n";
  model.fit(x_train, y_train,
            {.epochs = quick ? 2 : 10, .batch_size = 32 * strategy.num_replicas_in_sync()});
} catch (const ls::Error& error) {
  std::cerr << error.what() << '\n';
  return 2;
}

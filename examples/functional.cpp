// The functional API: a model with two branches that read the same images at two scales.
//
//   functional [--quick]
#include <lockstep/lockstep.h>

#include <iostream>
#include <string_view>

namespace ls = lockstep;

int main(int argc, char** argv) try {
  const bool quick = argc > 1 && std::string_view(argv[1]) == "--quick";
  const auto samples =
      ls::datasets::synthetic({.sample = {16, 16, 3}, .count = quick ? 128 : 2048, .classes = 4});

  const ls::Symbol images = ls::Input({.shape = {16, 16, 3}, .name = "images"});
  ls::Symbol fine = ls::Conv2D({.filters = 16, .kernel_size = 3, .padding = "same"})(images);
  fine = ls::Activation("relu")(ls::BatchNormalization()(fine));
  fine = ls::GlobalAveragePooling2D()(fine);
  ls::Symbol coarse = ls::AveragePooling2D({.pool_size = 4})(images);
  coarse = ls::Dense({.units = 16, .activation = "relu"})(ls::Flatten()(coarse));
  const ls::Symbol merged = ls::Concatenate()({fine, coarse});
  ls::Model model(images, ls::Dense({.units = 4})(merged));

  model.compile({.optimizer = ls::AdamW({.learning_rate = 3e-3}),
                 .loss = ls::SparseCategoricalCrossentropy({.from_logits = true}),
                 .metrics = {ls::SparseCategoricalAccuracy()}});
  std::cout << model.summary();
  model.fit(samples.batch(32), {.epochs = quick ? 2 : 10,
                                .callbacks = {ls::ProgressBar(std::cout), ls::TerminateOnNaN()}});
} catch (const ls::Error& error) {
  std::cerr << error.what() << '\n';
  return 2;
}

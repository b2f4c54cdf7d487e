// Fine-tuning: the weights of one model become the frozen base of another with a new head.
//
//   finetune [--quick]
#include <lockstep/lockstep.h>

#include <iostream>
#include <string_view>

namespace ls = lockstep;

namespace {

ls::CompileOptions options() {
  return {.optimizer = ls::Adam({.learning_rate = 1e-3}),
          .loss = ls::SparseCategoricalCrossentropy({.from_logits = true}),
          .metrics = {ls::SparseCategoricalAccuracy()}};
}

ls::Sequential make_base() {
  return ls::Sequential({
      ls::Conv2D({.filters = 16, .kernel_size = 3, .activation = "relu", .name = "conv"}),
      ls::GlobalAveragePooling2D(),
      ls::Dense({.units = 32, .activation = "relu", .name = "features"}),
  });
}

}  // namespace

int main(int argc, char** argv) try {
  const bool quick = argc > 1 && std::string_view(argv[1]) == "--quick";
  const std::int64_t count = quick ? 128 : 2048;
  const auto many = ls::datasets::synthetic({.sample = {16, 16, 1}, .count = count, .classes = 10});
  const auto few =
      ls::datasets::synthetic({.sample = {16, 16, 1}, .count = count / 4, .classes = 3, .seed = 2});

  ls::Sequential base = make_base();
  ls::Sequential large({base, ls::Dense({.units = 10})});
  large.compile(options());
  large.fit(many.batch(32), {.epochs = quick ? 1 : 5});
  large.save_weights("base.safetensors");

  ls::Sequential new_base = make_base();
  ls::Sequential small({new_base, ls::Dense({.units = 3})});
  small.build({16, 16, 1});
  small.load_weights("base.safetensors", {.skip_mismatch = true});
  new_base.network()->set_trainable(false);
  small.compile(options());
  const ls::History history = small.fit(
      few.batch(16), {.epochs = quick ? 1 : 10, .callbacks = {ls::ProgressBar(std::cout)}});
  std::cout << "loss of the new head: " << history.series("loss").back() << '\n';
} catch (const ls::Error& error) {
  std::cerr << error.what() << '\n';
  return 2;
}

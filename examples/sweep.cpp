// A sweep over learning rates: independent models on separate devices at the same time, one per
// core. If there are more models than devices, they take turns. The table names models that fail;
// the others continue.
//
//   sweep [--quick] [folder with the IDX files of Fashion-MNIST]
#include <lockstep/lockstep.h>
#include <unistd.h>

#include <iostream>
#include <sstream>
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
  const auto [train, test] = ls::datasets::fashion_mnist(files);
  const std::int64_t samples = quick ? 640 : 20'000;
  // All jobs read the same data set, each with its own iterator.
  const auto batches = train.take(samples).shuffle({.buffer = samples, .seed = 1}).batch(64);
  const auto validation = test.take(quick ? 250 : 2'500).batch(250);

  std::vector<ls::TrainJob> jobs;
  for (const double rate : {1.0, 0.3, 0.1, 0.03, 0.01, 0.003}) {
    ls::Model model =
        ls::applications::MLP({.input_shape = {28, 28, 1}, .hidden = {128}, .classes = 10});
    model.compile({.optimizer = ls::SGD({.learning_rate = rate, .momentum = 0.9}),
                   .loss = ls::SparseCategoricalCrossentropy({.from_logits = true}),
                   .metrics = {ls::SparseCategoricalAccuracy({.name = "accuracy"})},
                   .seed = 1});
    std::ostringstream name;
    name << "rate " << rate;
    jobs.push_back(
        {.name = name.str(),
         .model = model,
         .batches = batches,
         .fit = {.epochs = 3, .validation_data = validation, .callbacks = {ls::TerminateOnNaN()}}});
  }
  const std::vector<ls::TrainResult> results =
      ls::train_many(jobs, {.progress = &std::cout, .terminal = isatty(STDOUT_FILENO) != 0});
  std::cout << '\n' << ls::table(results);

  const ls::TrainResult* best = nullptr;
  const auto accuracy = [](const ls::TrainResult& result) {
    return result.history->series("val_accuracy").back();
  };
  for (const ls::TrainResult& result : results) {
    if (!result.error.empty()) continue;
    if (best == nullptr || accuracy(result) > accuracy(*best)) best = &result;
  }
  if (best == nullptr) return 1;
  std::cout << "best: " << best->name << ", accuracy " << accuracy(*best)
            << " on validation data\n";
} catch (const ls::Error& error) {
  std::cerr << error.what() << '\n';
  return 2;
}

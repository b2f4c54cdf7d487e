// Gradient accumulation in a custom loop, for batches that do not fit into memory: an
// ls::Accumulator adds up the gradients of micro-batches, and the last one of a step makes the
// update. (With fit it is an option: compile({.accumulate = 3}).)
//
// Gradients are sums, stored with the total weight of their samples; the optimizer divides once. So
// a step equals one large batch, for any sizes of its micro-batches and any number of replicas. The
// program trains both ways and compares the weights; it exits with 1 if they differ.
//
//   accumulate [--quick]
#include <lockstep/lockstep.h>

#include <algorithm>
#include <cmath>
#include <iostream>
#include <string_view>

namespace ls = lockstep;

namespace {

constexpr int kMicroBatches = 3;
constexpr std::int64_t kMicroBatch = 32;
const ls::Shape kSample = {28, 28, 1};

ls::Model make_model() {
  ls::Model model = ls::applications::MLP({.input_shape = kSample, .hidden = {64}, .classes = 10});
  model.build(kSample);
  return model;
}

ls::Gradients gradients_of(const ls::Model& model, ls::Value images, ls::Value labels) {
  const ls::Value logits = model(images, {.training = true});
  return ls::gradients(ls::sparse_categorical_crossentropy(labels, logits, {.from_logits = true}),
                       model.trainable_variables());
}

// Trains on micro-batches; returns the number of updates.
int train_accumulating(const ls::Model& model, const ls::Strategy& strategy,
                       const ls::Dataset& samples, int epochs) {
  const ls::Optimizer optimizer = ls::Adam({.learning_rate = 1e-3});
  ls::Accumulator step(strategy, [&](ls::Value images, ls::Value labels) {
    optimizer.apply(gradients_of(model, images, labels));
  });

  int steps = 0;
  auto batches = strategy.distribute(samples.batch(kMicroBatch));
  for (int epoch = 0; epoch < epochs; ++epoch) {
    int micro_batch = 0;
    for (auto& [images, labels] : batches) {
      const bool last = ++micro_batch % kMicroBatches == 0;
      last ? step.update(images, labels) : step.add(images, labels);
      if (last) ++steps;
    }
  }
  return steps;
}

// The same with one large batch per update.
int train_on_large_batches(const ls::Model& model, const ls::Strategy& strategy,
                           const ls::Dataset& samples, int epochs) {
  const ls::Optimizer optimizer = ls::Adam({.learning_rate = 1e-3});
  ls::Function step = strategy.function([&](ls::Value images, ls::Value labels) {
    optimizer.apply(gradients_of(model, images, labels));
  });
  int steps = 0;
  auto batches = strategy.distribute(samples.batch(kMicroBatches * kMicroBatch));
  for (int epoch = 0; epoch < epochs; ++epoch) {
    for (auto& [images, labels] : batches) {
      strategy.run(step, images, labels);
      ++steps;
    }
  }
  return steps;
}

double largest_difference(const ls::Model& a, const ls::Model& b) {
  double most = 0;
  const std::vector<ls::Tensor> x = a.weights();
  const std::vector<ls::Tensor> y = b.weights();
  for (std::size_t i = 0; i < x.size(); ++i) {
    const auto left = x[i].values<float>();
    const auto right = y[i].values<float>();
    for (std::size_t j = 0; j < left.size(); ++j) {
      most = std::max(most, std::abs(static_cast<double>(left[j]) - right[j]));
    }
  }
  return most;
}

}  // namespace

int main(int argc, char** argv) try {
  const bool quick = argc > 1 && std::string_view(argv[1]) == "--quick";
  // The last micro-batch of the last round has only 22 samples: 11 per replica.
  const std::int64_t round = kMicroBatches * kMicroBatch;
  const std::int64_t count = (quick ? 5 : 40) * round - 10;
  const auto samples = ls::datasets::synthetic({.sample = kSample, .count = count, .seed = 1});
  const ls::MirroredStrategy strategy({.devices = {"cpu:0", "cpu:1"}});

  const ls::Model accumulated = make_model();
  const ls::Model whole = make_model();
  const ls::Model untrained = make_model();
  const int steps = train_accumulating(accumulated, strategy, samples, 2);
  const int large_steps = train_on_large_batches(whole, strategy, samples, 2);

  const double moved = largest_difference(whole, untrained);
  const double apart = largest_difference(whole, accumulated);
  std::cout << steps << " steps of " << kMicroBatches << " micro-batches, " << large_steps
            << " steps of one large batch, " << strategy.num_replicas_in_sync() << " replicas\n"
            << "training moved weights by up to " << moved << "; the two differ by up to " << apart
            << '\n';
  // The same sums in another order: they differ only by rounding.
  const bool equal = steps == large_steps && apart < 1e-3 * moved;
  std::cout << (equal ? "accumulating equals the large batch\n"
                      : "accumulating does NOT equal the large batch\n");
  return equal ? 0 : 1;
} catch (const ls::Error& error) {
  std::cerr << error.what() << '\n';
  return 2;
}

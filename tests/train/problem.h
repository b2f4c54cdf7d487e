// A small problem for the tests in this folder: points around class centres.
#pragma once

#include <vector>

#include "lockstep/base/random.h"
#include "lockstep/lockstep.h"

namespace lockstep::testing {

constexpr std::int64_t kFeatures = 6;
constexpr std::int64_t kClasses = 3;

struct Problem {
  Tensor x;  // (N, 6)
  Tensor y;  // (N), i32
};

inline Problem make_problem(std::int64_t samples, std::uint64_t seed = 1) {
  RandomSequence random(seed, 7);
  std::vector<float> x;
  std::vector<std::int32_t> y;
  for (std::int64_t n = 0; n < samples; ++n) {
    const auto label = static_cast<std::int32_t>(random.below(kClasses));
    y.push_back(label);
    for (std::int64_t f = 0; f < kFeatures; ++f) {
      const double centre = f % kClasses == label ? 1.5 : 0.0;
      x.push_back(static_cast<float>(centre + 0.5 * random.normal()));
    }
  }
  return {Tensor::of(x, {samples, kFeatures}), Tensor::of(y, {samples})};
}

inline Dataset shuffled_batches(const Problem& data, std::int64_t size = 16) {
  const std::int64_t samples = data.x.shape()[0];
  return Dataset::from_tensor_slices({data.x, data.y})
      .shuffle({.buffer = samples, .seed = 5})
      .batch(size)
      .prefetch();
}

// Saves and stops after a step, counted from the beginning of training.
inline CallbackRef save_and_stop(std::int64_t step, const std::filesystem::path& file) {
  return LambdaCallback({.on_batch_end = [=](Model& model, std::int64_t, const BatchLogs&) {
    if (model.step() != step) return;
    model.save(file);
    model.stop_training();
  }});
}

inline Sequential make_model() {
  return Sequential({Dense({.units = 16, .activation = "relu"}), Dense({.units = kClasses})});
}

// Images (8, 8, 2) around a pattern for each class.
inline Problem make_images(std::int64_t samples, std::uint64_t seed = 1) {
  const std::int64_t pixels = 8 * 8 * 2;
  RandomSequence random(seed, 8);
  std::vector<float> x;
  std::vector<std::int32_t> y;
  for (std::int64_t n = 0; n < samples; ++n) {
    y.push_back(static_cast<std::int32_t>(random.below(kClasses)));
    for (std::int64_t p = 0; p < pixels; ++p) {
      x.push_back(static_cast<float>((p % kClasses == y.back() ? 1.0 : 0.0) + random.normal()));
    }
  }
  return {Tensor::of(x, {samples, 8, 8, 2}), Tensor::of(y, {samples})};
}

inline Sequential make_conv_model() {
  return Sequential({Conv2D({.filters = 8, .padding = "same"}), BatchNormalization(),
                     Activation("relu"), MaxPooling2D(), Conv2D({.filters = 8}),
                     BatchNormalization(), Activation("relu"), GlobalAveragePooling2D(),
                     Dense({.units = kClasses})});
}

inline Sequential make_dropout_model() {
  return Sequential({Dense({.units = 16, .activation = "relu"}), Dropout({.rate = 0.3}),
                     Dense({.units = kClasses})});
}

inline CompileOptions with_adam(std::uint64_t seed = 3) {
  return {.optimizer = Adam({.learning_rate = 0.01}),
          .loss = SparseCategoricalCrossentropy({.from_logits = true}),
          .metrics = {SparseCategoricalAccuracy()},
          .seed = seed};
}

inline bool same_weights(const Model& a, const Model& b) {
  const std::vector<Tensor> x = a.weights();
  const std::vector<Tensor> y = b.weights();
  if (x.size() != y.size()) return false;
  for (std::size_t i = 0; i < x.size(); ++i) {
    if (!x[i].same_bits(y[i])) return false;
  }
  return true;
}

inline double largest_difference(const Model& a, const Model& b) {
  double most = 0.0;
  const std::vector<Tensor> x = a.weights();
  const std::vector<Tensor> y = b.weights();
  for (std::size_t i = 0; i < x.size(); ++i) {
    for (std::size_t j = 0; j < x[i].values<float>().size(); ++j) {
      const double difference = static_cast<double>(x[i].values<float>()[j]) -
                                static_cast<double>(y[i].values<float>()[j]);
      most = std::max(most, difference < 0 ? -difference : difference);
    }
  }
  return most;
}

// Runs f, which must throw E, and returns the message.
template <class E, class F>
std::string message_of(F&& f) {
  try {
    f();
  } catch (const E& error) {
    return error.what();
  } catch (const std::exception& error) {
    return std::string("another exception: ") + error.what();
  }
  return "no exception";
}

}  // namespace lockstep::testing

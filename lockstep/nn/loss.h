// Keras's losses. A loss is a pair (sum, weight): replicas and micro-batches add up both, and the
// division happens once, at the update.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "lockstep/graph/graph.h"

namespace lockstep {

struct LossPair {
  Value sum;     // f32 scalar
  Value weight;  // f32 scalar: the number of examples
};

// A handle to a function (labels, predictions) → per-example losses (N).
class Loss {
 public:
  using PerExample = std::function<Value(Value labels, Value predictions)>;
  Loss() = default;
  Loss(const char* name);         // NOLINT: a name is a loss ("mse"), see loss_by_name
  Loss(const std::string& name);  // NOLINT
  Loss(std::string name, PerExample per_example)
      : name_(std::move(name)), per_example_(std::move(per_example)) {}

  bool defined() const { return static_cast<bool>(per_example_); }
  const std::string& name() const { return name_; }
  Value per_example(Value labels, Value predictions) const;
  // sum = sum(per_example * sample_weight), weight = N (Keras's sum_over_batch_size).
  LossPair operator()(Value labels, Value predictions, Value sample_weight = {}) const;

 private:
  std::string name_;
  PerExample per_example_;
};

// Predictions that come from a softmax (for binary_crossentropy: a sigmoid) are traced back to its
// logits, so that it still learns when it is saturated, whatever from_logits says (nn/logits.h).
struct CrossentropyOptions {
  bool from_logits = false;  // false: predictions are probabilities
  double label_smoothing = 0.0;
  int axis = -1;  // of the classes; for binary_crossentropy, the averaged axis
};
struct HuberOptions {
  double delta = 1.0;
};

Loss SparseCategoricalCrossentropy(CrossentropyOptions options = {});
Loss CategoricalCrossentropy(CrossentropyOptions options = {});
Loss BinaryCrossentropy(CrossentropyOptions options = {});
Loss MeanSquaredError();
Loss MeanAbsoluteError();
Loss Huber(HuberOptions options = {});

// The same as functions, with the same defaults, for user-defined steps:
//   sparse_categorical_crossentropy(labels, logits, {.from_logits = true})
LossPair sparse_categorical_crossentropy(Value labels, Value predictions,
                                         const CrossentropyOptions& options = {},
                                         Value sample_weight = {});
LossPair categorical_crossentropy(Value labels, Value predictions,
                                  const CrossentropyOptions& options = {},
                                  Value sample_weight = {});
LossPair binary_crossentropy(Value labels, Value predictions,
                             const CrossentropyOptions& options = {}, Value sample_weight = {});
LossPair mean_squared_error(Value labels, Value predictions, Value sample_weight = {});

// A replica's contribution to the mean over the global batch: the sum of its losses per example,
// times their weights if there are any, divided by the size of the global batch; 0 if that is 0.
// The contributions of all replicas add up to the mean.
Value compute_average_loss(Value per_example, std::int64_t global_batch_size,
                           Value sample_weight = {});

// A loss by Keras's name ("mse", "sparse_categorical_crossentropy", …); UsageError, listing the
// names, if there is none.
Loss loss_by_name(const std::string& name);

}  // namespace lockstep

// Optimizers: they add the nodes of an update. Names and defaults are Keras's.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "lockstep/graph/graph.h"
#include "lockstep/optim/schedule.h"

namespace lockstep {

// Clipping of gradients; at most one of the three. The options of optimizers name them as Keras
// does: clipvalue, clipnorm, global_clipnorm.
struct Clip {
  std::optional<double> value = {};
  std::optional<double> norm = {};         // of each parameter's gradient
  std::optional<double> global_norm = {};  // of all gradients together
};

// Gradients of parameters: sums over examples, and the weight to divide them by.
struct Gradients {
  std::vector<VariableRef> parameters;
  std::vector<Value> sums;
  Value weight;
};

// Dynamic loss scaling, for gradients that would vanish in f16. A step whose all-reduced gradients
// are not all finite changes only the scale, which is halved (down to 1); after `growth_steps` good
// steps in a row it is doubled. The step itself decides this on the device, and all replicas decide
// the same, because they see the same gradients.
struct LossScaleOptions {
  double initial = 32768.0;  // a power of two, so that scaling rounds nothing
  std::int64_t growth_steps = 2000;
};

// A handle; copies refer to the same optimizer.
class Optimizer {
 public:
  struct Rule {
    std::string name = "";  // of ops/update.h
    Attrs attrs = {};
    std::vector<std::string> slots = {};  // names of its slots: {"m", "v"}
    double slot_start = 0.0;              // value that slots start with
  };
  Optimizer() = default;
  Optimizer(const char* name);         // NOLINT: a name is an optimizer ("adam")
  Optimizer(const std::string& name);  // NOLINT
  Optimizer(Rule rule, Schedule learning_rate, Clip clip);

  bool defined() const { return impl_ != nullptr; }
  // Adds the update: gradients are sums over this replica's examples, `weight` (f32 scalar) is
  // their number or weight; both are all-reduced and then divided, once. Also counts the iteration.
  // If the weight is 0, or the loss scale finds gradients that are not finite, nothing changes and
  // nothing is counted. Slots ("<optimizer>/<slot>/<parameter>") are created by the first call and
  // remembered per parameter, so that a second graph (another batch size) continues them.
  // UsageError if there are no parameters. Returns the all-reduced gradients.
  std::vector<Value> apply(Graph& graph, std::span<const VariableRef> parameters,
                           std::span<const Value> gradients, Value weight) const;
  void apply(const Gradients& gradients) const {
    apply(gradients.weight.graph(), gradients.parameters, gradients.sums, gradients.weight);
  }

  // The same optimizer (its slots and its count) with its own loss scale:
  //   optimizer.apply(gradients(optimizer.scale(loss, examples), parameters));
  // Model::compile does this for "mixed_float16".
  Optimizer with_loss_scale(const LossScaleOptions& options = {}) const;
  // A loss, both sum and weight, times the current scale: `apply` divides one by the other, which
  // cancels the scale. The loss itself if there is no scale. A scale is meant for the mean over a
  // batch, and sums are larger: if the number of `examples` in the global batch is known (the same
  // on all replicas), the scale is divided by it, rounded down to a power of two.
  template <class LossPair>
  LossPair scale(const LossPair& loss, std::int64_t examples = 1) const {
    if (loss_scale_ == nullptr) return loss;
    const Value factor = scale_for(loss.sum.graph(), examples);
    return {times(loss.sum, factor), times(loss.weight, factor)};
  }

  // Excludes parameters whose names contain one of these texts ("gamma", "bias") from weight decay,
  // as Keras's method of this name does. Must be called before the first step.
  void exclude_from_weight_decay(std::vector<std::string> names) const;

  std::string name() const;  // "adam"
  // iterations (i64), learning_rate (f32, if it is constant and so can be set), then the slots.
  std::vector<VariableRef> variables() const;
  VariableRef iterations() const;
  // The variable that holds a constant rate; null if there is a schedule.
  VariableRef learning_rate() const;
  const Schedule& schedule() const;
  // The scale (f32), the good steps since it last changed (i64) and the steps skipped so far (i64);
  // none if there is no loss scale.
  std::vector<VariableRef> loss_scale_variables() const;

 private:
  struct Impl;
  struct LossScale;
  Value scale_for(Graph& graph, std::int64_t examples) const;
  static Value times(Value value, Value factor);

  std::shared_ptr<Impl> impl_;
  std::shared_ptr<const LossScale> loss_scale_;  // null: none
};

struct SGDOptions {
  Schedule learning_rate = 0.01;
  double momentum = 0.0;
  bool nesterov = false;
  double weight_decay = 0.0;
  std::optional<double> clipnorm = {};  // at most one of the three
  std::optional<double> clipvalue = {};
  std::optional<double> global_clipnorm = {};
};
struct AdamOptions {
  Schedule learning_rate = 1e-3;
  double beta_1 = 0.9;
  double beta_2 = 0.999;
  double epsilon = 1e-7;
  double weight_decay = 0.0;
  std::optional<double> clipnorm = {};  // at most one of the three
  std::optional<double> clipvalue = {};
  std::optional<double> global_clipnorm = {};
};
struct AdamWOptions {
  Schedule learning_rate = 1e-3;
  double weight_decay = 4e-3;
  double beta_1 = 0.9;
  double beta_2 = 0.999;
  double epsilon = 1e-7;
  std::optional<double> clipnorm = {};  // at most one of the three
  std::optional<double> clipvalue = {};
  std::optional<double> global_clipnorm = {};
};
struct RMSpropOptions {
  Schedule learning_rate = 1e-3;
  double rho = 0.9;
  double momentum = 0.0;
  double epsilon = 1e-7;
  bool centered = false;
  double weight_decay = 0.0;
  std::optional<double> clipnorm = {};  // at most one of the three
  std::optional<double> clipvalue = {};
  std::optional<double> global_clipnorm = {};
};
struct AdagradOptions {
  Schedule learning_rate = 1e-3;
  double initial_accumulator_value = 0.1;
  double epsilon = 1e-7;
  double weight_decay = 0.0;
  std::optional<double> clipnorm = {};  // at most one of the three
  std::optional<double> clipvalue = {};
  std::optional<double> global_clipnorm = {};
};
struct LARSOptions {
  Schedule learning_rate = 0.1;
  double momentum = 0.9;
  double weight_decay = 1e-4;
  double trust = 1e-3;
  double epsilon = 1e-8;
  std::optional<double> clipnorm = {};  // at most one of the three
  std::optional<double> clipvalue = {};
  std::optional<double> global_clipnorm = {};
};
struct LAMBOptions {
  Schedule learning_rate = 1e-3;
  double beta_1 = 0.9;
  double beta_2 = 0.999;
  double epsilon = 1e-7;
  double weight_decay = 0.0;
  std::optional<double> clipnorm = {};  // at most one of the three
  std::optional<double> clipvalue = {};
  std::optional<double> global_clipnorm = {};
};

// SGD(0.1), Adam(1e-3, {.beta_1 = 0.8}), Adam({.learning_rate = 1e-3}).
Optimizer SGD(SGDOptions options = {});
Optimizer SGD(Schedule learning_rate, SGDOptions options = {});
Optimizer Adam(AdamOptions options = {});
Optimizer Adam(Schedule learning_rate, AdamOptions options = {});
Optimizer AdamW(AdamWOptions options = {});
Optimizer AdamW(Schedule learning_rate, AdamWOptions options = {});
Optimizer RMSprop(RMSpropOptions options = {});
Optimizer RMSprop(Schedule learning_rate, RMSpropOptions options = {});
Optimizer Adagrad(AdagradOptions options = {});
Optimizer Adagrad(Schedule learning_rate, AdagradOptions options = {});
Optimizer LARS(LARSOptions options = {});
Optimizer LARS(Schedule learning_rate, LARSOptions options = {});
Optimizer LAMB(LAMBOptions options = {});
Optimizer LAMB(Schedule learning_rate, LAMBOptions options = {});

// An optimizer by name ("sgd", "adam", …); UsageError, listing the names, if there is none.
Optimizer optimizer_by_name(const std::string& name, std::optional<Schedule> learning_rate = {},
                            std::optional<double> weight_decay = {});

}  // namespace lockstep

// Optimizers: they write the nodes of an update. Names and defaults are Keras's.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "lockstep/graph/graph.h"
#include "lockstep/optim/schedule.h"

namespace lockstep {

// Clipping; at most one of the three.
struct Clip {
  std::optional<double> value = {};
  std::optional<double> norm = {};         // of each parameter's gradient
  std::optional<double> global_norm = {};  // of all together
};

// Gradients of parameters: sums over examples, and the weight that they are divided by.
struct Gradients {
  std::vector<VariableRef> parameters;
  std::vector<Value> sums;
  Value weight;
};

// A handle; copies are the same optimizer.
class Optimizer {
 public:
  struct Rule {
    std::string name = "";  // of ops/update.h
    Attrs attrs = {};
    std::vector<std::string> slots = {};  // names of its slots: {"m", "v"}
    double slot_start = 0.0;              // value that slots start with
  };
  Optimizer() = default;
  Optimizer(Rule rule, Schedule learning_rate, Clip clip);

  bool defined() const { return impl_ != nullptr; }
  // Writes the update: gradients are sums over this replica's examples, `weight` (f32 scalar) their
  // number or weight; both are added up over all replicas and then divided, once. Also counts the
  // iteration. Where the weight is 0, nothing changes and nothing is counted. Slots
  // ("<optimizer>/<slot>/<parameter>") are made at the first call and remembered by parameter, so
  // that a second graph (another batch size) continues them. No parameters: no nodes.
  void apply(Graph& graph, std::span<const VariableRef> parameters,
             std::span<const Value> gradients, Value weight) const;
  void apply(const Gradients& gradients) const {
    apply(gradients.weight.graph(), gradients.parameters, gradients.sums, gradients.weight);
  }

  std::string name() const;  // "adam"
  // iterations (i64), learning_rate (f32, where it is constant and so can be set), then the slots.
  std::vector<VariableRef> variables() const;
  VariableRef iterations() const;
  // The variable that holds a constant rate; null where a schedule decides.
  VariableRef learning_rate() const;
  const Schedule& schedule() const;

 private:
  struct Impl;
  std::shared_ptr<Impl> impl_;
};

struct SGDOptions {
  Schedule learning_rate = 0.01;
  double momentum = 0.0;
  bool nesterov = false;
  double weight_decay = 0.0;
  Clip clip = {};
};
struct AdamOptions {
  Schedule learning_rate = 1e-3;
  double beta_1 = 0.9;
  double beta_2 = 0.999;
  double epsilon = 1e-7;
  double weight_decay = 0.0;
  Clip clip = {};
};
struct AdamWOptions {
  Schedule learning_rate = 1e-3;
  double weight_decay = 4e-3;
  double beta_1 = 0.9;
  double beta_2 = 0.999;
  double epsilon = 1e-7;
  Clip clip = {};
};
struct RMSpropOptions {
  Schedule learning_rate = 1e-3;
  double rho = 0.9;
  double momentum = 0.0;
  double epsilon = 1e-7;
  bool centered = false;
  double weight_decay = 0.0;
  Clip clip = {};
};
struct AdagradOptions {
  Schedule learning_rate = 1e-3;
  double initial_accumulator_value = 0.1;
  double epsilon = 1e-7;
  double weight_decay = 0.0;
  Clip clip = {};
};
struct LARSOptions {
  Schedule learning_rate = 0.1;
  double momentum = 0.9;
  double weight_decay = 1e-4;
  double trust = 1e-3;
  double epsilon = 1e-8;
  Clip clip = {};
};
struct LAMBOptions {
  Schedule learning_rate = 1e-3;
  double beta_1 = 0.9;
  double beta_2 = 0.999;
  double epsilon = 1e-6;
  double weight_decay = 0.0;
  Clip clip = {};
};

Optimizer SGD(SGDOptions options = {});
Optimizer Adam(AdamOptions options = {});
Optimizer AdamW(AdamWOptions options = {});
Optimizer RMSprop(RMSpropOptions options = {});
Optimizer Adagrad(AdagradOptions options = {});
Optimizer LARS(LARSOptions options = {});
Optimizer LAMB(LAMBOptions options = {});

// An optimizer by name ("sgd", "adam", …) at a rate; UsageError with the names.
Optimizer optimizer_by_name(const std::string& name, std::optional<Schedule> learning_rate = {});

}  // namespace lockstep

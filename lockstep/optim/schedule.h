// Schedule: the learning rate as a function of the iteration, written as nodes.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "lockstep/graph/graph.h"

namespace lockstep {

// Linear growth from `start` times the first rate to the first rate, over the first `steps`
// iterations; the schedule itself begins after them.
struct WarmUp {
  std::int64_t steps = 0;
  double start = 0.0;
};

class Schedule {
 public:
  Schedule(double rate) : constant_(rate) {}  // NOLINT: a number is a schedule
  Schedule(std::string name, std::function<Value(Value iteration)> nodes,
           std::function<double(std::int64_t)> host)
      : name_(std::move(name)), nodes_(std::move(nodes)), host_(std::move(host)) {}

  bool constant() const { return !nodes_; }
  double rate() const { return constant_; }  // of a constant schedule
  const std::string& name() const { return name_; }
  // The rate (f32 scalar) for an iteration (f32 scalar, from 0).
  Value nodes(Value iteration) const { return nodes_(iteration); }
  // The same on the host, for progress lines and logs.
  double at(std::int64_t iteration) const { return constant() ? constant_ : host_(iteration); }

 private:
  double constant_ = 0.0;
  std::string name_ = "constant";
  std::function<Value(Value)> nodes_;
  std::function<double(std::int64_t)> host_;
};

struct ConstantRateOptions {
  double rate = 0.01;
  WarmUp warm_up = {};
};
struct ExponentialDecayOptions {
  double initial_learning_rate = 0.1;
  std::int64_t decay_steps = 1000;
  double decay_rate = 0.96;
  bool staircase = false;
  WarmUp warm_up = {};
};
struct CosineDecayOptions {
  double initial_learning_rate = 0.1;
  std::int64_t decay_steps = 1000;
  double alpha = 0.0;  // the last rate, as a fraction of the first
  WarmUp warm_up = {};
};
struct PolynomialDecayOptions {
  double initial_learning_rate = 0.1;
  std::int64_t decay_steps = 1000;
  double end_learning_rate = 1e-4;
  double power = 1.0;
  WarmUp warm_up = {};
};
struct PiecewiseConstantOptions {
  std::vector<std::int64_t> boundaries = {};  // values[i] holds up to and including boundaries[i]
  std::vector<double> values = {};            // one more than boundaries
  WarmUp warm_up = {};
};

// How the learning rate of one replica changes for the larger batch of several: in proportion
// (Goyal et al., "Accurate, Large Minibatch SGD", 2017), with the square root (Krizhevsky, "One
// weird trick", 2014), or not at all.
enum class RateScaling { None, Linear, Sqrt };
RateScaling rate_scaling_by_name(const std::string& name);  // "none", "linear", "sqrt"

struct ScaledOptions {
  int replicas = 1;
  RateScaling scaling = RateScaling::Linear;
  // Over this many first iterations the rate grows from that of one replica to the scaled one.
  std::int64_t warm_up_steps = 0;
};
double scaling_factor(RateScaling scaling, int replicas);
// A schedule for several replicas, from the schedule for one.
Schedule scaled(const Schedule& schedule, const ScaledOptions& options);

Schedule ConstantRate(ConstantRateOptions options);
Schedule ExponentialDecay(ExponentialDecayOptions options);
Schedule CosineDecay(CosineDecayOptions options);
Schedule PolynomialDecay(PolynomialDecayOptions options);
Schedule PiecewiseConstantDecay(PiecewiseConstantOptions options);

}  // namespace lockstep

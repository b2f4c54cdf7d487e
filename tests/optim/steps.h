// Runs an optimizer on parameters whose gradients are fed, so that a test says what they are.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "lockstep/exec/executor.h"
#include "lockstep/kernels/kernel.h"
#include "lockstep/optim/optimizer.h"
#include "lockstep/plan/plan.h"

namespace lockstep::testing {

inline VariableRef parameter(std::string name, Shape shape, std::vector<float> start) {
  return std::make_shared<const Variable>(
      Variable{.name = std::move(name),
               .dtype = DType::F32,
               .shape = shape,
               .trainable = true,
               .initializer = [start = std::move(start)](Tensor& target, std::uint64_t) {
                 target.copy_from(Tensor::of(start, target.shape()));
               }});
}

// A graph that takes a gradient for each parameter, and the weight, as inputs.
inline Graph update_graph(const Optimizer& optimizer, const std::vector<VariableRef>& parameters) {
  Graph graph;
  std::vector<Value> gradients;
  for (const VariableRef& each : parameters) {
    gradients.push_back(graph.input("gradient of " + each->name, {each->dtype, each->shape}));
  }
  optimizer.apply(graph, parameters, gradients, graph.input("weight", {DType::F32, {}}));
  return graph;
}

class Steps {
 public:
  Steps(const Optimizer& optimizer, std::vector<VariableRef> parameters,
        const KernelLibrary& library)
      : parameters_(std::move(parameters)),
        state_(host(), 0),
        executor_(make_plan(update_graph(optimizer, parameters_), library), library, state_) {}

  // One step with these gradients (sums) and this weight.
  void run(const std::vector<std::vector<float>>& gradients, float weight = 1.0F) {
    for (std::size_t i = 0; i < parameters_.size(); ++i) {
      executor_.input("gradient of " + parameters_[i]->name)
          .copy_from(Tensor::of(gradients[i], parameters_[i]->shape));
    }
    executor_.input("weight").copy_from(Tensor::scalar(weight));
    executor_.run();
  }

  std::vector<float> value(std::size_t parameter) const { return floats(*parameters_[parameter]); }
  std::vector<float> floats(const Variable& variable) const {
    const Tensor tensor = state_.get(variable);
    const auto values = tensor.values<float>();
    return {values.begin(), values.end()};
  }
  State& state() { return state_; }
  const Plan& plan() const { return executor_.plan(); }

 private:
  std::vector<VariableRef> parameters_;
  State state_;
  Executor executor_;
};

}  // namespace lockstep::testing

// Runs a small graph once, for tests with known results.
#pragma once

#include <functional>
#include <span>
#include <vector>

#include "lockstep/exec/executor.h"
#include "lockstep/graph/ops/ops.h"
#include "lockstep/kernels/kernel.h"
#include "lockstep/plan/plan.h"

namespace lockstep {

// The values that `build` computes from these tensors.
inline std::vector<Tensor> evaluate_all(
    const std::vector<Tensor>& inputs,
    const std::function<std::vector<Value>(std::span<const Value>)>& build,
    const KernelLibrary& library = reference_kernels()) {
  Graph graph;
  std::vector<Value> values;
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    values.push_back(graph.input(fmt::format("x{}", i), {inputs[i].dtype(), inputs[i].shape()}));
  }
  const std::vector<Value> outputs = build(values);
  for (std::size_t i = 0; i < outputs.size(); ++i) graph.output(fmt::format("y{}", i), outputs[i]);
  State state(host(), 1);
  Executor executor(make_plan(std::move(graph), library), library, state);
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    executor.input(fmt::format("x{}", i)).copy_from(inputs[i]);
  }
  executor.run();
  std::vector<Tensor> results;
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    results.push_back(executor.output(fmt::format("y{}", i)).clone());
  }
  return results;
}

inline Tensor evaluate(const std::vector<Tensor>& inputs,
                       const std::function<Value(std::span<const Value>)>& build,
                       const KernelLibrary& library = reference_kernels()) {
  return evaluate_all(
      inputs, [&](std::span<const Value> in) { return std::vector<Value>{build(in)}; }, library)[0];
}

// A tensor's elements, for comparison with a list.
template <class T>
std::vector<T> list(const Tensor& tensor) {
  const auto values = tensor.values<T>();
  return {values.begin(), values.end()};
}

inline Tensor floats(std::vector<float> values, Shape shape) {
  return Tensor::of(values, std::move(shape));
}

inline Tensor floats(std::vector<float> values) {
  const auto count = static_cast<std::int64_t>(values.size());
  return floats(std::move(values), Shape{count});
}

}  // namespace lockstep

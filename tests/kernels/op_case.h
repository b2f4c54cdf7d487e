// OpCase: one row of an op family's case list. The same rows are used to compare kernel libraries,
// for finite differences (both in op_case_check.h) and to measure speed (bench/).
//
//   std::vector<OpCase> matmul_cases() {
//     return {{.name = "odd_sizes",
//              .inputs = {f32({5, 7}), f32({7, 3})},
//              .build = [](Graph&, CaseInputs in) { return matmul(in[0], in[1]); }}};
//   }
//
// A family's list is in cases_<family>.h; its tests are one line in <family>_test.cpp.
#pragma once

#include <cmath>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/autodiff/gradients.h"
#include "lockstep/base/random.h"
#include "lockstep/exec/executor.h"
#include "lockstep/graph/ops/ops.h"
#include "lockstep/kernels/kernel.h"
#include "lockstep/passes/pipeline.h"
#include "lockstep/passes/precision.h"
#include "lockstep/plan/plan.h"

namespace lockstep {

// How an input is filled. Integers and bools are drawn from [low, high).
struct Fill {
  enum class Kind { Normal, Uniform };
  Kind kind = Kind::Normal;
  double low = 0;
  double high = 1;
};

struct CaseInput {
  DType dtype = DType::F32;  // F32 becomes F64 for finite differences
  Shape shape = {};
  Fill fill = {};
  bool differentiate = true;  // of floating inputs
};

// The common kinds of inputs.
inline CaseInput f32(Shape shape) {
  return {.shape = std::move(shape)};
}
inline CaseInput f32_uniform(Shape shape, double low, double high) {
  return {.shape = std::move(shape), .fill = {Fill::Kind::Uniform, low, high}};
}
inline CaseInput f32_positive(Shape shape) {
  return f32_uniform(std::move(shape), 0.1, 2.0);
}
// The same input as a constant: its gradient is not computed.
inline CaseInput held(CaseInput input) {
  input.differentiate = false;
  return input;
}
// Integers in [0, bound), or in [low, bound).
inline CaseInput integers(Shape shape, std::int64_t bound, DType dtype = DType::I64,
                          std::int64_t low = 0) {
  return {.dtype = dtype,
          .shape = std::move(shape),
          .fill = {Fill::Kind::Uniform, static_cast<double>(low), static_cast<double>(bound)},
          .differentiate = false};
}
inline CaseInput bools(Shape shape) {
  return integers(std::move(shape), 2, DType::Bool);
}

// One value or several.
class CaseOutputs {
 public:
  CaseOutputs() = default;  // none: the case changes variables
  CaseOutputs(Value value) : values_{value} {}
  CaseOutputs(std::vector<Value> values) : values_(std::move(values)) {}
  const std::vector<Value>& values() const { return values_; }

 private:
  std::vector<Value> values_;
};

using CaseInputs = std::span<const Value>;

struct OpCase {
  std::string name = {};  // letters, digits and underscores
  std::vector<CaseInput> inputs = {};
  // Adds the nodes under test. Floating inputs are all F32 or all F64; constants and casts must
  // follow their dtype.
  std::function<CaseOutputs(Graph&, CaseInputs)> build = {};
  bool differentiable = true;    // false: no gradient nodes are added
  bool timed = false;            // large enough for timing; not used for finite differences
  double tolerance = 1e-5;       // of the relative error in f32, in norm
  double small_roundings = 2.5;  // the same for 16 bits, in rounding errors of the 16-bit type
  // In 16 bits, rounding flips the sign of a few inputs of a relu and thereby their gradients, so
  // gradients only agree to 5%.
  bool turns_signs = false;
  double grad_tolerance = 1e-6;  // of the relative error to finite differences in double, in norm
};

// Fills a tensor with numbers that depend only on seed and stream. In a large tensor they repeat
// with a prime period, so that rows differ and filling takes no longer than the op.
inline void fill(Tensor& tensor, const Fill& fill, std::uint64_t seed, std::uint64_t stream) {
  constexpr std::size_t kPeriod = 4093;
  RandomSequence random(seed, stream);
  dispatch(tensor.dtype(), [&](auto zero) {
    using T = decltype(zero);
    const auto values = tensor.values<T>();
    for (std::size_t i = 0; i < std::min(values.size(), kPeriod); ++i) {
      const double unit = fill.low + (fill.high - fill.low) * random.uniform();
      const double drawn = fill.kind == Fill::Kind::Normal ? random.normal() : unit;
      values[i] = static_cast<T>(std::is_integral_v<T> ? std::floor(drawn) : drawn);
    }
    for (std::size_t i = kPeriod; i < values.size(); ++i) values[i] = values[i - kPeriod];
  });
}

// A case as a graph: inputs x0, x1, …; outputs y0, y1, …; and, if it is differentiable, weights
// w0, … (one input per floating output) and dx0, … (one output per differentiated input): the
// gradients of sum(y0 * w0) + sum(y1 * w1) + ….
struct CaseGraph {
  Graph graph;
  std::vector<std::string> differentiated;  // names of inputs: "x0"
};

inline CaseGraph build_graph(const OpCase& op_case, DType floating) {
  CaseGraph result;
  Graph& graph = result.graph;
  std::vector<Value> inputs;
  std::vector<Value> targets;
  for (std::size_t i = 0; i < op_case.inputs.size(); ++i) {
    const CaseInput& input = op_case.inputs[i];
    const DType dtype = is_floating(input.dtype) ? floating : input.dtype;
    const std::string name = fmt::format("x{}", i);
    inputs.push_back(graph.input(name, {dtype, input.shape}));
    if (op_case.differentiable && is_floating(dtype) && input.differentiate) {
      result.differentiated.push_back(name);
      targets.push_back(inputs.back());
    }
  }
  const CaseOutputs outputs = [&] {
    Graph::NameScope scope(graph, op_case.name);
    return op_case.build(graph, inputs);
  }();
  Value loss;
  for (std::size_t i = 0; i < outputs.values().size(); ++i) {
    const Value y = outputs.values()[i];
    graph.output(fmt::format("y{}", i), y);
    if (!op_case.differentiable || !is_floating(y.dtype())) continue;
    const Value weights = graph.input(fmt::format("w{}", i), y.type());
    const Value term = reduce_sum(mul(y, weights));
    loss = loss.defined() ? add(loss, term) : term;
  }
  if (!targets.empty() && loss.defined()) {
    const std::vector<Value> grads = gradients(loss, targets);
    for (std::size_t i = 0; i < grads.size(); ++i) {
      graph.output(fmt::format("d{}", result.differentiated[i]), grads[i]);
    }
  }
  return result;
}

// The graph of a case in mixed precision, with rounded inputs: ops compute in the 16-bit dtype or
// in f32, according to their precision rules. Inputs and outputs of the graph are f32.
inline Graph build_mixed_graph(const OpCase& op_case, DType dtype) {
  Graph graph = build_graph(op_case, DType::F32).graph;
  std::vector<std::unique_ptr<Pass>> passes;
  passes.push_back(
      std::make_unique<MixedPrecision>(dtype, MixedPrecisionOptions{.round_inputs = true}));
  run_passes(graph, passes);
  return graph;
}

// Rounds the f32 inputs of a run to a 16-bit dtype, so that only the computation differs.
inline void round_inputs(Executor& executor, DType dtype) {
  for (const auto& [name, id] : executor.plan().graph.inputs()) {
    Tensor input = executor.input(name);
    if (input.dtype() == DType::F32) input.copy_from(input.cast(dtype).cast(DType::F32));
  }
}

// Fills the inputs of a case, with the same numbers in every run and for every library.
inline void fill_inputs(const OpCase& op_case, Executor& executor) {
  const std::uint64_t seed = hash_name(op_case.name);
  for (std::size_t i = 0; i < op_case.inputs.size(); ++i) {
    const std::string name = fmt::format("x{}", i);
    if (!executor.has_input(name)) continue;
    Tensor input = executor.input(name);
    fill(input, op_case.inputs[i].fill, seed, i);
  }
  for (const auto& [name, id] : executor.plan().graph.inputs()) {
    Tensor input = executor.input(name);
    if (name.starts_with("w")) fill(input, {}, seed, hash_name(name));
    if (name == kRandomStateInput) {
      input.copy_from(Tensor::of(std::vector<std::int64_t>{3, 5}, Shape{2}));
    }
  }
}

// A plan as in training: other libraries get the graph after their passes, the reference gets the
// original graph.
inline Plan plan_for(Graph graph, const KernelLibrary& library) {
  if (&library != &reference_kernels()) optimize(graph, library);
  return make_plan(std::move(graph), library);
}

// A case that is ready to run: the memory of its variables, and its executor.
class CaseRun {
 public:
  CaseRun(const OpCase& op_case, Graph graph, const KernelLibrary& library, Device& device = host())
      : state_(device, 1), executor_(plan_for(std::move(graph), library), library, state_) {
    fill_inputs(op_case, executor_);
  }
  Executor& executor() { return executor_; }
  void run() {
    executor_.run();
    executor_.wait();
  }
  // Copies of all outputs and of all variables, by name.
  std::vector<std::pair<std::string, Tensor>> results() const {
    std::vector<std::pair<std::string, Tensor>> results;
    for (const auto& [name, id] : executor_.plan().graph.outputs()) {
      results.emplace_back(name, executor_.output(name).clone());
    }
    for (const VariableRef& variable : executor_.plan().graph.variables()) {
      results.emplace_back(variable->name, state_.get(*variable));
    }
    return results;
  }

 private:
  State state_;
  Executor executor_;
};

}  // namespace lockstep

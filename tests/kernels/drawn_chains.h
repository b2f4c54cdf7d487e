// Random graphs of elementwise nodes, for the pass that fuses them: vectors and scalars of several
// sizes and dtypes, reductions between them, values that are read in several places, and variables
// that are assigned. A graph depends only on its number. Each is run for a few steps, once
// unchanged by the reference and once after the passes, and all outputs and variables are compared.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <map>

#include "kernels/drawn_cases.h"
#include "lockstep/passes/pipeline.h"
#include "zero_variable.h"

namespace lockstep {

class DrawnChain {
 public:
  explicit DrawnChain(int number) : draw_(fmt::format("drawn_chain_{}", number)) {
    for (const Shape& shape : {Shape{}, Shape{draw_.from(2, 40)}, Shape{3, draw_.from(1, 150)}}) {
      for (const DType dtype : {DType::F32, DType::I32}) add_leaves(shape, dtype);
    }
    add_leaves(Shape{}, DType::F64);
    add_leaves(Shape{}, DType::I64);
    const std::int64_t steps = draw_.from(10, 60);
    for (std::int64_t i = 0; i < steps; ++i) add_step();
    add_outputs();
    add_assignments();
  }

  Graph take() { return std::move(graph_); }

 private:
  // A value, and whether all devices compute exactly the same: only such values are compared, used
  // as conditions or cast to integers.
  struct Drawn {
    Value value;
    bool exact = true;
  };

  void add_leaves(const Shape& shape, DType dtype) {
    for (int i = 0; i < 2; ++i) {
      pool_.push_back({graph_.input(fmt::format("x{}", pool_.size()), {dtype, shape})});
      variables_.push_back(zero_variable(fmt::format("v{}", variables_.size()), shape, dtype));
      pool_.push_back({graph_.variable(variables_.back())});
    }
  }

  const Drawn& any() { return pool_[index(draw_.from(0, std::ssize(pool_) - 1))]; }
  // One of the later values of a dtype, so that chains grow.
  const Drawn& of(DType dtype) {
    for (;;) {
      const auto most = static_cast<std::int64_t>(pool_.size()) - 1;
      const Drawn& drawn = pool_[index(std::max(draw_.from(0, most), draw_.from(0, most)))];
      if (drawn.value.dtype() == dtype) return drawn;
    }
  }
  // A second operand for a value: of the same shape, or a scalar.
  const Drawn& fitting(const Drawn& first) {
    for (;;) {
      const Drawn& drawn = of(first.value.dtype());
      if (drawn.value.shape() == first.value.shape() || drawn.value.shape().rank() == 0) {
        return drawn;
      }
    }
  }
  bool has(DType dtype, bool exact) const {
    return std::ranges::any_of(pool_, [&](const Drawn& drawn) {
      return drawn.value.dtype() == dtype && (drawn.exact || !exact);
    });
  }
  const Drawn& exactly(DType dtype) {
    for (;;) {
      const Drawn& drawn = of(dtype);
      if (drawn.exact) return drawn;
    }
  }
  static std::size_t index(std::int64_t i) { return static_cast<std::size_t>(i); }

  void add_step() {
    switch (draw_.from(0, 9)) {
      case 0:
      case 1:
      case 2:
        return arithmetic(
            of(draw_.among({DType::F32, DType::F32, DType::I32, DType::F64, DType::I64})));
      case 3:
        return unary(of(draw_.among({DType::F32, DType::F32, DType::I32})));
      case 4:
        return floating(of(DType::F32));
      case 5:
        return activations(of(DType::F32));
      case 6:
        return comparison();
      case 7:
        return choice();
      case 8:
        return conversion();
      default:
        return others(of(DType::F32));
    }
  }

  // Arguments are passed by value, because the pool grows while they are in use.
  void arithmetic(Drawn a) {
    const Drawn b = fitting(a);
    const bool exact = a.exact && b.exact;
    const int op = static_cast<int>(draw_.from(0, 5));
    const bool constant = draw_.one_in(4);
    const Value right =
        constant ? graph_.scalar(static_cast<double>(draw_.from(-3, 3)), a.value.dtype()) : b.value;
    const bool both = constant ? a.exact : exact;
    if (op == 0) add(a.value + right, both);
    if (op == 1) add(a.value - right, both);
    if (op == 2) add(a.value * right, both);
    if (op == 3) add(maximum(a.value, right), both);
    if (op == 4) add(minimum(a.value, right), both);
    if (op == 5 && is_floating(a.value.dtype())) {
      add(a.value / (b.exact ? b.value : abs(b.value) + 0.5), exact);
    }
  }

  void unary(Drawn a) {
    const int op = static_cast<int>(draw_.from(0, 3));
    if (op == 0) add(neg(a.value), a.exact);
    if (op == 1) add(abs(a.value), a.exact);
    if (op == 2 && a.exact) add(sign(a.value), true);
    if (op == 3) add(square(a.value), a.exact);
  }

  // With bounded arguments, so that errors do not grow.
  void floating(Drawn a) {
    const Value bounded = tanh(a.value);
    const Value positive = abs(bounded) + 0.5;
    const int op = static_cast<int>(draw_.from(0, 4));
    if (op == 0) add(exp(bounded), false);
    if (op == 1) add(log(positive), false);
    if (op == 2) add(pow(positive, bounded), false);
    if (op == 3) add(rsqrt(positive), false);
    if (op == 4) add(sqrt(abs(a.value)), a.exact);
  }

  void activations(Drawn a) {
    const auto kind = draw_.among<const char*>({"relu", "relu6", "leaky_relu", "gelu", "gelu_tanh",
                                                "silu", "tanh", "sigmoid", "softplus"});
    const bool piecewise = std::string_view(kind).find("relu") != std::string_view::npos;
    if (draw_.one_in(2)) {
      add(activation(a.value, kind, 0.3), piecewise && a.exact);
      return;
    }
    const Drawn dy = fitting(a);
    if (dy.value.shape() != a.value.shape() || (piecewise && !a.exact)) return;
    const Value operand =
        activation_grad_uses_output(kind) ? activation(a.value, kind, 0.3) : a.value;
    add(activation_grad(dy.value, operand, kind, 0.3), piecewise && a.exact && dy.exact);
  }

  void comparison() {
    const Drawn a = exactly(draw_.among({DType::F32, DType::I32}));
    const Drawn b = fitting(a);
    if (!b.exact) return;
    const int op = static_cast<int>(draw_.from(0, 5));
    if (op == 0) add(less(a.value, b.value), true);
    if (op == 1) add(greater_equal(a.value, b.value), true);
    if (op == 2) add(equal(a.value, b.value), true);
    if (!has(DType::Bool, true)) return;
    const Drawn p = of(DType::Bool);
    const Drawn q = fitting(p);
    if (op == 3) add(logical_and(p.value, q.value), true);
    if (op == 4) add(logical_or(p.value, q.value), true);
    if (op == 5) add(logical_not(p.value), true);
  }

  void choice() {
    if (!has(DType::Bool, true)) return;
    const Drawn condition = of(DType::Bool);
    const Drawn a = any();
    const Drawn b = fitting(a);
    if (condition.value.shape() != a.value.shape() && condition.value.shape().rank() > 0) return;
    add(select(condition.value, a.value, b.value), a.exact && b.exact);
  }

  void conversion() {
    const Drawn a = any();
    const DType to =
        draw_.among({DType::F32, DType::F32, DType::F64, DType::I32, DType::I64, DType::U8});
    if (!a.exact && !is_floating(to)) return;
    add(cast(a.value, to), a.exact);
  }

  // Ops that are not elementwise.
  void others(Drawn a) {
    if (a.value.shape().rank() == 0) return;
    if (draw_.one_in(2)) return add(reduce_mean(a.value), false);
    add(a.value - reduce_max(a.value), a.exact);
  }

  void add(Value value, bool exact) { pool_.push_back({value, exact}); }

  void add_outputs() {
    for (std::int64_t i = draw_.from(1, 8); i > 0; --i) {
      const Value value = any().value;
      if (graph_.producer(value.id()).op == Op::Variable) continue;
      graph_.output(fmt::format("y{}", i), value);
    }
    // Fusion may move nodes, but must not change the input of a sum.
    graph_.output("sum", reduce_sum(tanh(cast(any().value, DType::F32))));
  }

  void add_assignments() {
    for (const VariableRef& variable : variables_) {
      if (draw_.one_in(3)) continue;
      const Value before = graph_.variable(variable);
      std::vector<Value> fit;
      for (const Drawn& drawn : pool_) {
        if (drawn.value.type() == before.type()) fit.push_back(drawn.value);
      }
      const Value value = fit[index(draw_.from(0, std::ssize(fit) - 1))];
      // Usually a separate chain; sometimes a value that others may read.
      const bool plain = draw_.one_in(4) && graph_.producer(value.id()).op != Op::Variable;
      assign(variable, plain ? value : minimum(maximum(before + value, before), value));
    }
  }

  Draw draw_;
  Graph graph_;
  std::vector<Drawn> pool_;
  std::vector<VariableRef> variables_;
};

// A graph's outputs and variables after each of several steps, with inputs that depend on the step.
inline std::map<std::string, Tensor> results_of_steps(Plan plan, const KernelLibrary& library,
                                                      Device& device, int steps) {
  State state(device, 1);
  Executor executor(std::move(plan), library, state);
  std::map<std::string, Tensor> results;
  for (int step = 0; step < steps; ++step) {
    executor.await_inputs();
    for (const auto& [name, id] : executor.plan().graph.inputs()) {
      Tensor input = executor.input(name);
      const bool floating = is_floating(input.dtype());
      fill(input, floating ? Fill{} : Fill{Fill::Kind::Uniform, -5, 6}, hash_name(name),
           static_cast<std::uint64_t>(step));
    }
    executor.run();
    executor.wait();
    for (const auto& [name, id] : executor.plan().graph.outputs()) {
      results[fmt::format("{} of step {}", name, step)] = executor.output(name).clone();
    }
    for (const VariableRef& variable : executor.plan().graph.variables()) {
      results[fmt::format("{} after step {}", variable->name, step)] = state.get(*variable);
    }
  }
  return results;
}

// Expects elements that are equal, both NaN, or within tolerance · max(1, largest finite number).
inline void expect_close(const Tensor& actual, const Tensor& expected, double tolerance,
                         const std::string& name) {
  ASSERT_EQ(actual.dtype(), expected.dtype()) << name;
  ASSERT_EQ(actual.shape(), expected.shape()) << name;
  const Tensor a = actual.cast(DType::F64);
  const Tensor b = expected.cast(DType::F64);
  double scale = 1;
  for (const double value : b.values<double>()) {
    if (std::isfinite(value)) scale = std::max(scale, std::abs(value));
  }
  for (std::size_t i = 0; i < a.values<double>().size(); ++i) {
    const double x = a.values<double>()[i];
    const double y = b.values<double>()[i];
    if (x == y || (std::isnan(x) && std::isnan(y))) continue;
    ASSERT_TRUE(is_floating(actual.dtype())) << name << " at " << i << ": " << x << ", not " << y;
    ASSERT_LE(std::abs(x - y), tolerance * scale) << name << " at " << i << ": " << x << ", " << y;
  }
}

}  // namespace lockstep

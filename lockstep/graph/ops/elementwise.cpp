#include "lockstep/graph/ops/elementwise.h"

#include <algorithm>
#include <array>

#include "lockstep/base/error.h"
#include "lockstep/graph/op_def.h"
#include "lockstep/graph/ops/placement_rules.h"
#include "lockstep/graph/ops/reduce.h"

namespace lockstep {
namespace {

struct ActivationKind {
  std::string_view name;
  bool grad_uses_output;
};

constexpr std::array kActivations = {
    ActivationKind{"linear", true},  ActivationKind{"relu", true},
    ActivationKind{"relu6", true},   ActivationKind{"leaky_relu", true},
    ActivationKind{"gelu", false},   ActivationKind{"gelu_tanh", false},
    ActivationKind{"silu", false},   ActivationKind{"tanh", true},
    ActivationKind{"sigmoid", true}, ActivationKind{"softplus", false},
};

const ActivationKind& activation_kind(std::string_view name) {
  for (const ActivationKind& kind : kActivations) {
    if (kind.name == name) return kind;
  }
  std::string known;
  for (const ActivationKind& kind : kActivations) {
    known += known.empty() ? "" : ", ";
    known += kind.name;
  }
  fail<UsageError>("there is no activation called '{}'; there are: {}", name, known);
}

// Shape rules.

void expect_inputs(const OpCall& call, std::size_t count) {
  require(call.inputs.size() == count, "takes {} inputs, not {}", count, call.inputs.size());
}

void expect_floating(const OpCall& call) {
  for (const ValueType& input : call.inputs) {
    require(is_floating(input.dtype), "needs floating-point elements, not {}; cast first",
            input.str());
  }
}

void expect_numbers(const OpCall& call) {
  for (const ValueType& input : call.inputs) {
    require(input.dtype != DType::Bool, "needs numbers, not {}; cast first", input.str());
  }
}

void expect_bools(const OpCall& call) {
  for (const ValueType& input : call.inputs) {
    require(input.dtype == DType::Bool, "needs bool elements, not {}; compare or cast first",
            input.str());
  }
}

Shape broadcast_shape(const OpCall& call) {
  expect_inputs(call, 2);
  require(call.dtype(0) == call.dtype(1), "dtypes differ: {} and {}; cast one of them",
          call.inputs[0].str(), call.inputs[1].str());
  return broadcast(call.shape(0), call.shape(1));
}

std::vector<ValueType> infer_arithmetic(const OpCall& call) {
  Shape shape = broadcast_shape(call);
  expect_numbers(call);
  return {{call.dtype(0), std::move(shape)}};
}

std::vector<ValueType> infer_floating_binary(const OpCall& call) {
  Shape shape = broadcast_shape(call);
  expect_floating(call);
  return {{call.dtype(0), std::move(shape)}};
}

std::vector<ValueType> infer_equality(const OpCall& call) {
  return {{DType::Bool, broadcast_shape(call)}};
}

std::vector<ValueType> infer_order(const OpCall& call) {
  Shape shape = broadcast_shape(call);
  expect_numbers(call);
  return {{DType::Bool, std::move(shape)}};
}

std::vector<ValueType> infer_logic(const OpCall& call) {
  expect_bools(call);
  return {{DType::Bool, broadcast_shape(call)}};
}

std::vector<ValueType> infer_not(const OpCall& call) {
  expect_inputs(call, 1);
  expect_bools(call);
  return {call.inputs[0]};
}

std::vector<ValueType> infer_number_unary(const OpCall& call) {
  expect_inputs(call, 1);
  expect_numbers(call);
  return {call.inputs[0]};
}

std::vector<ValueType> infer_floating_unary(const OpCall& call) {
  expect_inputs(call, 1);
  expect_floating(call);
  return {call.inputs[0]};
}

std::vector<ValueType> infer_activation(const OpCall& call) {
  activation_kind(call.attrs.text("kind"));
  return infer_floating_unary(call);
}

std::vector<ValueType> infer_activation_grad(const OpCall& call) {
  expect_inputs(call, 2);
  activation_kind(call.attrs.text("kind"));
  expect_floating(call);
  require(call.inputs[0] == call.inputs[1], "gradient and operand differ: {} and {}",
          call.inputs[0].str(), call.inputs[1].str());
  return {call.inputs[0]};
}

// Casts one value or, with the backend's extra "list", several, each to its own output.
std::vector<ValueType> infer_cast(const OpCall& call) {
  require(!call.inputs.empty(), "needs a value");
  const DType dtype = dtype_named(call.attrs.text("dtype"));
  std::vector<ValueType> types;
  for (const ValueType& input : call.inputs) {
    require(input.dtype == call.dtype(0), "dtypes differ: {} and {}", call.inputs[0].str(),
            input.str());
    types.push_back({dtype, input.shape});
  }
  return types;
}

std::vector<ValueType> infer_select(const OpCall& call) {
  expect_inputs(call, 3);
  require(call.dtype(0) == DType::Bool, "the condition must be bool, not {}; compare first",
          call.inputs[0].str());
  require(call.dtype(1) == call.dtype(2), "dtypes differ: {} and {}; cast one of them",
          call.inputs[1].str(), call.inputs[2].str());
  return {{call.dtype(1), broadcast(call.shape(0), broadcast(call.shape(1), call.shape(2)))}};
}

// Gradient rules. dx(call, i, f) builds the gradient of input i only if it is needed, and sums it
// over the axes along which the input was broadcast.

template <class F>
Value dx(const GradCall& call, std::size_t i, F&& f) {
  if (!call.needed[i]) return Value();
  const Value grad = f();
  return sum_to(grad, call.inputs[i].shape());
}

std::vector<Value> grad_add(const GradCall& c) {
  const Value dy = c.grads[0];
  return {dx(c, 0, [&] { return dy; }), dx(c, 1, [&] { return dy; })};
}

std::vector<Value> grad_sub(const GradCall& c) {
  const Value dy = c.grads[0];
  return {dx(c, 0, [&] { return dy; }), dx(c, 1, [&] { return -dy; })};
}

std::vector<Value> grad_mul(const GradCall& c) {
  const Value dy = c.grads[0];
  return {dx(c, 0, [&] { return dy * c.inputs[1]; }), dx(c, 1, [&] { return dy * c.inputs[0]; })};
}

std::vector<Value> grad_div(const GradCall& c) {
  const Value dy = c.grads[0];
  const Value b = c.inputs[1];
  return {dx(c, 0, [&] { return dy / b; }), dx(c, 1, [&] { return -(dy * c.outputs[0] / b); })};
}

// d/da a^b = b a^(b-1);  d/db a^b = a^b log a, taken as 0 where a is not positive.
std::vector<Value> grad_pow(const GradCall& c) {
  const Value dy = c.grads[0];
  const Value a = c.inputs[0];
  const Value b = c.inputs[1];
  const auto log_a = [&] {
    const Value zero = c.graph.scalar(0, a.dtype());
    return select(greater(a, zero), log(a), zero);
  };
  return {dx(c, 0, [&] { return dy * b * pow(a, b - 1.0); }),
          dx(c, 1, [&] { return dy * c.outputs[0] * log_a(); })};
}

// The gradient of choosing one of two; ties go to the first.
std::vector<Value> grad_choice(const GradCall& c, Value first_wins) {
  const Value dy = c.grads[0];
  const Value zero = c.graph.scalar(0, dy.dtype());
  return {dx(c, 0, [&] { return select(first_wins, dy, zero); }),
          dx(c, 1, [&] { return select(first_wins, zero, dy); })};
}

std::vector<Value> grad_maximum(const GradCall& c) {
  return grad_choice(c, greater_equal(c.inputs[0], c.inputs[1]));
}

std::vector<Value> grad_minimum(const GradCall& c) {
  return grad_choice(c, less_equal(c.inputs[0], c.inputs[1]));
}

std::vector<Value> grad_select(const GradCall& c) {
  const Value condition = c.inputs[0];
  const Value dy = c.grads[0];
  const Value zero = c.graph.scalar(0, dy.dtype());
  return {Value(), dx(c, 1, [&] { return select(condition, dy, zero); }),
          dx(c, 2, [&] { return select(condition, zero, dy); })};
}

std::vector<Value> grad_neg(const GradCall& c) {
  return {-c.grads[0]};
}

std::vector<Value> grad_abs(const GradCall& c) {
  return {c.grads[0] * sign(c.inputs[0])};
}

std::vector<Value> grad_sign(const GradCall&) {
  return {Value()};
}

std::vector<Value> grad_exp(const GradCall& c) {
  return {c.grads[0] * c.outputs[0]};
}

std::vector<Value> grad_log(const GradCall& c) {
  return {c.grads[0] / c.inputs[0]};
}

std::vector<Value> grad_sqrt(const GradCall& c) {
  return {c.grads[0] * 0.5 / c.outputs[0]};
}

std::vector<Value> grad_rsqrt(const GradCall& c) {
  const Value y = c.outputs[0];
  return {c.grads[0] * -0.5 * (square(y) * y)};
}

std::vector<Value> grad_square(const GradCall& c) {
  return {c.grads[0] * c.inputs[0] * 2.0};
}

std::vector<Value> grad_activation(const GradCall& c) {
  const std::string kind = c.attrs.text("kind");
  const double alpha = c.attrs.real("alpha");
  const Value operand = activation_grad_uses_output(kind) ? c.outputs[0] : c.inputs[0];
  return {activation_grad(c.grads[0], operand, kind, alpha)};
}

std::vector<Value> grad_cast(const GradCall& c) {
  const DType dtype = c.inputs[0].dtype();
  return {is_floating(dtype) ? cast(c.grads[0], dtype) : Value()};
}

// Cost rules: one operation per element, or several for ops that need exp or log.

Cost cost_per_element(const OpCall& call, std::span<const ValueType> outputs, double flops) {
  Cost cost;
  for (const ValueType& input : call.inputs) {
    cost.bytes +=
        static_cast<double>(input.shape.elements()) * static_cast<double>(size_of(input.dtype));
  }
  const auto elements = static_cast<double>(outputs[0].shape.elements());
  cost.bytes += elements * static_cast<double>(size_of(outputs[0].dtype));
  cost.flops = elements * flops;
  return cost;
}

Cost light(const OpCall& call, std::span<const ValueType> outputs) {
  return cost_per_element(call, outputs, 1);
}

Cost heavy(const OpCall& call, std::span<const ValueType> outputs) {
  return cost_per_element(call, outputs, 8);
}

Value cast_scalar(Value like, double value) {
  return like.graph().scalar(value, like.dtype());
}

Value binary(Op op, Value a, Value b) {
  return a.graph().add1(op, {a, b});
}

Value unary(Op op, Value x) {
  return x.graph().add1(op, {x});
}

Attrs activation_attrs(std::string_view kind, double alpha) {
  return {{"kind", std::string(kind)}, {"alpha", alpha}};
}

// Rounding to another floating-point type is taken for linear; to integers it is not.
std::vector<Placement> place_cast(const PlaceCall& call) {
  const bool floating = is_floating(call.graph.type(call.node.inputs[0]).dtype) &&
                        is_floating(call.graph.type(call.node.outputs[0]).dtype);
  return floating ? place_linear(call) : place_elementwise(call);
}

auto placement_rule(Op op) -> decltype(OpDef::place) {
  switch (op) {
    case Op::Add:
    case Op::Sub:
    case Op::Neg:
      return place_linear;
    case Op::Mul:
      return place_product;
    case Op::Div:
      return place_quotient;
    case Op::Maximum:
      return place_maximum;
    case Op::Minimum:
      return place_minimum;
    case Op::Cast:
      return place_cast;
    case Op::Select:
      return place_select;
    default:
      return place_elementwise;
  }
}

}  // namespace

Value add(Value a, Value b) {
  return binary(Op::Add, a, b);
}
Value sub(Value a, Value b) {
  return binary(Op::Sub, a, b);
}
Value mul(Value a, Value b) {
  return binary(Op::Mul, a, b);
}
Value div(Value a, Value b) {
  return binary(Op::Div, a, b);
}
Value pow(Value a, Value b) {
  return binary(Op::Pow, a, b);
}
Value maximum(Value a, Value b) {
  return binary(Op::Maximum, a, b);
}
Value minimum(Value a, Value b) {
  return binary(Op::Minimum, a, b);
}
Value equal(Value a, Value b) {
  return binary(Op::Equal, a, b);
}
Value not_equal(Value a, Value b) {
  return binary(Op::NotEqual, a, b);
}
Value less(Value a, Value b) {
  return binary(Op::Less, a, b);
}
Value less_equal(Value a, Value b) {
  return binary(Op::LessEqual, a, b);
}
Value greater(Value a, Value b) {
  return binary(Op::Greater, a, b);
}
Value greater_equal(Value a, Value b) {
  return binary(Op::GreaterEqual, a, b);
}
Value logical_and(Value a, Value b) {
  return binary(Op::LogicalAnd, a, b);
}
Value logical_or(Value a, Value b) {
  return binary(Op::LogicalOr, a, b);
}
Value logical_not(Value x) {
  return unary(Op::LogicalNot, x);
}
Value neg(Value x) {
  return unary(Op::Neg, x);
}
Value abs(Value x) {
  return unary(Op::Abs, x);
}
Value sign(Value x) {
  return unary(Op::Sign, x);
}
Value exp(Value x) {
  return unary(Op::Exp, x);
}
Value log(Value x) {
  return unary(Op::Log, x);
}
Value sqrt(Value x) {
  return unary(Op::Sqrt, x);
}
Value rsqrt(Value x) {
  return unary(Op::Rsqrt, x);
}
Value square(Value x) {
  return unary(Op::Square, x);
}

Value activation(Value x, std::string_view kind, double alpha) {
  if (kind == "linear") return x;
  return x.graph().add1(Op::Activation, {x}, activation_attrs(kind, alpha));
}

Value activation_grad(Value dy, Value operand, std::string_view kind, double alpha) {
  if (kind == "linear") return dy;
  return dy.graph().add1(Op::ActivationGrad, {dy, operand}, activation_attrs(kind, alpha));
}

bool activation_grad_uses_output(std::string_view kind) {
  return activation_kind(kind).grad_uses_output;
}

Value cast(Value x, DType dtype) {
  if (x.dtype() == dtype) return x;
  return x.graph().add1(Op::Cast, {x}, {{"dtype", std::string(name_of(dtype))}});
}

Value full_precision(Value x) {
  if (x.dtype() != DType::F32) return x;
  return x.graph().add1(Op::Cast, {x}, {{"dtype", std::string(name_of(DType::F32))}});
}

Value select(Value condition, Value a, Value b) {
  return a.graph().add1(Op::Select, {condition, a, b});
}

Value add(Value a, double b) {
  return add(a, cast_scalar(a, b));
}

Value mul(Value a, double b) {
  return mul(a, cast_scalar(a, b));
}

std::vector<OpDef> elementwise_ops() {
  constexpr PrecisionRule full = PrecisionRule::Full;
  constexpr PrecisionRule follow = PrecisionRule::Follow;
  const std::vector<std::pair<int, int>> one = {{0, 0}};
  const std::vector<std::pair<int, int>> either = {{0, 0}, {1, 0}};
  const std::vector<std::pair<int, int>> branches = {{1, 0}, {2, 0}};
  std::vector<OpDef> defs = {
      {Op::Add, "add", follow, infer_arithmetic, grad_add, light, either},
      {Op::Sub, "sub", follow, infer_arithmetic, grad_sub, light, either},
      {Op::Mul, "mul", follow, infer_arithmetic, grad_mul, light, either},
      {Op::Div, "div", follow, infer_floating_binary, grad_div, light, either},
      {Op::Pow, "pow", full, infer_floating_binary, grad_pow, heavy, either},
      {Op::Maximum, "maximum", follow, infer_arithmetic, grad_maximum, light, either},
      {Op::Minimum, "minimum", follow, infer_arithmetic, grad_minimum, light, either},
      {Op::Equal, "equal", follow, infer_equality, nullptr, light},
      {Op::NotEqual, "not_equal", follow, infer_equality, nullptr, light},
      {Op::Less, "less", follow, infer_order, nullptr, light},
      {Op::LessEqual, "less_equal", follow, infer_order, nullptr, light},
      {Op::Greater, "greater", follow, infer_order, nullptr, light},
      {Op::GreaterEqual, "greater_equal", follow, infer_order, nullptr, light},
      {Op::LogicalAnd, "logical_and", follow, infer_logic, nullptr, light, either},
      {Op::LogicalOr, "logical_or", follow, infer_logic, nullptr, light, either},
      {Op::LogicalNot, "logical_not", follow, infer_not, nullptr, light, one},
      {Op::Neg, "neg", follow, infer_number_unary, grad_neg, light, one},
      {Op::Abs, "abs", follow, infer_number_unary, grad_abs, light, one},
      {Op::Sign, "sign", follow, infer_number_unary, grad_sign, light, one},
      {Op::Exp, "exp", full, infer_floating_unary, grad_exp, heavy, one},
      {Op::Log, "log", full, infer_floating_unary, grad_log, heavy, one},
      {Op::Sqrt, "sqrt", full, infer_floating_unary, grad_sqrt, light, one},
      {Op::Rsqrt, "rsqrt", full, infer_floating_unary, grad_rsqrt, light, one},
      {Op::Square, "square", full, infer_number_unary, grad_square, light, one},
      {Op::Activation, "activation", follow, infer_activation, grad_activation, heavy, one},
      {Op::ActivationGrad, "activation_grad", follow, infer_activation_grad, nullptr, heavy,
       either},
      {Op::Cast, "cast", full, infer_cast, grad_cast, light},
      {Op::Select, "select", follow, infer_select, grad_select, light, branches},
  };
  for (OpDef& def : defs) def.place = placement_rule(def.op);
  return defs;
}

}  // namespace lockstep

// Elementwise ops. Binary ones broadcast as NumPy does; both sides have the same dtype.
#pragma once

#include <string_view>

#include "lockstep/graph/graph.h"

namespace lockstep {

Value add(Value a, Value b);
Value sub(Value a, Value b);
Value mul(Value a, Value b);
Value div(Value a, Value b);
Value pow(Value a, Value b);
Value maximum(Value a, Value b);
Value minimum(Value a, Value b);

// Comparisons and logic return bool.
Value equal(Value a, Value b);
Value not_equal(Value a, Value b);
Value less(Value a, Value b);
Value less_equal(Value a, Value b);
Value greater(Value a, Value b);
Value greater_equal(Value a, Value b);
Value logical_and(Value a, Value b);
Value logical_or(Value a, Value b);
Value logical_not(Value x);

Value neg(Value x);
Value abs(Value x);
Value sign(Value x);
Value exp(Value x);
Value log(Value x);
Value sqrt(Value x);
Value rsqrt(Value x);
Value square(Value x);

// One of: "linear" (returns x itself), "relu", "relu6", "leaky_relu" (alpha: slope below zero),
// "gelu" (the erf form), "gelu_tanh", "silu", "tanh", "sigmoid", "softplus". UsageError, with this
// list, for any other kind.
Value activation(Value x, std::string_view kind, double alpha = 0.2);
// dy times the derivative; `operand` is the activation's output if
// activation_grad_uses_output(kind), else its input.
Value activation_grad(Value dy, Value operand, std::string_view kind, double alpha = 0.2);
bool activation_grad_uses_output(std::string_view kind);

inline Value relu(Value x) {
  return activation(x, "relu");
}
inline Value sigmoid(Value x) {
  return activation(x, "sigmoid");
}
inline Value tanh(Value x) {
  return activation(x, "tanh");
}
inline Value softplus(Value x) {
  return activation(x, "softplus");
}

Value cast(Value x, DType dtype);  // x itself if it already has the dtype
// The same value, which mixed precision (passes/precision.h) keeps in f32 or restores to it: for
// losses and metrics. Otherwise it has no effect, and the dead code pass removes it.
Value full_precision(Value x);
// a where the condition (bool) holds, else b; all three broadcast.
Value select(Value condition, Value a, Value b);

// With a scalar of the same dtype.
Value add(Value a, double b);
Value mul(Value a, double b);

inline Value operator+(Value a, Value b) {
  return add(a, b);
}
inline Value operator-(Value a, Value b) {
  return sub(a, b);
}
inline Value operator*(Value a, Value b) {
  return mul(a, b);
}
inline Value operator/(Value a, Value b) {
  return div(a, b);
}
inline Value operator+(Value a, double b) {
  return add(a, b);
}
inline Value operator-(Value a, double b) {
  return add(a, -b);
}
inline Value operator*(Value a, double b) {
  return mul(a, b);
}
inline Value operator*(double a, Value b) {
  return mul(b, a);
}
inline Value operator/(Value a, double b) {
  return mul(a, 1.0 / b);
}
inline Value operator-(Value x) {
  return neg(x);
}

}  // namespace lockstep

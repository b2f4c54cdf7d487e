#include "lockstep/graph/ops/norm.h"

#include <array>

#include "lockstep/base/half.h"
#include "lockstep/graph/ops/placement_rules.h"
#include "lockstep/graph/ops/pool.h"
#include "lockstep/graph/ops/reduce.h"
#include "lockstep/graph/ops/rules.h"
#include "lockstep/graph/ops/shape.h"

namespace lockstep {
namespace {

// The dtype of the parameters and statistics of an input x: x's own, or f32 if x has 16 bits. The
// input `parameter` decides which; the others follow it.
DType parameter_dtype(const OpCall& call, std::size_t x, std::size_t parameter) {
  const bool wider = is_small_float(call.dtype(x)) && call.dtype(parameter) == DType::F32;
  return wider ? DType::F32 : call.dtype(x);
}

// The type of a per-channel vector of x; UsageError if x has no channels or is not floating-point.
ValueType channels_of(const OpCall& call, std::size_t x, std::size_t parameter) {
  require_floating(call, x, "the input");
  require(call.shape(x).rank() >= 1, "the input needs an axis of channels, but is a scalar");
  return {parameter_dtype(call, x, parameter), {call.shape(x)[-1]}};
}

void require_channels(const OpCall& call, std::size_t x, const ValueType& channels,
                      std::size_t input, std::string_view what) {
  require(call.inputs[input] == channels, "{} must be {} for the input {}, not {}", what,
          channels.str(), call.inputs[x].str(), call.inputs[input].str());
}

void require_relu(const Attrs& attrs) {
  const std::string kind = attrs.text_or_empty("activation");
  ensure(kind.empty() || kind == "relu", "batch_norm cannot fuse the activation {}", kind);
}

// ReLU's mask as bits (norm.h).
ValueType bits_of(const OpCall& call, std::size_t x) {
  const auto dims = call.shape(x).dims();
  Ints packed(dims.begin(), dims.end());
  require(packed.back() % 8 == 0, "bits of {} channels do not fill bytes", packed.back());
  packed.back() /= 8;
  return {DType::U8, Shape(packed)};
}

std::vector<ValueType> infer_batch_norm(const OpCall& call) {
  const ValueType channels = channels_of(call, 0, 1);
  require_channels(call, 0, channels, 1, "gamma");
  require_channels(call, 0, channels, 2, "beta");
  std::size_t own = call.inputs.size();
  for (const char* given : {"statistics", "projected_statistics"}) {
    if (!call.attrs.has(given)) continue;
    const ValueType sums{DType::F32, channels.shape};
    own -= 2;
    require_type(call, own, sums, "the sum of each channel");
    require_type(call, own + 1, sums, "the sum of each channel's squares");
  }
  if (own > 3) require_type(call, 3, call.inputs[0], "the residual");
  require_relu(call.attrs);
  std::vector<ValueType> types{call.inputs[0], channels, channels};
  if (call.attrs.has("projection")) {
    require_channels(call, 0, channels, 4, "the projection's gamma");
    require_channels(call, 0, channels, 5, "the projection's beta");
    types.insert(types.end(), {channels, channels});
  }
  if (call.attrs.has("bits")) types.push_back(bits_of(call, 0));
  if (call.attrs.has("pool")) {
    ensure(own == 3 && call.attrs.has("activation"),
           "batch_norm pools only after ReLU and without a residual");
    const std::vector<ValueType> pooled = max_pool_types(call.inputs[0], call.attrs);
    types[0] = pooled[0];
    types.insert(types.end(), {pooled[1], pooled[0]});
  }
  return types;
}

// Whether a gradient node has a residual.
bool has_residual(const Attrs& attrs) {
  return attrs.has("residual") && attrs.flag("residual");
}

// (dy, x, mean, variance, gamma[, y][, indices, maxima][, dy2]): y, or its replacement, if an
// activation is fused; the others if the backend reads them (norm.h).
std::vector<ValueType> infer_batch_norm_grad(const OpCall& call) {
  const ValueType channels = channels_of(call, 1, 4);
  ValueType dy = call.inputs[1];
  if (call.attrs.has("pool")) {
    ensure(call.attrs.has("beta") && call.inputs.size() > 7,
           "batch_norm_grad after pooling reads beta, the argmax indices and the maxima");
    const std::vector<ValueType> pooled = max_pool_types(call.inputs[1], call.attrs);
    dy = pooled[0];
    require_type(call, 6, pooled[1], "the argmax indices");
    require_type(call, 7, pooled[0], "the maxima");
  }
  require_type(call, 0, dy, "dy");
  require_channels(call, 1, channels, 2, "the mean");
  require_channels(call, 1, channels, 3, "the variance");
  require_channels(call, 1, channels, 4, "gamma");
  require_relu(call.attrs);
  if (call.attrs.has("activation")) {
    ensure(call.inputs.size() > 5, "batch_norm_grad with an activation reads the output");
    if (call.attrs.has("beta")) {
      require_channels(call, 1, channels, 5, "beta");
    } else if (call.attrs.has("bits")) {
      require_type(call, 5, bits_of(call, 1), "the mask");
    } else {
      require_type(call, 5, call.inputs[1], "y");
    }
  }
  if (call.attrs.has("summands")) {
    require_type(call, call.inputs.size() - 1, dy, "the second summand of dy");
  }
  std::vector<ValueType> types{call.inputs[1], channels, channels};
  if (call.attrs.has("projection")) {
    require_type(call, 6, call.inputs[1], "the projection's input");
    require_channels(call, 1, channels, 7, "the projection's mean");
    require_channels(call, 1, channels, 8, "the projection's variance");
    require_channels(call, 1, channels, 9, "the projection's gamma");
    types.insert(types.end(), {call.inputs[1], channels, channels});
  } else if (has_residual(call.attrs)) {
    types.push_back(call.inputs[1]);
  }
  return types;
}

// A kernel no longer needs an element of dy once the residual's gradient is written, nor one of x
// once dx is.
std::vector<std::pair<int, int>> in_place_batch_norm_grad(const OpCall& call) {
  if (has_residual(call.attrs) && !call.attrs.has("projection")) return {{0, 3}, {1, 0}, {0, 0}};
  return {{0, 0}};
}

// Counts the elements of x: dy has fewer after pooling.
Cost cost_batch_norm_grad(const OpCall& call, std::span<const ValueType> outputs) {
  return {10 * static_cast<double>(call.shape(1).elements()), bytes_moved(call, outputs)};
}

// The statistics feed moving averages only: no gradient flows through them.
std::vector<Value> gradient_batch_norm(const GradCall& call) {
  std::vector<Value> grads(call.inputs.size());
  if (!call.grads[0].defined()) return grads;
  std::vector<Value> inputs{call.grads[0], call.inputs[0], call.outputs[1], call.outputs[2],
                            call.inputs[1]};
  if (call.attrs.has("activation")) inputs.push_back(call.outputs[0]);
  Attrs attrs = call.attrs;
  if (grads.size() > 3) attrs.set("residual", true);
  const std::vector<Value> results = call.graph.add(Op::BatchNormGrad, inputs, std::move(attrs));
  std::copy(results.begin(), results.end(), grads.begin());
  return grads;
}

std::vector<ValueType> infer_batch_norm_inference(const OpCall& call) {
  const ValueType channels = channels_of(call, 0, 1);
  require_channels(call, 0, channels, 1, "gamma");
  require_channels(call, 0, channels, 2, "beta");
  require_channels(call, 0, channels, 3, "the mean");
  require_channels(call, 0, channels, 4, "the variance");
  if (call.inputs.size() > 5) require_type(call, 5, call.inputs[0], "the residual");
  require_relu(call.attrs);
  return {call.inputs[0]};
}

// y = (x - mean) · rstd · gamma + beta, and the statistics are inputs like any other.
std::vector<Value> gradient_batch_norm_inference(const GradCall& call) {
  ensure(!call.attrs.has("activation"),
         "batch_norm_inference is differentiated before an activation is fused into it");
  const Value gamma = call.inputs[1];
  const DType dtype = gamma.dtype();
  const Value dy = cast(call.grads[0], dtype);
  const Value summand = full_precision(dy);
  const Value centered = sub(full_precision(cast(call.inputs[0], dtype)), call.inputs[3]);
  const Value rstd = rsqrt(add(call.inputs[4], call.attrs.real("epsilon")));
  const ReduceOptions over_samples{.axes = leading_axes(dy.shape())};
  const Value factor = mul(gamma, rstd);
  // An empty list of axes would mean all of them, but a single row of channels has nothing to sum.
  const auto total = [&](Value v) {
    return v.shape().rank() == 1 ? v : reduce_sum(v, over_samples);
  };
  std::vector<Value> grads(5);
  if (call.needed[0]) grads[0] = cast(mul(dy, factor), call.inputs[0].dtype());
  if (call.needed[1]) grads[1] = mul(total(mul(summand, centered)), rstd);
  if (call.needed[2]) grads[2] = total(summand);
  if (call.needed[3]) grads[3] = neg(mul(total(summand), factor));
  if (call.needed[4]) {
    grads[4] = mul(mul(mul(total(mul(summand, centered)), factor), square(rstd)), -0.5);
  }
  return grads;
}

std::vector<ValueType> infer_layer_norm(const OpCall& call) {
  const ValueType channels = channels_of(call, 0, 1);
  require(channels.shape[0] > 0, "the last axis of {} is empty", call.shape(0));
  require_channels(call, 0, channels, 1, "gamma");
  require_channels(call, 0, channels, 2, "beta");
  const ValueType rows{channels.dtype, leading_shape(call.shape(0))};
  return {call.inputs[0], rows, rows};
}

std::vector<ValueType> infer_layer_norm_grad(const OpCall& call) {
  const ValueType channels = channels_of(call, 1, 4);
  const ValueType rows{channels.dtype, leading_shape(call.shape(1))};
  require_type(call, 0, call.inputs[1], "dy");
  require_type(call, 2, rows, "the mean");
  require_type(call, 3, rows, "the reciprocal standard deviation");
  require_channels(call, 1, channels, 4, "gamma");
  return {call.inputs[1], channels, channels};
}

std::vector<Value> gradient_layer_norm(const GradCall& call) {
  if (!call.grads[0].defined()) return std::vector<Value>(3);
  const std::array<Value, 5> inputs{call.grads[0], call.inputs[0], call.outputs[1], call.outputs[2],
                                    call.inputs[1]};
  return call.graph.add(Op::LayerNormGrad, inputs);
}

// Each rank's statistics are its own.
std::vector<Placement> place_batch_norm(const PlaceCall& call) {
  return place_samples(call, {.parameters = {1, 2}, .own = {1, 2}});
}

std::vector<Placement> place_batch_norm_grad(const PlaceCall& call) {
  return place_samples(call, {.parameters = {4}, .statistics = {2, 3}, .sums = {1, 2}});
}

std::vector<Placement> place_batch_norm_inference(const PlaceCall& call) {
  return place_samples(call, {.parameters = {1, 2, 3, 4}});
}

std::vector<Placement> place_layer_norm(const PlaceCall& call) {
  return place_samples(call, {.parameters = {1, 2}});
}

std::vector<Placement> place_layer_norm_grad(const PlaceCall& call) {
  return place_samples(call, {.parameters = {4}, .sums = {1, 2}});
}

}  // namespace

BatchNormResult batch_norm(Value x, Value gamma, Value beta, double epsilon) {
  const std::array<Value, 3> inputs{x, gamma, beta};
  const auto results = x.graph().add(Op::BatchNorm, inputs, {{"epsilon", epsilon}});
  return {results[0], results[1], results[2]};
}

Value batch_norm_inference(Value x, Value gamma, Value beta, Value mean, Value variance,
                           double epsilon) {
  return x.graph().add1(Op::BatchNormInference, {x, gamma, beta, mean, variance},
                        {{"epsilon", epsilon}});
}

Value layer_norm(Value x, Value gamma, Value beta, double epsilon) {
  return x.graph().add1(Op::LayerNorm, {x, gamma, beta}, {{"epsilon", epsilon}});
}

std::vector<OpDef> norm_ops() {
  return {{.op = Op::BatchNorm,
           .name = "batch_norm",
           .precision = PrecisionRule::Follow,
           .infer = infer_batch_norm,
           .gradient = gradient_batch_norm,
           .cost = cost_per_element<7>,
           .f32_inputs = {1, 2},
           .place = place_batch_norm},
          {.op = Op::BatchNormGrad,
           .name = "batch_norm_grad",
           .precision = PrecisionRule::Follow,
           .infer = infer_batch_norm_grad,
           .cost = cost_batch_norm_grad,
           .find_in_place = in_place_batch_norm_grad,
           .f32_inputs = {2, 3, 4},
           .place = place_batch_norm_grad},
          {.op = Op::BatchNormInference,
           .name = "batch_norm_inference",
           .precision = PrecisionRule::Follow,
           .infer = infer_batch_norm_inference,
           .gradient = gradient_batch_norm_inference,
           .cost = cost_per_element<2>,
           .in_place = {{0, 0}},
           .f32_inputs = {1, 2, 3, 4},
           .place = place_batch_norm_inference},
          {.op = Op::LayerNorm,
           .name = "layer_norm",
           .precision = PrecisionRule::Follow,
           .infer = infer_layer_norm,
           .gradient = gradient_layer_norm,
           .cost = cost_per_element<7>,
           .f32_inputs = {1, 2},
           .place = place_layer_norm},
          {.op = Op::LayerNormGrad,
           .name = "layer_norm_grad",
           .precision = PrecisionRule::Follow,
           .infer = infer_layer_norm_grad,
           .cost = cost_per_element<12>,
           .f32_inputs = {2, 3, 4},
           .place = place_layer_norm_grad}};
}

}  // namespace lockstep

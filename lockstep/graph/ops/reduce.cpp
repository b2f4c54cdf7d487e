#include "lockstep/graph/ops/reduce.h"

#include <algorithm>

#include "lockstep/base/error.h"
#include "lockstep/graph/op_def.h"
#include "lockstep/graph/ops/elementwise.h"
#include "lockstep/graph/ops/placement_rules.h"
#include "lockstep/graph/ops/shape.h"

namespace lockstep {
namespace {

// The axes as non-negative numbers in ascending order; all axes for an empty list. An axis outside
// the shape stays as it is, for the shape rule to reject.
Ints wrap_axes(const Shape& shape, Ints axes) {
  if (axes.empty()) {
    for (int axis = 0; axis < shape.rank(); ++axis) axes.push_back(axis);
  }
  for (std::int64_t& axis : axes) {
    if (axis < 0 && axis >= -shape.rank()) axis += shape.rank();
  }
  std::sort(axes.begin(), axes.end());
  return axes;
}

void expect_axes(const Shape& shape, const Ints& axes) {
  for (std::int64_t axis : axes) {
    require(axis >= 0 && axis < shape.rank(), "axis {} is outside a value of shape {}", axis,
            shape);
  }
  require(std::adjacent_find(axes.begin(), axes.end()) == axes.end(),
          "an axis of {} is named twice in [{}]", shape, fmt::join(axes, ", "));
}

Shape reduced_shape(const Shape& shape, const Ints& axes, bool keepdims) {
  std::vector<std::int64_t> dims;
  for (int axis = 0; axis < shape.rank(); ++axis) {
    const bool reduced = std::find(axes.begin(), axes.end(), axis) != axes.end();
    if (!reduced) dims.push_back(shape[axis]);
    if (reduced && keepdims) dims.push_back(1);
  }
  return Shape(std::move(dims));
}

std::vector<ValueType> infer_reduction(const OpCall& call) {
  require(call.inputs.size() == 1, "takes 1 input, not {}", call.inputs.size());
  require(call.dtype(0) != DType::Bool, "needs numbers, not {}; cast first", call.inputs[0].str());
  const Ints& axes = call.attrs.ints("axes");
  expect_axes(call.shape(0), axes);
  return {{call.dtype(0), reduced_shape(call.shape(0), axes, call.attrs.flag("keepdims"))}};
}

std::vector<ValueType> infer_mean(const OpCall& call) {
  require(is_floating(call.dtype(0)), "needs floating-point elements, not {}; cast first",
          call.inputs[0].str());
  return infer_reduction(call);
}

std::vector<ValueType> infer_argmax(const OpCall& call) {
  require(call.dtype(0) != DType::Bool, "needs numbers, not {}; cast first", call.inputs[0].str());
  const Shape& shape = call.shape(0);
  const std::int64_t axis = call.attrs.integer("axis");
  require(axis >= 0 && axis < shape.rank(), "axis {} is outside a value of shape {}", axis, shape);
  Shape result = reduced_shape(shape, {axis}, false);
  require(shape[static_cast<int>(axis)] > 0 || result.elements() == 0,
          "axis {} of {} has no elements to choose from", axis, shape);
  return {{DType::I64, std::move(result)}};
}

// The result of a reduction, or its gradient, with the reduced axes back as axes of extent 1.
Value keep_axes(const GradCall& c, Value reduced) {
  return reshape(reduced, reduced_shape(c.inputs[0].shape(), c.attrs.ints("axes"), true));
}

std::vector<Value> grad_sum(const GradCall& c) {
  const Shape shape = c.inputs[0].shape();
  return {broadcast_to(keep_axes(c, c.grads[0]), shape)};
}

std::vector<Value> grad_mean(const GradCall& c) {
  const Shape shape = c.inputs[0].shape();
  const auto from = static_cast<double>(shape.elements());
  const auto to = static_cast<double>(c.outputs[0].shape().elements());
  const Value scaled = c.grads[0] * (from > 0 ? to / from : 0.0);
  return {broadcast_to(keep_axes(c, scaled), shape)};
}

std::vector<Value> grad_max(const GradCall& c) {
  const Ints axes = c.attrs.ints("axes");
  const Value x = c.inputs[0];
  const Value largest = cast(equal(x, keep_axes(c, c.outputs[0])), x.dtype());
  const Value ties = reduce_sum(largest, {.axes = axes, .keepdims = true});
  return {largest * (keep_axes(c, c.grads[0]) / ties)};
}

Cost cost(const OpCall& call, std::span<const ValueType> outputs) {
  const auto read = static_cast<double>(call.shape(0).elements());
  const auto written = static_cast<double>(outputs[0].shape.elements());
  return {.flops = read,
          .bytes = read * static_cast<double>(size_of(call.dtype(0))) +
                   written * static_cast<double>(size_of(outputs[0].dtype))};
}

// Where the dimension of a slice is in the result; none where it was reduced.
std::optional<int> dim_left(const PlaceCall& call, const Ints& axes, bool keepdims) {
  const int dim = call.inputs[0].dim;
  if (std::ranges::find(axes, dim) != axes.end()) return std::nullopt;
  const auto before = std::ranges::count_if(axes, [&](std::int64_t axis) { return axis < dim; });
  return keepdims ? dim : dim - static_cast<int>(before);
}

// Over the samples of all ranks a sum is a sum of sums, a maximum the largest of them. `merges`:
// what the result is to be reduced by, where the op has it; `linear`: partial sums stay such.
std::vector<Placement> place_reduction(const PlaceCall& call, const Ints& axes, bool keepdims,
                                       std::optional<Placement::Reduction> merges, bool linear) {
  if (const auto settled = place_settled(call)) return *settled;
  const Placement& x = call.inputs[0];
  if (x.is_partial()) {
    const bool kept = x == Placement::partial() ? linear : merges == x.reduction;
    return kept ? call.all(x) : place_own(call);
  }
  if (const std::optional<int> dim = dim_left(call, axes, keepdims)) {
    return call.all(Placement::sharded(*dim));
  }
  return merges ? call.all(Placement::partial(*merges)) : place_own(call);
}

std::vector<Placement> place_sum(const PlaceCall& call) {
  return place_reduction(call, call.attrs().ints("axes"), call.attrs().flag("keepdims"),
                         Placement::Reduction::Sum, true);
}

// Ranks may have different numbers of samples: the mean over them is each rank's own.
std::vector<Placement> place_mean(const PlaceCall& call) {
  return place_reduction(call, call.attrs().ints("axes"), call.attrs().flag("keepdims"), {}, true);
}

std::vector<Placement> place_max(const PlaceCall& call) {
  return place_reduction(call, call.attrs().ints("axes"), call.attrs().flag("keepdims"),
                         Placement::Reduction::Max, false);
}

std::vector<Placement> place_argmax(const PlaceCall& call) {
  return place_reduction(call, {call.attrs().integer("axis")}, false, {}, false);
}

Value reduction(Op op, Value x, ReduceOptions options) {
  Ints axes = wrap_axes(x.shape(), std::move(options.axes));
  return x.graph().add1(op, {x}, {{"axes", std::move(axes)}, {"keepdims", options.keepdims}});
}

}  // namespace

Value reduce_sum(Value x, ReduceOptions options) {
  return reduction(Op::ReduceSum, x, std::move(options));
}

Value reduce_mean(Value x, ReduceOptions options) {
  return reduction(Op::ReduceMean, x, std::move(options));
}

Value reduce_max(Value x, ReduceOptions options) {
  return reduction(Op::ReduceMax, x, std::move(options));
}

Value argmax(Value x, int axis) {
  const std::int64_t wrapped = wrap_axes(x.shape(), {axis}).front();
  return x.graph().add1(Op::ArgMax, {x}, {{"axis", wrapped}});
}

Value sum_to(Value x, const Shape& shape) {
  if (x.shape() == shape) return x;
  const Shape target = shape;  // `shape` may refer into the graph, which is about to grow
  const int extra = x.shape().rank() - target.rank();
  ensure(extra >= 0, "a value of shape {} was not broadcast from {}", x.shape(), target);
  Ints axes;
  for (int axis = 0; axis < x.shape().rank(); ++axis) {
    if (axis < extra || (target[axis - extra] == 1 && x.shape()[axis] != 1)) axes.push_back(axis);
  }
  const Value sum = axes.empty() ? x : reduce_sum(x, {.axes = std::move(axes)});
  return sum.shape() == target ? sum : reshape(sum, target);
}

std::vector<OpDef> reduce_ops() {
  std::vector<OpDef> defs = {
      {Op::ReduceSum, "reduce_sum", PrecisionRule::Full, infer_reduction, grad_sum, cost},
      {Op::ReduceMean, "reduce_mean", PrecisionRule::Follow, infer_mean, grad_mean, cost},
      {Op::ReduceMax, "reduce_max", PrecisionRule::Follow, infer_reduction, grad_max, cost},
      {Op::ArgMax, "argmax", PrecisionRule::Full, infer_argmax, nullptr, cost},
  };
  defs[0].place = place_sum;
  defs[1].place = place_mean;
  defs[2].place = place_max;
  defs[3].place = place_argmax;
  return defs;
}

}  // namespace lockstep

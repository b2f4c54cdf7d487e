#include "lockstep/graph/ops/shape.h"

#include <algorithm>
#include <numeric>

#include "lockstep/base/error.h"
#include "lockstep/graph/op_def.h"
#include "lockstep/graph/ops/placement_rules.h"
#include "lockstep/graph/ops/reduce.h"

namespace lockstep {
namespace {

Ints ints_of(const Shape& shape) {
  return {shape.dims().begin(), shape.dims().end()};
}

std::size_t at(std::int64_t axis) {
  return static_cast<std::size_t>(axis);
}

// A negative axis counted from the front; the shape rule rejects what is outside the shape.
std::int64_t wrap_axis(const Shape& shape, std::int64_t axis) {
  return axis < 0 && axis >= -shape.rank() ? axis + shape.rank() : axis;
}

bool is_index(DType dtype) {
  return dtype == DType::I32 || dtype == DType::I64 || dtype == DType::U8;
}

void expect_axis(const Shape& shape, std::int64_t axis) {
  require(axis >= 0 && axis < shape.rank(), "axis {} is outside a value of shape {}", axis, shape);
}

void expect_one_per_axis(const Shape& shape, const Ints& list, std::string_view what) {
  require(std::cmp_equal(list.size(), shape.rank()), "{} [{}] needs one entry for each axis of {}",
          what, fmt::join(list, ", "), shape);
}

void expect_indices(const ValueType& type) {
  require(is_index(type.dtype), "indices must be integers, not {}; cast first", type.str());
}

// Shape rules.

std::vector<ValueType> infer_reshape(const OpCall& call) {
  const Shape& from = call.shape(0);
  Ints dims = call.attrs.ints("shape");
  const auto open = std::find(dims.begin(), dims.end(), -1);
  if (open != dims.end()) {
    const std::string requested = fmt::format("[{}]", fmt::join(dims, ", "));
    *open = 1;
    require(std::find(dims.begin(), dims.end(), -1) == dims.end(),
            "only one extent of {} may be -1", requested);
    const std::int64_t known = Shape(dims).elements();
    require(known > 0 && from.elements() % known == 0, "{} cannot be reshaped to {}", from,
            requested);
    *open = from.elements() / known;
  }
  Shape to(std::move(dims));
  require(to.elements() == from.elements(), "{} with {} elements cannot be reshaped to {} with {}",
          from, from.elements(), to, to.elements());
  return {{call.dtype(0), std::move(to)}};
}

std::vector<ValueType> infer_transpose(const OpCall& call) {
  const Shape& from = call.shape(0);
  const Ints& permutation = call.attrs.ints("permutation");
  Ints sorted = permutation;
  std::sort(sorted.begin(), sorted.end());
  Ints axes(at(from.rank()));
  std::iota(axes.begin(), axes.end(), 0);
  require(sorted == axes, "[{}] does not name each axis of {} once", fmt::join(permutation, ", "),
          from);
  Ints dims;
  for (std::int64_t axis : permutation) dims.push_back(from[static_cast<int>(axis)]);
  return {{call.dtype(0), Shape(std::move(dims))}};
}

std::vector<ValueType> infer_concat(const OpCall& call) {
  require(!call.inputs.empty(), "needs at least one value");
  const ValueType& first = call.inputs[0];
  const std::int64_t axis = call.attrs.integer("axis");
  expect_axis(first.shape, axis);
  const int a = static_cast<int>(axis);
  std::int64_t extent = 0;
  for (const ValueType& input : call.inputs) {
    const bool fits = input.dtype == first.dtype && input.shape.rank() == first.shape.rank() &&
                      input.shape.with(a, 0) == first.shape.with(a, 0);
    require(fits, "values differ in more than axis {}: {} and {}", axis, first.str(), input.str());
    extent += input.shape[a];
  }
  return {{first.dtype, first.shape.with(a, extent)}};
}

std::vector<ValueType> infer_split(const OpCall& call) {
  const Shape& from = call.shape(0);
  const std::int64_t axis = call.attrs.integer("axis");
  const Ints& sizes = call.attrs.ints("sizes");
  expect_axis(from, axis);
  std::int64_t total = 0;
  std::vector<ValueType> pieces;
  for (std::int64_t size : sizes) {
    require(size >= 0, "a size may not be negative: [{}]", fmt::join(sizes, ", "));
    total += size;
    pieces.push_back({call.dtype(0), from.with(static_cast<int>(axis), size)});
  }
  require(total == from[static_cast<int>(axis)], "sizes [{}] do not add up to axis {} of {}",
          fmt::join(sizes, ", "), axis, from);
  return pieces;
}

std::vector<ValueType> infer_slice(const OpCall& call) {
  const Shape& from = call.shape(0);
  const Ints& begin = call.attrs.ints("begin");
  const Ints& size = call.attrs.ints("size");
  expect_one_per_axis(from, begin, "begin");
  expect_one_per_axis(from, size, "size");
  for (int axis = 0; axis < from.rank(); ++axis) {
    require(begin[at(axis)] >= 0 && size[at(axis)] >= 0 &&
                begin[at(axis)] <= from[axis] - size[at(axis)],
            "begin [{}] with size [{}] exceeds {}", fmt::join(begin, ", "), fmt::join(size, ", "),
            from);
  }
  return {{call.dtype(0), Shape(size)}};
}

std::vector<ValueType> infer_pad(const OpCall& call) {
  const Shape& from = call.shape(0);
  const Ints& before = call.attrs.ints("before");
  const Ints& after = call.attrs.ints("after");
  expect_one_per_axis(from, before, "before");
  expect_one_per_axis(from, after, "after");
  Ints dims;
  for (int axis = 0; axis < from.rank(); ++axis) {
    require(before[at(axis)] >= 0 && after[at(axis)] >= 0,
            "padding may not be negative: before [{}], after [{}]", fmt::join(before, ", "),
            fmt::join(after, ", "));
    dims.push_back(before[at(axis)] + from[axis] + after[at(axis)]);
  }
  return {{call.dtype(0), Shape(std::move(dims))}};
}

std::vector<ValueType> infer_broadcast_to(const OpCall& call) {
  Shape to(call.attrs.ints("shape"));
  require(broadcast(call.shape(0), to) == to, "{} cannot be broadcast to {}", call.shape(0), to);
  return {{call.dtype(0), std::move(to)}};
}

std::vector<ValueType> infer_one_hot(const OpCall& call) {
  expect_indices(call.inputs[0]);
  const std::int64_t depth = call.attrs.integer("depth");
  require(depth > 0, "needs at least one class, not {}", depth);
  Ints dims = ints_of(call.shape(0));
  dims.push_back(depth);
  return {{dtype_named(call.attrs.text("dtype")), Shape(std::move(dims))}};
}

std::vector<ValueType> infer_gather(const OpCall& call) {
  expect_indices(call.inputs[1]);
  const Shape& table = call.shape(0);
  require(table.rank() > 0, "needs a table with rows, not {}", call.inputs[0].str());
  Ints dims = ints_of(call.shape(1));
  dims.insert(dims.end(), table.dims().begin() + 1, table.dims().end());
  return {{call.dtype(0), Shape(std::move(dims))}};
}

std::vector<ValueType> infer_gather_grad(const OpCall& call) {
  expect_indices(call.inputs[1]);
  const Shape& dy = call.shape(0);
  const Shape& indices = call.shape(1);
  const bool fits = dy.rank() >= indices.rank() &&
                    std::equal(indices.dims().begin(), indices.dims().end(), dy.dims().begin());
  require(fits, "gradient {} does not begin with the shape of the indices {}", dy, indices);
  Ints dims = {call.attrs.integer("rows")};
  dims.insert(dims.end(), dy.dims().begin() + indices.rank(), dy.dims().end());
  return {{call.dtype(0), Shape(std::move(dims))}};
}

// Gradient rules. Shapes are copied before nodes are added: they are stored in the graph, which
// grows.

std::vector<Value> grad_reshape(const GradCall& c) {
  return {reshape(c.grads[0], c.inputs[0].shape())};
}

std::vector<Value> grad_transpose(const GradCall& c) {
  const Ints& permutation = c.attrs.ints("permutation");
  Ints inverse(permutation.size());
  for (std::size_t i = 0; i < permutation.size(); ++i) {
    inverse[at(permutation[i])] = static_cast<std::int64_t>(i);
  }
  return {transpose(c.grads[0], std::move(inverse))};
}

std::vector<Value> grad_concat(const GradCall& c) {
  const int axis = static_cast<int>(c.attrs.integer("axis"));
  Ints sizes;
  for (const Value& input : c.inputs) sizes.push_back(input.shape()[axis]);
  return split(c.grads[0], std::move(sizes), axis);
}

std::vector<Value> grad_split(const GradCall& c) {
  const int axis = static_cast<int>(c.attrs.integer("axis"));
  std::vector<Value> pieces;
  for (std::size_t i = 0; i < c.outputs.size(); ++i) {
    const Shape shape = c.outputs[i].shape();
    const Value zero = c.grads[i].defined() ? Value() : c.graph.scalar(0, c.outputs[i].dtype());
    pieces.push_back(c.grads[i].defined() ? c.grads[i] : broadcast_to(zero, shape));
  }
  return {concat(pieces, axis)};
}

std::vector<Value> grad_slice(const GradCall& c) {
  const Ints before = c.attrs.ints("begin");
  const Ints& size = c.attrs.ints("size");
  Ints after = ints_of(c.inputs[0].shape());
  for (std::size_t axis = 0; axis < after.size(); ++axis) after[axis] -= before[axis] + size[axis];
  return {pad(c.grads[0], before, std::move(after))};
}

std::vector<Value> grad_pad(const GradCall& c) {
  const Ints before = c.attrs.ints("before");
  return {slice(c.grads[0], before, ints_of(c.inputs[0].shape()))};
}

std::vector<Value> grad_broadcast_to(const GradCall& c) {
  return {sum_to(c.grads[0], c.inputs[0].shape())};
}

std::vector<Value> grad_gather(const GradCall& c) {
  const std::int64_t rows = c.inputs[0].shape()[0];
  return {gather_grad(c.grads[0], c.inputs[1], rows), Value()};
}

std::vector<Value> grad_gather_grad(const GradCall& c) {
  return {gather(c.grads[0], c.inputs[1]), Value()};
}

// A gather moves only the rows that are indexed, not the whole table; its gradient also zeroes the
// table.
Cost cost_gather(const OpCall& call, std::span<const ValueType> outputs) {
  const auto moved = static_cast<double>(outputs[0].shape.elements());
  return {.flops = 0,
          .bytes = 2 * moved * static_cast<double>(size_of(outputs[0].dtype)) +
                   static_cast<double>(call.shape(1).elements()) *
                       static_cast<double>(size_of(call.dtype(1)))};
}

Cost cost_gather_grad(const OpCall& call, std::span<const ValueType> outputs) {
  const auto added = static_cast<double>(call.shape(0).elements());
  const auto table = static_cast<double>(outputs[0].shape.elements());
  return {.flops = added,
          .bytes = (3 * added + table) * static_cast<double>(size_of(outputs[0].dtype))};
}

// Ops that only move elements keep what is Partial; `place_slice` says what becomes of a slice.
template <class F>
std::vector<Placement> place_moved(const PlaceCall& call, F&& place_slice) {
  const bool sums = std::ranges::all_of(
      call.inputs, [&](const Placement& p) { return p.is_partial() && p == call.inputs[0]; });
  if (sums) return call.all(call.inputs[0]);
  if (const auto settled = place_settled(call)) return *settled;
  std::optional<int> dim;
  for (const Placement& p : call.inputs) {
    if (p.is_partial() || (dim && p.is_sharded() && p.dim != *dim)) return place_own(call);
    if (p.is_sharded()) dim = p.dim;
  }
  return place_slice(*dim);
}

std::int64_t elements_before(const Shape& shape, int dim) {
  std::int64_t elements = 1;
  for (int axis = 0; axis < dim; ++axis) elements *= shape[axis];
  return elements;
}

// A slice stays one where its dimension does. Slices along the first dimension lie one after the
// other in memory, whatever it is merged with or split into.
std::vector<Placement> place_reshape(const PlaceCall& call) {
  return place_moved(call, [&](int dim) {
    const Shape& from = call.shape(0);
    const Shape& to = call.output(0);
    const std::int64_t before = elements_before(from, dim);
    for (int axis = 0; axis < to.rank(); ++axis) {
      if (elements_before(to, axis) == before && to[axis] == from[dim]) {
        return call.all(Placement::sharded(axis));
      }
    }
    for (int axis = 0; before == 1 && axis < to.rank(); ++axis) {
      if (to[axis] == 1) continue;
      const std::int64_t larger = std::max(to[axis], from[dim]);
      const std::int64_t smaller = std::min(to[axis], from[dim]);
      if (smaller > 0 && larger % smaller == 0) return call.all(Placement::sharded(axis));
      break;
    }
    return place_own(call);
  });
}

std::vector<Placement> place_transpose(const PlaceCall& call) {
  return place_moved(call, [&](int dim) {
    const Ints& permutation = call.attrs().ints("permutation");
    const auto found = std::ranges::find(permutation, dim);
    return call.all(Placement::sharded(static_cast<int>(found - permutation.begin())));
  });
}

// Along the dimension of the slices, joining or cutting is each rank's own affair.
std::vector<Placement> place_along_axis(const PlaceCall& call) {
  return place_moved(call, [&](int dim) {
    return dim == call.attrs().integer("axis") ? place_own(call)
                                               : call.all(Placement::sharded(dim));
  });
}

std::vector<Placement> place_slice(const PlaceCall& call) {
  return place_moved(call, [&](int dim) {
    const bool whole = call.output(0)[dim] == call.shape(0)[dim];
    return whole ? call.all(Placement::sharded(dim)) : place_own(call);
  });
}

std::vector<Placement> place_pad(const PlaceCall& call) {
  const bool zeros = call.attrs().real("value") == 0.0;
  if (call.inputs[0].is_partial() && !zeros) return place_own(call);
  return place_slice(call);
}

std::vector<Placement> place_broadcast_to(const PlaceCall& call) {
  return place_moved(call, [&](int dim) {
    return call.all(Placement::sharded(dim + call.output(0).rank() - call.shape(0).rank()));
  });
}

std::vector<Placement> place_one_hot(const PlaceCall& call) {
  if (const auto settled = place_settled(call)) return *settled;
  return call.inputs[0].is_partial() ? place_own(call) : call.all(call.inputs[0]);
}

std::vector<Placement> place_gather(const PlaceCall& call) {
  if (const auto settled = place_settled(call)) return *settled;
  const Placement& table = call.inputs[0];
  const Placement& indices = call.inputs[1];
  if (table.is_replicated() && indices.is_sharded()) return call.all(indices);
  if (table == Placement::partial() && indices.is_replicated()) return call.all(table);
  return place_own(call);
}

// Adds up over the indices: a slice of them gives a summand.
std::vector<Placement> place_gather_grad(const PlaceCall& call) {
  if (const auto settled = place_settled(call)) return *settled;
  const Placement& dy = call.inputs[0];
  const Placement& indices = call.inputs[1];
  const bool same = indices.is_sharded() && (dy == indices || dy.is_replicated());
  const bool sums = dy == Placement::partial() && indices.is_replicated();
  return same || sums ? call.all(Placement::partial()) : place_own(call);
}

}  // namespace

Value reshape(Value x, Ints shape) {
  return x.graph().add1(Op::Reshape, {x}, {{"shape", std::move(shape)}});
}

Value transpose(Value x, Ints permutation) {
  for (std::int64_t& axis : permutation) axis = wrap_axis(x.shape(), axis);
  return x.graph().add1(Op::Transpose, {x}, {{"permutation", std::move(permutation)}});
}

Value concat(std::span<const Value> values, int axis) {
  require(!values.empty(), "[concat] needs at least one value");
  const std::int64_t wrapped = wrap_axis(values[0].shape(), axis);
  return values[0].graph().add(Op::Concat, values, {{"axis", wrapped}}).at(0);
}

std::vector<Value> split(Value x, Ints sizes, int axis) {
  const std::int64_t wrapped = wrap_axis(x.shape(), axis);
  return x.graph().add(Op::Split, {&x, 1}, {{"sizes", std::move(sizes)}, {"axis", wrapped}});
}

Value slice(Value x, Ints begin, Ints size) {
  for (std::size_t i = 0; i < std::min(begin.size(), size.size()); ++i) {
    if (size[i] == -1 && std::cmp_less(i, x.shape().rank())) {
      size[i] = x.shape()[static_cast<int>(i)] - begin[i];
    }
  }
  return x.graph().add1(Op::Slice, {x}, {{"begin", std::move(begin)}, {"size", std::move(size)}});
}

Value pad(Value x, Ints before, Ints after, double value) {
  return x.graph().add1(
      Op::Pad, {x}, {{"before", std::move(before)}, {"after", std::move(after)}, {"value", value}});
}

Value broadcast_to(Value x, const Shape& shape) {
  if (x.shape() == shape) return x;
  return x.graph().add1(Op::BroadcastTo, {x}, {{"shape", ints_of(shape)}});
}

Value one_hot(Value indices, std::int64_t depth, DType dtype) {
  return indices.graph().add1(Op::OneHot, {indices},
                              {{"depth", depth}, {"dtype", std::string(name_of(dtype))}});
}

Value gather(Value table, Value indices) {
  return table.graph().add1(Op::Gather, {table, indices});
}

Value gather_grad(Value dy, Value indices, std::int64_t rows) {
  return dy.graph().add1(Op::GatherGrad, {dy, indices}, {{"rows", rows}});
}

std::vector<OpDef> shape_ops() {
  std::vector<OpDef> defs = {
      {.op = Op::Reshape,
       .name = "reshape",
       .precision = PrecisionRule::Follow,
       .infer = infer_reshape,
       .gradient = grad_reshape,
       .view = true},
      {Op::Transpose, "transpose", PrecisionRule::Follow, infer_transpose, grad_transpose},
      {Op::Concat, "concat", PrecisionRule::Follow, infer_concat, grad_concat},
      {Op::Split, "split", PrecisionRule::Follow, infer_split, grad_split},
      {Op::Slice, "slice", PrecisionRule::Follow, infer_slice, grad_slice},
      {Op::Pad, "pad", PrecisionRule::Follow, infer_pad, grad_pad},
      {Op::BroadcastTo, "broadcast_to", PrecisionRule::Follow, infer_broadcast_to,
       grad_broadcast_to},
      {Op::OneHot, "one_hot", PrecisionRule::Full, infer_one_hot},
      {Op::Gather, "gather", PrecisionRule::Table, infer_gather, grad_gather, cost_gather},
      {Op::GatherGrad, "gather_grad", PrecisionRule::Full, infer_gather_grad, grad_gather_grad,
       cost_gather_grad},
  };
  constexpr decltype(OpDef::place) kRules[] = {
      place_reshape, place_transpose,    place_along_axis, place_along_axis, place_slice,
      place_pad,     place_broadcast_to, place_one_hot,    place_gather,     place_gather_grad};
  for (std::size_t i = 0; i < defs.size(); ++i) defs[i].place = kRules[i];
  return defs;
}

}  // namespace lockstep

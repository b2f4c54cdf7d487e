#include "lockstep/nn/labels.h"

#include "lockstep/base/error.h"
#include "lockstep/graph/ops/elementwise.h"
#include "lockstep/graph/ops/reduce.h"
#include "lockstep/graph/ops/shape.h"

namespace lockstep {
namespace {

Ints dims_of(const Shape& shape) {
  return {shape.dims().begin(), shape.dims().end()};
}

Shape without_last(const Shape& shape) {
  return Shape(std::vector<std::int64_t>(shape.dims().begin(), shape.dims().end() - 1));
}

// Floats as i64; -1, which is not a class, for what is not a whole number. (A cast would turn 2.7
// into class 2, and is undefined for NaN and for what is too large.)
Value whole_numbers(Value x) {
  Graph& graph = x.graph();
  const Value bounded =
      select(less(abs(x), graph.scalar(2147483648.0, x.dtype())), x, graph.scalar(-1, x.dtype()));
  const Value whole = cast(bounded, DType::I64);
  return select(equal(cast(whole, x.dtype()), x), whole, graph.scalar(-1, DType::I64));
}

bool has_spare_axis(const Shape& shape, const Shape& other) {
  return shape.rank() == other.rank() + 1 && shape[-1] == 1;
}

}  // namespace

Aligned align(std::string_view what, Value labels, Value predictions) {
  require(is_floating(predictions.dtype()), "[{}] predictions must be floats, got {}", what,
          predictions.type().str());
  const bool spare_label = has_spare_axis(labels.shape(), predictions.shape());
  const bool spare_prediction = has_spare_axis(predictions.shape(), labels.shape());
  const Shape plain = spare_label ? without_last(labels.shape()) : labels.shape();
  const Shape wanted = spare_prediction ? without_last(predictions.shape()) : predictions.shape();
  require(plain == wanted, "[{}] labels {} do not match predictions {}: their shapes must be equal",
          what, labels.shape(), predictions.shape());
  if (labels.shape() != predictions.shape()) labels = reshape(labels, predictions.shape());
  return {cast(labels, predictions.dtype()), predictions};
}

Value class_labels(std::string_view what, Value labels, Value scores) {
  require(scores.shape().rank() >= 2, "[{}] predictions must be (N, …, classes), got {}", what,
          scores.shape());
  const Shape rows = without_last(scores.shape());
  const Shape plain =
      has_spare_axis(labels.shape(), rows) ? without_last(labels.shape()) : labels.shape();
  require(plain == rows,
          "[{}] labels {} do not match predictions {}: there must be one class number per row, {}",
          what, labels.shape(), scores.shape(), rows);
  if (labels.shape() != rows) labels = reshape(labels, rows);
  if (is_floating(labels.dtype())) return whole_numbers(labels);
  return labels.dtype() == DType::Bool ? cast(labels, DType::I64) : labels;
}

Value fit_weights(std::string_view what, Value weights, Value values) {
  const Shape given = weights.shape();
  if (has_spare_axis(given, values.shape())) {
    weights = reshape(weights, without_last(given));
  }
  Ints dims = dims_of(weights.shape());
  bool fits = !dims.empty() && weights.shape().rank() <= values.shape().rank();
  for (std::size_t i = 0; fits && i < dims.size(); ++i) {
    const std::int64_t extent = values.shape()[static_cast<int>(i)];
    fits = dims[i] == extent || (i > 0 && dims[i] == 1);
  }
  require(fits, "[{}] sample weights {} do not match losses or scores {}: give one per sample, {}",
          what, given, values.shape(), Shape{values.shape().rank() > 0 ? values.shape()[0] : 1});
  if (weights.shape().rank() < values.shape().rank()) {
    dims.resize(static_cast<std::size_t>(values.shape().rank()), 1);
    weights = reshape(weights, std::move(dims));
  }
  return cast(weights, values.dtype());
}

Value mean_over_features(Value x) {
  return x.shape().rank() <= 1 ? x : reduce_mean(x, {.axes = {-1}});
}

}  // namespace lockstep

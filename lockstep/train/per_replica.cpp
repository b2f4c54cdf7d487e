#include "lockstep/train/per_replica.h"

#include <cstring>

#include "lockstep/base/error.h"

namespace lockstep {
namespace {

// Adds up rows, in f64.
template <class T>
void add_rows(const Tensor& from, std::span<double> sums) {
  const std::span<const T> values = from.values<T>();
  for (std::size_t i = 0; i < values.size(); ++i) {
    sums[i % sums.size()] += static_cast<double>(values[i]);
  }
}

Tensor from_doubles(std::span<const double> values, DType dtype, Shape shape) {
  return Tensor::of(values, std::move(shape)).cast(dtype);
}

}  // namespace

PerReplica::PerReplica(std::vector<Tensor> values, std::vector<Tensor> weights)
    : values_(std::move(values)), weights_(std::move(weights)) {
  ensure(weights_.empty() || weights_.size() == values_.size(), "{} weights for {} values",
         weights_.size(), values_.size());
}

PerReplica::PerReplica(std::shared_ptr<PendingResults> results, std::size_t value,
                       std::optional<std::size_t> weight)
    : pending_(std::move(results)), value_(value), weight_(weight) {}

void PerReplica::read() const {
  if (pending_ == nullptr) return;
  std::vector<Tensor> values = pending_->read(value_);
  if (weight_) weights_ = pending_->read(*weight_);
  values_ = std::move(values);
  pending_ = nullptr;
}

const std::vector<Tensor>& PerReplica::values() const {
  read();
  return values_;
}

const std::vector<Tensor>& PerReplica::weights() const {
  read();
  return weights_;
}

const Tensor& PerReplica::at(int replica) const {
  require(defined(), "[per replica] there is no value");
  read();
  if (values_.size() == 1) return values_.front();
  require(replica >= 0 && static_cast<std::size_t>(replica) < values_.size(),
          "[per replica] there are values of {} replicas, but none of replica {}", values_.size(),
          replica);
  return values_[static_cast<std::size_t>(replica)];
}

Reduced reduce_values(ReduceOp op, const PerReplica& values, int replicas,
                      const ReduceValuesOptions& options) {
  require(values.defined(), "[reduce] there is no value");
  require(!options.axis || *options.axis == 0,
          "[reduce] axis = {}: values are reduced over the replicas, or with axis = 0 over their "
          "samples too",
          options.axis.value_or(0));
  const Tensor& first = values.at(0);
  require(!options.axis || first.shape().rank() > 0,
          "[reduce] a scalar has no axis 0: reduce it without axis");
  Shape shape = first.shape();
  if (options.axis) {
    shape = Shape(std::vector<std::int64_t>(shape.dims().begin() + 1, shape.dims().end()));
  }
  std::vector<double> sums(static_cast<std::size_t>(shape.elements()), 0.0);
  double rows = 0;
  double weight = 0;
  for (int r = 0; r < replicas; ++r) {
    const Tensor& value = values.at(r);
    const bool same_shape = options.axis ? value.shape().rank() == first.shape().rank() &&
                                               value.shape().with(0, 0) == first.shape().with(0, 0)
                                         : value.shape() == first.shape();
    require(same_shape, "[reduce] the values have the shapes {} and {}{}", first.shape(),
            value.shape(), options.axis ? "" : ": use axis = 0 to reduce over samples");
    if (value.elements() > 0) {
      dispatch(value.dtype(), [&](auto zero) { add_rows<decltype(zero)>(value, sums); });
    }
    rows += options.axis ? static_cast<double>(value.shape()[0]) : 1.0;
    if (!values.weights().empty()) {
      weight +=
          values.weights()[values.weights().size() == 1 ? 0 : static_cast<std::size_t>(r)].item();
    }
  }
  if (op == ReduceOp::Mean) {
    const double by = values.weights().empty() ? rows : weight;
    for (double& sum : sums) sum = by > 0 ? sum / by : 0.0;
  }
  const bool keeps_integers = op == ReduceOp::Sum || is_floating(first.dtype());
  return {from_doubles(sums, keeps_integers ? first.dtype() : DType::F64, shape)};
}

Tensor gather_values(const PerReplica& values, int axis) {
  require(values.defined(), "[gather] there is no value");
  const Tensor& first = values.values().front();
  const int rank = first.shape().rank();
  require(axis >= -rank && axis < rank, "[gather] there is no axis {} in the shape {}", axis,
          first.shape());
  if (axis < 0) axis += rank;
  std::int64_t extent = 0;
  for (const Tensor& value : values.values()) {
    require(
        value.shape().rank() == rank && value.shape().with(axis, 0) == first.shape().with(axis, 0),
        "[gather] {} and {} differ in more than axis {}", first.shape(), value.shape(), axis);
    extent += value.shape()[axis];
  }
  Tensor whole(first.dtype(), first.shape().with(axis, extent));
  std::int64_t outer = 1;
  for (int i = 0; i < axis; ++i) outer *= first.shape()[i];
  std::size_t offset = 0;
  for (std::int64_t row = 0; row < outer; ++row) {
    for (const Tensor& value : values.values()) {
      const std::size_t bytes = value.bytes() / static_cast<std::size_t>(outer);
      if (bytes == 0) continue;
      std::memcpy(whole.raw() + offset, value.raw() + static_cast<std::size_t>(row) * bytes, bytes);
      offset += bytes;
    }
  }
  return whole;
}

}  // namespace lockstep

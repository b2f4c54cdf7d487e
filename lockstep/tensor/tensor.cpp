#include "lockstep/tensor/tensor.h"

#include <algorithm>
#include <cmath>

#include "lockstep/base/convert.h"

namespace lockstep {
namespace {

// The largest number of classes that to_categorical infers from labels.
constexpr double kMostClasses = 2147483647;

// Whether the host can read and write the elements directly.
bool host_reads(const Tensor& tensor) {
  return !tensor.defined() || tensor.buffer()->device().shares_host_memory();
}

}  // namespace

Tensor::Tensor(DType dtype, Shape shape, Device& device)
    : dtype_(dtype),
      shape_(std::move(shape)),
      buffer_(device.allocate(static_cast<std::size_t>(shape_.elements()) * size_of(dtype))) {}

Tensor::Tensor(DType dtype, Shape shape, std::shared_ptr<Buffer> buffer, std::size_t offset)
    : dtype_(dtype), shape_(std::move(shape)), buffer_(std::move(buffer)), offset_(offset) {
  ensure(offset_ + bytes() <= buffer_->bytes(), "a view of {} bytes at {} exceeds a buffer of {}",
         bytes(), offset_, buffer_->bytes());
}

double Tensor::item() const {
  require(elements() == 1, "[tensor] item() needs one element; the shape is {}", shape_);
  if (!host_reads(*this)) return lockstep::on_host(*this).item();
  return dispatch(dtype_, [&](auto zero) {
    return static_cast<double>(*reinterpret_cast<const decltype(zero)*>(raw()));
  });
}

Tensor Tensor::operator[](std::int64_t index) const {
  require(defined(), "[tensor] there is no tensor to read");
  require(shape_.rank() > 0, "[tensor] a scalar has no axis to index: item() gives its value");
  const std::int64_t at = index < 0 ? index + shape_[0] : index;
  require(at >= 0 && at < shape_[0], "[tensor] index {} is outside the first axis of {}", index,
          shape_);
  const std::span<const std::int64_t> inner = shape_.dims().subspan(1);
  return rows(at, 1).reshaped(Shape(std::vector<std::int64_t>(inner.begin(), inner.end())));
}

std::size_t Tensor::place_of(std::initializer_list<std::int64_t> indices) const {
  require(static_cast<int>(indices.size()) == shape_.rank(),
          "[tensor] {} indices are given for the {} axes of {}", indices.size(), shape_.rank(),
          shape_);
  std::int64_t place = 0;
  int axis = 0;
  for (const std::int64_t index : indices) {
    const std::int64_t extent = shape_[axis++];
    const std::int64_t at = index < 0 ? index + extent : index;
    require(at >= 0 && at < extent, "[tensor] index {} is outside axis {} of {}", index, axis - 1,
            shape_);
    place = place * extent + at;
  }
  return static_cast<std::size_t>(place);
}

Tensor Tensor::clone() const {
  Tensor copy(dtype_, shape_, buffer_->device());
  copy.copy_from(*this);
  return copy;
}

Tensor Tensor::reshaped(Shape shape) const {
  require(shape.elements() == elements(), "[tensor] {} cannot be reshaped to {}", shape_, shape);
  return Tensor(dtype_, std::move(shape), buffer_, offset_);
}

Tensor Tensor::rows(std::int64_t begin, std::int64_t count) const {
  require(shape_.rank() > 0 && begin >= 0 && count >= 0 && begin + count <= shape_[0],
          "[tensor] rows {} to {} are outside the shape {}", begin, begin + count, shape_);
  const std::int64_t row = shape_[0] == 0 ? 0 : elements() / shape_[0];
  return Tensor(dtype_, shape_.with(0, count), buffer_,
                offset_ + static_cast<std::size_t>(begin * row) * size_of(dtype_));
}

Tensor Tensor::cast(DType dtype) const {
  if (dtype == dtype_) return *this;
  if (!host_reads(*this)) {
    Tensor there(dtype, shape_, buffer_->device());
    there.copy_from(lockstep::on_host(*this).cast(dtype));
    return there;
  }
  Tensor result(dtype, shape_, buffer_->device());
  const std::int64_t count = elements();
  dispatch(dtype_, [&](auto from) {
    dispatch(dtype, [&](auto to) {
      const auto* source = reinterpret_cast<const decltype(from)*>(raw());
      auto* target = reinterpret_cast<decltype(to)*>(result.raw());
      for (std::int64_t i = 0; i < count; ++i) target[i] = convert<decltype(to)>(source[i]);
    });
  });
  return result;
}

void Tensor::copy_from(const Tensor& other) {
  require(dtype_ == other.dtype_ && shape_ == other.shape_, "[tensor] cannot copy {} {} into {} {}",
          name_of(other.dtype_), other.shape_, name_of(dtype_), shape_);
  if (bytes() == 0) return;
  if (!host_reads(*this) && !host_reads(other)) {  // devices copy from and to the host only
    copy_from(lockstep::on_host(other));
  } else if (!host_reads(*this)) {
    buffer_->device().copy(raw(), other.raw(), bytes());
  } else if (!host_reads(other)) {
    other.buffer_->device().copy(raw(), other.raw(), bytes());
  } else {
    std::memmove(raw(), other.raw(), bytes());
  }
}

bool Tensor::same_bits(const Tensor& other) const {
  if (!host_reads(*this)) return lockstep::on_host(*this).same_bits(other);
  if (!host_reads(other)) return same_bits(lockstep::on_host(other));
  return dtype_ == other.dtype_ && shape_ == other.shape_ &&
         (bytes() == 0 || std::memcmp(raw(), other.raw(), bytes()) == 0);
}

Tensor concatenate_rows(std::span<const Tensor> parts, const char* caller) {
  std::int64_t rows = 0;
  for (const Tensor& part : parts) {
    const Shape& shape = part.shape();
    require(shape.rank() > 0 && shape.with(0, 0) == parts.front().shape().with(0, 0),
            "[{}] values of different shapes, {} and {}, cannot be concatenated: take them "
            "batch by batch",
            caller, parts.front().shape(), shape);
    rows += shape[0];
  }
  Tensor whole(parts.front().dtype(), parts.front().shape().with(0, rows));
  std::int64_t row = 0;
  for (const Tensor& part : parts) {
    whole.rows(row, part.shape()[0]).copy_from(part);
    row += part.shape()[0];
  }
  return whole;
}

Tensor on_host(const Tensor& tensor) {
  Tensor copy(tensor.dtype(), tensor.shape());
  copy.copy_from(tensor);
  return copy;
}

Tensor to_categorical(const Tensor& labels, std::optional<std::int64_t> num_classes) {
  require(labels.defined(), "[to_categorical] there are no labels");
  std::vector<std::int64_t> dims(labels.shape().dims().begin(), labels.shape().dims().end());
  if (dims.size() > 1 && dims.back() == 1) dims.pop_back();
  const Tensor wide = (host_reads(labels) ? labels : on_host(labels))
                          .cast(DType::F64);  // whole numbers up to 2^53 are exact
  const std::span<const double> values = wide.values<double>();
  double largest = -1.0;
  for (std::size_t i = 0; i < values.size(); ++i) {
    // The limit is far above any class. NaN, and what exceeds 2^63, could not even be converted.
    if (!num_classes && !(std::abs(values[i]) <= kMostClasses)) {
      fail<DataError>(
          "[to_categorical] label {} is {}, which is not a class: classes are whole "
          "numbers from 0 to {}",
          i, values[i], kMostClasses);
    }
    largest = std::max(largest, values[i]);
  }
  const std::int64_t classes = num_classes ? *num_classes : static_cast<std::int64_t>(largest) + 1;
  require(classes > 0, "[to_categorical] num_classes must be above 0, got {}", classes);
  dims.push_back(classes);
  Tensor rows(DType::F32, Shape(std::move(dims)));
  const std::span<float> ones = rows.values<float>();
  for (std::size_t i = 0; i < values.size(); ++i) {
    const bool is_class = values[i] >= 0 && values[i] < static_cast<double>(classes) &&
                          values[i] == std::floor(values[i]);
    if (!is_class) {
      fail<DataError>("[to_categorical] label {} is {}, which is not one of {} classes", i,
                      values[i], classes);
    }
    ones[i * static_cast<std::size_t>(classes) + static_cast<std::size_t>(values[i])] = 1.0f;
  }
  return rows;
}

void Tensor::expect(DType dtype) const {
  require(defined(), "[tensor] there is no tensor to read");
  require(dtype == dtype_, "[tensor] read as {}, but its elements are {}", name_of(dtype),
          name_of(dtype_));
  require(host_reads(*this),
          "[tensor] its elements are on {}, which the host cannot read: use on_host(tensor)",
          buffer_->device().name());
}

}  // namespace lockstep

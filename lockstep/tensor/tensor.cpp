#include "lockstep/tensor/tensor.h"

#include "lockstep/base/convert.h"

namespace lockstep {

Tensor::Tensor(DType dtype, Shape shape, Device& device)
    : dtype_(dtype),
      shape_(std::move(shape)),
      buffer_(device.allocate(static_cast<std::size_t>(shape_.elements()) * size_of(dtype))) {}

Tensor::Tensor(DType dtype, Shape shape, std::shared_ptr<Buffer> buffer, std::size_t offset)
    : dtype_(dtype), shape_(std::move(shape)), buffer_(std::move(buffer)), offset_(offset) {
  ensure(offset_ + bytes() <= buffer_->bytes(), "a view of {} bytes at {} leaves a buffer of {}",
         bytes(), offset_, buffer_->bytes());
}

double Tensor::item() const {
  require(elements() == 1, "[tensor] item() needs one element; the shape is {}", shape_);
  return dispatch(dtype_, [&](auto zero) {
    return static_cast<double>(*reinterpret_cast<const decltype(zero)*>(raw()));
  });
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
  Tensor result(dtype, shape_, buffer_->device());
  dispatch(dtype_, [&](auto from) {
    dispatch(dtype, [&](auto to) {
      const auto* source = reinterpret_cast<const decltype(from)*>(raw());
      auto* target = reinterpret_cast<decltype(to)*>(result.raw());
      for (std::int64_t i = 0; i < elements(); ++i) target[i] = convert<decltype(to)>(source[i]);
    });
  });
  return result;
}

void Tensor::copy_from(const Tensor& other) {
  require(dtype_ == other.dtype_ && shape_ == other.shape_, "[tensor] cannot copy {} {} into {} {}",
          name_of(other.dtype_), other.shape_, name_of(dtype_), shape_);
  if (bytes() > 0) std::memmove(raw(), other.raw(), bytes());
}

bool Tensor::same_bits(const Tensor& other) const {
  return dtype_ == other.dtype_ && shape_ == other.shape_ &&
         (bytes() == 0 || std::memcmp(raw(), other.raw(), bytes()) == 0);
}

Tensor concatenate_rows(std::span<const Tensor> parts, const char* caller) {
  std::int64_t rows = 0;
  for (const Tensor& part : parts) {
    const Shape& shape = part.shape();
    require(shape.rank() > 0 && shape.with(0, 0) == parts.front().shape().with(0, 0),
            "[{}] values of different shapes, {} and {}, cannot stand behind one another: take "
            "them batch by batch",
            caller, parts.front().shape(), shape);
    rows += shape[0];
  }
  Tensor whole(parts.front().dtype(), parts.front().shape().with(0, rows));
  std::size_t offset = 0;
  for (const Tensor& part : parts) {
    if (part.bytes() > 0) std::memcpy(whole.raw() + offset, part.raw(), part.bytes());
    offset += part.bytes();
  }
  return whole;
}

Tensor on_host(const Tensor& tensor) {
  Tensor copy(tensor.dtype(), tensor.shape());
  copy.copy_from(tensor);
  return copy;
}

void Tensor::expect(DType dtype) const {
  require(defined(), "[tensor] there is no tensor to read");
  require(dtype == dtype_, "[tensor] read as {}, but its elements are {}", name_of(dtype),
          name_of(dtype_));
}

}  // namespace lockstep

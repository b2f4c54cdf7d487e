// Tensor: a dtype, a shape and a view of a Buffer. Concrete, contiguous, row-major. Copies share
// the memory; clone() does not.
#pragma once

#include <cstring>
#include <memory>
#include <span>
#include <vector>

#include "lockstep/base/dtype.h"
#include "lockstep/base/error.h"
#include "lockstep/base/half.h"
#include "lockstep/base/shape.h"
#include "lockstep/device/cpu/cpu_device.h"
#include "lockstep/device/device.h"

namespace lockstep {

class Tensor {
 public:
  Tensor() = default;  // no tensor: defined() is false
  // Zeros.
  Tensor(DType dtype, Shape shape, Device& device = host());
  // A view of memory that somebody else filled.
  Tensor(DType dtype, Shape shape, std::shared_ptr<Buffer> buffer, std::size_t offset);

  // A tensor with these values, row-major; UsageError where their number is not the shape's.
  template <class T>
  static Tensor of(std::span<const T> values, Shape shape);
  template <class T>
  static Tensor of(const std::vector<T>& values, Shape shape) {
    return of(std::span<const T>(values), std::move(shape));
  }
  template <class T>
  static Tensor scalar(T value) {
    return of(std::span<const T>(&value, 1), Shape{});
  }

  bool defined() const { return buffer_ != nullptr; }
  DType dtype() const { return dtype_; }
  const Shape& shape() const { return shape_; }
  std::int64_t elements() const { return shape_.elements(); }
  std::size_t bytes() const { return static_cast<std::size_t>(elements()) * size_of(dtype_); }

  // Where the memory of a defined tensor lies: a block that others may share, and how far into it.
  const std::shared_ptr<Buffer>& buffer() const { return buffer_; }
  std::size_t offset() const { return offset_; }
  std::byte* raw() { return buffer_->data() + offset_; }
  const std::byte* raw() const { return buffer_->data() + offset_; }
  // The elements; UsageError where T is not the dtype.
  template <class T>
  std::span<T> values();
  template <class T>
  std::span<const T> values() const;
  // The one element of a tensor that has one, as a double.
  double item() const;

  Tensor clone() const;
  // The same memory under another shape with as many elements.
  Tensor reshaped(Shape shape) const;
  // Rows [begin, begin + count) of the outermost axis; shares the memory.
  Tensor rows(std::int64_t begin, std::int64_t count) const;
  // The elements converted to another dtype (a copy; the same tensor where it has it already).
  Tensor cast(DType dtype) const;
  // Copies values from a tensor of the same dtype and shape.
  void copy_from(const Tensor& other);
  // Whether dtype, shape and every byte agree.
  bool same_bits(const Tensor& other) const;

 private:
  void expect(DType dtype) const;

  DType dtype_ = DType::F32;
  Shape shape_;
  std::shared_ptr<Buffer> buffer_;
  std::size_t offset_ = 0;
};

// Tensors one behind the other along axis 0, in the host's memory; UsageError where they differ
// otherwise. `caller` begins the message.
Tensor concatenate_rows(std::span<const Tensor> parts, const char* caller);
// A copy in the host's memory.
Tensor on_host(const Tensor& tensor);

template <class T>
Tensor Tensor::of(std::span<const T> values, Shape shape) {
  require(static_cast<std::int64_t>(values.size()) == shape.elements(),
          "[tensor] {} values do not fill the shape {}", values.size(), shape);
  Tensor tensor(dtype_of<T>(), std::move(shape));
  if (!values.empty()) std::memcpy(tensor.raw(), values.data(), values.size_bytes());
  return tensor;
}

template <class T>
std::span<T> Tensor::values() {
  expect(dtype_of<T>());
  return {reinterpret_cast<T*>(raw()), static_cast<std::size_t>(elements())};
}

template <class T>
std::span<const T> Tensor::values() const {
  expect(dtype_of<T>());
  return {reinterpret_cast<const T*>(raw()), static_cast<std::size_t>(elements())};
}

// Calls f with a value of the C++ type that stores a dtype: dispatch(d, [&](auto zero) { using T =
// decltype(zero); ... }). Half and BFloat16 compute as the floats that they widen to; what is
// computed is a float, which static_cast<T> rounds.
template <class F>
decltype(auto) dispatch(DType dtype, F&& f) {
  switch (dtype) {
    case DType::F32:
      return f(float{});
    case DType::F64:
      return f(double{});
    case DType::I32:
      return f(std::int32_t{});
    case DType::I64:
      return f(std::int64_t{});
    case DType::U8:
      return f(std::uint8_t{});
    case DType::Bool:
      return f(bool{});
    case DType::F16:
      return f(Half{});
    case DType::BF16:
      return f(BFloat16{});
  }
  fail<InternalError>("unknown dtype {}", static_cast<int>(dtype));
}

}  // namespace lockstep

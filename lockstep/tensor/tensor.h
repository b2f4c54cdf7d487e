// Tensor: a dtype, a shape and a view of a Buffer. Concrete, contiguous, row-major. Copies share
// memory; clone() does not.
#pragma once

#include <fmt/format.h>

#include <concepts>
#include <cstring>
#include <initializer_list>
#include <iosfwd>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <type_traits>
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
  // A view of existing memory.
  Tensor(DType dtype, Shape shape, std::shared_ptr<Buffer> buffer, std::size_t offset);

  // A tensor with these values, row-major; UsageError if their number does not match the shape.
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
  // A tensor of up to three axes from nested braces: Tensor::from({{1, 2}, {3, 4}}). Unless a dtype
  // is given, integers become i32 (i64 if they have 64 bits) and floats f32, as in TensorFlow.
  template <class T>
  requires std::is_arithmetic_v<T>
  static Tensor from(std::initializer_list<T> values, std::optional<DType> dtype = {});
  template <class T>
  static Tensor from(std::initializer_list<std::initializer_list<T>> rows,
                     std::optional<DType> dtype = {});
  template <class T>
  static Tensor from(
      std::initializer_list<std::initializer_list<std::initializer_list<T>>> matrices,
      std::optional<DType> dtype = {});

  bool defined() const { return buffer_ != nullptr; }
  DType dtype() const { return dtype_; }
  const Shape& shape() const { return shape_; }
  std::int64_t elements() const { return shape_.elements(); }
  std::size_t bytes() const { return static_cast<std::size_t>(elements()) * size_of(dtype_); }

  // The memory of a defined tensor: a block that others may share, and the offset into it.
  const std::shared_ptr<Buffer>& buffer() const { return buffer_; }
  std::size_t offset() const { return offset_; }
  std::byte* raw() { return buffer_->data() + offset_; }
  const std::byte* raw() const { return buffer_->data() + offset_; }
  // The elements; UsageError if T is not the dtype.
  template <class T>
  std::span<T> values();
  template <class T>
  std::span<const T> values() const;
  // The value of a tensor with one element, as a double.
  double item() const;
  // The tensor at an index of the outermost axis, without that axis; shares the memory. Negative
  // indices count from the end, as in Python.
  Tensor operator[](std::int64_t index) const;
  // The element at one index per axis: t.at<float>(1, -1). UsageError if T is not the dtype.
  template <class T, std::integral... Index>
  T& at(Index... indices) {
    return values<T>()[place_of({static_cast<std::int64_t>(indices)...})];
  }
  template <class T, std::integral... Index>
  const T& at(Index... indices) const {
    return values<T>()[place_of({static_cast<std::int64_t>(indices)...})];
  }
  // Values, shape and dtype, as NumPy prints them; with more than a thousand elements, only the
  // first and last three along each axis.
  std::string str() const;

  Tensor clone() const;
  // The same memory under another shape with as many elements.
  Tensor reshaped(Shape shape) const;
  // Rows [begin, begin + count) of the outermost axis; shares the memory.
  Tensor rows(std::int64_t begin, std::int64_t count) const;
  // The elements converted to another dtype (a copy, or the same tensor if it already has that
  // dtype).
  Tensor cast(DType dtype) const;
  // Copies values from a tensor of the same dtype and shape.
  void copy_from(const Tensor& other);
  // Whether dtype, shape and every byte agree.
  bool same_bits(const Tensor& other) const;

 private:
  template <class T>
  using Wide = std::conditional_t<std::is_floating_point_v<T>, double, std::int64_t>;
  template <class T>
  static constexpr DType literal_dtype();
  void expect(DType dtype) const;
  std::size_t place_of(std::initializer_list<std::int64_t> indices) const;

  DType dtype_ = DType::F32;
  Shape shape_;
  std::shared_ptr<Buffer> buffer_;
  std::size_t offset_ = 0;
};

// The tensors concatenated along axis 0, in host memory; UsageError, beginning with `caller`, if
// their other axes differ.
Tensor concatenate_rows(std::span<const Tensor> parts, const char* caller);
// A copy in host memory.
Tensor on_host(const Tensor& tensor);

std::ostream& operator<<(std::ostream& stream, const Tensor& tensor);
// "[Tensor(…), Tensor(…)]": the tensors of a batch.
std::ostream& operator<<(std::ostream& stream, const std::vector<Tensor>& tensors);

// One-hot rows: (N…) class numbers → f32 (N…, num_classes); (N, 1) counts as (N). Without
// num_classes, one more than the largest label. DataError for a label that is not a class.
Tensor to_categorical(const Tensor& labels, std::optional<std::int64_t> num_classes = {});

template <class T>
Tensor Tensor::of(std::span<const T> values, Shape shape) {
  require(static_cast<std::int64_t>(values.size()) == shape.elements(),
          "[tensor] {} values do not fill the shape {}", values.size(), shape);
  Tensor tensor(dtype_of<T>(), std::move(shape));
  if (!values.empty()) std::memcpy(tensor.raw(), values.data(), values.size_bytes());
  return tensor;
}

template <class T>
constexpr DType Tensor::literal_dtype() {
  if constexpr (std::is_same_v<T, bool>) return DType::Bool;
  if constexpr (std::is_floating_point_v<T>) return DType::F32;
  if constexpr (std::is_same_v<T, std::uint8_t>) return DType::U8;
  return sizeof(T) == sizeof(std::int64_t) ? DType::I64 : DType::I32;
}

template <class T>
requires std::is_arithmetic_v<T> Tensor Tensor::from(std::initializer_list<T> values,
                                                     std::optional<DType> dtype) {
  const std::vector<Wide<T>> wide(values.begin(), values.end());
  return of(wide, {static_cast<std::int64_t>(wide.size())})
      .cast(dtype.value_or(literal_dtype<T>()));
}

template <class T>
Tensor Tensor::from(std::initializer_list<std::initializer_list<T>> rows,
                    std::optional<DType> dtype) {
  std::vector<Wide<T>> wide;
  const std::size_t columns = rows.size() == 0 ? 0 : rows.begin()->size();
  for (const auto& row : rows) {
    require(row.size() == columns, "[tensor] a row has {} values, but the first has {}", row.size(),
            columns);
    wide.insert(wide.end(), row.begin(), row.end());
  }
  return of(wide, {static_cast<std::int64_t>(rows.size()), static_cast<std::int64_t>(columns)})
      .cast(dtype.value_or(literal_dtype<T>()));
}

template <class T>
Tensor Tensor::from(std::initializer_list<std::initializer_list<std::initializer_list<T>>> matrices,
                    std::optional<DType> dtype) {
  std::vector<Tensor> parts;
  for (const auto& matrix : matrices) {
    const Tensor part = from(matrix, dtype);
    parts.push_back(part.reshaped({1, part.shape()[0], part.shape()[1]}));
  }
  if (parts.empty()) return Tensor(dtype.value_or(literal_dtype<T>()), {0, 0, 0});
  return concatenate_rows(parts, "tensor");
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
// decltype(zero); ... }). Half and BFloat16 widen to float in arithmetic; static_cast<T> rounds the
// result.
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

template <>
struct fmt::formatter<lockstep::Tensor> : fmt::formatter<std::string> {
  template <class Context>
  auto format(const lockstep::Tensor& tensor, Context& context) const {
    return fmt::formatter<std::string>::format(tensor.str(), context);
  }
};

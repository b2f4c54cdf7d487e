// Shape: the extents of a tensor, outermost first. Extents are known and never negative.
#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <initializer_list>
#include <span>
#include <string>
#include <vector>

namespace lockstep {

class Shape {
 public:
  Shape() = default;  // a scalar
  Shape(std::initializer_list<std::int64_t> dims);
  explicit Shape(std::vector<std::int64_t> dims);

  int rank() const { return static_cast<int>(dims_.size()); }
  // The extent of an axis; negative axes count from the end, as in Python.
  std::int64_t operator[](int axis) const { return dims_[static_cast<std::size_t>(wrap(axis))]; }
  std::int64_t elements() const;
  std::span<const std::int64_t> dims() const { return dims_; }
  // Distance in elements between neighbours along each axis, in row-major order.
  std::vector<std::int64_t> strides() const;
  // The same shape with another extent on one axis.
  Shape with(int axis, std::int64_t extent) const;
  // The axis as a number in [0, rank); UsageError outside [-rank, rank).
  int wrap(int axis) const;

  bool operator==(const Shape&) const = default;
  std::string str() const;  // "(32, 784)"

 private:
  std::vector<std::int64_t> dims_;
};

// The shape that NumPy's rules broadcast two shapes to; UsageError if they are incompatible.
Shape broadcast(const Shape& a, const Shape& b);

}  // namespace lockstep

template <>
struct fmt::formatter<lockstep::Shape> : fmt::formatter<std::string> {
  template <class Context>
  auto format(const lockstep::Shape& shape, Context& context) const {
    return fmt::formatter<std::string>::format(shape.str(), context);
  }
};

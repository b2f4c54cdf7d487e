#include "lockstep/base/shape.h"

#include <algorithm>
#include <limits>

#include "lockstep/base/error.h"

namespace lockstep {

Shape::Shape(std::initializer_list<std::int64_t> dims) : Shape(std::vector<std::int64_t>(dims)) {}

Shape::Shape(std::vector<std::int64_t> dims) : dims_(std::move(dims)) {
  std::int64_t room = std::numeric_limits<std::int64_t>::max() / 16;
  for (std::int64_t extent : dims_) {
    // Shapes are created all the time, so the text is built only when it is needed.
    if (extent < 0) fail<UsageError>("[shape] an extent may not be negative: {}", str());
    if (extent > room) fail<UsageError>("[shape] too many elements to address: {}", str());
    if (extent > 0) room /= extent;
  }
}

std::int64_t Shape::elements() const {
  std::int64_t count = 1;
  for (std::int64_t extent : dims_) count *= extent;
  return count;
}

std::vector<std::int64_t> Shape::strides() const {
  std::vector<std::int64_t> strides(dims_.size());
  std::int64_t stride = 1;
  for (std::size_t axis = dims_.size(); axis-- > 0;) {
    strides[axis] = stride;
    stride *= dims_[axis];
  }
  return strides;
}

Shape Shape::with(int axis, std::int64_t extent) const {
  std::vector<std::int64_t> dims = dims_;
  dims[static_cast<std::size_t>(wrap(axis))] = extent;
  return Shape(std::move(dims));
}

int Shape::wrap(int axis) const {
  if (axis < -rank() || axis >= rank()) {
    fail<UsageError>("[shape] axis {} is outside a shape of rank {}: {}", axis, rank(), str());
  }
  return axis < 0 ? axis + rank() : axis;
}

std::string Shape::str() const {
  if (dims_.size() == 1) return fmt::format("({},)", dims_[0]);
  return fmt::format("({})", fmt::join(dims_, ", "));
}

Shape broadcast(const Shape& a, const Shape& b) {
  const int rank = std::max(a.rank(), b.rank());
  std::vector<std::int64_t> dims(static_cast<std::size_t>(rank));
  for (int back = 1; back <= rank; ++back) {
    const std::int64_t x = back <= a.rank() ? a[-back] : 1;
    const std::int64_t y = back <= b.rank() ? b[-back] : 1;
    require(x == y || x == 1 || y == 1, "shapes do not broadcast: {} with {}", a, b);
    dims[static_cast<std::size_t>(rank - back)] = x == 1 ? y : x;
  }
  return Shape(std::move(dims));
}

}  // namespace lockstep

// Strided iteration (walks): the elements of a contiguous array in order, while N other arrays are
// read with their own strides (0: the same element again). A walk is built once, while planning:
// axes that all arrays traverse with one stride are merged, so that equal shapes become a single
// row, and a bias becomes one row that is read repeatedly. On the device an index is converted to
// offsets by multiplications, because the divisors are known in advance.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/base/shape.h"

namespace lockstep {

// Division of numbers below 2^31 by a constant, as a multiplication and a shift (Granlund and
// Montgomery, "Division by Invariant Integers using Multiplication", 1994).
struct FastDivider {
  std::uint32_t divisor = 1;
  std::uint32_t magic = 1;
  std::uint32_t shift = 0;

  FastDivider() = default;
  explicit FastDivider(std::int64_t by) : divisor(static_cast<std::uint32_t>(by)) {
    ensure(by > 0 && by < (std::int64_t{1} << 31), "[cuda] cannot divide by {}", by);
    while ((std::uint64_t{1} << shift) < divisor) ++shift;
    const std::uint64_t rest = (std::uint64_t{1} << shift) - divisor;
    magic = static_cast<std::uint32_t>((rest << 32) / divisor + 1);
  }

  __device__ __forceinline__ std::uint32_t divide(std::uint32_t n) const {
    return (__umulhi(n, magic) + n) >> shift;
  }
  // Divides n in place and returns the remainder.
  __device__ __forceinline__ std::uint32_t split(std::uint32_t& n) const {
    const std::uint32_t whole = n;
    n = divide(whole);
    return whole - n * divisor;
  }
};

inline constexpr int kWalkAxes = 8;

// Converts an index over some axes to N offsets: the sum of its digits times their strides.
template <int N>
struct Digits {
  int axes = 0;
  FastDivider extents[kWalkAxes];  // innermost first
  std::int64_t strides[kWalkAxes][N] = {};

  // From the outermost axis to the innermost, as shapes are written.
  Digits() = default;
  Digits(const std::vector<std::int64_t>& dims,
         const std::vector<std::array<std::int64_t, N>>& steps) {
    ensure(dims.size() <= kWalkAxes, "[cuda] a kernel has {} axes, more than {}", dims.size(),
           kWalkAxes);
    axes = static_cast<int>(dims.size());
    for (int i = 0; i < axes; ++i) {
      const auto axis = static_cast<std::size_t>(axes - 1 - i);
      extents[i] = FastDivider(dims[axis]);
      for (std::size_t n = 0; n < N; ++n) strides[i][n] = steps[axis][n];
    }
  }

  __device__ __forceinline__ void add_to(std::int64_t (&offsets)[N], std::uint32_t index) const {
    for (int i = 0; i < axes; ++i) {
      const std::uint32_t digit = extents[i].split(index);
#pragma unroll
      for (int n = 0; n < N; ++n) offsets[n] += digit * strides[i][n];
    }
  }
};

// The walk as a kernel sees it: groups of V consecutive elements within rows.
template <int N>
struct RowWalk {
  std::uint32_t groups = 0;    // full ones, in all rows
  std::uint32_t tail = 0;      // elements after the last group, if there is only one row
  FastDivider row;             // by the groups per row
  Digits<N> rows;              // over the outer axes
  std::int64_t steps[N] = {};  // elements between groups of a row

  __device__ __forceinline__ void locate(std::uint32_t group, std::int64_t (&offsets)[N]) const {
    std::uint32_t column = group;
    std::uint32_t outer = group;
    if (rows.axes > 0) column = row.split(outer);
#pragma unroll
    for (int n = 0; n < N; ++n) offsets[n] = column * steps[n];
    if (rows.axes > 0) rows.add_to(offsets, outer);
  }
};

template <int N>
class StridedWalk {
 public:
  using Steps = std::array<std::int64_t, N>;

  // A part of a walk that is small enough for 32-bit indices, and its offsets.
  struct Piece {
    RowWalk<N> walk;
    std::int64_t at = 0;
    Steps offsets = {};
  };

  // Over `shape`, with the strides of each array along each of its axes.
  StridedWalk(const Shape& shape, const std::array<std::vector<std::int64_t>, N>& strides) {
    for (int axis = 0; axis < shape.rank(); ++axis) {
      if (shape[axis] == 1) continue;
      Steps step;
      for (std::size_t n = 0; n < N; ++n) step[n] = strides[n][static_cast<std::size_t>(axis)];
      if (!extents_.empty() && continues(steps_.back(), step, shape[axis])) {
        extents_.back() *= shape[axis];
        steps_.back() = step;
      } else {
        extents_.push_back(shape[axis]);
        steps_.push_back(step);
      }
    }
    if (extents_.empty()) {
      extents_.push_back(1);
      steps_.push_back(Steps{});
    }
  }

  std::int64_t elements() const { return elements_of(extents_, 0); }
  std::size_t axes() const { return extents_.size(); }
  std::int64_t extent(std::size_t axis) const { return extents_[axis]; }
  std::int64_t step(std::size_t axis, std::size_t array) const { return steps_[axis][array]; }
  std::int64_t inner_step(std::size_t array) const { return steps_.back()[array]; }

  // Whether it can be processed in groups of v that are contiguous in every array or one element
  // of it.
  bool allows_vectors(int v) const {
    const bool one_row = extents_.size() == 1;
    if (!one_row && extents_.back() % v != 0) return false;
    for (std::size_t n = 0; n < N; ++n) {
      const std::int64_t inner = inner_step(n);
      if (inner != 0 && inner != 1) return false;
      for (std::size_t axis = 0; inner == 1 && axis + 1 < steps_.size(); ++axis) {
        if (steps_[axis][n] % v != 0) return false;
      }
    }
    return true;
  }

  // The walk in groups of v; empty if there are no elements.
  std::vector<Piece> pieces(int v) const {
    std::vector<Piece> result;
    if (elements() > 0) cut(extents_, 0, {}, v, result);
    return result;
  }

 private:
  static constexpr std::int64_t kMostGroups = std::int64_t{1} << 30;

  // Whether an axis of this extent can be merged with the one outside it in all arrays.
  static bool continues(const Steps& outer, const Steps& step, std::int64_t extent) {
    for (std::size_t n = 0; n < N; ++n) {
      if (outer[n] != step[n] * extent) return false;
    }
    return true;
  }

  static std::int64_t elements_of(const std::vector<std::int64_t>& extents, std::size_t from) {
    std::int64_t count = 1;
    for (std::size_t axis = from; axis < extents.size(); ++axis) count *= extents[axis];
    return count;
  }

  // Halves the outermost axis until each piece is small enough.
  void cut(std::vector<std::int64_t> extents, std::int64_t at, Steps offsets, int v,
           std::vector<Piece>& result) const {
    if (elements_of(extents, 0) / v < kMostGroups) {
      result.push_back({.walk = rows_of(extents, v), .at = at, .offsets = offsets});
      return;
    }
    std::size_t axis = 0;
    while (extents[axis] == 1) ++axis;
    const std::int64_t whole = extents[axis];
    const std::int64_t half = axis + 1 == extents.size() ? whole / 2 / v * v : whole / 2;
    extents[axis] = half;
    cut(extents, at, offsets, v, result);
    extents[axis] = whole - half;
    for (std::size_t n = 0; n < N; ++n) offsets[n] += half * steps_[axis][n];
    cut(extents, at + half * elements_of(extents, axis + 1), offsets, v, result);
  }

  RowWalk<N> rows_of(const std::vector<std::int64_t>& extents, int v) const {
    RowWalk<N> walk;
    const std::int64_t inner = extents.back();
    const std::vector<std::int64_t> outer(extents.begin(), extents.end() - 1);
    walk.groups = static_cast<std::uint32_t>(elements_of(outer, 0) * (inner / v));
    if (!outer.empty()) {
      walk.row = FastDivider(inner / v);
      walk.rows = Digits<N>(outer, {steps_.begin(), steps_.end() - 1});
    } else {
      walk.tail = static_cast<std::uint32_t>(inner % v);
    }
    for (std::size_t n = 0; n < N; ++n) walk.steps[n] = inner_step(n) * v;
    return walk;
  }

  std::vector<std::int64_t> extents_;  // at least one
  std::vector<Steps> steps_;
};

// The strides with which a row-major array of shape `from` is read as if broadcast to `to`.
inline std::vector<std::int64_t> strides_as(const Shape& from, const Shape& to) {
  const std::vector<std::int64_t> own = from.strides();
  std::vector<std::int64_t> strides(static_cast<std::size_t>(to.rank()), 0);
  const int extra = to.rank() - from.rank();
  for (int axis = 0; axis < from.rank(); ++axis) {
    if (from[axis] != 1) {
      strides[static_cast<std::size_t>(axis + extra)] = own[static_cast<std::size_t>(axis)];
    }
  }
  return strides;
}

}  // namespace lockstep

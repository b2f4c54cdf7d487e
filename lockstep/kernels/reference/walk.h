// Walk: the order in which a kernel visits the elements of a row-major array while N other arrays
// are read or written with their own strides (0: the same element again). It is built once, while
// planning: axes that all arrays traverse with one stride are merged, so that equal shapes become a
// single row, and a bias becomes as many rows as there are samples.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/base/shape.h"
#include "lockstep/device/cpu/parallel.h"

namespace lockstep {

// Iterations below which a loop is not worth a second thread.
inline constexpr std::int64_t kGrain = 16384;

template <std::size_t N>
class Walk {
 public:
  using Offsets = std::array<std::int64_t, N>;

  // Over `shape`, with the strides of each array along each of its axes.
  Walk(const Shape& shape, const std::array<std::vector<std::int64_t>, N>& strides) {
    std::vector<std::int64_t> extents;
    std::vector<Offsets> steps;
    for (int axis = 0; axis < shape.rank(); ++axis) {
      if (shape[axis] == 1) continue;
      Offsets step;
      for (std::size_t i = 0; i < N; ++i) step[i] = strides[i][static_cast<std::size_t>(axis)];
      if (!extents.empty() && continues(steps.back(), step, shape[axis])) {
        extents.back() *= shape[axis];
        steps.back() = step;
      } else {
        extents.push_back(shape[axis]);
        steps.push_back(step);
      }
    }
    inner_steps_.fill(1);
    if (!extents.empty()) {
      inner_ = extents.back();
      inner_steps_ = steps.back();
      extents.pop_back();
    }
    ensure(extents.size() <= kAxes, "a kernel has {} axes, more than {}", extents.size(), kAxes);
    for (std::size_t axis = 0; axis < extents.size(); ++axis) {
      extents_[axis] = extents[axis];
      steps_[axis] = steps[axis];
      rows_ *= extents[axis];
    }
    axes_ = extents.size();
  }

  std::int64_t inner() const { return inner_; }
  std::int64_t inner_step(std::size_t array) const { return inner_steps_[array]; }

  // Calls f(at, count, offsets) for runs of `count` elements that begin at element `at` of the
  // row-major array and at `offsets` in the others, on several threads if that pays off. f must not
  // throw.
  template <class F>
  void run(F&& f) const {
    if (rows_ == 0 || inner_ == 0) return;
    if (axes_ == 0) {
      parallel_for(inner_, kGrain, [&](std::int64_t begin, std::int64_t end) {
        Offsets offsets;
        for (std::size_t i = 0; i < N; ++i) offsets[i] = begin * inner_steps_[i];
        f(begin, end - begin, offsets);
      });
      return;
    }
    const std::int64_t grain = std::max<std::int64_t>(1, kGrain / inner_);
    parallel_for(rows_, grain, [&](std::int64_t begin, std::int64_t end) { rows(begin, end, f); });
  }

  // The same on the calling thread, in order.
  template <class F>
  void run_here(F&& f) const {
    if (rows_ > 0 && inner_ > 0) rows(0, rows_, f);
  }

 private:
  static constexpr std::size_t kAxes = 8;

  // Whether an axis of this extent can be merged with the one outside it in all arrays.
  static bool continues(const Offsets& outer, const Offsets& step, std::int64_t extent) {
    for (std::size_t i = 0; i < N; ++i) {
      if (outer[i] != step[i] * extent) return false;
    }
    return true;
  }

  template <class F>
  void rows(std::int64_t begin, std::int64_t end, F&& f) const {
    std::array<std::int64_t, kAxes> index = {};
    Offsets offsets = {};
    std::int64_t rest = begin;
    for (std::size_t axis = axes_; axis-- > 0;) {
      index[axis] = rest % extents_[axis];
      rest /= extents_[axis];
      for (std::size_t i = 0; i < N; ++i) offsets[i] += index[axis] * steps_[axis][i];
    }
    for (std::int64_t row = begin; row < end; ++row) {
      f(row * inner_, inner_, offsets);
      for (std::size_t axis = axes_; axis-- > 0;) {
        for (std::size_t i = 0; i < N; ++i) offsets[i] += steps_[axis][i];
        if (++index[axis] < extents_[axis]) break;
        for (std::size_t i = 0; i < N; ++i) offsets[i] -= index[axis] * steps_[axis][i];
        index[axis] = 0;
      }
    }
  }

  std::size_t axes_ = 0;  // without the innermost
  std::array<std::int64_t, kAxes> extents_ = {};
  std::array<Offsets, kAxes> steps_ = {};
  std::int64_t rows_ = 1;
  std::int64_t inner_ = 1;
  Offsets inner_steps_ = {};
};

// The strides with which an array of shape `from` is read as if broadcast to `to`.
inline std::vector<std::int64_t> broadcast_strides(const Shape& from, const Shape& to) {
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

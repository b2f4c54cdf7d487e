// The axes of a reduction as kernels see them: neighbours merged, each either reduced or kept.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "lockstep/base/shape.h"
#include "lockstep/graph/attrs.h"

namespace lockstep {

// The axes of a shape; neighbouring axes of the same kind are merged, those of extent 1 dropped.
struct AxisGroups {
  std::vector<std::int64_t> extents;
  std::vector<bool> reduced;
};

inline AxisGroups group_axes(const Shape& shape, const Ints& axes) {
  AxisGroups groups;
  for (int axis = 0; axis < shape.rank(); ++axis) {
    if (shape[axis] == 1) continue;
    const bool reduced = std::find(axes.begin(), axes.end(), axis) != axes.end();
    if (groups.extents.empty() || groups.reduced.back() != reduced) {
      groups.extents.push_back(1);
      groups.reduced.push_back(reduced);
    }
    groups.extents.back() *= shape[axis];
  }
  return groups;
}

}  // namespace lockstep

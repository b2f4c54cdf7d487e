#include "lockstep/kernels/onednn/api.h"

namespace lockstep::onednn {

std::int64_t Placement::outer_extent(std::size_t axis) const {
  std::int64_t extent = padded[axis];
  for (std::size_t b = 0; b < inner_blocks.size(); ++b) {
    if (inner_axes[b] == static_cast<std::int64_t>(axis)) extent /= inner_blocks[b];
  }
  return extent;
}

bool Placement::same_places(const Placement& other) const {
  if (padded != other.padded || inner_blocks != other.inner_blocks ||
      inner_axes != other.inner_axes) {
    return false;
  }
  for (std::size_t axis = 0; axis < padded.size(); ++axis) {
    if (outer_extent(axis) > 1 && strides[axis] != other.strides[axis]) return false;
  }
  return true;
}

}  // namespace lockstep::onednn

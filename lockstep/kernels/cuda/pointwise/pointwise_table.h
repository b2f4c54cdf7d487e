// The tables of segments with which a pointwise kernel is launched: the addresses of each segment's
// values, and which blocks process it.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "lockstep/kernels/cuda/pointwise/pointwise_source.h"
#include "lockstep/kernels/kernel.h"

namespace lockstep {

struct PointwiseLaunch {
  std::vector<std::uint64_t> table = {};  // the kernel's argument, as PointwiseShape describes it
  int segments = 0;
  unsigned blocks = 0;
};

// As many launches as needed; empty segments are skipped. `elements` has the number of elements of
// each segment, `inputs` the dtypes of a segment's operands.
std::vector<PointwiseLaunch> pointwise_launches(const PointwiseForm& form,
                                                const PointwiseShape& shape,
                                                std::span<const DType> inputs,
                                                std::span<const std::int64_t> elements,
                                                const Binding& binding);

}  // namespace lockstep

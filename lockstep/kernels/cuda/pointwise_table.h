// The tables of segments with which a pointwise kernel is launched: where the values of each lie,
// and which blocks work on it.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "lockstep/kernels/cuda/pointwise_source.h"
#include "lockstep/kernels/kernel.h"

namespace lockstep {

struct PointwiseLaunch {
  std::vector<std::uint64_t> table = {};  // the kernel's argument; see PointwiseShape for its words
  int segments = 0;
  unsigned blocks = 0;
};

// As many launches as it takes; segments of no elements are left out. `elements` are those of each
// segment, `inputs` the dtypes of a segment's operands.
std::vector<PointwiseLaunch> pointwise_launches(const PointwiseForm& form,
                                                const PointwiseShape& shape,
                                                std::span<const DType> inputs,
                                                std::span<const std::int64_t> elements,
                                                const Binding& binding);

}  // namespace lockstep

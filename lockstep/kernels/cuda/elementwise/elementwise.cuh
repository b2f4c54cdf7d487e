// What the elementwise ops share: how they are registered, and how they iterate over operands.
#pragma once

#include <array>
#include <vector>

#include "lockstep/kernels/cuda/primitives/map.cuh"
#include "lockstep/kernels/cuda/primitives/same_layout.h"

namespace lockstep {

// Parts of add_cuda_elementwise, each in its own file.
void add_cuda_comparison(KernelLibrary& library);  // comparison.cu
void add_cuda_cast(KernelLibrary& library);        // cast.cu
void add_cuda_activation(KernelLibrary& library);  // activation.cu

inline void add_elementwise(KernelLibrary& library, Op op, std::string_view name,
                            std::unique_ptr<Kernel> (*make)(const KernelCall&)) {
  library.add(op,
              {.name = name, .supports = same_layout, .make = make, .layouts = follow_operands});
}

// The iteration over a node's operands, broadcast to its output.
template <int N>
StridedWalk<N> operand_walk(const KernelCall& call) {
  const bool one_row = is_one_row(call);
  const Shape& shape = call.out_shape(0);
  std::array<std::vector<std::int64_t>, N> strides;
  for (std::size_t i = 0; i < N; ++i) {
    strides[i] = one_row ? std::vector<std::int64_t>{call.in_shape(i) == shape ? 1 : 0}
                         : strides_as(call.in_shape(i), shape);
  }
  return StridedWalk<N>(one_row ? Shape{shape.elements()} : shape, strides);
}

}  // namespace lockstep

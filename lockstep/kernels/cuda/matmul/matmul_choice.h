// Chooses cuBLASLt's algorithm for a matrix product: the fastest of those that its heuristics
// suggest, and always the same one for the same product. Sums that are split over blocks are added
// in f32 and in a fixed order.
#pragma once

#include "lockstep/kernels/cuda/matmul/matmul_product.h"

namespace lockstep {

// The alignment in bytes that the choice requires of the matrices.
inline constexpr std::uint32_t kMatmulAlignment = 16;

MatmulChoice matmul_choice(CudaContext& context, const MatmulProduct& product);

}  // namespace lockstep

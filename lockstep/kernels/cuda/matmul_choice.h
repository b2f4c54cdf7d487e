// Which of cuBLASLt's algorithms computes a product: of those that its heuristics suggest, the
// fastest measured, and the same one whenever the product is met again. Sums that are split over
// blocks are added up in f32 and in a fixed order.
#pragma once

#include "lockstep/kernels/cuda/matmul_product.h"

namespace lockstep {

// Bytes at whose multiples the matrices must lie for the choice to compute them.
inline constexpr std::uint32_t kMatmulAlignment = 16;

MatmulChoice matmul_choice(CudaContext& context, const MatmulProduct& product);

}  // namespace lockstep

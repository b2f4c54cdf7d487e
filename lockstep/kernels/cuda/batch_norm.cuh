// What batch norm and its gradient have in common. The gradient finds the mask of a fused ReLU by
// computing the result again, and so must compute it by the very same roundings.
#pragma once

#include <cstdint>

#include "lockstep/kernels/cuda/column_sums.cuh"

namespace lockstep {

// A number for each channel of a block's tile, in the block's memory.
using TileChannels = float[kTileChannels];

__device__ __forceinline__ float reciprocal_deviation(float variance, float epsilon) {
  return __frcp_rn(__fsqrt_rn(__fadd_rn(variance, epsilon)));
}

// The factor of a centered element.
__device__ __forceinline__ float norm_scale(float gamma, float rstd) {
  return __fmul_rn(gamma, rstd);
}

// Centered first: exact for elements close to a mean that is far from zero.
__device__ __forceinline__ float normalised(float x, float mean, float scale, float beta) {
  return __fmaf_rn(__fsub_rn(x, mean), scale, beta);
}

// The largest number that becomes 0 when it is stored: what is stored is positive where the number
// is larger than that.
template <class T>
inline constexpr float kStoredAsZero = 0.0F;
template <>
inline constexpr float kStoredAsZero<__half> = 0x1p-25F;  // half the least: a tie, to even
template <>
inline constexpr float kStoredAsZero<__nv_bfloat16> = 0x1p-134F;

// Whether the mask of a value can be kept as bits: a pack has a byte of it.
inline bool packs_bits(const ValueType& type) {
  return size_of(type.dtype) == 2 && type.shape[-1] % 8 == 0;
}

// Batch norm is computed in f32, with scales, offsets and statistics that are kept in it.
inline bool has_f32_channels(const KernelCall& call, std::size_t first, std::size_t last) {
  for (std::size_t i = first; i <= last; ++i) {
    if (call.in_dtype(i) != DType::F32) return false;
  }
  return true;
}

}  // namespace lockstep

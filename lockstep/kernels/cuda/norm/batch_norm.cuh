// What batch norm and its gradient have in common. The gradient recomputes the result to find the
// mask of a fused ReLU, so it must round exactly as the forward pass does.
#pragma once

#include <cstdint>

#include "lockstep/kernels/cuda/primitives/column_sums.cuh"

namespace lockstep {

// One number per channel of a block's tile, in shared memory.
using TileChannels = float[kTileChannels];

__device__ __forceinline__ float reciprocal_deviation(float variance, float epsilon) {
  return __frcp_rn(__fsqrt_rn(__fadd_rn(variance, epsilon)));
}

// The factor of a centred element.
__device__ __forceinline__ float norm_scale(float gamma, float rstd) {
  return __fmul_rn(gamma, rstd);
}

// Subtracts the mean first: accurate for elements close to a mean that is far from zero.
__device__ __forceinline__ float normalised(float x, float mean, float scale, float beta) {
  return __fmaf_rn(__fsub_rn(x, mean), scale, beta);
}

// The largest number that rounds to 0 when it is stored as T: the stored value is positive exactly
// if the number is larger.
template <class T>
inline constexpr float kStoredAsZero = 0.0F;
template <>
inline constexpr float kStoredAsZero<__half> = 0x1p-25F;  // half the smallest: ties to even
template <>
inline constexpr float kStoredAsZero<__nv_bfloat16> = 0x1p-134F;

struct Statistics {
  float mean;
  float variance;
};

struct FinishStatistics {
  float* mean;
  float* variance;
  double share;  // one over the rows

  // From the sums of the differences to `shift` and of their squares.
  __device__ Statistics statistics(double sum, double squares, float shift) const {
    const double distance = sum * share;
    const double spread = squares * share - distance * distance;
    return {static_cast<float>(static_cast<double>(shift) + distance),
            static_cast<float>(spread < 0 ? 0.0 : spread)};
  }
  __device__ void write(int channel, const Statistics& s) const {
    mean[channel] = s.mean;
    variance[channel] = s.variance;
  }
};

// The sums of each channel's elements and of their squares, or none.
struct GivenSums {
  const float* sums = nullptr;
  const float* squares = nullptr;
  FinishStatistics finish = {};
};

// What is normalised, and how.
template <class T>
struct NormSide {
  const T* x = nullptr;
  const float* gamma = nullptr;
  const float* beta = nullptr;
  const float* mean = nullptr;
  const float* variance = nullptr;
  GivenSums given = {};  // to compute mean and variance from
};

// What is added before the activation.
enum class Added { None, Residual, Projection };

template <class T>
struct Normalisation {
  NormSide<T> own;
  NormSide<T> projection;        // normalised and added, if it has an x
  const T* residual = nullptr;   // added, if there is one
  T* y = nullptr;                // may be x
  std::uint8_t* bits = nullptr;  // whether y is positive, a bit each; only if something is added
  float epsilon = 0;
  float floor = 0;  // 0 with ReLU, otherwise minus infinity

  Added added() const {
    if (projection.x != nullptr) return Added::Projection;
    return residual != nullptr ? Added::Residual : Added::None;
  }
};

// The statistics of a channel; if they are computed from sums, one block per tile also writes them.
template <class T>
__device__ __forceinline__ Statistics statistics_of(const NormSide<T>& side, int channel,
                                                    bool writes) {
  const GivenSums& g = side.given;
  if (g.sums == nullptr) return {side.mean[channel], side.variance[channel]};
  const auto sum = static_cast<double>(g.sums[channel]);
  const auto squares = static_cast<double>(g.squares[channel]);
  const Statistics found = g.finish.statistics(sum, squares, 0.0F);
  if (writes) g.finish.write(channel, found);
  return found;
}

// Whether the mask of a value can be stored as bits: a byte per vector of eight elements.
inline bool packs_bits(const ValueType& type) {
  return size_of(type.dtype) == 2 && type.shape[-1] % 8 == 0;
}

// Batch norm is computed in f32; scales, offsets and statistics must be f32.
inline bool has_f32_channels(const KernelCall& call, std::size_t first, std::size_t last) {
  for (std::size_t i = first; i <= last; ++i) {
    if (call.in_dtype(i) != DType::F32) return false;
  }
  return true;
}

}  // namespace lockstep

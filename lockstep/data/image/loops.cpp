#include "lockstep/data/image/loops.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "lockstep/base/error.h"
#include "lockstep/data/image/x86_loops.h"

namespace lockstep {

namespace any_isa {
namespace {
#include "lockstep/data/image/plain_loops.inc"
}  // namespace
}  // namespace any_isa

#if defined(__x86_64__)

#if defined(__clang__)
#pragma clang diagnostic ignored "-Wunknown-pragmas"
#endif

#pragma GCC push_options
#pragma GCC target("arch=x86-64-v3")
namespace avx2 {
namespace {
#include "lockstep/data/image/plain_loops.inc"
}  // namespace
}  // namespace avx2
#pragma GCC pop_options

#pragma GCC push_options
#pragma GCC target("arch=x86-64-v4")
namespace avx512 {
namespace {
#include "lockstep/data/image/plain_loops.inc"
}  // namespace
}  // namespace avx512
#pragma GCC pop_options

namespace {

ImageLoops avx2_loops() {
  ImageLoops loops = avx2::kLoops;
  loops.blend_rows = x86::blend_rows_avx2;
  loops.blend_columns = x86::blend_columns_avx2;
  return loops;
}

ImageLoops avx512_loops() {
  ImageLoops loops = avx512::kLoops;
  loops.blend_rows = x86::blend_rows_avx512;
  loops.blend_columns = x86::blend_columns_avx2;
  return loops;
}

}  // namespace

bool has_isa(ImageIsa isa) {
  if (isa == ImageIsa::Any) return true;
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
                    __builtin_cpu_supports("bmi2");
  if (isa == ImageIsa::Avx2) return avx2;
  return avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512cd") && __builtin_cpu_supports("avx512dq") &&
         __builtin_cpu_supports("avx512vl");
}

const ImageLoops& image_loops(ImageIsa isa) {
  static const ImageLoops avx2 = avx2_loops();
  static const ImageLoops avx512 = avx512_loops();
  require(has_isa(isa), "[image] this machine does not support {}",
          isa == ImageIsa::Avx512 ? "AVX-512" : "AVX2");
  if (isa == ImageIsa::Avx512) return avx512;
  return isa == ImageIsa::Avx2 ? avx2 : any_isa::kLoops;
}

#else

bool has_isa(ImageIsa isa) {
  return isa == ImageIsa::Any;
}

const ImageLoops& image_loops(ImageIsa isa) {
  require(has_isa(isa), "[image] this machine does not support AVX2 or AVX-512");
  return any_isa::kLoops;
}

#endif

const ImageLoops& image_loops() {
  static const ImageLoops& best = image_loops(has_isa(ImageIsa::Avx512) ? ImageIsa::Avx512
                                              : has_isa(ImageIsa::Avx2) ? ImageIsa::Avx2
                                                                        : ImageIsa::Any);
  return best;
}

namespace {

// Rounds weights to fixed point so that they sum to exactly 1: the largest weight absorbs the
// rounding errors, so that an area of one colour keeps its colour.
void quantize(std::span<const float> weights, std::int16_t* out) {
  constexpr int kOne = 1 << kWeightBits;
  int sum = 0;
  std::size_t largest = 0;
  for (std::size_t k = 0; k < weights.size(); ++k) {
    const int whole = static_cast<int>(std::lrint(weights[k] * kOne));
    out[k] = static_cast<std::int16_t>(whole);
    sum += whole;
    if (weights[k] > weights[largest]) largest = k;
  }
  out[largest] = static_cast<std::int16_t>(out[largest] + kOne - sum);
}

}  // namespace

void FixedRows::fill(const AxisWeights& axis) {
  tap_pairs_ = (axis.taps() + 1) / 2;
  const std::size_t stride = 2 * static_cast<std::size_t>(tap_pairs_);
  weights_.assign(stride * static_cast<std::size_t>(axis.outputs()), 0);
  for (int i = 0; i < axis.outputs(); ++i) {
    quantize(axis.weights(i), weights_.data() + stride * static_cast<std::size_t>(i));
  }
}

void FixedColumns::fill(const AxisWeights& axis, int first_pixel, int channels) {
  outputs_ = axis.outputs();
  tap_pairs_ = (axis.taps() + 1) / 2;
  const int even_outputs = (outputs_ + 1) / 2 * 2;
  first_.assign(static_cast<std::size_t>(even_outputs), 0);
  quantized_.assign(2 * static_cast<std::size_t>(tap_pairs_), 0);
  weights_.resize(8 * static_cast<std::size_t>(even_outputs) *
                  static_cast<std::size_t>(tap_pairs_));
  for (int i = 0; i < even_outputs; ++i) {
    std::int16_t* weights = weights_.data() + std::ptrdiff_t{i / 2} * tap_pairs_ * 16 + (i % 2) * 8;
    if (i < outputs_) {
      first_[static_cast<std::size_t>(i)] =
          static_cast<std::uint32_t>((axis.first(i) - first_pixel) * channels);
      quantize(axis.weights(i), quantized_.data());
    }
    for (int k = 0; k < tap_pairs_; ++k) {
      for (int copy = 0; copy < 4; ++copy) {
        weights[16 * k + 2 * copy] = quantized_[static_cast<std::size_t>(2 * k)];
        weights[16 * k + 2 * copy + 1] = quantized_[static_cast<std::size_t>(2 * k + 1)];
      }
    }
  }
}

}  // namespace lockstep

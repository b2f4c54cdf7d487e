// Folding (space to depth): a convolution with strides of two equals one with strides of one over
// an image of half the height and width, in which each pixel holds a 2 × 2 square and so has four
// times as many channels. Tensor cores need many channels.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

namespace lockstep {

struct ConvProblem;

// Padded images (n, h, w, c) become (n, folded_h, folded_w, channels), filters (o, kh, kw, c)
// become (o, folded_kh, folded_kw, channels); channels beyond 4 c are zeros. Elements have 2 bytes,
// those of a filter's gradient 2 or 4.
struct Fold {
  std::int64_t n = 0, h = 0, w = 0, c = 0;
  std::int64_t o = 0, kh = 0, kw = 0;
  std::int64_t top = 0, left = 0;
  std::int64_t folded_h = 0, folded_w = 0;
  std::int64_t channels = 0;

  constexpr std::int64_t folded_kh() const { return (kh + 1) / 2; }
  constexpr std::int64_t folded_kw() const { return (kw + 1) / 2; }
  std::size_t image_bytes() const {
    return static_cast<std::size_t>(n * folded_h * folded_w * channels) * 2;
  }
  std::size_t filter_bytes(std::size_t element_bytes) const {
    return static_cast<std::size_t>(o * folded_kh() * folded_kw() * channels) * element_bytes;
  }
  void image(const void* from, void* to, cudaStream_t stream) const;
  void filter(const void* from, void* to, cudaStream_t stream) const;
  // Converts the gradient of the folded filter to the filter's.
  void unfold(const void* from, void* to, std::size_t element_bytes, cudaStream_t stream) const;

  // Whether a problem can be folded: strides of two, no dilation, one group, up to four channels in
  // 16 bits, filters stored with the outputs first.
  static bool fits(const ConvProblem& problem);
  explicit Fold(const ConvProblem& problem);
  // The folded problem.
  ConvProblem folded(ConvProblem problem) const;
};

}  // namespace lockstep

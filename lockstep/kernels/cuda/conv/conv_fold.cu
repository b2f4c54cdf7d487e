#include "lockstep/kernels/cuda/conv/conv_fold.h"

#include "lockstep/kernels/cuda/conv/conv_problem.h"
#include "lockstep/kernels/cuda/cuda.h"

namespace lockstep {
namespace {

constexpr int kThreads = 256;
constexpr int kMostChannels = 16;

// One thread per folded pixel: 2 × 2 pixels of the image, written at once.
template <int kChannels>
__global__ void fold_image(const std::uint16_t* image, std::uint16_t* folded, const Fold f) {
  struct alignas(16) Pixel {
    std::uint16_t values[kChannels];
  };
  const std::int64_t pixel = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (pixel >= f.n * f.folded_h * f.folded_w) return;
  const int x0 = static_cast<int>(pixel % f.folded_w);
  const std::int64_t line = pixel / f.folded_w;
  const int y0 = static_cast<int>(line % f.folded_h);
  const std::int64_t n = line / f.folded_h;
  Pixel result = {};
  const int c = static_cast<int>(f.c);
#pragma unroll
  for (int dy = 0; dy < 2; ++dy) {
#pragma unroll
    for (int dx = 0; dx < 2; ++dx) {
      const std::int64_t y = 2 * y0 + dy - f.top;
      const std::int64_t x = 2 * x0 + dx - f.left;
      if (y < 0 || y >= f.h || x < 0 || x >= f.w) continue;
      const std::uint16_t* from = image + ((n * f.h + y) * f.w + x) * c;
      for (int i = 0; i < c; ++i) result.values[(dy * 2 + dx) * c + i] = from[i];
    }
  }
  *reinterpret_cast<Pixel*>(folded + pixel * kChannels) = result;
}

// The index in a filter (o, kh, kw, c) of the element at an index of the folded one; -1: a zero of
// the padding.
__device__ std::int64_t unfolded_place(std::int64_t place, const Fold& f) {
  const std::int64_t channel = place % f.channels;
  std::int64_t rest = place / f.channels;
  const std::int64_t column = rest % f.folded_kw();
  rest /= f.folded_kw();
  const std::int64_t row = rest % f.folded_kh();
  const std::int64_t o = rest / f.folded_kh();
  const std::int64_t square = channel / f.c;
  const std::int64_t y = 2 * row + square / 2;
  const std::int64_t x = 2 * column + square % 2;
  if (square >= 4 || y >= f.kh || x >= f.kw) return -1;
  return ((o * f.kh + y) * f.kw + x) * f.c + channel % f.c;
}

__global__ void fold_filter(const std::uint16_t* filter, std::uint16_t* folded, std::int64_t count,
                            const Fold f) {
  const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i >= count) return;
  const std::int64_t place = unfolded_place(i, f);
  folded[i] = place < 0 ? std::uint16_t{0} : filter[place];
}

template <class U>
__global__ void unfold_filter(const U* folded, U* filter, std::int64_t count, const Fold f) {
  const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i >= count) return;
  const std::int64_t place = unfolded_place(i, f);
  if (place >= 0) filter[place] = folded[i];
}

}  // namespace

bool Fold::fits(const ConvProblem& p) {
  return p.dtype != DType::F32 && p.way != ConvWay::GradInput && p.outputs_first && p.groups == 1 &&
         p.c <= 4 && p.stride_h == 2 && p.stride_w == 2 && p.dilation_h == 1 && p.dilation_w == 1 &&
         p.kh > 1 && p.kw > 1;
}

Fold::Fold(const ConvProblem& p)
    : n(p.n),
      h(p.h),
      w(p.w),
      c(p.c),
      o(p.o),
      kh(p.kh),
      kw(p.kw),
      top(p.top),
      left(p.left),
      folded_h(p.oh + (p.kh + 1) / 2 - 1),
      folded_w(p.ow + (p.kw + 1) / 2 - 1),
      channels(4 * p.c <= 8 ? 8 : kMostChannels) {}

ConvProblem Fold::folded(ConvProblem p) const {
  p.h = folded_h, p.w = folded_w, p.c = p.in = channels;
  p.kh = folded_kh(), p.kw = folded_kw();
  p.stride_h = p.stride_w = 1;
  p.top = p.bottom = p.left = p.right = 0;
  return p;
}

void Fold::image(const void* from, void* to, cudaStream_t stream) const {
  const std::int64_t pixels = n * folded_h * folded_w;
  if (pixels == 0) return;
  const auto kernel = channels == 8 ? fold_image<8> : fold_image<kMostChannels>;
  kernel<<<static_cast<unsigned>((pixels + kThreads - 1) / kThreads), kThreads, 0, stream>>>(
      static_cast<const std::uint16_t*>(from), static_cast<std::uint16_t*>(to), *this);
  check_launch("folding an image");
}

void Fold::filter(const void* from, void* to, cudaStream_t stream) const {
  const std::int64_t count = o * folded_kh() * folded_kw() * channels;
  fold_filter<<<static_cast<unsigned>((count + kThreads - 1) / kThreads), kThreads, 0, stream>>>(
      static_cast<const std::uint16_t*>(from), static_cast<std::uint16_t*>(to), count, *this);
  check_launch("folding a filter");
}

void Fold::unfold(const void* from, void* to, std::size_t element_bytes,
                  cudaStream_t stream) const {
  const std::int64_t count = o * folded_kh() * folded_kw() * channels;
  const auto blocks = static_cast<unsigned>((count + kThreads - 1) / kThreads);
  if (element_bytes == 2) {
    unfold_filter<<<blocks, kThreads, 0, stream>>>(static_cast<const std::uint16_t*>(from),
                                                   static_cast<std::uint16_t*>(to), count, *this);
  } else {
    unfold_filter<<<blocks, kThreads, 0, stream>>>(static_cast<const std::uint32_t*>(from),
                                                   static_cast<std::uint32_t*>(to), count, *this);
  }
  check_launch("unfolding a filter");
}

}  // namespace lockstep

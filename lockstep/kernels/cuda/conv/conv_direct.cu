#include "lockstep/kernels/cuda/conv/conv_direct.h"

#include "lockstep/kernels/cuda/cuda.h"
#include "lockstep/kernels/cuda/primitives/elements.cuh"

namespace lockstep {
namespace {

constexpr int kThreads = 128;

// Strides of the filter, in elements.
struct FilterPlaces {
  std::int64_t row = 0;
  std::int64_t column = 0;
  std::int64_t in = 0;
  std::int64_t out = 0;

  explicit FilterPlaces(const ConvProblem& p)
      : row(p.outputs_first ? p.kw * p.in : p.kw * p.in * p.o),
        column(p.outputs_first ? p.in : p.in * p.o),
        in(p.outputs_first ? 1 : p.o),
        out(p.outputs_first ? p.kh * p.kw * p.in : 1) {}
};

// One thread per element of the result; neighbouring threads have neighbouring channels.
template <class T>
__global__ void forward_kernel(ConvProblem p, FilterPlaces places, const T* x, const T* filter,
                               T* y) {
  const std::int64_t count = p.n * p.oh * p.ow * p.o;
  const std::int64_t step = static_cast<std::int64_t>(gridDim.x) * blockDim.x;
  const std::int64_t out = p.o / p.groups;
  for (std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < count;
       i += step) {
    const std::int64_t k = i % p.o;
    const std::int64_t pixel = i / p.o;
    const std::int64_t row0 = pixel / p.ow % p.oh * p.stride_h - p.top;
    const std::int64_t column0 = pixel % p.ow * p.stride_w - p.left;
    const T* image = x + pixel / (p.ow * p.oh) * p.h * p.w * p.c + k / out * p.in;
    float sum = 0.0f;
    for (std::int64_t r = 0; r < p.kh; ++r) {
      const std::int64_t row = row0 + r * p.dilation_h;
      if (row < 0 || row >= p.h) continue;
      for (std::int64_t s = 0; s < p.kw; ++s) {
        const std::int64_t column = column0 + s * p.dilation_w;
        if (column < 0 || column >= p.w) continue;
        const T* a = image + (row * p.w + column) * p.c;
        const T* b = filter + r * places.row + s * places.column + k * places.out;
        for (std::int64_t j = 0; j < p.in; ++j) sum += widen(a[j]) * widen(b[j * places.in]);
      }
    }
    y[i] = narrow<T>(sum);
  }
}

// The index along an axis of the result whose window begins at `position` of the padded image, or
// -1.
__device__ std::int64_t reader_of(std::int64_t position, std::int64_t stride, std::int64_t extent) {
  if (position < 0 || position % stride != 0) return -1;
  return position / stride < extent ? position / stride : -1;
}

// One thread per element of the image.
template <class T>
__global__ void grad_input_kernel(ConvProblem p, FilterPlaces places, const T* dy, const T* filter,
                                  T* dx) {
  const std::int64_t count = p.n * p.h * p.w * p.c;
  const std::int64_t step = static_cast<std::int64_t>(gridDim.x) * blockDim.x;
  const std::int64_t out = p.o / p.groups;
  for (std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < count;
       i += step) {
    const std::int64_t channel = i % p.c;
    const std::int64_t pixel = i / p.c;
    const std::int64_t row = pixel / p.w % p.h + p.top;
    const std::int64_t column = pixel % p.w + p.left;
    const std::int64_t first = channel / p.in * out;  // the group's first output channel
    const T* results = dy + pixel / (p.w * p.h) * p.oh * p.ow * p.o + first;
    float sum = 0.0f;
    for (std::int64_t r = 0; r < p.kh; ++r) {
      const std::int64_t y = reader_of(row - r * p.dilation_h, p.stride_h, p.oh);
      if (y < 0) continue;
      for (std::int64_t s = 0; s < p.kw; ++s) {
        const std::int64_t x = reader_of(column - s * p.dilation_w, p.stride_w, p.ow);
        if (x < 0) continue;
        const T* a = results + (y * p.ow + x) * p.o;
        const T* b = filter + r * places.row + s * places.column + channel % p.in * places.in +
                     first * places.out;
        for (std::int64_t k = 0; k < out; ++k) sum += widen(a[k]) * widen(b[k * places.out]);
      }
    }
    dx[i] = narrow<T>(sum);
  }
}

// One block per element of the filter: its threads take the pixels in turn; their sums are then
// reduced pairwise.
template <class T, class R>
__global__ void __launch_bounds__(kThreads)
    grad_filter_kernel(ConvProblem p, FilterPlaces places, const T* x, const T* dy, R* dw) {
  __shared__ float sums[kThreads];
  const std::int64_t element = blockIdx.x;
  const std::int64_t k = element % p.o;
  const std::int64_t j = element / p.o % p.in;
  const std::int64_t s = element / (p.o * p.in) % p.kw;
  const std::int64_t r = element / (p.o * p.in * p.kw);
  const std::int64_t channel = k / (p.o / p.groups) * p.in + j;
  const std::int64_t pixels = p.n * p.oh * p.ow;
  float sum = 0.0f;
  for (std::int64_t i = threadIdx.x; i < pixels; i += kThreads) {
    const std::int64_t row = i / p.ow % p.oh * p.stride_h - p.top + r * p.dilation_h;
    const std::int64_t column = i % p.ow * p.stride_w - p.left + s * p.dilation_w;
    if (row < 0 || row >= p.h || column < 0 || column >= p.w) continue;
    const std::int64_t image = i / (p.ow * p.oh);
    sum += widen(x[((image * p.h + row) * p.w + column) * p.c + channel]) * widen(dy[i * p.o + k]);
  }
  sums[threadIdx.x] = sum;
  for (int half = kThreads / 2; half > 0; half /= 2) {
    __syncthreads();
    if (static_cast<int>(threadIdx.x) < half) sums[threadIdx.x] += sums[threadIdx.x + half];
  }
  if (threadIdx.x == 0) {
    dw[r * places.row + s * places.column + j * places.in + k * places.out] = narrow<R>(sums[0]);
  }
}

template <class T>
void convolve_of(const ConvProblem& p, const T* first, const T* second, void* result,
                 cudaStream_t stream) {
  const FilterPlaces places(p);
  constexpr std::int64_t kMost = 1 << 16;  // blocks
  if (p.way == ConvWay::Forward && p.result_elements() > 0) {
    forward_kernel<<<cuda_blocks(p.result_elements(), kThreads, kMost), kThreads, 0, stream>>>(
        p, places, first, second, static_cast<T*>(result));
  }
  if (p.way == ConvWay::GradInput && p.image_elements() > 0) {
    grad_input_kernel<<<cuda_blocks(p.image_elements(), kThreads, kMost), kThreads, 0, stream>>>(
        p, places, first, second, static_cast<T*>(result));
  }
  if (p.way == ConvWay::GradFilter && p.filter_elements() > 0) {
    const unsigned blocks = static_cast<unsigned>(p.filter_elements());
    if (p.filter_dtype == p.dtype) {
      grad_filter_kernel<<<blocks, kThreads, 0, stream>>>(p, places, first, second,
                                                          static_cast<T*>(result));
    } else {
      grad_filter_kernel<<<blocks, kThreads, 0, stream>>>(p, places, first, second,
                                                          static_cast<float*>(result));
    }
  }
}

}  // namespace

void convolve_directly(const ConvProblem& problem, const void* first, const void* second,
                       void* result, cudaStream_t stream) {
  cuda_dispatch_float(problem.dtype, [&](auto zero) {
    using T = decltype(zero);
    convolve_of(problem, static_cast<const T*>(first), static_cast<const T*>(second), result,
                stream);
  });
  check_launch("a convolution");
}

}  // namespace lockstep

// Average pooling and its gradient: the mean of the part of each window inside the image.
#include "lockstep/kernels/cuda/pool/pool.cuh"

namespace lockstep {
namespace {

template <class T, int N>
__global__ void __launch_bounds__(256) avg_pool(const PoolShape p, const T* x, T* y) {
  for_each_pixel<N>(p, p.oh, p.ow, [&](int image, int row, int column, int channel) {
    const Span rows(row * p.stride_h - p.top, p.kh, p.h);
    const Span columns(column * p.stride_w - p.left, p.kw, p.w);
    float sums[N] = {};
    for (int i = rows.begin; i < rows.end; ++i) {
      for (int j = columns.begin; j < columns.end; ++j) {
        const std::int64_t at = pixel_at(p, p.h, p.w, image, rows.start + i, columns.start + j);
        float values[N];
        load_floats<T, N>(x + at + channel, values);
#pragma unroll
        for (int k = 0; k < N; ++k) sums[k] += values[k];
      }
    }
    const float share = 1.0F / static_cast<float>(rows.size() * columns.size());
#pragma unroll
    for (int k = 0; k < N; ++k) sums[k] *= share;
    store_floats<T, N>(y + pixel_at(p, p.oh, p.ow, image, row, column) + channel, sums);
  });
}

// dx of a pixel: the sum of dy over the windows that cover it, each divided by its size.
template <class T, int N>
__global__ void __launch_bounds__(256) avg_pool_grad(const PoolShape p, const T* dy, T* dx) {
  for_each_pixel<N>(p, p.h, p.w, [&](int image, int row, int column, int channel) {
    const Cover rows(row, p.top, p.kh, p.stride_h, p.oh);
    const Cover columns(column, p.left, p.kw, p.stride_w, p.ow);
    float sums[N] = {};
    for (int i = rows.first; i <= rows.last; ++i) {
      const int height = Span(i * p.stride_h - p.top, p.kh, p.h).size();
      for (int j = columns.first; j <= columns.last; ++j) {
        const int width = Span(j * p.stride_w - p.left, p.kw, p.w).size();
        const float share = 1.0F / static_cast<float>(height * width);
        float values[N];
        load_floats<T, N>(dy + pixel_at(p, p.oh, p.ow, image, i, j) + channel, values);
#pragma unroll
        for (int k = 0; k < N; ++k) sums[k] += share * values[k];
      }
    }
    store_floats<T, N>(dx + pixel_at(p, p.h, p.w, image, row, column) + channel, sums);
  });
}

template <class T>
std::unique_ptr<Kernel> make_avg_pool_of(const KernelCall& call) {
  const PoolShape p(call.in_shape(0), call.out_shape(0), call.attrs());
  return make_cuda_kernel([p](const Binding& b, cudaStream_t stream) {
    if (p.empty()) return;
    const bool in_vectors =
        p.c % kVectorSize<T> == 0 && all_on_vector_boundaries(b.in<T>(0), b.out<T>(0));
    const auto kernel = in_vectors ? avg_pool<T, kVectorSize<T>> : avg_pool<T, 1>;
    const PoolLaunch launch(p.n * p.oh, p.ow, p.c, in_vectors ? kVectorSize<T> : 1);
    kernel<<<launch.blocks, launch.threads, 0, stream>>>(p, b.in<T>(0), b.out<T>(0));
    check_launch("avg_pool");
  });
}

template <class T>
std::unique_ptr<Kernel> make_avg_pool_grad_of(const KernelCall& call) {
  const PoolShape p(call.out_shape(0), call.in_shape(0), call.attrs());
  return make_cuda_kernel([p](const Binding& b, cudaStream_t stream) {
    if (p.empty()) return;
    const bool in_vectors =
        p.c % kVectorSize<T> == 0 && all_on_vector_boundaries(b.in<T>(0), b.out<T>(0));
    const auto kernel = in_vectors ? avg_pool_grad<T, kVectorSize<T>> : avg_pool_grad<T, 1>;
    const PoolLaunch launch(p.n * p.h, p.w, p.c, in_vectors ? kVectorSize<T> : 1);
    kernel<<<launch.blocks, launch.threads, 0, stream>>>(p, b.in<T>(0), b.out<T>(0));
    check_launch("avg_pool_grad");
  });
}

std::unique_ptr<Kernel> make_avg_pool(const KernelCall& call) {
  return cuda_dispatch_float(call.in_dtype(0),
                             [&](auto zero) { return make_avg_pool_of<decltype(zero)>(call); });
}

std::unique_ptr<Kernel> make_avg_pool_grad(const KernelCall& call) {
  return cuda_dispatch_float(
      call.in_dtype(0), [&](auto zero) { return make_avg_pool_grad_of<decltype(zero)>(call); });
}

}  // namespace

void add_cuda_avg_pool(KernelLibrary& library) {
  library.add(
      Op::AvgPool,
      {.name = "cuda.avg_pool",
       .supports = [](const KernelCall& call) { return supports_pool(call, call.in_shape(0)); },
       .make = make_avg_pool});
  library.add(
      Op::AvgPoolGrad,
      {.name = "cuda.avg_pool_grad",
       .supports = [](const KernelCall& call) { return supports_pool(call, call.out_shape(0)); },
       .make = make_avg_pool_grad});
}

}  // namespace lockstep

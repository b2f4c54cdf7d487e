// Max pooling: the largest element of each window and its index in the window, and the gradient. If
// the window is small, a thread has all of it in flight; 16-bit values are compared two at a time.
#include "lockstep/kernels/cuda/pool/pool_grad.cuh"
#include "lockstep/kernels/cuda/primitives/largest.cuh"

namespace lockstep {

void add_cuda_avg_pool(KernelLibrary& library);  // avg_pool.cu

namespace {

// For windows of kHeight × kWidth, all of it in flight at once; for any size if they are 0.
template <class T, class Index, int N, int kHeight, int kWidth>
__global__ void __launch_bounds__(256) max_pool(const PoolShape p, const T* x, T* y, Index* index) {
  using Best = typename LargestOf<T, N>::Type;
  for_each_pixel<N>(p, p.oh, p.ow, [&](int image, int row, int column, int channel) {
    const Span rows(row * p.stride_h - p.top, p.kh, p.h);
    const Span columns(column * p.stride_w - p.left, p.kw, p.w);
    const auto load = [&](int i, int j) {
      const std::int64_t at = pixel_at(p, p.h, p.w, image, rows.start + i, columns.start + j);
      return load_raw<T, N>(x + at + channel);
    };
    Best best(rows.begin * p.kw + columns.begin);
    if constexpr (kHeight > 0) {
      Raw<T, N> raws[kHeight * kWidth];
#pragma unroll
      for (int k = 0; k < kHeight * kWidth; ++k) {
        const int i = k / kWidth;
        const int j = k % kWidth;
        const bool inside =
            i >= rows.begin && i < rows.end && j >= columns.begin && j < columns.end;
        raws[k] = Best::least();
        if (inside) raws[k] = load(i, j);
      }
#pragma unroll
      for (int k = 0; k < kHeight * kWidth; ++k) best.consider(raws[k], k);
    } else {
      for (int i = rows.begin; i < rows.end; ++i) {
        for (int j = columns.begin; j < columns.end; ++j) best.consider(load(i, j), i * p.kw + j);
      }
    }
    const std::int64_t to = pixel_at(p, p.oh, p.ow, image, row, column) + channel;
    *reinterpret_cast<Raw<T, N>*>(y + to) = best.values();
    best.store_places(index + to);
  });
}

// dx of a pixel: the sum of dy over the windows that it won, in their order. At most kRows ×
// kColumns windows cover a pixel, all in flight at once; any number if they are 0.
template <class T, class Index, int N, int kRows, int kColumns>
__global__ void __launch_bounds__(256)
    max_pool_grad(const PoolShape p, const T* dy, const Index* index, T* dx) {
  for_each_pixel<N>(p, p.h, p.w, [&](int image, int row, int column, int channel) {
    const Cover rows(row, p.top, p.kh, p.stride_h, p.oh);
    const Cover columns(column, p.left, p.kw, p.stride_w, p.ow);
    const auto window_at = [&](int i, int j) {
      return pixel_at(p, p.oh, p.ow, image, i, j) + channel;
    };
    const auto place_in = [&](int i, int j) {
      return (row + p.top - i * p.stride_h) * p.kw + column + p.left - j * p.stride_w;
    };
    float sums[N] = {};
    const auto take = [&](const Raw<T, N>& gradients, const Raw<Index, N>& winners, int place) {
      float values[N];
      unpack<T, N>(gradients, values);
      const Index* won = reinterpret_cast<const Index*>(&winners);
#pragma unroll
      for (int k = 0; k < N; ++k) {
        if (static_cast<int>(won[k]) == place) sums[k] += values[k];
      }
    };
    if constexpr (kRows > 0) {
      Raw<T, N> gradients[kRows * kColumns];
      Raw<Index, N> winners[kRows * kColumns];
#pragma unroll
      for (int k = 0; k < kRows * kColumns; ++k) {
        const int i = rows.first + k / kColumns;
        const int j = columns.first + k % kColumns;
        gradients[k] = {};
        winners[k] = {};
        if (i <= rows.last && j <= columns.last) {
          gradients[k] = load_raw<T, N>(dy + window_at(i, j));
          winners[k] = load_raw<Index, N>(index + window_at(i, j));
        }
      }
#pragma unroll
      for (int k = 0; k < kRows * kColumns; ++k) {
        const int i = rows.first + k / kColumns;
        const int j = columns.first + k % kColumns;
        if (i <= rows.last && j <= columns.last) take(gradients[k], winners[k], place_in(i, j));
      }
    } else {
      for (int i = rows.first; i <= rows.last; ++i) {
        for (int j = columns.first; j <= columns.last; ++j) {
          take(load_raw<T, N>(dy + window_at(i, j)), load_raw<Index, N>(index + window_at(i, j)),
               place_in(i, j));
        }
      }
    }
    store_floats<T, N>(dx + pixel_at(p, p.h, p.w, image, row, column) + channel, sums);
  });
}

// The same with one thread per gap between windows (pool_grad.cuh).
template <class T, class Index, int N, int kWindow, int kStride>
__global__ void __launch_bounds__(256)
    max_pool_grad_by_windows(const PoolShape p, const T* dy, const Index* index, T* dx) {
  const WindowGaps gaps(p);
  for_each_pixel<N>(p, gaps.height, gaps.width, [&](int image, int row, int column, int channel) {
    const Place gap{image, row, column};
    const ReachingWindows<T, Index, N, kWindow, kStride> windows(p, dy, index, gap, channel);
    float sums[kStride * kStride][N] = {};
    windows.add(0, sums);
    const auto pixels = gap_pixels<kStride>(p, gap);
#pragma unroll
    for (int q = 0; q < kStride * kStride; ++q) {
      if (pixels.there[q]) store_floats<T, N>(dx + pixels.at(q) + channel, sums[q]);
    }
  });
}

template <class T, class Index, int N>
auto max_pool_kernel(const PoolShape& p) {
  if constexpr (N > 1) {
    if (p.kh == 3 && p.kw == 3) return max_pool<T, Index, N, 3, 3>;
    if (p.kh == 2 && p.kw == 2) return max_pool<T, Index, N, 2, 2>;
  }
  return max_pool<T, Index, N, 0, 0>;
}

// The instance of max_pool_grad_by_windows for these windows; null if there is none.
template <class T, class Index, int N>
auto max_pool_grad_kernel_by_windows(const PoolShape& p) {
  using Function = void (*)(PoolShape, const T*, const Index*, T*);
  const auto is = [&](int window, int stride) {
    return has_short_lines(p.w, p.c) && p.kh == window && p.kw == window && p.stride_h == stride &&
           p.stride_w == stride;
  };
  if constexpr (N > 1) {
    if (is(3, 2)) return Function(max_pool_grad_by_windows<T, Index, N, 3, 2>);
    if (is(2, 2)) return Function(max_pool_grad_by_windows<T, Index, N, 2, 2>);
  }
  return Function(nullptr);
}

template <class T, class Index, int N>
auto max_pool_grad_kernel(const PoolShape& p) {
  if constexpr (N > 1) {
    const int rows = (p.kh + p.stride_h - 1) / p.stride_h;
    const int columns = (p.kw + p.stride_w - 1) / p.stride_w;
    if (rows == 2 && columns == 2) return max_pool_grad<T, Index, N, 2, 2>;
  }
  return max_pool_grad<T, Index, N, 0, 0>;
}

// Calls f(elements per vector load): full vectors if the argmax indices are bytes and all is
// aligned.
template <class T, class Index, class F>
void with_vector_size(const PoolShape& p, bool aligned, F&& f) {
  if constexpr (sizeof(Index) == 1) {
    if (aligned && p.c % kVectorSize<T> == 0)
      return f(std::integral_constant<int, kVectorSize<T>>{});
  }
  f(std::integral_constant<int, 1>{});
}

template <class T, class Index>
std::unique_ptr<Kernel> make_max_pool_of(const KernelCall& call) {
  const PoolShape p(call.in_shape(0), call.out_shape(0), call.attrs());
  return make_cuda_kernel([p](const Binding& b, cudaStream_t stream) {
    if (p.empty()) return;
    const T* x = b.in<T>(0);
    T* y = b.out<T>(0);
    Index* index = b.out<Index>(1);
    with_vector_size<T, Index>(p, all_on_vector_boundaries(x, y, index), [&](auto width) {
      constexpr int kWidth = decltype(width)::value;
      const PoolLaunch launch(p.n * p.oh, p.ow, p.c, kWidth);
      const auto kernel = max_pool_kernel<T, Index, kWidth>(p);
      kernel<<<launch.blocks, launch.threads, 0, stream>>>(p, x, y, index);
    });
    check_launch("max_pool");
  });
}

template <class T, class Index>
std::unique_ptr<Kernel> make_max_pool_grad_of(const KernelCall& call) {
  const PoolShape p(call.out_shape(0), call.in_shape(0), call.attrs());
  return make_cuda_kernel([p](const Binding& b, cudaStream_t stream) {
    if (p.empty()) return;
    const T* dy = b.in<T>(0);
    const Index* index = b.in<Index>(1);
    T* dx = b.out<T>(0);
    with_vector_size<T, Index>(p, all_on_vector_boundaries(dy, index, dx), [&](auto width) {
      constexpr int kWidth = decltype(width)::value;
      if (const auto by_windows = max_pool_grad_kernel_by_windows<T, Index, kWidth>(p)) {
        const WindowGaps gaps(p);
        const PoolLaunch launch(p.n * gaps.height, gaps.width, p.c, kWidth);
        by_windows<<<launch.blocks, launch.threads, 0, stream>>>(p, dy, index, dx);
        return;
      }
      const PoolLaunch launch(p.n * p.h, p.w, p.c, kWidth);
      const auto kernel = max_pool_grad_kernel<T, Index, kWidth>(p);
      kernel<<<launch.blocks, launch.threads, 0, stream>>>(p, dy, index, dx);
    });
    check_launch("max_pool_grad");
  });
}

std::unique_ptr<Kernel> make_max_pool(const KernelCall& call) {
  return cuda_dispatch_float(call.in_dtype(0), [&](auto zero) {
    using T = decltype(zero);
    return call.output(1).type.dtype == DType::U8 ? make_max_pool_of<T, std::uint8_t>(call)
                                                  : make_max_pool_of<T, std::int32_t>(call);
  });
}

std::unique_ptr<Kernel> make_max_pool_grad(const KernelCall& call) {
  return cuda_dispatch_float(call.in_dtype(0), [&](auto zero) {
    using T = decltype(zero);
    return call.in_dtype(1) == DType::U8 ? make_max_pool_grad_of<T, std::uint8_t>(call)
                                         : make_max_pool_grad_of<T, std::int32_t>(call);
  });
}

}  // namespace

void add_cuda_pool(KernelLibrary& library) {
  library.add(
      Op::MaxPool,
      {.name = "cuda.max_pool",
       .supports = [](const KernelCall& call) { return supports_pool(call, call.in_shape(0)); },
       .make = make_max_pool,
       .offers =
           [](const KernelCall& call, std::string_view extra) {
             return extra == "batch_norm" && pools_with_norm(call.input(0).type, call.attrs());
           }});
  library.add(
      Op::MaxPoolGrad,
      {.name = "cuda.max_pool_grad",
       .supports = [](const KernelCall& call) { return supports_pool(call, call.out_shape(0)); },
       .make = make_max_pool_grad});
  add_cuda_avg_pool(library);
}

}  // namespace lockstep

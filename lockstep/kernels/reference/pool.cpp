// Max and average pooling over (N, H, W, C) images, and their gradients. Threads divide the work by
// results in the forward pass and by images in the backward pass, so they never write the same
// element.
#include <algorithm>

#include "lockstep/device/cpu/parallel.h"
#include "lockstep/kernels/reference/floating.h"
#include "lockstep/kernels/reference/reference.h"

namespace lockstep {
namespace {

struct Pool {
  std::int64_t n, h, w, c, oh, ow;
  std::int64_t kh, kw, stride_h, stride_w, top, left;

  Pool(const Shape& x, const Shape& y, const Attrs& attrs)
      : n(x[0]),
        h(x[1]),
        w(x[2]),
        c(x[3]),
        oh(y[1]),
        ow(y[2]),
        kh(attrs.ints("window")[0]),
        kw(attrs.ints("window")[1]),
        stride_h(attrs.ints("strides")[0]),
        stride_w(attrs.ints("strides")[1]),
        top(attrs.ints("padding")[0]),
        left(attrs.ints("padding")[2]) {}
};

// The part of a window inside the image: its rows [row_begin, row_end) and columns likewise. The
// window begins at (row, column), padding included.
struct Window {
  std::int64_t row, column, row_begin, row_end, column_begin, column_end;

  Window(const Pool& p, std::int64_t y, std::int64_t x)
      : row(y * p.stride_h - p.top),
        column(x * p.stride_w - p.left),
        row_begin(std::max<std::int64_t>(0, -row)),
        row_end(std::min(p.kh, p.h - row)),
        column_begin(std::max<std::int64_t>(0, -column)),
        column_end(std::min(p.kw, p.w - column)) {}

  std::int64_t elements() const { return (row_end - row_begin) * (column_end - column_begin); }

  // Calls f(index in the window, offset of the pixel) for each pixel.
  template <class F>
  void for_each(const Pool& p, F&& f) const {
    for (std::int64_t i = row_begin; i < row_end; ++i) {
      for (std::int64_t j = column_begin; j < column_end; ++j) {
        f(i * p.kw + j, ((row + i) * p.w + column + j) * p.c);
      }
    }
  }
};

// Calls f(image, result pixel, window) for the result pixels [begin, end).
template <class F>
void for_each_window(const Pool& p, std::int64_t begin, std::int64_t end, F&& f) {
  for (std::int64_t pixel = begin; pixel < end; ++pixel) {
    f(pixel / (p.oh * p.ow), pixel, Window(p, pixel / p.ow % p.oh, pixel % p.ow));
  }
}

template <class T, class Index>
void max_pool_pixels(const Pool& p, const T* x, T* y, Index* places, std::int64_t begin,
                     std::int64_t end) {
  for_each_window(p, begin, end, [&](std::int64_t image, std::int64_t pixel, const Window& window) {
    const T* from = x + image * p.h * p.w * p.c;
    T* best = y + pixel * p.c;
    Index* winner = places + pixel * p.c;
    bool first = true;
    window.for_each(p, [&](std::int64_t place, std::int64_t offset) {
      const T* candidate = from + offset;
      for (std::int64_t k = 0; k < p.c; ++k) {
        // The first NaN wins, so a NaN in a window propagates.
        const bool wins = first || (!(candidate[k] <= best[k]) && best[k] == best[k]);
        best[k] = wins ? candidate[k] : best[k];
        winner[k] = wins ? static_cast<Index>(place) : winner[k];
      }
      first = false;
    });
  });
}

template <class T, class Index>
std::unique_ptr<Kernel> make_max_pool_of(const KernelCall& call) {
  const Pool p(call.in_shape(0), call.out_shape(0), call.attrs());
  return make_kernel([p](const Binding& binding) {
    parallel_for(p.n * p.oh * p.ow, grain_for(p.kh * p.kw * p.c),
                 [&](std::int64_t begin, std::int64_t end) {
                   max_pool_pixels(p, binding.in<T>(0), binding.out<T>(0), binding.out<Index>(1),
                                   begin, end);
                 });
  });
}

template <class T, class Index>
std::unique_ptr<Kernel> make_max_pool_grad_of(const KernelCall& call) {
  const Pool p(call.out_shape(0), call.in_shape(0), call.attrs());
  return make_kernel([p](const Binding& binding) {
    const T* dy = binding.in<T>(0);
    const Index* places = binding.in<Index>(1);
    const std::int64_t results = p.oh * p.ow;
    const std::int64_t size = p.h * p.w * p.c;
    parallel_for(p.n, grain_for(size), [&](std::int64_t begin, std::int64_t end) {
      std::fill_n(binding.out<T>(0) + begin * size, (end - begin) * size, T(0));
      for_each_window(p, begin * results, end * results,
                      [&](std::int64_t image, std::int64_t pixel, const Window& window) {
                        T* dx = binding.out<T>(0) + image * size;
                        for (std::int64_t k = 0; k < p.c; ++k) {
                          const auto place = static_cast<std::int64_t>(places[pixel * p.c + k]);
                          const std::int64_t row = window.row + place / p.kw;
                          const std::int64_t column = window.column + place % p.kw;
                          dx[(row * p.w + column) * p.c + k] += dy[pixel * p.c + k];
                        }
                      });
    });
  });
}

template <class T>
std::unique_ptr<Kernel> make_avg_pool_of(const KernelCall& call) {
  const Pool p(call.in_shape(0), call.out_shape(0), call.attrs());
  return make_kernel([p](const Binding& binding) {
    const auto pixels = [&](std::int64_t begin, std::int64_t end) {
      for_each_window(p, begin, end,
                      [&](std::int64_t image, std::int64_t pixel, const Window& window) {
                        const T* x = binding.in<T>(0) + image * p.h * p.w * p.c;
                        T* y = binding.out<T>(0) + pixel * p.c;
                        std::fill_n(y, p.c, T(0));
                        window.for_each(p, [&](std::int64_t, std::int64_t offset) {
                          for (std::int64_t k = 0; k < p.c; ++k) y[k] += x[offset + k];
                        });
                        const T share = T(1) / static_cast<T>(window.elements());
                        for (std::int64_t k = 0; k < p.c; ++k) y[k] *= share;
                      });
    };
    parallel_for(p.n * p.oh * p.ow, grain_for(p.kh * p.kw * p.c), pixels);
  });
}

template <class T>
std::unique_ptr<Kernel> make_avg_pool_grad_of(const KernelCall& call) {
  const Pool p(call.out_shape(0), call.in_shape(0), call.attrs());
  return make_kernel([p](const Binding& binding) {
    const std::int64_t results = p.oh * p.ow;
    const std::int64_t size = p.h * p.w * p.c;
    parallel_for(p.n, grain_for(size), [&](std::int64_t begin, std::int64_t end) {
      std::fill_n(binding.out<T>(0) + begin * size, (end - begin) * size, T(0));
      for_each_window(p, begin * results, end * results,
                      [&](std::int64_t image, std::int64_t pixel, const Window& window) {
                        const T* dy = binding.in<T>(0) + pixel * p.c;
                        T* dx = binding.out<T>(0) + image * size;
                        const T share = T(1) / static_cast<T>(window.elements());
                        window.for_each(p, [&](std::int64_t, std::int64_t offset) {
                          for (std::int64_t k = 0; k < p.c; ++k) dx[offset + k] += share * dy[k];
                        });
                      });
    });
  });
}

std::unique_ptr<Kernel> make_max_pool(const KernelCall& call) {
  return make_floating(call, [&](auto zero) {
    using T = decltype(zero);
    return call.output(1).type.dtype == DType::U8 ? make_max_pool_of<T, std::uint8_t>(call)
                                                  : make_max_pool_of<T, std::int32_t>(call);
  });
}

std::unique_ptr<Kernel> make_max_pool_grad(const KernelCall& call) {
  return make_floating(call, [&](auto zero) {
    using T = decltype(zero);
    return call.in_dtype(1) == DType::U8 ? make_max_pool_grad_of<T, std::uint8_t>(call)
                                         : make_max_pool_grad_of<T, std::int32_t>(call);
  });
}

std::unique_ptr<Kernel> make_avg_pool(const KernelCall& call) {
  return make_floating(call, [&](auto zero) { return make_avg_pool_of<decltype(zero)>(call); });
}

std::unique_ptr<Kernel> make_avg_pool_grad(const KernelCall& call) {
  return make_floating(call,
                       [&](auto zero) { return make_avg_pool_grad_of<decltype(zero)>(call); });
}

}  // namespace

void add_reference_pool(KernelLibrary& library) {
  library.add(Op::MaxPool,
              {.name = "reference.max_pool", .supports = supports_floating, .make = make_max_pool});
  library.add(Op::MaxPoolGrad, {.name = "reference.max_pool_grad",
                                .supports = supports_floating,
                                .make = make_max_pool_grad});
  library.add(Op::AvgPool,
              {.name = "reference.avg_pool", .supports = supports_floating, .make = make_avg_pool});
  library.add(Op::AvgPoolGrad, {.name = "reference.avg_pool_grad",
                                .supports = supports_floating,
                                .make = make_avg_pool_grad});
}

}  // namespace lockstep

// Convolution and its two gradients by their definitions, over (N, H, W, C) images and
// (kh, kw, C / groups, O) filters. Every element of a result is one sum, computed by one thread in
// a fixed order: short partial sums, added up in double.
#include <algorithm>
#include <array>

#include "lockstep/device/cpu/parallel.h"
#include "lockstep/graph/ops/conv.h"
#include "lockstep/kernels/pooled_conv.h"
#include "lockstep/kernels/reference/floating.h"
#include "lockstep/kernels/reference/fused_activation.h"
#include "lockstep/kernels/reference/reference.h"

namespace lockstep {
namespace {

constexpr std::int64_t kTile = 128;  // channels whose sums are kept on the stack

template <class T>
using Tile = std::array<T, static_cast<std::size_t>(kTile)>;

struct Conv {
  std::int64_t n, h, w, c;  // image
  std::int64_t kh, kw, in;  // filter: its window, input channels per group
  std::int64_t o, out;      // output channels, and those per group
  std::int64_t oh, ow;      // result
  std::int64_t groups;
  std::int64_t stride_h, stride_w, dilation_h, dilation_w, top, left;

  Conv(const Shape& x, const Shape& filter, const Shape& y, const Attrs& attrs)
      : n(x[0]),
        h(x[1]),
        w(x[2]),
        c(x[3]),
        kh(filter[0]),
        kw(filter[1]),
        in(filter[2]),
        o(filter[3]),
        out(filter[3] / attrs.integer("groups")),
        oh(y[1]),
        ow(y[2]),
        groups(attrs.integer("groups")),
        stride_h(attrs.ints("strides")[0]),
        stride_w(attrs.ints("strides")[1]),
        dilation_h(attrs.ints("dilations")[0]),
        dilation_w(attrs.ints("dilations")[1]),
        top(attrs.ints("padding")[0]),
        left(attrs.ints("padding")[2]) {}

  std::int64_t row(std::int64_t y, std::int64_t i) const {
    return y * stride_h - top + i * dilation_h;
  }
  std::int64_t column(std::int64_t x, std::int64_t j) const {
    return x * stride_w - left + j * dilation_w;
  }
  // Multiplications per pixel of the result.
  std::int64_t work() const { return kh * kw * in * o; }
};

// The index in the result whose window begins at `position`, or -1: the inverse of Conv::row.
std::int64_t source(std::int64_t position, std::int64_t stride, std::int64_t extent) {
  if (position < 0 || position % stride != 0) return -1;
  return position / stride < extent ? position / stride : -1;
}

// Adds the sums of channels [begin, begin + columns) of one group for the pixel (image, y, x).
template <class T>
void sum_pixel(const Conv& v, const T* image, const T* filter, std::int64_t y, std::int64_t x,
               std::int64_t group, std::int64_t begin, std::int64_t columns, double* totals) {
  for (std::int64_t i = 0; i < v.kh; ++i) {
    const std::int64_t row = v.row(y, i);
    if (row < 0 || row >= v.h) continue;
    for (std::int64_t j = 0; j < v.kw; ++j) {
      const std::int64_t column = v.column(x, j);
      if (column < 0 || column >= v.w) continue;
      const T* pixel = image + (row * v.w + column) * v.c + group * v.in;
      const T* weights = filter + (i * v.kw + j) * v.in * v.o + begin;
      Tile<T> piece;
      std::fill_n(piece.begin(), columns, T(0));
      for (std::int64_t k = 0; k < v.in; ++k) {
        const T factor = pixel[k];
        const T* line = weights + k * v.o;
        for (std::int64_t q = 0; q < columns; ++q)
          piece[static_cast<std::size_t>(q)] += factor * line[q];
      }
      for (std::int64_t q = 0; q < columns; ++q) totals[q] += piece[static_cast<std::size_t>(q)];
    }
  }
}

// The same if every group has one input and one output channel: channels are independent.
template <class T>
void sum_pixel_depthwise(const Conv& v, const T* image, const T* filter, std::int64_t y,
                         std::int64_t x, std::int64_t begin, std::int64_t columns, double* totals) {
  for (std::int64_t i = 0; i < v.kh; ++i) {
    const std::int64_t row = v.row(y, i);
    if (row < 0 || row >= v.h) continue;
    for (std::int64_t j = 0; j < v.kw; ++j) {
      const std::int64_t column = v.column(x, j);
      if (column < 0 || column >= v.w) continue;
      const T* pixel = image + (row * v.w + column) * v.c + begin;
      const T* weights = filter + (i * v.kw + j) * v.o + begin;
      for (std::int64_t q = 0; q < columns; ++q)
        totals[q] += static_cast<double>(pixel[q] * weights[q]);
    }
  }
}

// Calls f(group, first channel, channels) for tiles that cover all output channels.
template <class F>
void for_each_tile(std::int64_t groups, std::int64_t channels, F&& f) {
  for (std::int64_t group = 0; group < groups; ++group) {
    for (std::int64_t begin = 0; begin < channels; begin += kTile) {
      f(group, group * channels + begin, std::min(kTile, channels - begin));
    }
  }
}

template <class T>
void convolve_pixel(const Conv& v, const T* image, const T* filter, const T* bias, std::int64_t y,
                    std::int64_t x, T* result) {
  const bool depthwise = v.in == 1 && v.out == 1;
  for_each_tile(depthwise ? 1 : v.groups, depthwise ? v.o : v.out,
                [&](std::int64_t group, std::int64_t begin, std::int64_t columns) {
                  Tile<double> totals;
                  for (std::int64_t q = 0; q < columns; ++q) {
                    totals[static_cast<std::size_t>(q)] =
                        bias == nullptr ? 0.0 : static_cast<double>(bias[begin + q]);
                  }
                  if (depthwise) {
                    sum_pixel_depthwise(v, image, filter, y, x, begin, columns, totals.data());
                  } else {
                    sum_pixel(v, image, filter, y, x, group, begin, columns, totals.data());
                  }
                  for (std::int64_t q = 0; q < columns; ++q) {
                    result[begin + q] = static_cast<T>(totals[static_cast<std::size_t>(q)]);
                  }
                });
}

template <class T>
std::unique_ptr<Kernel> make_conv_of(const KernelCall& call) {
  const Conv v(call.in_shape(0), call.in_shape(1), call.out_shape(0), call.attrs());
  return make_kernel([v, with_bias = call.in_count() > 2,
                      activation = RowActivation<T>(call.attrs())](const Binding& binding) {
    const T* bias = with_bias ? binding.in<T>(2) : nullptr;
    parallel_for(v.n * v.oh * v.ow, grain_for(v.work()), [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t pixel = begin; pixel < end; ++pixel) {
        const std::int64_t image = pixel / (v.oh * v.ow);
        T* result = binding.out<T>(0) + pixel * v.o;
        convolve_pixel(v, binding.in<T>(0) + image * v.h * v.w * v.c, binding.in<T>(1), bias,
                       pixel / v.ow % v.oh, pixel % v.ow, result);
        activation.apply(result, v.o);
      }
    });
  });
}

// dx of one pixel of the image: the sum of dy times weights over the taps that read it.
template <class T>
void grad_input_pixel(const Conv& v, const T* dy, const T* filter, std::int64_t row,
                      std::int64_t column, T* dx) {
  for_each_tile(1, v.c, [&](std::int64_t, std::int64_t begin, std::int64_t columns) {
    Tile<double> totals{};
    for (std::int64_t i = 0; i < v.kh; ++i) {
      const std::int64_t y = source(row + v.top - i * v.dilation_h, v.stride_h, v.oh);
      if (y < 0) continue;
      for (std::int64_t j = 0; j < v.kw; ++j) {
        const std::int64_t x = source(column + v.left - j * v.dilation_w, v.stride_w, v.ow);
        if (x < 0) continue;
        const T* pixel = dy + (y * v.ow + x) * v.o;
        const T* weights = filter + (i * v.kw + j) * v.in * v.o;
        for (std::int64_t q = 0; q < columns; ++q) {
          const std::int64_t group = (begin + q) / v.in;
          const T* a = pixel + group * v.out;
          const T* b = weights + (begin + q) % v.in * v.o + group * v.out;
          T sum = 0;
#pragma omp simd reduction(+ : sum)
          for (std::int64_t k = 0; k < v.out; ++k) sum += a[k] * b[k];
          totals[static_cast<std::size_t>(q)] += sum;
        }
      }
    }
    for (std::int64_t q = 0; q < columns; ++q)
      dx[begin + q] = static_cast<T>(totals[static_cast<std::size_t>(q)]);
  });
}

template <class T>
std::unique_ptr<Kernel> make_grad_input_of(const KernelCall& call) {
  const Conv v(call.out_shape(0), call.in_shape(1), call.in_shape(0), call.attrs());
  return make_kernel([v](const Binding& binding) {
    parallel_for(v.n * v.h * v.w, grain_for(v.work()), [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t pixel = begin; pixel < end; ++pixel) {
        const std::int64_t image = pixel / (v.h * v.w);
        grad_input_pixel(v, binding.in<T>(0) + image * v.oh * v.ow * v.o, binding.in<T>(1),
                         pixel / v.w % v.h, pixel % v.w, binding.out<T>(0) + pixel * v.c);
      }
    });
  });
}

// Adds the products of one image for the filter's output channels [begin, begin + columns) at the
// tap (i, j) and an input channel.
template <class T>
void sum_tap(const Conv& v, const T* image, const T* dy, std::int64_t i, std::int64_t j,
             std::int64_t channel, std::int64_t begin, std::int64_t columns, double* totals) {
  Tile<T> piece;
  std::fill_n(piece.begin(), columns, T(0));
  for (std::int64_t y = 0; y < v.oh; ++y) {
    const std::int64_t row = v.row(y, i);
    if (row < 0 || row >= v.h) continue;
    for (std::int64_t x = 0; x < v.ow; ++x) {
      const std::int64_t column = v.column(x, j);
      if (column < 0 || column >= v.w) continue;
      const T factor = image[(row * v.w + column) * v.c + channel];
      const T* line = dy + (y * v.ow + x) * v.o + begin;
      for (std::int64_t q = 0; q < columns; ++q)
        piece[static_cast<std::size_t>(q)] += factor * line[q];
    }
  }
  for (std::int64_t q = 0; q < columns; ++q) totals[q] += piece[static_cast<std::size_t>(q)];
}

// The gradient of one row of the filter: tap (i, j) and input channel k of every group.
template <class T>
void grad_filter_row(const Conv& v, const T* x, const T* dy, std::int64_t i, std::int64_t j,
                     std::int64_t k, T* result) {
  for_each_tile(v.groups, v.out, [&](std::int64_t group, std::int64_t begin, std::int64_t columns) {
    Tile<double> totals{};
    for (std::int64_t image = 0; image < v.n; ++image) {
      sum_tap(v, x + image * v.h * v.w * v.c, dy + image * v.oh * v.ow * v.o, i, j,
              group * v.in + k, begin, columns, totals.data());
    }
    for (std::int64_t q = 0; q < columns; ++q) {
      result[begin + q] = static_cast<T>(totals[static_cast<std::size_t>(q)]);
    }
  });
}

template <class T>
void grad_bias(const Conv& v, const T* dy, T* result) {
  for_each_tile(1, v.o, [&](std::int64_t, std::int64_t begin, std::int64_t columns) {
    Tile<double> totals{};
    for (std::int64_t pixel = 0; pixel < v.n * v.oh * v.ow; ++pixel) {
      const T* line = dy + pixel * v.o + begin;
      for (std::int64_t q = 0; q < columns; ++q) totals[static_cast<std::size_t>(q)] += line[q];
    }
    for (std::int64_t q = 0; q < columns; ++q) {
      result[begin + q] = static_cast<T>(totals[static_cast<std::size_t>(q)]);
    }
  });
}

template <class T>
std::unique_ptr<Kernel> make_grad_filter_of(const KernelCall& call) {
  const Conv v(call.in_shape(0), call.out_shape(0), call.in_shape(1), call.attrs());
  return make_kernel([v, with_bias = call.attrs().flag("with_bias")](const Binding& binding) {
    const T* x = binding.in<T>(0);
    const T* dy = binding.in<T>(1);
    const std::int64_t work = v.n * v.oh * v.ow * v.o;
    parallel_for(v.kh * v.kw * v.in, grain_for(work), [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t row = begin; row < end; ++row) {
        const std::int64_t tap = row / v.in;
        grad_filter_row(v, x, dy, tap / v.kw, tap % v.kw, row % v.in,
                        binding.out<T>(0) + row * v.o);
      }
    });
    if (with_bias) grad_bias(v, dy, binding.out<T>(1));
  });
}

std::unique_ptr<Kernel> make_conv(const KernelCall& call) {
  return make_floating(call, [&](auto zero) { return make_conv_of<decltype(zero)>(call); });
}

std::unique_ptr<Kernel> make_grad_input(const KernelCall& call) {
  return make_floating(call, [&](auto zero) { return make_grad_input_of<decltype(zero)>(call); });
}

std::unique_ptr<Kernel> make_grad_filter(const KernelCall& call) {
  return make_floating(call, [&](auto zero) { return make_grad_filter_of<decltype(zero)>(call); });
}

bool supports_plain(const KernelCall& call) {
  return supports_floating(call) && !is_pooled(call.attrs());
}

}  // namespace

void add_reference_conv(KernelLibrary& library) {
  add_reference_pooled_conv(library);
  library.add(Op::Conv2D,
              {.name = "reference.conv2d",
               .supports = supports_plain,
               .make = make_conv,
               .fuses_activation = [](const KernelCall&, std::string_view) { return true; }});
  library.add(Op::Conv2DGradInput, {.name = "reference.conv2d_grad_input",
                                    .supports = supports_floating,
                                    .make = make_grad_input});
  library.add(Op::Conv2DGradFilter, {.name = "reference.conv2d_grad_filter",
                                     .supports = supports_plain,
                                     .make = make_grad_filter});
}

}  // namespace lockstep

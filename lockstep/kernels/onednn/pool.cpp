// Pooling over images in any layout that `Tiles` can describe: the innermost run of channels is the
// vector. Max pooling keeps the winner's place in the window as one byte a result; its gradient
// writes every element of dx once where windows do not overlap, and adds into zeros where they do.
#include <algorithm>
#include <cstring>
#include <limits>

#include "lockstep/base/error.h"
#include "lockstep/device/cpu/parallel.h"
#include "lockstep/kernels/onednn/onednn.h"
#include "lockstep/kernels/onednn/tiles.h"
#include "lockstep/kernels/onednn/vectorized.h"

namespace lockstep::onednn {
namespace {

constexpr std::int64_t kMostLanes = 32;

// Planes of (height, width) places, each with `lanes` neighbouring channels of one image.
struct Windows {
  std::int64_t planes, height, width, out_height, out_width, lanes;
  std::int64_t window_height, window_width, stride_height, stride_width, top, left;
  bool tiling;  // every element of the image is in exactly one window

  std::int64_t in_plane() const { return height * width * lanes; }
  std::int64_t out_plane() const { return out_height * out_width * lanes; }
};

struct Range {
  std::int64_t begin, end;  // of the window's rows (or columns) that lie in the image
};
LOCKSTEP_INLINE Range clip(std::int64_t start, std::int64_t window, std::int64_t extent) {
  return {std::max<std::int64_t>(0, -start), std::min(window, extent - start)};
}

// A plane forward. Width of the strip: kLanes, or `strip` where that is 0.
template <int kLanes>
LOCKSTEP_INLINE void max_strip(const Windows& w, const float* x, float* y, std::uint8_t* winners,
                               std::int64_t strip) {
  const std::int64_t n = kLanes > 0 ? kLanes : strip;
  for (std::int64_t oh = 0; oh < w.out_height; ++oh) {
    const std::int64_t h = oh * w.stride_height - w.top;
    const Range rows = clip(h, w.window_height, w.height);
    for (std::int64_t ow = 0; ow < w.out_width; ++ow) {
      const std::int64_t v = ow * w.stride_width - w.left;
      const Range columns = clip(v, w.window_width, w.width);
      float best[kLanes > 0 ? kLanes : kMostLanes];
      std::int32_t place[kLanes > 0 ? kLanes : kMostLanes];
      const auto first = static_cast<std::int32_t>(rows.begin * w.window_width + columns.begin);
      for (std::int64_t l = 0; l < n; ++l) {
        best[l] = -std::numeric_limits<float>::infinity();
        place[l] = first;
      }
      for (std::int64_t i = rows.begin; i < rows.end; ++i) {
        for (std::int64_t j = columns.begin; j < columns.end; ++j) {
          const float* source = x + ((h + i) * w.width + v + j) * w.lanes;
          const auto here = static_cast<std::int32_t>(i * w.window_width + j);
          for (std::int64_t l = 0; l < n; ++l) {
            // Not "source > best": a NaN wins too, so that it is seen and not lost.
            const bool wins = !(source[l] <= best[l]);
            best[l] = wins ? source[l] : best[l];
            place[l] = wins ? here : place[l];
          }
        }
      }
      const std::int64_t target = (oh * w.out_width + ow) * w.lanes;
      for (std::int64_t l = 0; l < n; ++l) y[target + l] = best[l];
      for (std::int64_t l = 0; l < n; ++l) {
        winners[target + l] = static_cast<std::uint8_t>(place[l]);
      }
    }
  }
}

LOCKSTEP_VECTORIZED
void max_plane(const Windows& w, const float* x, float* y, std::uint8_t* winners) {
  if (w.lanes == 8) {
    max_strip<8>(w, x, y, winners, 8);
    return;
  }
  for (std::int64_t lane = 0; lane < w.lanes; lane += kMostLanes) {
    max_strip<0>(w, x + lane, y + lane, winners + lane, std::min(kMostLanes, w.lanes - lane));
  }
}

template <int kLanes>
LOCKSTEP_INLINE void max_grad(const Windows& w, const float* dy, const std::uint8_t* winners,
                              float* dx) {
  const std::int64_t n = kLanes > 0 ? kLanes : w.lanes;
  if (!w.tiling) {
    std::memset(dx, 0, static_cast<std::size_t>(w.in_plane()) * sizeof(float));
  }
  for (std::int64_t oh = 0; oh < w.out_height; ++oh) {
    const std::int64_t h = oh * w.stride_height - w.top;
    const Range rows = clip(h, w.window_height, w.height);
    for (std::int64_t ow = 0; ow < w.out_width; ++ow) {
      const std::int64_t v = ow * w.stride_width - w.left;
      const Range columns = clip(v, w.window_width, w.width);
      const float* gradient = dy + (oh * w.out_width + ow) * n;
      const std::uint8_t* winner = winners + (oh * w.out_width + ow) * n;
      for (std::int64_t i = rows.begin; i < rows.end; ++i) {
        for (std::int64_t j = columns.begin; j < columns.end; ++j) {
          float* target = dx + ((h + i) * w.width + v + j) * n;
          const auto here = static_cast<std::uint8_t>(i * w.window_width + j);
          if (w.tiling) {
            for (std::int64_t l = 0; l < n; ++l) {
              target[l] = winner[l] == here ? gradient[l] : 0.0f;
            }
          } else {
            for (std::int64_t l = 0; l < n; ++l) {
              target[l] += winner[l] == here ? gradient[l] : 0.0f;
            }
          }
        }
      }
    }
  }
}

LOCKSTEP_VECTORIZED
void max_grad_plane(const Windows& w, const float* dy, const std::uint8_t* winners, float* dx) {
  if (w.lanes == 8) {
    max_grad<8>(w, dy, winners, dx);
  } else {
    max_grad<0>(w, dy, winners, dx);
  }
}

Windows windows_of(const KernelCall& call, const ValueInfo& image, const ValueInfo& result) {
  const Tiles tiles = *tiles_of(image.type.shape, image.layout);
  const Shape& x = image.type.shape;
  const Shape& y = result.type.shape;
  const Ints& window = call.attrs().ints("window");
  const Ints& strides = call.attrs().ints("strides");
  const Ints& padding = call.attrs().ints("padding");
  Windows w{};
  w.planes = x[0] * tiles.groups;
  w.height = x[1];
  w.width = x[2];
  w.out_height = y[1];
  w.out_width = y[2];
  w.lanes = tiles.lanes;
  w.window_height = window[0];
  w.window_width = window[1];
  w.stride_height = strides[0];
  w.stride_width = strides[1];
  w.top = padding[0];
  w.left = padding[2];
  w.tiling = strides[0] == window[0] && strides[1] == window[1] && padding == Ints{0, 0, 0, 0} &&
             y[1] * window[0] == x[1] && y[2] * window[1] == x[2];
  return w;
}

std::unique_ptr<Kernel> make_max(const KernelCall& call) {
  const Windows w = windows_of(call, call.input(0), call.output(0));
  return make_kernel([w](const Binding& binding) {
    parallel_for(w.planes, 1, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t p = begin; p < end; ++p) {
        max_plane(w, binding.in<float>(0) + p * w.in_plane(),
                  binding.out<float>(0) + p * w.out_plane(),
                  binding.out<std::uint8_t>(1) + p * w.out_plane());
      }
    });
  });
}

std::unique_ptr<Kernel> make_max_grad(const KernelCall& call) {
  const Windows w = windows_of(call, call.output(0), call.input(0));
  return make_kernel([w](const Binding& binding) {
    parallel_for(w.planes, 1, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t p = begin; p < end; ++p) {
        max_grad_plane(w, binding.in<float>(0) + p * w.out_plane(),
                       binding.in<std::uint8_t>(1) + p * w.out_plane(),
                       binding.out<float>(0) + p * w.in_plane());
      }
    });
  });
}

// All values of the node in one layout that Tiles can describe, and winners that fit a byte.
bool supports(const KernelCall& call) {
  if (!f32_and_not_empty(call)) return false;
  const Layout& layout = call.input(0).layout;
  const auto fits = [&](ValueId id) {
    const ValueInfo& value = call.graph.info(id);
    return value.layout == layout && value.type.dtype != DType::I32 &&
           tiles_of(value.type.shape, layout).has_value();
  };
  return std::all_of(call.node.inputs.begin(), call.node.inputs.end(), fits) &&
         std::all_of(call.node.outputs.begin(), call.node.outputs.end(), fits);
}

NodeLayouts layouts(const KernelCall& call) {
  if (!f32_and_not_empty(call)) return {};
  const ValueInfo& first = call.input(0);
  const Layout chosen = tiles_of(first.type.shape, first.layout) ? first.layout : Layout{};
  return {std::vector<Layout>(call.node.inputs.size(), chosen),
          std::vector<Layout>(call.node.outputs.size(), chosen)};
}

}  // namespace

void add_pool(KernelLibrary& library) {
  const auto add = [&](Op op, std::string_view name, auto make) {
    library.add(op, {.name = name,
                     .supports = supports,
                     .make = make,
                     .workspace_bytes = nullptr,
                     .layouts = layouts,
                     .fuses_activation = nullptr});
  };
  add(Op::MaxPool, "cpu.max_pool", make_max);
  add(Op::MaxPoolGrad, "cpu.max_pool_grad", make_max_grad);
}

}  // namespace lockstep::onednn

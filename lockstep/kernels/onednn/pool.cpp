// Pooling over images in any layout that `Tiles` can describe, vectorised over the innermost
// channels. Max pooling stores the argmax, the winner's index in the window, as one byte per
// result. The gradients write every element of dx once if windows tile the image; otherwise they
// add to zeros. oneDNN's pooling is not used, because the argmax is a value of the graph, and NaN
// must propagate as in the reference.
#include <algorithm>
#include <cstring>
#include <limits>
#include <type_traits>

#include "lockstep/base/error.h"
#include "lockstep/device/cpu/parallel.h"
#include "lockstep/kernels/onednn/lanes.h"
#include "lockstep/kernels/onednn/onednn.h"
#include "lockstep/kernels/onednn/tiles.h"

namespace lockstep::onednn {

constexpr std::int64_t kMostLanes = 32;

// Planes of (height, width) pixels, each with `lanes` consecutive channels of one image.
struct Windows {
  std::int64_t planes, height, width, out_height, out_width, lanes;
  std::int64_t window_height, window_width, stride_height, stride_width, top, left;
  bool tiling;  // every element of the image is in exactly one window

  bool tiles_by(std::int64_t side) const {
    return tiling && window_height == side && window_width == side;
  }
  std::int64_t in_plane() const { return height * width * lanes; }
  std::int64_t out_plane() const { return out_height * out_width * lanes; }
};

}  // namespace lockstep::onednn

#define LOCKSTEP_ISA_FILE "lockstep/kernels/onednn/pool_planes.inc"
#include "lockstep/kernels/onednn/every_isa.h"

namespace lockstep::onednn {
namespace {

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
  const auto max_plane = best_isa(v4::max_plane, v3::max_plane, any_isa::max_plane);
  return make_kernel([w, max_plane](const Binding& binding) {
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
  const auto max_grad_plane =
      best_isa(v4::max_grad_plane, v3::max_grad_plane, any_isa::max_grad_plane);
  return make_kernel([w, max_grad_plane](const Binding& binding) {
    parallel_for(w.planes, 1, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t p = begin; p < end; ++p) {
        max_grad_plane(w, binding.in<float>(0) + p * w.out_plane(),
                       binding.in<std::uint8_t>(1) + p * w.out_plane(),
                       binding.out<float>(0) + p * w.in_plane());
      }
    });
  });
}

std::unique_ptr<Kernel> make_avg(const KernelCall& call) {
  const Windows w = windows_of(call, call.input(0), call.output(0));
  const auto avg_plane = best_isa(v4::avg_plane, v3::avg_plane, any_isa::avg_plane);
  return make_kernel([w, avg_plane](const Binding& binding) {
    parallel_for(w.planes, 1, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t p = begin; p < end; ++p) {
        avg_plane(w, binding.in<float>(0) + p * w.in_plane(),
                  binding.out<float>(0) + p * w.out_plane());
      }
    });
  });
}

std::unique_ptr<Kernel> make_avg_grad(const KernelCall& call) {
  const Windows w = windows_of(call, call.output(0), call.input(0));
  const auto avg_grad_plane =
      best_isa(v4::avg_grad_plane, v3::avg_grad_plane, any_isa::avg_grad_plane);
  return make_kernel([w, avg_grad_plane](const Binding& binding) {
    parallel_for(w.planes, 1, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t p = begin; p < end; ++p) {
        avg_grad_plane(w, binding.in<float>(0) + p * w.out_plane(),
                       binding.out<float>(0) + p * w.in_plane());
      }
    });
  });
}

// All values of the node have the same layout, which Tiles can describe, and the argmax fits a
// byte.
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

// The layout of the first input that is not row-major and that Tiles can describe: for a gradient,
// dy's or, if that is row-major, the argmax's. No preference if the argmax does not fit a byte.
NodeLayouts layouts(const KernelCall& call) {
  const auto is_wide = [&](ValueId id) { return call.graph.type(id).dtype == DType::I32; };
  if (!f32_and_not_empty(call) || std::ranges::any_of(call.node.inputs, is_wide) ||
      std::ranges::any_of(call.node.outputs, is_wide)) {
    return {};
  }
  Layout chosen;
  for (ValueId id : call.node.inputs) {
    const ValueInfo& value = call.graph.info(id);
    if (chosen.row_major() && tiles_of(value.type.shape, value.layout)) chosen = value.layout;
  }
  return {std::vector<Layout>(call.node.inputs.size(), chosen),
          std::vector<Layout>(call.node.outputs.size(), chosen)};
}

}  // namespace

void add_pool(KernelLibrary& library) {
  const auto add = [&](Op op, std::string_view name, auto make) {
    library.add(op, {.name = name, .supports = supports, .make = make, .layouts = layouts});
  };
  add(Op::MaxPool, "cpu.max_pool", make_max);
  add(Op::MaxPoolGrad, "cpu.max_pool_grad", make_max_grad);
  add(Op::AvgPool, "cpu.avg_pool", make_avg);
  add(Op::AvgPoolGrad, "cpu.avg_pool_grad", make_avg_grad);
}

}  // namespace lockstep::onednn

// The filter's gradient of a convolution over images with one channel. oneDNN pads the channel to a
// full block and does eight times the work. Here a vector is a block of output channels, and each
// tap of the filter has a vector of sums in a register:
//
//   dw[t][o] += x[pixel + offset(t)] * dy[pixel][o]
//
// Each image is copied with padding into the workspace, so that the inner loop needs no bounds
// checks. Images are summed in groups of kImages whose partial results are added in order, so the
// result does not depend on the number of threads. x: row-major; dy: blocks of 8 or 16 channels;
// dw: row-major.
#include <algorithm>
#include <cstring>

#include "lockstep/device/cpu/parallel.h"
#include "lockstep/graph/ops/conv.h"
#include "lockstep/kernels/onednn/lanes.h"
#include "lockstep/kernels/onednn/onednn.h"
#include "lockstep/kernels/onednn/tiles.h"

namespace lockstep::onednn {

constexpr std::int64_t kImages = 4;
constexpr int kMostTaps = 9;  // as many as the vector registers hold, with dy and the bias's sums

struct Thin {
  std::int64_t images, height, width, out_height, out_width;
  std::int64_t padded_height, padded_width, top, left;
  std::int64_t row_step, column_step;  // between results, in the padded image
  std::int64_t blocks, lanes, taps;
  std::int64_t offsets[64];  // of each tap in the padded image
  bool dense;                // a 3 × 3 filter without dilation

  std::int64_t outputs() const { return blocks * lanes; }
  std::int64_t groups() const { return (images + kImages - 1) / kImages; }
  std::int64_t padded() const { return padded_height * padded_width; }
  std::int64_t partial() const { return (taps + 1) * outputs(); }  // the bias is the last row
  std::size_t bytes() const {
    return static_cast<std::size_t>(groups() * (partial() + padded())) * sizeof(float);
  }
};

}  // namespace lockstep::onednn

#define LOCKSTEP_ISA_FILE "lockstep/kernels/onednn/thin_conv_taps.inc"
#include "lockstep/kernels/onednn/every_isa.h"

namespace lockstep::onednn {
namespace {

void pad_image(const Thin& t, const float* x, float* padded) {
  std::memset(padded, 0, static_cast<std::size_t>(t.padded()) * sizeof(float));
  for (std::int64_t h = 0; h < t.height; ++h) {
    std::memcpy(padded + (h + t.top) * t.padded_width + t.left, x + h * t.width,
                static_cast<std::size_t>(t.width) * sizeof(float));
  }
}

Thin thin_of(const KernelCall& call) {
  const Shape& x = call.in_shape(0);
  const Shape& dy = call.in_shape(1);
  const Shape& filter = call.out_shape(0);
  const Ints& strides = call.attrs().ints("strides");
  const Ints& dilations = call.attrs().ints("dilations");
  const Ints& padding = call.attrs().ints("padding");
  const Tiles tiles = *tiles_of(dy, call.input(1).layout);
  Thin t{};
  t.images = x[0];
  t.height = x[1];
  t.width = x[2];
  t.out_height = dy[1];
  t.out_width = dy[2];
  t.padded_height = x[1] + padding[0] + padding[1];
  t.padded_width = x[2] + padding[2] + padding[3];
  t.top = padding[0];
  t.left = padding[2];
  t.row_step = strides[0] * t.padded_width;
  t.column_step = strides[1];
  t.blocks = tiles.groups;
  t.lanes = tiles.lanes;
  t.taps = filter[0] * filter[1];
  for (std::int64_t i = 0; i < t.taps; ++i) {
    t.offsets[i] = i / filter[1] * dilations[0] * t.padded_width + i % filter[1] * dilations[1];
  }
  t.dense = filter[0] == 3 && filter[1] == 3 && dilations == Ints{1, 1};
  return t;
}

bool supports(const KernelCall& call) {
  if (!is_thin_conv(call) || !call.input(0).layout.row_major() ||
      !call.output(0).layout.row_major()) {
    return false;
  }
  const std::optional<Tiles> tiles = tiles_of(call.in_shape(1), call.input(1).layout);
  return tiles && !call.input(1).layout.row_major() && (tiles->lanes == 8 || tiles->lanes == 16);
}

// Keeps dy's layout if it is in blocks; otherwise no preference.
NodeLayouts layouts(const KernelCall& call) {
  const Layout& dy = call.input(1).layout;
  if (!is_thin_conv(call) || dy.row_major() || !tiles_of(call.in_shape(1), dy)) return {};
  return {{{}, dy}, std::vector<Layout>(call.node.outputs.size())};
}

std::size_t workspace(const KernelCall& call) {
  return thin_of(call).bytes();
}

std::unique_ptr<Kernel> make(const KernelCall& call) {
  const Thin t = thin_of(call);
  const bool biased = call.node.outputs.size() > 1;
  const auto add_image = best_isa(v4::add_image, v3::add_image, any_isa::add_image);
  return make_kernel([t, biased, add_image](const Binding& binding) {
    const float* x = binding.in<float>(0);
    const float* dy = binding.in<float>(1);
    float* partials = reinterpret_cast<float*>(binding.workspace);
    float* images = partials + t.groups() * t.partial();
    parallel_for(t.groups(), 1, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t group = begin; group < end; ++group) {
        float* sums = partials + group * t.partial();
        float* padded = images + group * t.padded();
        std::memset(sums, 0, static_cast<std::size_t>(t.partial()) * sizeof(float));
        const std::int64_t last = std::min(t.images, (group + 1) * kImages);
        for (std::int64_t n = group * kImages; n < last; ++n) {
          pad_image(t, x + n * t.height * t.width, padded);
          add_image(t, padded, dy + n * t.outputs() * t.out_height * t.out_width, sums);
        }
      }
    });
    for (std::int64_t group = 1; group < t.groups(); ++group) {
      for (std::int64_t i = 0; i < t.partial(); ++i)
        partials[i] += partials[group * t.partial() + i];
    }
    std::memcpy(binding.outputs[0], partials,
                static_cast<std::size_t>(t.taps * t.outputs()) * sizeof(float));
    if (biased) {
      std::memcpy(binding.outputs[1], partials + t.taps * t.outputs(),
                  static_cast<std::size_t>(t.outputs()) * sizeof(float));
    }
  });
}

}  // namespace

bool is_thin_conv(const KernelCall& call) {
  const Shape& filter = call.out_shape(0);
  return f32_and_not_empty(call) && !is_pooled(call.attrs()) && call.in_shape(0)[3] == 1 &&
         filter[0] * filter[1] <= 64 && call.attrs().integer("groups") == 1 &&
         (filter[3] % 16 == 0 || filter[3] % 8 == 0);
}

void add_thin_conv(KernelLibrary& library) {
  library.add(Op::Conv2DGradFilter, {.name = "cpu.thin_conv2d_grad_filter",
                                     .supports = supports,
                                     .make = make,
                                     .workspace_bytes = workspace,
                                     .layouts = layouts});
}

}  // namespace lockstep::onednn

// Batch norm with given statistics, in any layout that `Tiles` can describe, so that images keep
// the convolutions' layout in evaluation, too: y = x * scale + shift (+ residual), per channel, and
// ReLU if it is fused.
#include <algorithm>

#include "lockstep/device/cpu/parallel.h"
#include "lockstep/kernels/onednn/norm_tiles.h"
#include "lockstep/kernels/onednn/onednn.h"
#include "lockstep/kernels/onednn/tiles.h"

namespace lockstep::onednn {
namespace {

constexpr std::size_t kResidual = 5;  // its index among the inputs

bool has_residual(const KernelCall& call) {
  return call.in_count() > kResidual;
}

bool supports(const KernelCall& call) {
  if (!f32_and_not_empty(call) || call.input(0).layout != call.output(0).layout) return false;
  for (std::size_t i = 1; i < kResidual; ++i) {
    if (!call.input(i).layout.row_major()) return false;
  }
  if (has_residual(call) && call.input(kResidual).layout != call.input(0).layout) return false;
  return tiles_of(call.in_shape(0), call.input(0).layout).has_value();
}

NodeLayouts layouts(const KernelCall& call) {
  if (!f32_and_not_empty(call)) return {};
  NodeLayouts wish{std::vector<Layout>(call.in_count()), std::vector<Layout>(1)};
  if (tiles_of(call.in_shape(0), call.input(0).layout)) {
    wish.inputs[0] = wish.outputs[0] = call.input(0).layout;
    if (has_residual(call)) wish.inputs[kResidual] = call.input(0).layout;
  }
  return wish;
}

std::size_t workspace(const KernelCall& call) {
  return 2 * static_cast<std::size_t>(call.in_shape(1).elements()) * sizeof(float);
}

std::unique_ptr<Kernel> make(const KernelCall& call) {
  const Tiles tiles = *tiles_of(call.in_shape(0), call.input(0).layout);
  const double epsilon = call.attrs().real("epsilon");
  const std::int64_t channels = call.in_shape(1).elements();
  const bool residual = has_residual(call);
  const auto result = norm_loops(call.attrs().has("activation"), residual).result;
  return make_kernel([tiles, epsilon, channels, residual, result](const Binding& binding) {
    float* scale = reinterpret_cast<float*>(binding.workspace);
    float* shift = scale + channels;
    for (std::int64_t c = 0; c < channels; ++c) {
      const NormAffine affine =
          norm_affine(binding.in<float>(1)[c], binding.in<float>(2)[c], binding.in<float>(3)[c],
                      binding.in<float>(4)[c], epsilon);
      scale[c] = affine.scale;
      shift[c] = affine.shift;
    }
    parallel_for(tiles.count(), 4, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t t = begin; t < end; ++t) {
        const Tiles::Tile tile = tiles.tile(t);
        result(binding.in<float>(0) + tile.begin,
               residual ? binding.in<float>(kResidual) + tile.begin : nullptr,
               binding.out<float>(0) + tile.begin, tile.rows, tiles.lanes, scale + tile.channel,
               shift + tile.channel);
      }
    });
  });
}

bool fuses(const KernelCall&, std::string_view activation) {
  return activation == "relu";
}

}  // namespace

void add_norm_inference(KernelLibrary& library) {
  library.add(Op::BatchNormInference, {.name = "cpu.batch_norm_inference",
                                       .supports = supports,
                                       .make = make,
                                       .workspace_bytes = workspace,
                                       .layouts = layouts,
                                       .fuses_activation = fuses});
}

}  // namespace lockstep::onednn

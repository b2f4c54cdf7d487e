// Batch norm in training, fused with the residual addition and ReLU, forward and backward. oneDNN's
// batch norm cannot fuse the addition, and its ReLU needs a stored mask; here none is stored.
//
// Forward reads x twice (statistics, result), the first time tile by tile: a tile's mean and the
// squared differences from it are computed while it is in the cache, and tiles are combined in
// double in a fixed order (Chan, Golub, LeVeque 1979), so the statistics do not depend on the
// number of threads. Backward reads (dy, x) twice: once for the two sums, once for dx. The mask of
// ReLU is recomputed from x, or taken from y if the node has y instead of beta. With a residual the
// mask comes from y, which is read once: dx is computed from the masked gradient, which is also the
// residual's. If dy would be a sum that nothing else reads, its two summands are read instead. All
// passes go from the first tile to the last: going backwards in the second pass, to start with what
// the first has left in the cache, was slower when measured.
//
// Layouts: whatever `Tiles` can describe; all values of a node in the same one.
#include <algorithm>
#include <cmath>

#include "lockstep/base/error.h"
#include "lockstep/device/cpu/parallel.h"
#include "lockstep/kernels/onednn/norm_tiles.h"
#include "lockstep/kernels/onednn/onednn.h"
#include "lockstep/kernels/onednn/tiles.h"

namespace lockstep::onednn {
namespace {

// Calls f(index of the tile, its rows) for the tiles of one channel group, in order.
template <class F>
void for_tiles_of(const Tiles& tiles, std::int64_t group, F&& f) {
  for (std::int64_t image = 0; image < tiles.images; ++image) {
    for (std::int64_t piece = 0; piece < tiles.per_image(); ++piece) {
      const std::int64_t index = (image * tiles.groups + group) * tiles.per_image() + piece;
      f(index, tiles.tile(index).rows);
    }
  }
}

constexpr std::int64_t kGrain = 4;  // tiles

// Two numbers per channel and tile, then the channels' coefficients.
std::size_t workspace_for(const Tiles& tiles, std::int64_t coefficients) {
  const std::int64_t channels = tiles.groups * tiles.lanes;
  return static_cast<std::size_t>(2 * tiles.count() * tiles.lanes + coefficients * channels) *
         sizeof(float);
}

struct Forward {
  Tiles tiles;
  double epsilon;
  bool residual;
  NormLoops loops;

  void operator()(const Binding& binding) const {
    const float* x = binding.in<float>(0);
    const float* gamma = binding.in<float>(1);
    const float* beta = binding.in<float>(2);
    const float* added = residual ? binding.in<float>(3) : nullptr;
    float* y = binding.out<float>(0);
    float* mean = binding.out<float>(1);
    float* variance = binding.out<float>(2);
    float* means = reinterpret_cast<float*>(binding.workspace);
    float* squares = means + tiles.count() * tiles.lanes;
    float* scale = squares + tiles.count() * tiles.lanes;
    float* shift = scale + tiles.groups * tiles.lanes;

    parallel_for(tiles.count(), kGrain, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t t = begin; t < end; ++t) {
        const Tiles::Tile tile = tiles.tile(t);
        loops.statistics(x + tile.begin, tile.rows, tiles.lanes, means + t * tiles.lanes,
                         squares + t * tiles.lanes);
      }
    });
    for (std::int64_t group = 0; group < tiles.groups; ++group) {
      for (std::int64_t lane = 0; lane < tiles.lanes; ++lane) {
        double count = 0.0;
        double centre = 0.0;
        double m2 = 0.0;
        for_tiles_of(tiles, group, [&](std::int64_t t, std::int64_t rows) {
          const double distance = means[t * tiles.lanes + lane] - centre;
          const double total = count + static_cast<double>(rows);
          centre += distance * static_cast<double>(rows) / total;
          m2 += squares[t * tiles.lanes + lane] +
                distance * distance * count * static_cast<double>(rows) / total;
          count = total;
        });
        const std::int64_t c = group * tiles.lanes + lane;
        mean[c] = static_cast<float>(centre);
        variance[c] = static_cast<float>(m2 / count);
        const NormAffine affine = norm_affine(gamma[c], beta[c], mean[c], variance[c], epsilon);
        scale[c] = affine.scale;
        shift[c] = affine.shift;
      }
    }
    parallel_for(tiles.count(), kGrain, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t t = begin; t < end; ++t) {
        const Tiles::Tile tile = tiles.tile(t);
        loops.result(x + tile.begin, residual ? added + tile.begin : nullptr, y + tile.begin,
                     tile.rows, tiles.lanes, scale + tile.channel, shift + tile.channel);
      }
    });
  }
};

struct Backward {
  Tiles tiles;
  double epsilon;
  NormGradForm form;
  NormGradLoops loops;

  void operator()(const Binding& binding) const {
    const bool from_input = form.mask == NormMask::FromInput;
    const bool from_result = form.mask == NormMask::FromResult;
    const std::int64_t channels = tiles.groups * tiles.lanes;
    const float* dy = binding.in<float>(0);
    const float* dy2 = form.two ? binding.in<float>(6) : nullptr;
    const float* x = binding.in<float>(1);
    const float* mean = binding.in<float>(2);
    const float* variance = binding.in<float>(3);
    const float* gamma = binding.in<float>(4);
    const float* beta = from_input ? binding.in<float>(5) : nullptr;
    const float* y = from_result ? binding.in<float>(5) : nullptr;
    float* dx = binding.out<float>(0);
    float* dgamma = binding.out<float>(1);
    float* dbeta = binding.out<float>(2);
    float* kept = form.keep ? binding.out<float>(3) : nullptr;
    float* sums = reinterpret_cast<float*>(binding.workspace);
    float* products = sums + tiles.count() * tiles.lanes;
    float* a = products + tiles.count() * tiles.lanes;
    float* b = a + channels;
    float* c = b + channels;
    float* scale = c + channels;
    float* shift = scale + channels;

    const auto at = [](auto* values, std::int64_t place) {
      return values == nullptr ? nullptr : values + place;
    };
    const auto read = [&](const Tiles::Tile& tile) {
      return NormGradTile{.dy = dy + tile.begin,
                          .dy2 = at(dy2, tile.begin),
                          .x = x + tile.begin,
                          .y = at(y, tile.begin),
                          .scale = scale + tile.channel,
                          .shift = shift + tile.channel,
                          .kept = at(kept, tile.begin),
                          .rows = tile.rows,
                          .lanes = tiles.lanes};
    };
    for (std::int64_t i = 0; from_input && i < channels; ++i) {
      const NormAffine affine = norm_affine(gamma[i], beta[i], mean[i], variance[i], epsilon);
      scale[i] = affine.scale;
      shift[i] = affine.shift;
    }
    parallel_for(tiles.count(), kGrain, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t t = begin; t < end; ++t) {
        const Tiles::Tile tile = tiles.tile(t);
        loops.sums(read(tile), mean + tile.channel, sums + t * tiles.lanes,
                   products + t * tiles.lanes);
      }
    });
    const double count = static_cast<double>(tiles.images * tiles.rows);
    for (std::int64_t group = 0; group < tiles.groups; ++group) {
      for (std::int64_t lane = 0; lane < tiles.lanes; ++lane) {
        double sum = 0.0;
        double product = 0.0;
        for_tiles_of(tiles, group, [&](std::int64_t t, std::int64_t) {
          sum += sums[t * tiles.lanes + lane];
          product += products[t * tiles.lanes + lane];
        });
        const std::int64_t i = group * tiles.lanes + lane;
        const double rstd = 1.0 / std::sqrt(variance[i] + epsilon);
        dbeta[i] = static_cast<float>(sum);
        dgamma[i] = static_cast<float>(product * rstd);
        const double factor = gamma[i] * rstd;
        const double slope = -factor * rstd * rstd * product / count;
        a[i] = static_cast<float>(factor);
        b[i] = static_cast<float>(slope);
        c[i] = static_cast<float>(-factor * sum / count - slope * mean[i]);
      }
    }
    parallel_for(tiles.count(), kGrain, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t t = begin; t < end; ++t) {
        const Tiles::Tile tile = tiles.tile(t);
        NormGradTile source = read(tile);
        if (form.keep) source.dy = source.kept;
        loops.gradient(source, dx + tile.begin, a + tile.channel, b + tile.channel,
                       c + tile.channel);
      }
    });
  }
};

bool is_relu(const KernelCall& call) {
  return call.attrs().text_or_empty("activation") == "relu";
}

// The index of x, which determines the layout.
std::size_t image_of(const KernelCall& call) {
  return call.node.op == Op::BatchNorm ? 0 : 1;
}

bool supports(const KernelCall& call) {
  if (!f32_and_not_empty(call)) return false;
  const ValueInfo& x = call.input(image_of(call));
  const auto agrees = [&](ValueId id) {
    const ValueInfo& value = call.graph.info(id);
    return value.type.shape == x.type.shape ? value.layout == x.layout : value.layout.row_major();
  };
  return tiles_of(x.type.shape, x.layout).has_value() &&
         std::all_of(call.node.inputs.begin(), call.node.inputs.end(), agrees) &&
         std::all_of(call.node.outputs.begin(), call.node.outputs.end(), agrees);
}

NodeLayouts layouts(const KernelCall& call) {
  if (!f32_and_not_empty(call)) return {};
  const ValueInfo& x = call.input(image_of(call));
  const Layout chosen = tiles_of(x.type.shape, x.layout) ? x.layout : Layout{};
  NodeLayouts wish;
  const auto layout = [&](ValueId id) {
    return call.graph.type(id).shape == x.type.shape ? chosen : Layout{};
  };
  for (ValueId id : call.node.inputs) wish.inputs.push_back(layout(id));
  for (ValueId id : call.node.outputs) wish.outputs.push_back(layout(id));
  return wish;
}

Tiles tiles_for(const KernelCall& call) {
  const ValueInfo& x = call.input(image_of(call));
  return *tiles_of(x.type.shape, x.layout);
}

std::unique_ptr<Kernel> make_forward(const KernelCall& call) {
  const bool residual = call.in_count() > 3;
  return make_kernel(Forward{tiles_for(call), call.attrs().real("epsilon"), residual,
                             norm_loops(is_relu(call), residual)});
}

NormGradForm grad_form_of(const KernelCall& call) {
  NormGradForm form;
  if (is_relu(call)) {
    form.mask = call.attrs().has("beta") ? NormMask::FromInput : NormMask::FromResult;
  }
  form.keep = call.node.outputs.size() > 3;
  form.two = call.attrs().has("summands");
  ensure(!form.keep || form.mask == NormMask::FromResult,
         "batch norm's gradient has a residual without a ReLU");
  ensure(!form.two || form.keep, "batch norm's gradient has summands without a residual");
  return form;
}

std::unique_ptr<Kernel> make_backward(const KernelCall& call) {
  const NormGradForm form = grad_form_of(call);
  return make_kernel(
      Backward{tiles_for(call), call.attrs().real("epsilon"), form, norm_grad_loops(form)});
}

std::size_t forward_workspace(const KernelCall& call) {
  return workspace_for(tiles_for(call), 2);
}
std::size_t backward_workspace(const KernelCall& call) {
  return workspace_for(tiles_for(call), 5);
}

bool offers_for_gradient(const KernelCall&, std::string_view extra) {
  return extra == "beta" || extra == "summands";
}

bool fuses(const KernelCall&, std::string_view activation) {
  return activation == "relu";
}

}  // namespace

void add_norm(KernelLibrary& library) {
  library.add(Op::BatchNorm, {.name = "cpu.batch_norm",
                              .supports = supports,
                              .make = make_forward,
                              .workspace_bytes = forward_workspace,
                              .layouts = layouts,
                              .fuses_activation = fuses});
  library.add(Op::BatchNormGrad, {.name = "cpu.batch_norm_grad",
                                  .supports = supports,
                                  .make = make_backward,
                                  .workspace_bytes = backward_workspace,
                                  .layouts = layouts,
                                  .offers = offers_for_gradient});
}

}  // namespace lockstep::onednn

// Batch norm in training, with the residual's addition and ReLU in the same sweep, forward and
// backward. oneDNN has a batch norm too, but not with the addition, and its ReLU needs a mask to be
// kept; here the result's sign is the mask.
//
// Forward reads x twice (statistics, result), the first time tile by tile: a tile's mean and its
// squared distances from that mean are taken while it is in the cache, and tiles are joined in
// double in a fixed order (Chan, Golub, LeVeque 1979), so the statistics do not depend on the
// number of threads. Backward reads (dy, x, y) twice: once for the two sums, once for dx.
//
// Layouts: whatever `Tiles` can describe; all values of a node in the same one.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "lockstep/base/error.h"
#include "lockstep/base/vectorized.h"
#include "lockstep/device/cpu/parallel.h"
#include "lockstep/kernels/onednn/norm_tiles.h"
#include "lockstep/kernels/onednn/onednn.h"
#include "lockstep/kernels/onednn/tiles.h"

namespace lockstep::onednn {
namespace {

constexpr std::int64_t kMostLanes = 64;  // rows wider than this are swept in strips of it

// Calls f(strip begin, strip width) for strips of at most kMostLanes lanes.
template <class F>
void for_strips(std::int64_t lanes, F&& f) {
  for (std::int64_t lane = 0; lane < lanes; lane += kMostLanes) {
    f(lane, std::min(kMostLanes, lanes - lane));
  }
}

// mean[l] and m2[l] (sum of squared distances from it) of each lane of a tile.
LOCKSTEP_VECTORIZED
void tile_statistics(const float* x, std::int64_t rows, std::int64_t lanes, float* mean,
                     float* m2) {
  for_strips(lanes, [&](std::int64_t lane, std::int64_t width) {
    float sum[kMostLanes] = {};
    for (std::int64_t r = 0; r < rows; ++r) {
      const float* row = x + r * lanes + lane;
      for (std::int64_t l = 0; l < width; ++l) sum[l] += row[l];
    }
    float centre[kMostLanes];
    for (std::int64_t l = 0; l < width; ++l) centre[l] = sum[l] / static_cast<float>(rows);
    float squares[kMostLanes] = {};
    for (std::int64_t r = 0; r < rows; ++r) {
      const float* row = x + r * lanes + lane;
      for (std::int64_t l = 0; l < width; ++l) {
        const float distance = row[l] - centre[l];
        squares[l] += distance * distance;
      }
    }
    std::memcpy(mean + lane, centre, static_cast<std::size_t>(width) * sizeof(float));
    std::memcpy(m2 + lane, squares, static_cast<std::size_t>(width) * sizeof(float));
  });
}

// Sums of g and of g * (x - mean) over a tile, where g = dy, masked by y > 0 under a ReLU. With
// `masked`, g is also written there.
template <bool kRelu, bool kKeep, int kLanes>
LOCKSTEP_INLINE void strip_sums(const float* dy, const float* x, const float* y, float* masked,
                                std::int64_t rows, std::int64_t lanes, std::int64_t width,
                                const float* mean, float* sum, float* product) {
  const std::int64_t n = kLanes > 0 ? kLanes : width;
  float s[kLanes > 0 ? kLanes : kMostLanes] = {};
  float p[kLanes > 0 ? kLanes : kMostLanes] = {};
  for (std::int64_t r = 0; r < rows; ++r) {
    for (std::int64_t l = 0; l < n; ++l) {
      const std::int64_t i = r * lanes + l;
      float g = dy[i];
      if constexpr (kRelu) g = y[i] > 0.0f ? g : 0.0f;
      if constexpr (kKeep) masked[i] = g;
      s[l] += g;
      p[l] += g * (x[i] - mean[l]);
    }
  }
  for (std::int64_t l = 0; l < n; ++l) {
    sum[l] = s[l];
    product[l] = p[l];
  }
}

template <bool kRelu, bool kKeep>
LOCKSTEP_VECTORIZED void tile_sums(const float* dy, const float* x, const float* y, float* masked,
                                   std::int64_t rows, std::int64_t lanes, const float* mean,
                                   float* sum, float* product) {
  if (lanes == 8) {
    strip_sums<kRelu, kKeep, 8>(dy, x, y, masked, rows, 8, 8, mean, sum, product);
    return;
  }
  for_strips(lanes, [&](std::int64_t lane, std::int64_t width) {
    strip_sums<kRelu, kKeep, 0>(dy + lane, x + lane, kRelu ? y + lane : y,
                                kKeep ? masked + lane : masked, rows, lanes, width, mean + lane,
                                sum + lane, product + lane);
  });
}

// dx = a * g + b * x + c.
template <bool kRelu, int kLanes>
LOCKSTEP_INLINE void tile_dx(const float* dy, const float* x, const float* y, float* dx,
                             std::int64_t rows, std::int64_t lanes, const float* a, const float* b,
                             const float* c) {
  const std::int64_t n = kLanes > 0 ? kLanes : lanes;
  for (std::int64_t r = 0; r < rows; ++r) {
    for (std::int64_t l = 0; l < n; ++l) {
      const std::int64_t i = r * n + l;
      float g = dy[i];
      if constexpr (kRelu) g = y[i] > 0.0f ? g : 0.0f;
      dx[i] = a[l] * g + b[l] * x[i] + c[l];
    }
  }
}

template <bool kRelu>
LOCKSTEP_VECTORIZED void any_tile_dx(const float* dy, const float* x, const float* y, float* dx,
                                     std::int64_t rows, std::int64_t lanes, const float* a,
                                     const float* b, const float* c) {
  if (lanes == 8) {
    tile_dx<kRelu, 8>(dy, x, y, dx, rows, lanes, a, b, c);
  } else {
    tile_dx<kRelu, 0>(dy, x, y, dx, rows, lanes, a, b, c);
  }
}

// Tiles of one channel group, as they are numbered: f(index of the tile, its rows).
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

// Two numbers a channel and tile, then the channels' coefficients.
std::size_t workspace_for(const Tiles& tiles, std::int64_t coefficients) {
  const std::int64_t channels = tiles.groups * tiles.lanes;
  return static_cast<std::size_t>(2 * tiles.count() * tiles.lanes + coefficients * channels) *
         sizeof(float);
}

struct Forward {
  Tiles tiles;
  double epsilon;
  bool residual;
  TileResult result;

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
        tile_statistics(x + tile.begin, tile.rows, tiles.lanes, means + t * tiles.lanes,
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
        const double factor = gamma[c] / std::sqrt(m2 / count + epsilon);
        scale[c] = static_cast<float>(factor);
        shift[c] = static_cast<float>(beta[c] - centre * factor);
      }
    }
    parallel_for(tiles.count(), kGrain, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t t = begin; t < end; ++t) {
        const Tiles::Tile tile = tiles.tile(t);
        result(x + tile.begin, residual ? added + tile.begin : nullptr, y + tile.begin, tile.rows,
               tiles.lanes, scale + tile.channel, shift + tile.channel);
      }
    });
  }
};

struct Backward {
  Tiles tiles;
  double epsilon;
  bool relu;
  bool residual;

  void operator()(const Binding& binding) const {
    const float* dy = binding.in<float>(0);
    const float* x = binding.in<float>(1);
    const float* mean = binding.in<float>(2);
    const float* variance = binding.in<float>(3);
    const float* gamma = binding.in<float>(4);
    const float* y = relu ? binding.in<float>(5) : nullptr;
    float* dx = binding.out<float>(0);
    float* dgamma = binding.out<float>(1);
    float* dbeta = binding.out<float>(2);
    float* masked = residual ? binding.out<float>(3) : nullptr;
    float* sums = reinterpret_cast<float*>(binding.workspace);
    float* products = sums + tiles.count() * tiles.lanes;
    float* a = products + tiles.count() * tiles.lanes;
    float* b = a + tiles.groups * tiles.lanes;
    float* c = b + tiles.groups * tiles.lanes;

    const auto sum_tile = residual ? tile_sums<true, true>
                          : relu   ? tile_sums<true, false>
                                   : tile_sums<false, false>;
    parallel_for(tiles.count(), kGrain, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t t = begin; t < end; ++t) {
        const Tiles::Tile tile = tiles.tile(t);
        sum_tile(dy + tile.begin, x + tile.begin, relu ? y + tile.begin : nullptr,
                 residual ? masked + tile.begin : nullptr, tile.rows, tiles.lanes,
                 mean + tile.channel, sums + t * tiles.lanes, products + t * tiles.lanes);
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
    // With a residual the masked gradient has been written already and needs no mask again.
    const bool mask = relu && !residual;
    const float* source = residual ? masked : dy;
    const auto dx_tile = mask ? any_tile_dx<true> : any_tile_dx<false>;
    parallel_for(tiles.count(), kGrain, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t t = begin; t < end; ++t) {
        const Tiles::Tile tile = tiles.tile(t);
        dx_tile(source + tile.begin, x + tile.begin, mask ? y + tile.begin : nullptr,
                dx + tile.begin, tile.rows, tiles.lanes, a + tile.channel, b + tile.channel,
                c + tile.channel);
      }
    });
  }
};

bool is_relu(const KernelCall& call) {
  return call.attrs().text_or_empty("activation") == "relu";
}

// The value that decides the layout: x.
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
                             tile_result_for(residual, is_relu(call))});
}

std::unique_ptr<Kernel> make_backward(const KernelCall& call) {
  const bool residual = call.node.outputs.size() > 3;
  ensure(!residual || is_relu(call), "batch norm's gradient has a residual without a ReLU");
  return make_kernel(
      Backward{tiles_for(call), call.attrs().real("epsilon"), is_relu(call), residual});
}

std::size_t forward_workspace(const KernelCall& call) {
  return workspace_for(tiles_for(call), 2);
}
std::size_t backward_workspace(const KernelCall& call) {
  return workspace_for(tiles_for(call), 3);
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
                                  .layouts = layouts});
}

}  // namespace lockstep::onednn

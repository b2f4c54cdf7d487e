// Normalisation over the batch (statistics per channel) and over the last axis (statistics per
// row). Statistics take two passes and are summed in double. Threads take tiles of channels: a
// channel's sums run over the rows in a fixed order, whatever the number of threads.
#include <algorithm>
#include <array>
#include <cmath>

#include "lockstep/device/cpu/parallel.h"
#include "lockstep/kernels/reference/floating.h"
#include "lockstep/kernels/reference/reference.h"

namespace lockstep {
namespace {

constexpr std::int64_t kTile = 16;  // channels: a cache line of f32

using Sums = std::array<double, static_cast<std::size_t>(kTile)>;

// A value as rows of channels.
struct Rows {
  std::int64_t rows = 0;
  std::int64_t channels = 0;
  double epsilon = 0;

  explicit Rows(const Shape& shape, double epsilon_) : channels(shape[-1]), epsilon(epsilon_) {
    rows = channels == 0 ? 0 : shape.elements() / channels;
  }
};

// Calls f(first channel, channels) for each tile.
template <class F>
void for_each_tile(const Rows& r, F&& f) {
  const std::int64_t tiles = (r.channels + kTile - 1) / kTile;
  parallel_for(tiles, grain_for(r.rows * kTile), [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t tile = begin; tile < end; ++tile) {
      f(tile * kTile, std::min(kTile, r.channels - tile * kTile));
    }
  });
}

// sums[k] of f(row, k) over all rows, for k in [0, channels).
template <class F>
Sums sum_rows(const Rows& r, std::int64_t channels, F&& f) {
  Sums sums{};
  for (std::int64_t row = 0; row < r.rows; ++row) {
    for (std::int64_t k = 0; k < channels; ++k) sums[static_cast<std::size_t>(k)] += f(row, k);
  }
  return sums;
}

template <class T>
std::unique_ptr<Kernel> make_batch_norm_of(const KernelCall& call) {
  const Rows r(call.in_shape(0), call.attrs().real("epsilon"));
  const bool relu = call.attrs().has("activation");
  const bool residual = call.in_count() > 3;
  return make_kernel([=](const Binding& binding) {
    for_each_tile(r, [&](std::int64_t first, std::int64_t channels) {
      const T* x = binding.in<T>(0) + first;
      const T* gamma = binding.in<T>(1) + first;
      const T* beta = binding.in<T>(2) + first;
      const T* added = residual ? binding.in<T>(3) + first : nullptr;
      T* y = binding.out<T>(0) + first;
      const double share = r.rows == 0 ? 0.0 : 1.0 / static_cast<double>(r.rows);
      Sums mean = sum_rows(r, channels, [&](std::int64_t row, std::int64_t k) {
        return static_cast<double>(x[row * r.channels + k]);
      });
      for (double& value : mean) value *= share;
      const Sums squares = sum_rows(r, channels, [&](std::int64_t row, std::int64_t k) {
        const double d =
            static_cast<double>(x[row * r.channels + k]) - mean[static_cast<std::size_t>(k)];
        return d * d;
      });
      Sums factor{};
      for (std::int64_t k = 0; k < channels; ++k) {
        const auto at = static_cast<std::size_t>(k);
        const double variance = squares[at] * share;
        binding.out<T>(1)[first + k] = static_cast<T>(mean[at]);
        binding.out<T>(2)[first + k] = static_cast<T>(variance);
        factor[at] = static_cast<double>(gamma[k]) / std::sqrt(variance + r.epsilon);
      }
      for (std::int64_t row = 0; row < r.rows; ++row) {
        const std::int64_t at = row * r.channels;
        for (std::int64_t k = 0; k < channels; ++k) {
          const auto q = static_cast<std::size_t>(k);
          T value =
              static_cast<T>((static_cast<double>(x[at + k]) - mean[q]) * factor[q]) + beta[k];
          if (added != nullptr) value += added[at + k];
          y[at + k] = relu && value < 0 ? T(0) : value;
        }
      }
    });
  });
}

// With x̂ the normalised input and dz = dy where the activation was active, otherwise 0:
// dbeta = Σ dz, dgamma = Σ dz x̂, dx = gamma · rstd · (dz - dbeta / R - x̂ dgamma / R) over R rows.
template <class T>
std::unique_ptr<Kernel> make_batch_norm_grad_of(const KernelCall& call) {
  const Rows r(call.in_shape(1), call.attrs().real("epsilon"));
  const bool relu = call.attrs().has("activation");
  const bool residual = call.node.outputs.size() > 3;
  return make_kernel([=](const Binding& binding) {
    for_each_tile(r, [&](std::int64_t first, std::int64_t channels) {
      const T* dy = binding.in<T>(0) + first;
      const T* x = binding.in<T>(1) + first;
      const T* mean = binding.in<T>(2) + first;
      const T* y = relu ? binding.in<T>(5) + first : nullptr;
      T* dx = binding.out<T>(0) + first;
      T* added = residual ? binding.out<T>(3) + first : nullptr;
      Sums rstd{};
      for (std::int64_t k = 0; k < channels; ++k) {
        rstd[static_cast<std::size_t>(k)] =
            1.0 / std::sqrt(static_cast<double>(binding.in<T>(3)[first + k]) + r.epsilon);
      }
      const auto dz = [&](std::int64_t row, std::int64_t k) {
        const std::int64_t at = row * r.channels + k;
        return y == nullptr || y[at] > 0 ? dy[at] : T(0);
      };
      const auto normalised = [&](std::int64_t row, std::int64_t k) {
        return (static_cast<double>(x[row * r.channels + k]) - static_cast<double>(mean[k])) *
               rstd[static_cast<std::size_t>(k)];
      };
      const Sums dbeta = sum_rows(r, channels, [&](std::int64_t row, std::int64_t k) {
        return static_cast<double>(dz(row, k));
      });
      const Sums dgamma = sum_rows(r, channels, [&](std::int64_t row, std::int64_t k) {
        return static_cast<double>(dz(row, k)) * normalised(row, k);
      });
      for (std::int64_t k = 0; k < channels; ++k) {
        binding.out<T>(1)[first + k] = static_cast<T>(dgamma[static_cast<std::size_t>(k)]);
        binding.out<T>(2)[first + k] = static_cast<T>(dbeta[static_cast<std::size_t>(k)]);
      }
      const double share = r.rows == 0 ? 0.0 : 1.0 / static_cast<double>(r.rows);
      const T* gamma = binding.in<T>(4) + first;
      for (std::int64_t row = 0; row < r.rows; ++row) {
        for (std::int64_t k = 0; k < channels; ++k) {
          const auto q = static_cast<std::size_t>(k);
          const T through = dz(row, k);
          const double rest = (dbeta[q] + normalised(row, k) * dgamma[q]) * share;
          if (added != nullptr) added[row * r.channels + k] = through;
          dx[row * r.channels + k] = static_cast<T>(static_cast<double>(gamma[k]) * rstd[q] *
                                                    (static_cast<double>(through) - rest));
        }
      }
    });
  });
}

template <class T>
std::unique_ptr<Kernel> make_batch_norm_inference_of(const KernelCall& call) {
  const Rows r(call.in_shape(0), call.attrs().real("epsilon"));
  const bool relu = call.attrs().has("activation");
  const bool residual = call.in_count() > 5;
  return make_kernel([=](const Binding& binding) {
    for_each_tile(r, [&](std::int64_t first, std::int64_t channels) {
      const T* x = binding.in<T>(0) + first;
      const T* beta = binding.in<T>(2) + first;
      const T* mean = binding.in<T>(3) + first;
      const T* added = residual ? binding.in<T>(5) + first : nullptr;
      T* y = binding.out<T>(0) + first;
      Sums factor{};
      for (std::int64_t k = 0; k < channels; ++k) {
        factor[static_cast<std::size_t>(k)] =
            static_cast<double>(binding.in<T>(1)[first + k]) /
            std::sqrt(static_cast<double>(binding.in<T>(4)[first + k]) + r.epsilon);
      }
      for (std::int64_t row = 0; row < r.rows; ++row) {
        const std::int64_t at = row * r.channels;
        for (std::int64_t k = 0; k < channels; ++k) {
          const double centered = static_cast<double>(x[at + k]) - static_cast<double>(mean[k]);
          T value = static_cast<T>(centered * factor[static_cast<std::size_t>(k)]) + beta[k];
          if (added != nullptr) value += added[at + k];
          y[at + k] = relu && value < 0 ? T(0) : value;
        }
      }
    });
  });
}

template <class T>
std::unique_ptr<Kernel> make_layer_norm_of(const KernelCall& call) {
  const Rows r(call.in_shape(0), call.attrs().real("epsilon"));
  return make_kernel([=](const Binding& binding) {
    const T* gamma = binding.in<T>(1);
    const T* beta = binding.in<T>(2);
    parallel_for(r.rows, grain_for(4 * r.channels), [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t row = begin; row < end; ++row) {
        const T* x = binding.in<T>(0) + row * r.channels;
        T* y = binding.out<T>(0) + row * r.channels;
        double sum = 0;
        for (std::int64_t k = 0; k < r.channels; ++k) sum += x[k];
        const double mean = sum / static_cast<double>(r.channels);
        double squares = 0;
        for (std::int64_t k = 0; k < r.channels; ++k) {
          const double d = static_cast<double>(x[k]) - mean;
          squares += d * d;
        }
        const double rstd = 1.0 / std::sqrt(squares / static_cast<double>(r.channels) + r.epsilon);
        binding.out<T>(1)[row] = static_cast<T>(mean);
        binding.out<T>(2)[row] = static_cast<T>(rstd);
        for (std::int64_t k = 0; k < r.channels; ++k) {
          const double normalised = (static_cast<double>(x[k]) - mean) * rstd;
          y[k] = static_cast<T>(normalised * static_cast<double>(gamma[k])) + beta[k];
        }
      }
    });
  });
}

// With x̂ the normalised row, g = dy · gamma and means over the row:
// dx = rstd · (g - mean(g) - x̂ mean(g x̂)); dgamma = Σ dy x̂, dbeta = Σ dy over the rows.
template <class T>
std::unique_ptr<Kernel> make_layer_norm_grad_of(const KernelCall& call) {
  const Rows r(call.in_shape(1), 0);
  return make_kernel([=](const Binding& binding) {
    const T* dy = binding.in<T>(0);
    const T* x = binding.in<T>(1);
    const T* mean = binding.in<T>(2);
    const T* rstd = binding.in<T>(3);
    const T* gamma = binding.in<T>(4);
    const auto normalised = [&](std::int64_t row, std::int64_t k) {
      return (static_cast<double>(x[row * r.channels + k]) - static_cast<double>(mean[row])) *
             static_cast<double>(rstd[row]);
    };
    for_each_tile(r, [&](std::int64_t first, std::int64_t channels) {
      const Sums dgamma = sum_rows(r, channels, [&](std::int64_t row, std::int64_t k) {
        return static_cast<double>(dy[row * r.channels + first + k]) * normalised(row, first + k);
      });
      const Sums dbeta = sum_rows(r, channels, [&](std::int64_t row, std::int64_t k) {
        return static_cast<double>(dy[row * r.channels + first + k]);
      });
      for (std::int64_t k = 0; k < channels; ++k) {
        binding.out<T>(1)[first + k] = static_cast<T>(dgamma[static_cast<std::size_t>(k)]);
        binding.out<T>(2)[first + k] = static_cast<T>(dbeta[static_cast<std::size_t>(k)]);
      }
    });
    parallel_for(r.rows, grain_for(4 * r.channels), [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t row = begin; row < end; ++row) {
        const auto g = [&](std::int64_t k) {
          return static_cast<double>(dy[row * r.channels + k]) * static_cast<double>(gamma[k]);
        };
        double sum = 0;
        double along = 0;
        for (std::int64_t k = 0; k < r.channels; ++k) {
          sum += g(k);
          along += g(k) * normalised(row, k);
        }
        sum /= static_cast<double>(r.channels);
        along /= static_cast<double>(r.channels);
        for (std::int64_t k = 0; k < r.channels; ++k) {
          binding.out<T>(0)[row * r.channels + k] = static_cast<T>(
              static_cast<double>(rstd[row]) * (g(k) - sum - normalised(row, k) * along));
        }
      }
    });
  });
}

std::unique_ptr<Kernel> make_batch_norm(const KernelCall& call) {
  return make_floating(call, [&](auto zero) { return make_batch_norm_of<decltype(zero)>(call); });
}

std::unique_ptr<Kernel> make_batch_norm_grad(const KernelCall& call) {
  return make_floating(call,
                       [&](auto zero) { return make_batch_norm_grad_of<decltype(zero)>(call); });
}

std::unique_ptr<Kernel> make_batch_norm_inference(const KernelCall& call) {
  return make_floating(
      call, [&](auto zero) { return make_batch_norm_inference_of<decltype(zero)>(call); });
}

std::unique_ptr<Kernel> make_layer_norm(const KernelCall& call) {
  return make_floating(call, [&](auto zero) { return make_layer_norm_of<decltype(zero)>(call); });
}

std::unique_ptr<Kernel> make_layer_norm_grad(const KernelCall& call) {
  return make_floating(call,
                       [&](auto zero) { return make_layer_norm_grad_of<decltype(zero)>(call); });
}

// Without the extras that backends may offer (graph/ops/norm.h).
bool supports_plain(const KernelCall& call) {
  const auto has = [&](const char* extra) { return call.attrs().has(extra); };
  return supports_floating(call) &&
         std::ranges::none_of(
             std::array{"statistics", "bits", "projection", "pool", "beta", "summands"}, has);
}

}  // namespace

void add_reference_norm(KernelLibrary& library) {
  const auto add = [&](Op op, std::string_view name,
                       std::unique_ptr<Kernel> (*make)(const KernelCall&)) {
    library.add(op, {.name = name, .supports = supports_plain, .make = make});
  };
  add(Op::BatchNorm, "reference.batch_norm", make_batch_norm);
  add(Op::BatchNormGrad, "reference.batch_norm_grad", make_batch_norm_grad);
  add(Op::BatchNormInference, "reference.batch_norm_inference", make_batch_norm_inference);
  add(Op::LayerNorm, "reference.layer_norm", make_layer_norm);
  add(Op::LayerNormGrad, "reference.layer_norm_grad", make_layer_norm_grad);
}

}  // namespace lockstep

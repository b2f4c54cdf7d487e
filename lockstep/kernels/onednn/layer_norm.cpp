// Layer norm, vectorised, in f32, row-major. A row takes three passes (mean, squared differences
// from it, result); only the first reads memory, the others hit the cache.
//
// The gradients of gamma and beta are sums over rows. Rows are split into at most kPieces pieces,
// whose partial sums are added up in double and in order, so nothing depends on the number of
// threads. Workspace: the partial sums, 2 · channels floats per piece.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "lockstep/base/vectorized.h"
#include "lockstep/device/cpu/parallel.h"
#include "lockstep/kernels/onednn/onednn.h"

namespace lockstep::onednn {
namespace {

constexpr std::int64_t kPieces = 64;
constexpr std::int64_t kLeastRows = 16;    // per piece
constexpr std::int64_t kGrain = 8 * 1024;  // elements that are worth a thread

struct Rows {
  std::int64_t rows = 0;
  std::int64_t channels = 0;

  explicit Rows(const Shape& shape) : rows(shape.elements() / shape[-1]), channels(shape[-1]) {}

  std::int64_t per_piece() const { return std::max(kLeastRows, (rows + kPieces - 1) / kPieces); }
  std::int64_t pieces() const { return (rows + per_piece() - 1) / per_piece(); }
  std::int64_t grain(std::int64_t rows_each) const {
    return std::max<std::int64_t>(1, kGrain / (channels * rows_each));
  }
};

struct RowStatistics {
  float mean;
  float rstd;
};

LOCKSTEP_VECTORIZED
RowStatistics normalise_row(const float* x, const float* gamma, const float* beta, float* y,
                            std::int64_t n, double epsilon) {
  float sum = 0;
#pragma omp simd reduction(+ : sum)
  for (std::int64_t k = 0; k < n; ++k) sum += x[k];
  const float mean = sum / static_cast<float>(n);
  float squares = 0;
#pragma omp simd reduction(+ : squares)
  for (std::int64_t k = 0; k < n; ++k) squares += (x[k] - mean) * (x[k] - mean);
  const auto rstd = static_cast<float>(
      1.0 / std::sqrt(static_cast<double>(squares) / static_cast<double>(n) + epsilon));
#pragma omp simd
  for (std::int64_t k = 0; k < n; ++k) y[k] = (x[k] - mean) * rstd * gamma[k] + beta[k];
  return {mean, rstd};
}

// One row's dx = rstd · (g - mean(g) - x̂ mean(g x̂)) with g = dy · gamma; also adds the row's
// terms to dgamma and dbeta.
LOCKSTEP_VECTORIZED
void grad_row(const float* dy, const float* x, RowStatistics row, const float* gamma, float* dx,
              float* dgamma, float* dbeta, std::int64_t n) {
  float sum = 0;
  float along = 0;
#pragma omp simd reduction(+ : sum, along)
  for (std::int64_t k = 0; k < n; ++k) {
    const float normalised = (x[k] - row.mean) * row.rstd;
    const float g = dy[k] * gamma[k];
    sum += g;
    along += g * normalised;
    dgamma[k] += dy[k] * normalised;
    dbeta[k] += dy[k];
  }
  const float shift = sum / static_cast<float>(n);
  const float slope = along / static_cast<float>(n);
#pragma omp simd
  for (std::int64_t k = 0; k < n; ++k) {
    const float normalised = (x[k] - row.mean) * row.rstd;
    dx[k] = row.rstd * (dy[k] * gamma[k] - shift - normalised * slope);
  }
}

bool supports(const KernelCall& call) {
  return call.row_major() && f32_and_not_empty(call);
}

std::unique_ptr<Kernel> make_forward(const KernelCall& call) {
  const Rows r(call.in_shape(0));
  const double epsilon = call.attrs().real("epsilon");
  return make_kernel([r, epsilon](const Binding& binding) {
    parallel_for(r.rows, r.grain(1), [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t row = begin; row < end; ++row) {
        const std::int64_t at = row * r.channels;
        const RowStatistics statistics =
            normalise_row(binding.in<float>(0) + at, binding.in<float>(1), binding.in<float>(2),
                          binding.out<float>(0) + at, r.channels, epsilon);
        binding.out<float>(1)[row] = statistics.mean;
        binding.out<float>(2)[row] = statistics.rstd;
      }
    });
  });
}

std::size_t backward_workspace(const KernelCall& call) {
  const Rows r(call.in_shape(1));
  return static_cast<std::size_t>(2 * r.pieces() * r.channels) * sizeof(float);
}

std::unique_ptr<Kernel> make_backward(const KernelCall& call) {
  return make_kernel([r = Rows(call.in_shape(1))](const Binding& binding) {
    float* partials = reinterpret_cast<float*>(binding.workspace);
    const float* mean = binding.in<float>(2);
    const float* rstd = binding.in<float>(3);
    parallel_for(r.pieces(), r.grain(r.per_piece()), [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t piece = begin; piece < end; ++piece) {
        float* dgamma = partials + 2 * piece * r.channels;
        float* dbeta = dgamma + r.channels;
        std::memset(dgamma, 0, static_cast<std::size_t>(2 * r.channels) * sizeof(float));
        const std::int64_t last = std::min(r.rows, (piece + 1) * r.per_piece());
        for (std::int64_t row = piece * r.per_piece(); row < last; ++row) {
          const std::int64_t at = row * r.channels;
          grad_row(binding.in<float>(0) + at, binding.in<float>(1) + at, {mean[row], rstd[row]},
                   binding.in<float>(4), binding.out<float>(0) + at, dgamma, dbeta, r.channels);
        }
      }
    });
    for (std::int64_t k = 0; k < r.channels; ++k) {
      double dgamma = 0;
      double dbeta = 0;
      for (std::int64_t piece = 0; piece < r.pieces(); ++piece) {
        dgamma += partials[2 * piece * r.channels + k];
        dbeta += partials[(2 * piece + 1) * r.channels + k];
      }
      binding.out<float>(1)[k] = static_cast<float>(dgamma);
      binding.out<float>(2)[k] = static_cast<float>(dbeta);
    }
  });
}

}  // namespace

void add_layer_norm(KernelLibrary& library) {
  library.add(Op::LayerNorm,
              {.name = "cpu.layer_norm", .supports = supports, .make = make_forward});
  library.add(Op::LayerNormGrad, {.name = "cpu.layer_norm_grad",
                                  .supports = supports,
                                  .make = make_backward,
                                  .workspace_bytes = backward_workspace});
}

}  // namespace lockstep::onednn

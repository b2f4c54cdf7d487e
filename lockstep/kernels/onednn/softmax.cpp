// Softmax and the cross entropies (softmax_rows.h), vectorised, in f32: three passes over a row,
// which stays in the cache. oneDNN's softmax does the same work but computes no loss. Row-major.
#include <limits>

#include "lockstep/kernels/onednn/onednn.h"
#include "lockstep/kernels/softmax_rows.h"
#include "lockstep/kernels/vector_math.h"

namespace lockstep::onednn {
namespace {

// The maximum ignores NaN, but its exponential is NaN, and so is the sum.
LOCKSTEP_VECTORIZED
RowSum exponential_row(const float* x, float* y, std::int64_t n) {
  float largest = -std::numeric_limits<float>::infinity();
#pragma omp simd reduction(max : largest)
  for (std::int64_t i = 0; i < n; ++i) largest = x[i] > largest ? x[i] : largest;
  float sum = 0;
#pragma omp simd reduction(+ : sum)
  for (std::int64_t i = 0; i < n; ++i) {
    const float e = exp_nonpositive(x[i] - largest);
    y[i] = e;
    sum += e;
  }
  return {static_cast<double>(largest), static_cast<double>(sum)};
}

LOCKSTEP_VECTORIZED
void scale_row(const float* x, float* y, std::int64_t n, float factor) {
#pragma omp simd
  for (std::int64_t i = 0; i < n; ++i) y[i] = x[i] * factor;
}

LOCKSTEP_VECTORIZED
void softmax_grad_row(const float* dy, const float* y, float* dx, std::int64_t n) {
  float sum = 0;
#pragma omp simd reduction(+ : sum)
  for (std::int64_t i = 0; i < n; ++i) sum += dy[i] * y[i];
#pragma omp simd
  for (std::int64_t i = 0; i < n; ++i) dx[i] = y[i] * (dy[i] - sum);
}

LOCKSTEP_VECTORIZED
void cross_entropy_grad_row(float dloss, const float* softmax, const float* labels, float* dx,
                            std::int64_t n) {
  float weight = 0;
#pragma omp simd reduction(+ : weight)
  for (std::int64_t i = 0; i < n; ++i) weight += labels[i];
#pragma omp simd
  for (std::int64_t i = 0; i < n; ++i) dx[i] = dloss * (softmax[i] * weight - labels[i]);
}

struct VectorRows {
  using Element = float;
  static RowSum exponentials(const float* x, float* y, std::int64_t n) {
    return exponential_row(x, y, n);
  }
  static void scale(const float* x, float* y, std::int64_t n, float factor) {
    scale_row(x, y, n, factor);
  }
  static void softmax_grad(const float* dy, const float* y, float* dx, std::int64_t n) {
    softmax_grad_row(dy, y, dx, n);
  }
  static void cross_entropy_grad(float dloss, const float* softmax, const float* labels, float* dx,
                                 std::int64_t n) {
    cross_entropy_grad_row(dloss, softmax, labels, dx, n);
  }
};

bool supports(const KernelCall& call) {
  return call.row_major() && f32_and_not_empty(call);
}

}  // namespace

void add_softmax(KernelLibrary& library) {
  const std::string_view names[] = {"cpu.softmax",
                                    "cpu.softmax_grad",
                                    "cpu.sparse_cross_entropy",
                                    "cpu.sparse_cross_entropy_grad",
                                    "cpu.cross_entropy",
                                    "cpu.cross_entropy_grad"};
  for (std::size_t i = 0; i < std::size(kSoftmaxOps); ++i) {
    library.add(kSoftmaxOps[i], {.name = names[i],
                                 .supports = supports,
                                 .make = make_softmax_kernel<VectorRows>,
                                 .workspace_bytes = softmax_workspace_bytes});
  }
}

}  // namespace lockstep::onednn

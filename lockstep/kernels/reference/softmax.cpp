// Softmax and the cross entropies (softmax_rows.h), row by row in plain loops.
#include <cmath>
#include <limits>

#include "lockstep/kernels/reference/floating.h"
#include "lockstep/kernels/reference/reference.h"
#include "lockstep/kernels/softmax_rows.h"

namespace lockstep {
namespace {

template <class T>
struct PlainRows {
  using Element = T;

  static RowSum exponentials(const T* x, T* y, std::int64_t n) {
    T largest = -std::numeric_limits<T>::infinity();
    for (std::int64_t i = 0; i < n; ++i) largest = x[i] > largest ? x[i] : largest;
    double sum = 0;
    for (std::int64_t i = 0; i < n; ++i) {
      y[i] = std::exp(x[i] - largest);
      sum += static_cast<double>(y[i]);
    }
    return {static_cast<double>(largest), sum};
  }

  static void scale(const T* x, T* y, std::int64_t n, T factor) {
    for (std::int64_t i = 0; i < n; ++i) y[i] = x[i] * factor;
  }

  static void softmax_grad(const T* dy, const T* y, T* dx, std::int64_t n) {
    double sum = 0;
    for (std::int64_t i = 0; i < n; ++i) sum += static_cast<double>(dy[i] * y[i]);
    for (std::int64_t i = 0; i < n; ++i) dx[i] = y[i] * (dy[i] - static_cast<T>(sum));
  }

  static void cross_entropy_grad(T dloss, const T* softmax, const T* labels, T* dx,
                                 std::int64_t n) {
    double weight = 0;
    for (std::int64_t i = 0; i < n; ++i) weight += static_cast<double>(labels[i]);
    for (std::int64_t i = 0; i < n; ++i) {
      dx[i] = dloss * (softmax[i] * static_cast<T>(weight) - labels[i]);
    }
  }
};

std::unique_ptr<Kernel> make(const KernelCall& call) {
  return make_floating(
      call, [&](auto zero) { return make_softmax_kernel<PlainRows<decltype(zero)>>(call); });
}

}  // namespace

void add_reference_softmax(KernelLibrary& library) {
  const std::string_view names[] = {"reference.softmax",
                                    "reference.softmax_grad",
                                    "reference.sparse_cross_entropy",
                                    "reference.sparse_cross_entropy_grad",
                                    "reference.cross_entropy",
                                    "reference.cross_entropy_grad"};
  for (std::size_t i = 0; i < std::size(kSoftmaxOps); ++i) {
    library.add(kSoftmaxOps[i], {.name = names[i],
                                 .supports = supports_floating,
                                 .make = make,
                                 .workspace_bytes = softmax_workspace_bytes});
  }
}

}  // namespace lockstep

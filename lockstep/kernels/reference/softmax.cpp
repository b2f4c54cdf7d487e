// Softmax and the cross entropies that start from logits, row by row. The largest logit is taken
// off first, so that no exponential overflows; in f32 the exponential is a polynomial that runs in
// vector registers.
#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "lockstep/base/error.h"
#include "lockstep/device/cpu/parallel.h"
#include "lockstep/kernels/reference/floating.h"
#include "lockstep/kernels/reference/reference.h"

namespace lockstep {
namespace {

// e^x for x <= 0, within two units in the last place: 2^n · e^r with |r| <= ln 2 / 2, e^r by its
// Taylor polynomial; what would be denormal is 0, and NaN stays NaN. No branch, no conversion: it
// vectorises, and is defined for every input.
inline float exp_nonpositive(float x) {
  const float clamped = x < -87.3f ? -87.3f : x;
  // Adding 1.5 · 2^23 leaves the rounded n in the lowest bits.
  const float shifted = clamped * 1.44269504f + 12582912.0f;
  const float n = shifted - 12582912.0f;
  const float r = (clamped - n * 0.693145752f) - n * 1.42860677e-6f;
  float p = 1.0f / 5040;
  p = p * r + 1.0f / 720;
  p = p * r + 1.0f / 120;
  p = p * r + 1.0f / 24;
  p = p * r + 1.0f / 6;
  p = p * r + 0.5f;
  p = p * r + 1.0f;
  p = p * r + 1.0f;
  const std::uint32_t exponent = std::bit_cast<std::uint32_t>(shifted) - 0x4B400000u + 127u;
  const float power = std::bit_cast<float>(exponent << 23);
  return x < -87.3f ? 0.0f : p * power;
}

inline double exp_nonpositive(double x) {
  return std::exp(x);
}

// y = e^(x - largest), and what the row has in all; x and y may be the same.
struct RowSum {
  double largest;
  double sum;
};

template <class T>
inline RowSum exponentials(const T* x, T* y, std::int64_t n) {
  T largest = -std::numeric_limits<T>::infinity();
#pragma omp simd reduction(max : largest)
  for (std::int64_t i = 0; i < n; ++i) largest = x[i] > largest ? x[i] : largest;
  T sum = 0;
#pragma omp simd reduction(+ : sum)
  for (std::int64_t i = 0; i < n; ++i) {
    const T e = exp_nonpositive(x[i] - largest);
    y[i] = e;
    sum += e;
  }
  return {static_cast<double>(largest), static_cast<double>(sum)};
}

LOCKSTEP_EVERY_ISA RowSum exponential_row(const float* x, float* y, std::int64_t n) {
  return exponentials(x, y, n);
}

RowSum exponential_row(const double* x, double* y, std::int64_t n) {
  return exponentials(x, y, n);
}

template <class T>
void scale_row(T* y, std::int64_t n, double factor) {
  const T by = static_cast<T>(factor);
  for (std::int64_t i = 0; i < n; ++i) y[i] *= by;
}

// Rows of classes.
struct Rows {
  std::int64_t rows = 0;
  std::int64_t classes = 0;
  explicit Rows(const Shape& shape)
      : rows(shape[-1] == 0 ? 0 : shape.elements() / shape[-1]), classes(shape[-1]) {}
};

// Calls f(row) for each, several at a time.
template <class F>
void for_each_row(const Rows& r, F&& f) {
  parallel_for(r.rows, grain_for(8 * r.classes), [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t row = begin; row < end; ++row) f(row);
  });
}

template <class T>
std::unique_ptr<Kernel> make_softmax_of(const KernelCall& call) {
  return make_kernel([r = Rows(call.in_shape(0))](const Binding& binding) {
    for_each_row(r, [&](std::int64_t row) {
      T* y = binding.out<T>(0) + row * r.classes;
      const RowSum total = exponential_row(binding.in<T>(0) + row * r.classes, y, r.classes);
      scale_row(y, r.classes, 1.0 / total.sum);
    });
  });
}

// dx = y · (dy - Σ dy y).
template <class T>
std::unique_ptr<Kernel> make_softmax_grad_of(const KernelCall& call) {
  return make_kernel([r = Rows(call.in_shape(0))](const Binding& binding) {
    for_each_row(r, [&](std::int64_t row) {
      const T* dy = binding.in<T>(0) + row * r.classes;
      const T* y = binding.in<T>(1) + row * r.classes;
      T* dx = binding.out<T>(0) + row * r.classes;
      T sum = 0;
#pragma omp simd reduction(+ : sum)
      for (std::int64_t i = 0; i < r.classes; ++i) sum += dy[i] * y[i];
      for (std::int64_t i = 0; i < r.classes; ++i) dx[i] = y[i] * (dy[i] - sum);
    });
  });
}

// Labels are data: the executor adds which node they came to.
template <class Label>
void check_labels(const Label* labels, const Rows& r) {
  for (std::int64_t row = 0; row < r.rows; ++row) {
    const auto label = static_cast<std::int64_t>(labels[row]);
    if (label < 0 || label >= r.classes) {
      fail<DataError>("label {} in row {} is outside [0, {}): the logits have {} classes", label,
                      row, r.classes, r.classes);
    }
  }
}

template <class T, class Label>
std::unique_ptr<Kernel> make_sparse_cross_entropy_of(const KernelCall& call) {
  return make_kernel([r = Rows(call.in_shape(0))](const Binding& binding) {
    const Label* labels = binding.in<Label>(1);
    check_labels(labels, r);
    for_each_row(r, [&](std::int64_t row) {
      const T* x = binding.in<T>(0) + row * r.classes;
      T* y = binding.out<T>(1) + row * r.classes;
      const auto chosen = static_cast<double>(x[static_cast<std::int64_t>(labels[row])]);
      const RowSum total = exponential_row(x, y, r.classes);
      scale_row(y, r.classes, 1.0 / total.sum);
      binding.out<T>(0)[row] = static_cast<T>(std::log(total.sum) - (chosen - total.largest));
    });
  });
}

// dlogits = dloss · (softmax - one where the label is).
template <class T, class Label>
std::unique_ptr<Kernel> make_sparse_cross_entropy_grad_of(const KernelCall& call) {
  return make_kernel([r = Rows(call.in_shape(1))](const Binding& binding) {
    const Label* labels = binding.in<Label>(2);
    for_each_row(r, [&](std::int64_t row) {
      const T dloss = binding.in<T>(0)[row];
      const T* softmax = binding.in<T>(1) + row * r.classes;
      T* dx = binding.out<T>(0) + row * r.classes;
      const auto label = static_cast<std::int64_t>(labels[row]);
      for (std::int64_t i = 0; i < r.classes; ++i) dx[i] = dloss * softmax[i];
      if (label >= 0 && label < r.classes) dx[label] -= dloss;
    });
  });
}

template <class T>
std::unique_ptr<Kernel> make_cross_entropy_of(const KernelCall& call) {
  return make_kernel([r = Rows(call.in_shape(0))](const Binding& binding) {
    for_each_row(r, [&](std::int64_t row) {
      const T* x = binding.in<T>(0) + row * r.classes;
      const T* labels = binding.in<T>(1) + row * r.classes;
      T* y = binding.out<T>(1) + row * r.classes;
      const RowSum total = exponential_row(x, y, r.classes);
      const double log_sum = std::log(total.sum) + total.largest;
      double loss = 0;
      for (std::int64_t i = 0; i < r.classes; ++i) {
        // A class without weight counts nothing, though its logit be minus infinity.
        if (labels[i] != 0) {
          loss += static_cast<double>(labels[i]) * (log_sum - static_cast<double>(x[i]));
        }
      }
      scale_row(y, r.classes, 1.0 / total.sum);
      binding.out<T>(0)[row] = static_cast<T>(loss);
    });
  });
}

// dlogits = dloss · (softmax · Σ labels - labels).
template <class T>
std::unique_ptr<Kernel> make_cross_entropy_grad_of(const KernelCall& call) {
  return make_kernel([r = Rows(call.in_shape(1))](const Binding& binding) {
    for_each_row(r, [&](std::int64_t row) {
      const T dloss = binding.in<T>(0)[row];
      const T* softmax = binding.in<T>(1) + row * r.classes;
      const T* labels = binding.in<T>(2) + row * r.classes;
      T* dx = binding.out<T>(0) + row * r.classes;
      T weight = 0;
#pragma omp simd reduction(+ : weight)
      for (std::int64_t i = 0; i < r.classes; ++i) weight += labels[i];
      for (std::int64_t i = 0; i < r.classes; ++i) {
        dx[i] = dloss * (softmax[i] * weight - labels[i]);
      }
    });
  });
}

// Calls make(Label{}) with the C++ type of the labels.
template <class F>
std::unique_ptr<Kernel> make_for_labels(DType dtype, F&& make) {
  if (dtype == DType::U8) return make(std::uint8_t{});
  if (dtype == DType::I32) return make(std::int32_t{});
  return make(std::int64_t{});
}

std::unique_ptr<Kernel> make_softmax(const KernelCall& call) {
  return make_floating(call, [&](auto zero) { return make_softmax_of<decltype(zero)>(call); });
}

std::unique_ptr<Kernel> make_softmax_grad(const KernelCall& call) {
  return make_floating(call, [&](auto zero) { return make_softmax_grad_of<decltype(zero)>(call); });
}

std::unique_ptr<Kernel> make_sparse_cross_entropy(const KernelCall& call) {
  return make_floating(call, [&](auto zero) {
    return make_for_labels(call.in_dtype(1), [&](auto label) {
      return make_sparse_cross_entropy_of<decltype(zero), decltype(label)>(call);
    });
  });
}

std::unique_ptr<Kernel> make_sparse_cross_entropy_grad(const KernelCall& call) {
  return make_floating(call, [&](auto zero) {
    return make_for_labels(call.in_dtype(2), [&](auto label) {
      return make_sparse_cross_entropy_grad_of<decltype(zero), decltype(label)>(call);
    });
  });
}

std::unique_ptr<Kernel> make_cross_entropy(const KernelCall& call) {
  return make_floating(call,
                       [&](auto zero) { return make_cross_entropy_of<decltype(zero)>(call); });
}

std::unique_ptr<Kernel> make_cross_entropy_grad(const KernelCall& call) {
  return make_floating(call,
                       [&](auto zero) { return make_cross_entropy_grad_of<decltype(zero)>(call); });
}

}  // namespace

void add_reference_softmax(KernelLibrary& library) {
  const auto add = [&](Op op, std::string_view name,
                       std::unique_ptr<Kernel> (*make)(const KernelCall&)) {
    library.add(op, {.name = name, .supports = supports_floating, .make = make});
  };
  add(Op::Softmax, "reference.softmax", make_softmax);
  add(Op::SoftmaxGrad, "reference.softmax_grad", make_softmax_grad);
  add(Op::SparseCrossEntropy, "reference.sparse_cross_entropy", make_sparse_cross_entropy);
  add(Op::SparseCrossEntropyGrad, "reference.sparse_cross_entropy_grad",
      make_sparse_cross_entropy_grad);
  add(Op::CrossEntropy, "reference.cross_entropy", make_cross_entropy);
  add(Op::CrossEntropyGrad, "reference.cross_entropy_grad", make_cross_entropy_grad);
}

}  // namespace lockstep

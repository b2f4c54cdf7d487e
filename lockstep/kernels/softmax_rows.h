// Softmax and the cross entropies from logits, as kernels over rows of classes. The largest logit
// is subtracted first, so that no exponential overflows. `Math` computes one row: scalar code in
// any floating type (reference/), vectorised in f32 (onednn/).
//
//   struct Math {
//     using Element = float;
//     // y = e^(x - largest); returns the row's largest x and its sum. x and y may be the same.
//     static RowSum exponentials(const Element* x, Element* y, std::int64_t n);
//     // y = x · factor; x and y may be the same.
//     static void scale(const Element* x, Element* y, std::int64_t n, Element factor);
//     // dx = y · (dy - Σ dy y).
//     static void softmax_grad(const Element* dy, const Element* y, Element* dx, std::int64_t n);
//     // dx = dloss · (softmax · Σ labels - labels).
//     static void cross_entropy_grad(Element dloss, const Element* softmax, const Element* labels,
//                                    Element* dx, std::int64_t n);
//   };
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <memory>

#include "lockstep/base/error.h"
#include "lockstep/device/cpu/parallel.h"
#include "lockstep/kernels/kernel.h"

namespace lockstep {

struct RowSum {
  double largest;
  double sum;
};

template <class Math>
struct SoftmaxKernels {
  using T = typename Math::Element;

  struct Rows {
    std::int64_t rows = 0;
    std::int64_t classes = 0;
    explicit Rows(const Shape& shape)
        : rows(shape[-1] == 0 ? 0 : shape.elements() / shape[-1]), classes(shape[-1]) {}
  };

  // Calls f(row) for each row, several in parallel.
  template <class F>
  static void for_each_row(const Rows& r, F&& f) {
    parallel_for(r.rows, 1 + 32768 / (8 * r.classes + 1),
                 [&](std::int64_t begin, std::int64_t end) {
                   for (std::int64_t row = begin; row < end; ++row) f(row);
                 });
  }

  static T reciprocal(double sum) { return static_cast<T>(1.0 / sum); }

  static std::unique_ptr<Kernel> softmax(const KernelCall& call) {
    return make_kernel([r = Rows(call.in_shape(0))](const Binding& binding) {
      for_each_row(r, [&](std::int64_t row) {
        T* y = binding.out<T>(0) + row * r.classes;
        const RowSum total = Math::exponentials(binding.in<T>(0) + row * r.classes, y, r.classes);
        Math::scale(y, y, r.classes, reciprocal(total.sum));
      });
    });
  }

  static std::unique_ptr<Kernel> softmax_grad(const KernelCall& call) {
    return make_kernel([r = Rows(call.in_shape(0))](const Binding& binding) {
      for_each_row(r, [&](std::int64_t row) {
        const std::int64_t at = row * r.classes;
        Math::softmax_grad(binding.in<T>(0) + at, binding.in<T>(1) + at, binding.out<T>(0) + at,
                           r.classes);
      });
    });
  }

  static std::unique_ptr<Kernel> sparse_cross_entropy(const KernelCall& call) {
    return with_labels(call.in_dtype(1),
                       [&](auto label) { return sparse_cross_entropy_of<decltype(label)>(call); });
  }

  // dlogits = dloss · (softmax - one_hot(label)).
  static std::unique_ptr<Kernel> sparse_cross_entropy_grad(const KernelCall& call) {
    return with_labels(call.in_dtype(2), [&](auto label) {
      return sparse_cross_entropy_grad_of<decltype(label)>(call);
    });
  }

  static std::unique_ptr<Kernel> cross_entropy(const KernelCall& call) {
    return make_kernel([r = Rows(call.in_shape(0))](const Binding& binding) {
      for_each_row(r, [&](std::int64_t row) {
        const T* x = binding.in<T>(0) + row * r.classes;
        const T* labels = binding.in<T>(1) + row * r.classes;
        T* y = binding.out<T>(1) + row * r.classes;
        const RowSum total = Math::exponentials(x, y, r.classes);
        const double log_sum = std::log(total.sum) + total.largest;
        double loss = 0;
        for (std::int64_t i = 0; i < r.classes; ++i) {
          // A class of weight 0 adds nothing, even if its logit is minus infinity.
          if (labels[i] != 0) {
            loss += static_cast<double>(labels[i]) * (log_sum - static_cast<double>(x[i]));
          }
        }
        Math::scale(y, y, r.classes, reciprocal(total.sum));
        binding.out<T>(0)[row] = static_cast<T>(loss);
      });
    });
  }

  static std::unique_ptr<Kernel> cross_entropy_grad(const KernelCall& call) {
    return make_kernel([r = Rows(call.in_shape(1))](const Binding& binding) {
      for_each_row(r, [&](std::int64_t row) {
        const std::int64_t at = row * r.classes;
        Math::cross_entropy_grad(binding.in<T>(0)[row], binding.in<T>(1) + at,
                                 binding.in<T>(2) + at, binding.out<T>(0) + at, r.classes);
      });
    });
  }

 private:
  // Calls make(Label{}) with the C++ type of the labels.
  template <class F>
  static std::unique_ptr<Kernel> with_labels(DType dtype, F&& make) {
    if (dtype == DType::U8) return make(std::uint8_t{});
    if (dtype == DType::I32) return make(std::int32_t{});
    return make(std::int64_t{});
  }

  // Labels are data; the executor adds the name of the node to the message.
  template <class Label>
  static void check_labels(const Label* labels, const Rows& r) {
    for (std::int64_t row = 0; row < r.rows; ++row) {
      const auto label = static_cast<std::int64_t>(labels[row]);
      if (label < 0 || label >= r.classes) {
        fail<DataError>("label {} in row {} is outside [0, {}): the logits have {} classes", label,
                        row, r.classes, r.classes);
      }
    }
  }

  template <class Label>
  static std::unique_ptr<Kernel> sparse_cross_entropy_of(const KernelCall& call) {
    const bool with_gradient = call.in_count() > 2;
    const bool sum = call.attrs().has("sum");
    return make_kernel([r = Rows(call.in_shape(0)), with_gradient, sum](const Binding& binding) {
      const Label* labels = binding.in<Label>(1);
      check_labels(labels, r);
      auto* losses = sum ? reinterpret_cast<T*>(binding.workspace) : binding.out<T>(0);
      for_each_row(r, [&](std::int64_t row) {
        const T* x = binding.in<T>(0) + row * r.classes;
        T* y = binding.out<T>(1) + row * r.classes;
        const auto label = static_cast<std::int64_t>(labels[row]);
        const auto chosen = static_cast<double>(x[label]);
        const RowSum total = Math::exponentials(x, y, r.classes);
        Math::scale(y, y, r.classes, reciprocal(total.sum));
        losses[row] = static_cast<T>(std::log(total.sum) - (chosen - total.largest));
        if (!with_gradient) return;
        const T dloss = binding.in<T>(2)[row];
        Math::scale(y, y, r.classes, dloss);
        y[label] -= dloss;
      });
      if (!sum) return;
      double total = 0;
      for (std::int64_t row = 0; row < r.rows; ++row) total += static_cast<double>(losses[row]);
      *binding.out<T>(0) = static_cast<T>(total);
    });
  }

  template <class Label>
  static std::unique_ptr<Kernel> sparse_cross_entropy_grad_of(const KernelCall& call) {
    return make_kernel([r = Rows(call.in_shape(1))](const Binding& binding) {
      const Label* labels = binding.in<Label>(2);
      for_each_row(r, [&](std::int64_t row) {
        const T dloss = binding.in<T>(0)[row];
        T* dx = binding.out<T>(0) + row * r.classes;
        const auto label = static_cast<std::int64_t>(labels[row]);
        Math::scale(binding.in<T>(1) + row * r.classes, dx, r.classes, dloss);
        if (label >= 0 && label < r.classes) dx[label] -= dloss;
      });
    });
  }
};

// The ops that make_softmax_kernel computes.
inline constexpr Op kSoftmaxOps[] = {
    Op::Softmax,      Op::SoftmaxGrad,     Op::SparseCrossEntropy, Op::SparseCrossEntropyGrad,
    Op::CrossEntropy, Op::CrossEntropyGrad};

// If only the sum of the losses is an output, the workspace holds the losses.
inline std::size_t softmax_workspace_bytes(const KernelCall& call) {
  if (call.node.op != Op::SparseCrossEntropy || !call.attrs().has("sum")) return 0;
  return call.graph.bytes(call.node.inputs[0]) /
         static_cast<std::size_t>(std::max<std::int64_t>(call.in_shape(0)[-1], 1));
}

template <class Math>
std::unique_ptr<Kernel> make_softmax_kernel(const KernelCall& call) {
  using Kernels = SoftmaxKernels<Math>;
  switch (call.node.op) {
    case Op::Softmax:
      return Kernels::softmax(call);
    case Op::SoftmaxGrad:
      return Kernels::softmax_grad(call);
    case Op::SparseCrossEntropy:
      return Kernels::sparse_cross_entropy(call);
    case Op::SparseCrossEntropyGrad:
      return Kernels::sparse_cross_entropy_grad(call);
    case Op::CrossEntropy:
      return Kernels::cross_entropy(call);
    default:
      ensure(call.node.op == Op::CrossEntropyGrad, "not an op of the softmax family");
      return Kernels::cross_entropy_grad(call);
  }
}

}  // namespace lockstep

// Activation nodes and their gradients, by the formulas of activations.h.
#include "lockstep/device/cpu/parallel.h"
#include "lockstep/kernels/activations.h"
#include "lockstep/kernels/reference/reference.h"
#include "lockstep/kernels/reference/walk.h"
#include "lockstep/tensor/tensor.h"

namespace lockstep {
namespace {

template <class T, class A>
std::unique_ptr<Kernel> value_kernel(std::int64_t elements, A activation) {
  return make_kernel([elements, activation](const Binding& binding) {
    const T* x = binding.in<T>(0);
    T* y = binding.out<T>(0);
    parallel_for(elements, kGrain, [&](std::int64_t begin, std::int64_t end) {
#pragma omp simd
      for (std::int64_t i = begin; i < end; ++i) y[i] = activation.value(x[i]);
    });
  });
}

template <class T, class A>
std::unique_ptr<Kernel> grad_kernel(std::int64_t elements, A activation) {
  return make_kernel([elements, activation](const Binding& binding) {
    const T* dy = binding.in<T>(0);
    const T* operand = binding.in<T>(1);
    T* dx = binding.out<T>(0);
    parallel_for(elements, kGrain, [&](std::int64_t begin, std::int64_t end) {
#pragma omp simd
      for (std::int64_t i = begin; i < end; ++i) dx[i] = activation.grad(dy[i], operand[i]);
    });
  });
}

std::unique_ptr<Kernel> make_activation(const KernelCall& call) {
  const std::int64_t elements = call.out_shape(0).elements();
  const Attrs& attrs = call.attrs();
  const auto make = [&](auto activation) {
    return call.in_dtype(0) == DType::F64 ? value_kernel<double>(elements, activation)
                                          : value_kernel<float>(elements, activation);
  };
  return with_activation<StandardMath>(attrs.text("kind"), attrs.real("alpha"), make);
}

std::unique_ptr<Kernel> make_activation_grad(const KernelCall& call) {
  const std::int64_t elements = call.out_shape(0).elements();
  const Attrs& attrs = call.attrs();
  const auto make = [&](auto activation) {
    return call.in_dtype(0) == DType::F64 ? grad_kernel<double>(elements, activation)
                                          : grad_kernel<float>(elements, activation);
  };
  return with_activation<StandardMath>(attrs.text("kind"), attrs.real("alpha"), make);
}

bool supports(const KernelCall& call) {
  const DType dtype = call.in_dtype(0);
  return call.row_major() && (dtype == DType::F32 || dtype == DType::F64);
}

}  // namespace

void add_reference_activation(KernelLibrary& library) {
  library.add(Op::Activation,
              {.name = "reference.activation", .supports = supports, .make = make_activation});
  library.add(
      Op::ActivationGrad,
      {.name = "reference.activation_grad", .supports = supports, .make = make_activation_grad});
}

}  // namespace lockstep

// Activation nodes and their gradients, by the formulas of kernels/activations.h.
#include "lockstep/kernels/cuda/elementwise/activations.cuh"
#include "lockstep/kernels/cuda/elementwise/elementwise.cuh"

namespace lockstep {
namespace {

std::unique_ptr<Kernel> make_activation(const KernelCall& call) {
  const std::int64_t count = call.out_shape(0).elements();
  const Attrs& attrs = call.attrs();
  const auto make = [&](auto activation) {
    using F = ActivationValue<decltype(activation)>;
    return cuda_dispatch_float(call.in_dtype(0), [&](auto zero) {
      using T = decltype(zero);
      return make_map_unary<F, T, T>(count, F{activation});
    });
  };
  return with_activation<DeviceMath>(attrs.text("kind"), attrs.real("alpha"), make);
}

std::unique_ptr<Kernel> make_activation_grad(const KernelCall& call) {
  const StridedWalk<2> walk = operand_walk<2>(call);
  const Attrs& attrs = call.attrs();
  const auto make = [&](auto activation) {
    using F = ActivationSlope<decltype(activation)>;
    return cuda_dispatch_float(call.in_dtype(0), [&](auto zero) {
      using T = decltype(zero);
      return make_map_binary<F, T, T, T>(walk, F{activation});
    });
  };
  return with_activation<DeviceMath>(attrs.text("kind"), attrs.real("alpha"), make);
}

}  // namespace

void add_cuda_activation(KernelLibrary& library) {
  add_elementwise(library, Op::Activation, "cuda.activation", make_activation);
  add_elementwise(library, Op::ActivationGrad, "cuda.activation_grad", make_activation_grad);
}

}  // namespace lockstep

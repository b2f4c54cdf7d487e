// Assign: copies a value of the same layout to a variable.
#include "lockstep/kernels/cuda/cuda.h"
#include "lockstep/kernels/cuda/primitives/bitcast.cuh"

namespace lockstep {
namespace {

std::unique_ptr<Kernel> make_assign(const KernelCall& call) {
  const std::size_t bytes = call.graph.bytes(call.node.inputs[0]);
  return make_cuda_kernel([bytes](const Binding& binding, cudaStream_t stream) {
    std::byte* variable = const_cast<std::byte*>(binding.inputs[0]);
    if (variable != binding.inputs[1]) copy_bytes(variable, binding.inputs[1], bytes, stream);
  });
}

bool supports(const KernelCall& call) {
  return call.input(0).layout == call.input(1).layout;
}

}  // namespace

void add_cuda_state(KernelLibrary& library) {
  library.add(Op::Assign, {.name = "cuda.assign", .supports = supports, .make = make_assign});
}

}  // namespace lockstep

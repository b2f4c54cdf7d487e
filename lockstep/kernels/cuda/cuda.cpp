#include "lockstep/kernels/cuda/cuda.h"

namespace lockstep {
namespace {

class FunctionKernel final : public Kernel {
 public:
  explicit FunctionKernel(CudaFunction function) : function_(std::move(function)) {}
  void bind(const Binding& binding) override { binding_ = binding; }
  void run(Stream& stream) override { function_(binding_, cuda_stream(stream)); }

 private:
  CudaFunction function_;
  Binding binding_;
};

bool computable(DType dtype) {
  return !is_floating(dtype) || dtype == DType::F32 || dtype == DType::F16 || dtype == DType::BF16;
}

}  // namespace

std::unique_ptr<Kernel> make_cuda_kernel(CudaFunction function) {
  return std::make_unique<FunctionKernel>(std::move(function));
}

bool has_cuda_floats(const KernelCall& call) {
  const auto fits = [&](ValueId id) { return computable(call.graph.type(id).dtype); };
  return std::ranges::all_of(call.node.inputs, fits) &&
         std::ranges::all_of(call.node.outputs, fits);
}

KernelLibrary make_cuda_kernels(Device& device, const CudaKernelOptions& options) {
  auto context = std::make_unique<CudaContext>(device);
  context->allow_tf32 = options.allow_tf32;
  context->plan_cache_path = options.plan_cache;
  KernelLibrary library(std::move(context));
  add_cuda_elementwise(library);
  add_cuda_pointwise(library);
  add_cuda_reduce(library);
  add_cuda_shape(library);
  add_cuda_random(library);
  add_cuda_state(library);
  add_cuda_norm(library);
  add_cuda_layer_norm(library);
  add_cuda_softmax(library);
  add_cuda_pool(library);
  add_cuda_update(library);
  add_cuda_rounding(library);
  add_cuda_matmul(library);
  add_cuda_conv(library);
  return library;
}

}  // namespace lockstep

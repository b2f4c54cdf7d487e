// Matrix products by cuBLASLt, with the bias and, if possible, the activation, ReLU's gradient or
// the gradient of a bias in its epilogue. Our own kernel does the rest in one pass over the result.
// A product that accumulates is added by cuBLASLt (its C), after our own kernel has zeroed what it
// is added to where that does not count.
#include "lockstep/graph/ops/matmul.h"
#include "lockstep/kernels/cuda/matmul/matmul_begin.h"
#include "lockstep/kernels/cuda/matmul/matmul_choice.h"

namespace lockstep {
namespace {

// What the epilogue does not do.
BiasActivation rest_of(const MatmulProduct& p, cublasLtEpilogue_t epilogue) {
  BiasActivation rest = p.tail;
  if (adds_bias(epilogue)) rest.biased = false;
  if (activates(epilogue)) rest.activation = CudaActivation::Linear;
  return rest;
}

// The alignment that all matrices have, up to 256 bytes.
std::uint32_t alignment_of(const MatmulPlaces& places) {
  std::uintptr_t bits = 256;
  for (const void* pointer :
       {static_cast<const void*>(places.a), static_cast<const void*>(places.b),
        static_cast<const void*>(places.bias), static_cast<const void*>(places.added),
        static_cast<const void*>(places.y), static_cast<const void*>(places.sums)}) {
    bits |= reinterpret_cast<std::uintptr_t>(pointer);
  }
  return static_cast<std::uint32_t>(bits & (~bits + 1));
}

// The offset of the workspace for our own sums, after cuBLASLt's.
std::size_t sums_offset(std::size_t cublaslt_bytes) {
  return (cublaslt_bytes + 255) / 256 * 256;
}

class MatmulKernel final : public Kernel {
 public:
  MatmulKernel(CudaContext& context, const MatmulProduct& product)
      : library_(context.cublaslt()), product_(product), choice_(matmul_choice(context, product)) {
    granted_ = choice_.workspace_bytes;
    describe();
  }

  void bind(const Binding& binding) override {
    places_ = {.a = binding.inputs[0],
               .b = binding.inputs[1],
               .bias = product_.tail.biased ? binding.inputs[2] : nullptr,
               .added = !product_.accumulates ? nullptr
                        : product_.asks       ? binding.outputs[0]
                                              : binding.inputs[2],
               .y = binding.outputs[0],
               .sums = product_.column_sums ? binding.outputs[1] : nullptr,
               .bits = product_.bits     ? binding.outputs[1]
                       : product_.masked ? const_cast<std::byte*>(binding.inputs[2])
                                         : nullptr};
    if (product_.asks) begin_ = {.added = binding.in<float>(3), .from = binding.inputs[2]};
    workspace_ = binding.workspace;
    // Values are aligned to 64 bytes, except for gradients of one all-reduce, which are packed. A
    // mask that does not pay off is still computed if the node has it.
    const std::uint32_t alignment = alignment_of(places_);
    if (alignment < kMatmulAlignment || lacks_mask()) choose_for(alignment);
    descriptors_->place_epilogue(places_);
  }

  void run(Stream& stream) override {
    const cudaStream_t handle = cuda_stream(stream);
    if (product_.asks) {
      begin_accumulation(product_.dtype, begin_.added, begin_.from, places_.y,
                         product_.m * product_.n, handle);
    }
    library_.check(descriptors_->run(choice_, places_, workspace_, handle), "a matrix product");
    rest_.run(places_.y, places_.bias, handle);
    if (product_.column_sums && !adds_columns(choice_.epilogue)) {
      product_.sums().run(places_.b, places_.sums, workspace_ + sums_offset(granted_), handle);
    }
  }

 private:
  void describe() {
    descriptors_ = std::make_unique<MatmulDescriptors>(library_, product_, choice_.epilogue);
    rest_ = rest_of(product_, choice_.epilogue);
  }

  bool lacks_mask() const {
    return (product_.bits && !writes_bits(choice_.epilogue)) ||
           (product_.masked && !reads_bits(choice_.epilogue));
  }

  // Epilogues for another choice; the first that works is taken.
  std::vector<cublasLtEpilogue_t> other_epilogues() const {
    if (product_.masked) return {CUBLASLT_EPILOGUE_DRELU};
    if (product_.bits) {
      return {product_.tail.biased ? CUBLASLT_EPILOGUE_RELU_AUX_BIAS : CUBLASLT_EPILOGUE_RELU_AUX};
    }
    if (is_relu(choice_.epilogue)) return {CUBLASLT_EPILOGUE_DEFAULT};
    return {choice_.epilogue, CUBLASLT_EPILOGUE_DEFAULT};
  }

  // Chooses another algorithm than planned, in the same workspace: for less aligned matrices, for
  // example.
  void choose_for(std::uint32_t alignment) {
    for (const cublasLtEpilogue_t epilogue : other_epilogues()) {
      choice_.epilogue = epilogue;
      describe();
      descriptors_->place_epilogue(places_);
      const auto choices = descriptors_->suggestions(alignment, granted_, 1);
      if (choices.empty()) continue;
      choice_ = choices.front();
      return;
    }
    fail<UsageError>("[matmul] cuBLASLt has no algorithm for {} aligned to {} bytes",
                     product_.name(), alignment);
  }

  CublasLt& library_;
  MatmulProduct product_;
  MatmulChoice choice_;
  std::size_t granted_ = 0;  // bytes of cuBLASLt's workspace
  BiasActivation rest_;
  std::unique_ptr<MatmulDescriptors> descriptors_;
  MatmulPlaces places_;
  struct {
    const float* added = nullptr;
    const std::byte* from = nullptr;
  } begin_;  // of a product that asks whether it is added
  std::byte* workspace_ = nullptr;
};

bool supports(const KernelCall& call) {
  const bool bits = call.attrs().has("bits") || call.attrs().has("masked");
  if (!bits && !has_cuda_floats(call)) return false;
  const DType own = call.in_dtype(0);
  return call.row_major() && call.in_dtype(1) == own && call.output(0).type.dtype == own &&
         (call.in_count() < 3 || call.attrs().has("masked") || call.in_dtype(2) == own ||
          call.in_dtype(2) == DType::F32);
}

// Nothing to multiply: there are no results, or they are sums of no terms and so all zero.
bool is_empty(const MatmulProduct& p) {
  return p.tail.rows == 0 || p.n == 0 || p.k == 0;
}

std::unique_ptr<Kernel> make(const KernelCall& call) {
  const MatmulProduct p = matmul_product_of(call);
  if (!is_empty(p)) return std::make_unique<MatmulKernel>(cuda_context(call), p);
  if (p.bits || p.masked) fail<InternalError>("[matmul] an empty product has a mask");
  const std::size_t bytes = call.graph.bytes(call.node.outputs[0]);
  return make_cuda_kernel([p, bytes](const Binding& binding, cudaStream_t stream) {
    if (p.column_sums) {
      p.sums().run(binding.inputs[1], binding.outputs[1], binding.workspace, stream);
    }
    if (bytes == 0) return;
    if (p.asks) {
      begin_accumulation(p.dtype, binding.in<float>(3), binding.inputs[2], binding.outputs[0],
                         p.m * p.n, stream);
      return;
    }
    if (p.accumulates) {
      if (binding.outputs[0] == binding.inputs[2]) return;
      check_cuda(cudaMemcpyAsync(binding.outputs[0], binding.inputs[2], bytes,
                                 cudaMemcpyDeviceToDevice, stream),
                 "copying what nothing is added to");
      return;
    }
    check_cuda(cudaMemsetAsync(binding.outputs[0], 0, bytes, stream), "zeroing a product");
    p.tail.run(binding.outputs[0], p.tail.biased ? binding.inputs[2] : nullptr, stream);
  });
}

std::size_t workspace_bytes(const KernelCall& call) {
  const MatmulProduct p = matmul_product_of(call);
  const std::size_t sums = p.column_sums ? p.sums().workspace_bytes() : 0;
  if (is_empty(p)) return sums;
  const std::size_t own = matmul_choice(cuda_context(call), p).workspace_bytes;
  return sums > 0 ? sums_offset(own) + sums : own;
}

// Whether cuBLASLt can do it in the epilogue at next to no cost. Products that accumulate are not
// offered: that they save more than the launch before them costs is still to be measured.
bool offers(const KernelCall& call, std::string_view extra) {
  MatmulProduct p = matmul_product_of(call);
  if (is_empty(p)) return false;
  if (extra == kAccumulates) return false;
  const auto epilogue = [&] { return matmul_choice(cuda_context(call), p).epilogue; };
  if (extra == "column_sums") {
    p.column_sums = true;
    return adds_columns(epilogue());
  }
  if (extra == "bits") {
    p.bits = true;
    return writes_bits(epilogue());
  }
  if (extra == "masked") {
    p.masked = true;
    return reads_bits(epilogue());
  }
  return false;
}

}  // namespace

void add_cuda_matmul(KernelLibrary& library) {
  library.add(Op::MatMul,
              {.name = "cuda.matmul",
               .supports = supports,
               .make = make,
               .workspace_bytes = workspace_bytes,
               // In the epilogue, or in the pass that adds the bias.
               .fuses_activation = [](const KernelCall&, std::string_view) { return true; },
               .offers = offers});
}

}  // namespace lockstep

// Elementwise ops on values that stay in a backend's layout between convolutions: as long as all of
// them lie alike and nothing is padded, the layout makes no difference.
#include <algorithm>
#include <limits>

#include "lockstep/device/cpu/parallel.h"
#include "lockstep/kernels/onednn/onednn.h"
#include "lockstep/kernels/onednn/vectorized.h"

namespace lockstep::onednn {
namespace {

constexpr std::int64_t kGrain = 16 * 1024;

LOCKSTEP_VECTORIZED
void add_range(const float* a, const float* b, float* y, std::int64_t n) {
  for (std::int64_t i = 0; i < n; ++i) y[i] = a[i] + b[i];
}
LOCKSTEP_VECTORIZED
void clamp_range(const float* x, float* y, std::int64_t n, float most) {
  for (std::int64_t i = 0; i < n; ++i) {
    const float positive = x[i] < 0.0f ? 0.0f : x[i];
    y[i] = positive > most ? most : positive;
  }
}
LOCKSTEP_VECTORIZED
void relu_grad_range(const float* dy, const float* y, float* dx, std::int64_t n) {
  for (std::int64_t i = 0; i < n; ++i) dx[i] = y[i] > 0.0f ? dy[i] : 0.0f;
}

// Whether all values have one type, f32, and lie in one layout without padding.
bool alike(const KernelCall& call) {
  if (!f32_and_not_empty(call)) return false;
  const ValueInfo& result = call.output(0);
  const auto same = [&](ValueId id) {
    return call.graph.type(id) == result.type && call.graph.info(id).layout == result.layout;
  };
  return result.type.dtype == DType::F32 &&
         result.layout.elements(result.type.shape) == result.type.shape.elements() &&
         std::all_of(call.node.inputs.begin(), call.node.inputs.end(), same);
}

bool alike_relu(const KernelCall& call) {
  return call.attrs().text("kind") == "relu" && alike(call);
}

// The layout of the first input that has one of its own, for all.
NodeLayouts follow(const KernelCall& call) {
  const ValueType& type = call.output(0).type;
  if (type.dtype != DType::F32 || type.shape.elements() == 0) return {};
  Layout chosen;
  for (ValueId id : call.node.inputs) {
    const ValueInfo& value = call.graph.info(id);
    if (value.type != type) return {};
    if (chosen.row_major() && value.layout.elements(type.shape) == type.shape.elements()) {
      chosen = value.layout;
    }
  }
  return {std::vector<Layout>(call.node.inputs.size(), chosen), {chosen}};
}
NodeLayouts follow_relu(const KernelCall& call) {
  return call.attrs().text("kind") == "relu" ? follow(call) : NodeLayouts{};
}

std::unique_ptr<Kernel> make_add(const KernelCall& call) {
  const std::int64_t n = call.out_shape(0).elements();
  return make_kernel([n](const Binding& binding) {
    parallel_for(n, kGrain, [&](std::int64_t begin, std::int64_t end) {
      add_range(binding.in<float>(0) + begin, binding.in<float>(1) + begin,
                binding.out<float>(0) + begin, end - begin);
    });
  });
}

std::unique_ptr<Kernel> make_relu(const KernelCall& call) {
  const std::int64_t n = call.out_shape(0).elements();
  return make_kernel([n](const Binding& binding) {
    clamp(binding.in<float>(0), binding.out<float>(0), n, std::numeric_limits<float>::infinity());
  });
}

std::unique_ptr<Kernel> make_relu_grad(const KernelCall& call) {
  const std::int64_t n = call.out_shape(0).elements();
  return make_kernel([n](const Binding& binding) {
    parallel_for(n, kGrain, [&](std::int64_t begin, std::int64_t end) {
      relu_grad_range(binding.in<float>(0) + begin, binding.in<float>(1) + begin,
                      binding.out<float>(0) + begin, end - begin);
    });
  });
}

}  // namespace

void clamp(const float* x, float* y, std::int64_t n, float most) {
  parallel_for(n, kGrain, [&](std::int64_t begin, std::int64_t end) {
    clamp_range(x + begin, y + begin, end - begin, most);
  });
}

void add_elementwise(KernelLibrary& library) {
  library.add(Op::Add, {.name = "cpu.add",
                        .supports = alike,
                        .make = make_add,
                        .workspace_bytes = nullptr,
                        .layouts = follow,
                        .fuses_activation = nullptr});
  library.add(Op::Activation, {.name = "cpu.relu",
                               .supports = alike_relu,
                               .make = make_relu,
                               .workspace_bytes = nullptr,
                               .layouts = follow_relu,
                               .fuses_activation = nullptr});
  library.add(Op::ActivationGrad, {.name = "cpu.relu_grad",
                                   .supports = alike_relu,
                                   .make = make_relu_grad,
                                   .workspace_bytes = nullptr,
                                   .layouts = follow_relu,
                                   .fuses_activation = nullptr});
}

}  // namespace lockstep::onednn

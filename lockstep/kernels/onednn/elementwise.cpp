// Elementwise ops on values that stay in oneDNN's layout between convolutions: the layout does not
// matter if all values have the same one without padding.
#include <algorithm>

#include "lockstep/base/vectorized.h"
#include "lockstep/device/cpu/parallel.h"
#include "lockstep/kernels/onednn/activation.h"
#include "lockstep/kernels/onednn/onednn.h"

namespace lockstep::onednn {
namespace {

constexpr std::int64_t kGrain = 16 * 1024;

LOCKSTEP_VECTORIZED
void add_range(const float* a, const float* b, float* y, std::int64_t n) {
  for (std::int64_t i = 0; i < n; ++i) y[i] = a[i] + b[i];
}
// Whether all values have the same type, f32, and the same layout without padding.
bool same_layout(const KernelCall& call) {
  if (!f32_and_not_empty(call)) return false;
  const ValueInfo& result = call.output(0);
  const auto same = [&](ValueId id) {
    return call.graph.type(id) == result.type && call.graph.info(id).layout == result.layout;
  };
  return result.type.dtype == DType::F32 &&
         result.layout.elements(result.type.shape) == result.type.shape.elements() &&
         std::all_of(call.node.inputs.begin(), call.node.inputs.end(), same);
}

// All values get the layout of the first input that is not row-major.
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
std::unique_ptr<Kernel> make_add(const KernelCall& call) {
  const std::int64_t n = call.out_shape(0).elements();
  return make_kernel([n](const Binding& binding) {
    parallel_for(n, kGrain, [&](std::int64_t begin, std::int64_t end) {
      add_range(binding.in<float>(0) + begin, binding.in<float>(1) + begin,
                binding.out<float>(0) + begin, end - begin);
    });
  });
}

std::unique_ptr<Kernel> make_activation(const KernelCall& call) {
  const std::int64_t n = call.out_shape(0).elements();
  const ActivationLoops loops = activation_loops(call.attrs().text("kind"));
  const auto alpha = static_cast<float>(call.attrs().real("alpha"));
  return make_kernel([n, loops, alpha](const Binding& binding) {
    apply_in_parallel(loops, binding.in<float>(0), binding.out<float>(0), n, alpha);
  });
}

std::unique_ptr<Kernel> make_activation_grad(const KernelCall& call) {
  const std::int64_t n = call.out_shape(0).elements();
  const ActivationLoops loops = activation_loops(call.attrs().text("kind"));
  const auto alpha = static_cast<float>(call.attrs().real("alpha"));
  return make_kernel([n, loops, alpha](const Binding& binding) {
    parallel_for(n, kGrain, [&](std::int64_t begin, std::int64_t end) {
      loops.grad(binding.in<float>(0) + begin, binding.in<float>(1) + begin,
                 binding.out<float>(0) + begin, end - begin, alpha);
    });
  });
}

}  // namespace

void add_elementwise(KernelLibrary& library) {
  const auto add = [&](Op op, std::string_view name,
                       std::unique_ptr<Kernel> (*make)(const KernelCall&)) {
    library.add(op, {.name = name, .supports = same_layout, .make = make, .layouts = follow});
  };
  add(Op::Add, "cpu.add", make_add);
  add(Op::Activation, "cpu.activation", make_activation);
  add(Op::ActivationGrad, "cpu.activation_grad", make_activation_grad);
}

}  // namespace lockstep::onednn

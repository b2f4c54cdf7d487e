// Pointwise nodes: their programs are compiled while a plan is built, and launched with a table of
// segments that is written when the kernel is bound.
#include <vector>

#include "lockstep/graph/ops/pointwise.h"
#include "lockstep/kernels/cuda/cuda.h"
#include "lockstep/kernels/cuda/libraries/nvrtc.h"
#include "lockstep/kernels/cuda/pointwise/pointwise_source.h"
#include "lockstep/kernels/cuda/pointwise/pointwise_table.h"

namespace lockstep {
namespace {

std::vector<ValueType> input_types(const KernelCall& call) {
  std::vector<ValueType> types;
  for (ValueId id : call.node.inputs) types.push_back(call.graph.type(id));
  return types;
}

class PointwiseKernel final : public Kernel {
 public:
  explicit PointwiseKernel(const KernelCall& call)
      : form_(read_pointwise(call.attrs(), call.in_count())) {
    const std::vector<ValueType> types = input_types(call);
    bool one_element = true;
    for (std::size_t segment = 0; segment < form_.count; ++segment) {
      elements_.push_back(form_.shape(types, segment).elements());
      one_element = one_element && elements_.back() == 1;
    }
    inputs_ = form_.input_dtypes(types);
    const PointwiseSource source = pointwise_source(form_, inputs_, one_element);
    shape_ = source.shape;
    kernel_ = cuda_context(call).nvrtc().kernel(source.text, "pointwise");
  }

  void bind(const Binding& binding) override {
    launches_ = pointwise_launches(form_, shape_, inputs_, elements_, binding);
  }

  void run(Stream& stream) override {
    for (PointwiseLaunch& launch : launches_) {
      void* arguments[] = {launch.table.data()};
      check_cuda(cudaLaunchKernel(kernel_, dim3(launch.blocks), dim3(kPointwiseThreads), arguments,
                                  0, cuda_stream(stream)),
                 "pointwise");
    }
  }

 private:
  PointwiseForm form_;
  std::vector<std::int64_t> elements_;  // per segment
  std::vector<DType> inputs_;
  PointwiseShape shape_;
  const void* kernel_ = nullptr;
  std::vector<PointwiseLaunch> launches_;
};

// The values of a segment that are not scalars.
std::vector<ValueId> whole_values(const KernelCall& call, const PointwiseForm& form,
                                  std::size_t segment) {
  std::vector<ValueId> ids;
  for (std::size_t i = 0; i < form.operands; ++i) {
    if (!form.scalar[i]) ids.push_back(call.node.inputs[segment * form.operands + i]);
  }
  for (std::size_t o = 0; o < form.outputs(); ++o) {
    ids.push_back(call.node.outputs[segment * form.outputs() + o]);
  }
  return ids;
}

// Whether all have the same shape, so that an order of the axes means the same for all.
bool same_shape(const KernelCall& call, const std::vector<ValueId>& ids) {
  return std::ranges::all_of(ids, [&](ValueId id) {
    return call.graph.type(id).shape == call.graph.type(ids.front()).shape;
  });
}

// Row-major, or all values of a segment have the same order of axes: elements are processed in
// memory order.
bool supports(const KernelCall& call) {
  if (call.row_major()) return true;
  const PointwiseForm form = read_pointwise(call.attrs(), call.in_count());
  for (std::size_t segment = 0; segment < form.count; ++segment) {
    const std::vector<ValueId> ids = whole_values(call, form, segment);
    for (ValueId id : ids) {
      const Layout& layout = call.graph.info(id).layout;
      if (layout != call.graph.info(ids.front()).layout || !layout.blocks.empty()) return false;
      if (!layout.row_major() && !same_shape(call, ids)) return false;
    }
  }
  return true;
}

// All values of a segment get the layout of its first operand that is not row-major.
NodeLayouts follow_operands(const KernelCall& call) {
  const PointwiseForm form = read_pointwise(call.attrs(), call.in_count());
  NodeLayouts wish{std::vector<Layout>(call.in_count()),
                   std::vector<Layout>(call.node.outputs.size())};
  for (std::size_t segment = 0; segment < form.count; ++segment) {
    if (!same_shape(call, whole_values(call, form, segment))) continue;
    Layout chosen;
    for (std::size_t i = 0; i < form.operands; ++i) {
      const Layout& layout = call.input(segment * form.operands + i).layout;
      if (!form.scalar[i] && chosen.row_major() && layout.blocks.empty()) chosen = layout;
    }
    for (std::size_t i = 0; i < form.operands; ++i) {
      if (!form.scalar[i]) wish.inputs[segment * form.operands + i] = chosen;
    }
    for (std::size_t o = 0; o < form.outputs(); ++o) {
      wish.outputs[segment * form.outputs() + o] = chosen;
    }
  }
  return wish;
}

std::unique_ptr<Kernel> make_pointwise(const KernelCall& call) {
  return std::make_unique<PointwiseKernel>(call);
}

}  // namespace

void add_cuda_pointwise(KernelLibrary& library) {
  library.add(Op::Pointwise, {.name = "cuda.pointwise",
                              .supports = supports,
                              .make = make_pointwise,
                              .layouts = follow_operands});
  library.add(Op::PointwiseAssign,
              {.name = "cuda.pointwise_assign", .supports = supports, .make = make_pointwise});
}

}  // namespace lockstep

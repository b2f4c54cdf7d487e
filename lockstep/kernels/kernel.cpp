#include "lockstep/kernels/kernel.h"

#include <algorithm>

#include "lockstep/base/error.h"
#include "lockstep/graph/op_def.h"

namespace lockstep {
namespace {

class FunctionKernel final : public Kernel {
 public:
  explicit FunctionKernel(KernelFunction function) : function_(std::move(function)) {}
  void bind(const Binding& binding) override { binding_ = binding; }
  void run(Stream&) override { function_(binding_); }

 private:
  KernelFunction function_;
  Binding binding_;
};

}  // namespace

bool KernelCall::row_major() const {
  const auto plain = [&](ValueId id) { return graph.info(id).layout.row_major(); };
  return std::all_of(node.inputs.begin(), node.inputs.end(), plain) &&
         std::all_of(node.outputs.begin(), node.outputs.end(), plain);
}

void KernelLibrary::add(Op op, KernelDef def) {
  const auto index = static_cast<std::size_t>(op);
  if (defs_.size() <= index) defs_.resize(index + 1);
  defs_[index].push_back(std::move(def));
}

const KernelDef& KernelLibrary::find(const KernelCall& call) const {
  const auto index = static_cast<std::size_t>(call.node.op);
  if (index < defs_.size()) {
    for (const KernelDef& def : defs_[index]) {
      if (def.supports == nullptr ? call.row_major() : def.supports(call)) return def;
    }
  }
  std::vector<std::string> types;
  for (std::size_t i = 0; i < call.in_count(); ++i) types.push_back(call.input(i).type.str());
  fail<UsageError>("[{}] {}: there is no kernel for ({}) {} on this device",
                   op_def(call.node.op).name, call.node.name, fmt::join(types, ", "),
                   call.attrs().str());
}

NodeLayouts KernelLibrary::layouts(const Graph& graph, const Node& node) const {
  const KernelCall call{graph, node};
  const auto index = static_cast<std::size_t>(node.op);
  if (index < defs_.size()) {
    for (const KernelDef& def : defs_[index]) {
      if (def.layouts != nullptr) {
        NodeLayouts wish = def.layouts(call);
        if (!wish.inputs.empty() || !wish.outputs.empty()) return wish;
      }
    }
  }
  return {std::vector<Layout>(node.inputs.size()), std::vector<Layout>(node.outputs.size())};
}

bool KernelLibrary::fuses_activation(const Graph& graph, const Node& node,
                                     std::string_view activation) const {
  const KernelDef& def = find({graph, node});
  return def.fuses_activation != nullptr && def.fuses_activation({graph, node}, activation);
}

std::size_t KernelLibrary::workspace_bytes(const Graph& graph, const Node& node) const {
  const KernelDef& def = find({graph, node});
  return def.workspace_bytes == nullptr ? 0 : def.workspace_bytes({graph, node});
}

std::unique_ptr<Kernel> make_kernel(KernelFunction function) {
  return std::make_unique<FunctionKernel>(std::move(function));
}

const KernelLibrary& cpu_kernels() {
  static const KernelLibrary library = [] {
    KernelLibrary result;
    add_onednn_kernels(result);
    add_reference_kernels(result);
    return result;
  }();
  return library;
}

const KernelLibrary& reference_kernels() {
  static const KernelLibrary library = [] {
    KernelLibrary result;
    add_reference_kernels(result);
    return result;
  }();
  return library;
}

}  // namespace lockstep

#include "lockstep/kernels/kernel.h"

#include <algorithm>

#include "lockstep/base/error.h"
#include "lockstep/device/cpu/memory.h"
#include "lockstep/graph/op_def.h"
#include "lockstep/kernels/choice.h"

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

KernelLibrary::KernelLibrary(std::unique_ptr<KernelContext> context)
    : context_(std::move(context)) {}
KernelLibrary::~KernelLibrary() = default;
KernelLibrary::KernelLibrary(KernelLibrary&&) noexcept = default;
KernelLibrary& KernelLibrary::operator=(KernelLibrary&&) noexcept = default;

void KernelLibrary::add(Op op, KernelDef def) {
  const auto index = static_cast<std::size_t>(op);
  if (defs_.size() <= index) defs_.resize(index + 1);
  defs_[index].push_back(std::move(def));
}

const std::vector<KernelDef>& KernelLibrary::defs(Op op) const {
  static const std::vector<KernelDef> kNone;
  const auto index = static_cast<std::size_t>(op);
  return index < defs_.size() ? defs_[index] : kNone;
}

const KernelDef& KernelLibrary::find(const KernelCall& call) const {
  const auto supports = [&](const KernelDef& def) {
    return def.supports == nullptr ? call.row_major() : def.supports(call);
  };
  const std::vector<KernelDef>& all = defs(call.node.op);
  if (measured_ != nullptr) {
    const std::string chosen = measured_->chosen(call);
    for (const KernelDef& def : all) {
      if (def.name == chosen && supports(def)) return def;
    }
  }
  const auto first = std::find_if(all.begin(), all.end(), supports);
  if (first != all.end()) return *first;
  std::vector<std::string> types;
  for (std::size_t i = 0; i < call.in_count(); ++i) types.push_back(call.input(i).type.str());
  fail<UsageError>("[{}] {}: there is no kernel for ({}) {} on this device",
                   op_def(call.node.op).name, call.node.name, fmt::join(types, ", "),
                   call.attrs().str());
}

std::unique_ptr<Kernel> KernelLibrary::make(const Graph& graph, const Node& node) const {
  const KernelCall call{graph, node, context()};
  // oneDNN ends the process if it gets no memory for the code it generates.
  constexpr std::size_t kCode = std::size_t{8} << 20;
  expect_memory_left(kCode, fmt::format("[{}] {}", op_def(node.op).name, node.name));
  std::unique_ptr<Kernel> kernel = find(call).make(call);
  const auto wrapper = wrappers_.find(node.op);
  return wrapper == wrappers_.end() ? std::move(kernel) : wrapper->second(call, std::move(kernel));
}

void KernelLibrary::choose_by_measuring(MeasuringOptions options, KernelChoices known) {
  measured_ = std::make_unique<MeasuredChoice>(std::move(options), std::move(known));
}

KernelChoices KernelLibrary::choices() const {
  return measured_ == nullptr ? KernelChoices() : measured_->choices();
}

NodeLayouts KernelLibrary::layouts(const Graph& graph, const Node& node) const {
  const KernelCall call{graph, node, context()};
  std::vector<MeasuredChoice::Candidate> candidates;
  for (const KernelDef& def : defs(node.op)) {
    if (def.layouts == nullptr) continue;
    NodeLayouts wish = def.layouts(call);
    if (wish.inputs.empty() && wish.outputs.empty()) continue;
    if (measured_ == nullptr) return wish;
    candidates.push_back({&def, std::move(wish)});
  }
  if (!candidates.empty()) return candidates[measured_->choose(call, candidates, *this)].layouts;
  return {std::vector<Layout>(node.inputs.size()), std::vector<Layout>(node.outputs.size())};
}

bool KernelLibrary::fuses_activation(const Graph& graph, const Node& node,
                                     std::string_view activation) const {
  const KernelCall call{graph, node, context()};
  const KernelDef& def = find(call);
  return def.fuses_activation != nullptr && def.fuses_activation(call, activation);
}

bool KernelLibrary::offers(const Graph& graph, const Node& node, std::string_view extra) const {
  const KernelCall call{graph, node, context()};
  const KernelDef& def = find(call);
  return def.offers != nullptr && def.offers(call, extra);
}

bool KernelLibrary::fuses_pointwise() const {
  return std::ranges::any_of(defs(Op::Pointwise), [](const KernelDef& def) {
    return !def.name.starts_with("reference.");
  });
}

std::size_t KernelLibrary::workspace_bytes(const Graph& graph, const Node& node) const {
  const KernelCall call{graph, node, context()};
  const KernelDef& def = find(call);
  return def.workspace_bytes == nullptr ? 0 : def.workspace_bytes(call);
}

std::vector<Tensor> KernelLibrary::evaluate(const Graph& graph, const Node& node) const {
  const KernelLibrary& library = cpu_kernels();
  Binding binding;
  for (ValueId id : node.inputs) {
    ensure(graph.producer(id).op == Op::Constant, "[{}] {}: an input is not constant",
           op_def(node.op).name, node.name);
    binding.inputs.push_back(graph.producer(id).constant.raw());
  }
  std::vector<Tensor> results;
  for (ValueId id : node.outputs) {
    results.emplace_back(graph.type(id).dtype, graph.type(id).shape);
    binding.outputs.push_back(results.back().raw());
  }
  const auto workspace = host().allocate(library.workspace_bytes(graph, node));
  binding.workspace = workspace->data();
  const std::unique_ptr<Kernel> kernel = library.make(graph, node);
  kernel->bind(binding);
  kernel->run(*host().make_stream());
  return results;
}

std::unique_ptr<Kernel> make_kernel(KernelFunction function) {
  return std::make_unique<FunctionKernel>(std::move(function));
}

KernelLibrary make_cpu_kernels() {
  KernelLibrary library;
  add_onednn_kernels(library);
  add_half_kernels(library);
  add_reference_kernels(library);
  return library;
}

const KernelLibrary& cpu_kernels() {
  static const KernelLibrary library = make_cpu_kernels();
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

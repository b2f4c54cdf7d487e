#include "lockstep/exec/executor.h"

#include <algorithm>

#include "lockstep/base/error.h"

namespace lockstep {

struct Executor::Bound {
  std::unique_ptr<Kernel> kernel;
  const char* name = "";
};

Executor::Executor(Plan plan, const KernelLibrary& library, State& state, Recorder* recorder,
                   std::string_view track)
    : plan_(std::move(plan)), state_(state), stream_(state.device().make_stream()) {
  state_.add(plan_.graph);
  state_.device().enter();
  for (const Node& node : plan_.graph.nodes()) {
    if (node.op != Op::Variable) continue;
    const Layout& wanted = plan_.graph.info(node.outputs[0]).layout;
    const Layout& actual = state_.layout(*node.variable);
    ensure(wanted == actual, "variable {} lies in layout '{}', but the plan wants '{}'", node.name,
           actual.str(), wanted.str());
  }
  arena_ = state_.device().allocate(plan_.arena_bytes);
  if (recorder != nullptr) track_ = &recorder->track(track);
  for (const PlanStep& step : plan_.steps) {
    const Node& node = plan_.graph.node(step.node);
    const KernelCall call{plan_.graph, node};
    Binding binding;
    for (ValueId id : node.inputs) binding.inputs.push_back(address(id));
    for (ValueId id : node.outputs) binding.outputs.push_back(address(id));
    if (step.workspace_bytes > 0) binding.workspace = arena_->data() + step.workspace_offset;
    Bound bound;
    bound.kernel = library.find(call).make(call);
    bound.kernel->bind(binding);
    if (recorder != nullptr) {
      bound.name = recorder->intern(
          fmt::format("{}{}{}", op_def(node.op).name, node.name.empty() ? "" : " ", node.name));
    }
    bound_.push_back(std::move(bound));
  }
}

Executor::~Executor() = default;

std::byte* Executor::address(ValueId id) const {
  const Allocation& allocation = plan_.values[static_cast<std::size_t>(id)];
  if (allocation.place == Place::Arena) return arena_->data() + allocation.offset;
  const Node& node = leaf(id);
  if (node.op == Op::Variable) return state_.data(*node.variable);
  return const_cast<std::byte*>(node.constant.raw());  // never written: constants are inputs only
}

// The variable or constant whose memory a value outside the arena looks at.
const Node& Executor::leaf(ValueId id) const {
  const Node* node = &plan_.graph.producer(id);
  while (node->op != Op::Variable && node->op != Op::Constant) {
    node = &plan_.graph.producer(node->inputs[0]);
  }
  return *node;
}

Tensor Executor::view(ValueId id) const {
  const Allocation& allocation = plan_.values[static_cast<std::size_t>(id)];
  const ValueType& type = plan_.graph.type(id);
  if (allocation.place == Place::Arena) {
    return Tensor(type.dtype, type.shape, arena_, allocation.offset);
  }
  const Node& node = leaf(id);
  const Tensor value = node.op == Op::Variable ? state_.get(*node.variable) : node.constant;
  return value.reshaped(type.shape);
}

Tensor Executor::input(std::string_view name) {
  return view(plan_.graph.input_id(name));
}

Tensor Executor::output(std::string_view name) const {
  return view(plan_.graph.output_id(name));
}

bool Executor::has_input(std::string_view name) const {
  const auto& inputs = plan_.graph.inputs();
  return std::any_of(inputs.begin(), inputs.end(),
                     [&](const auto& entry) { return entry.first == name; });
}

void Executor::run() {
  state_.device().enter();
  std::size_t current = 0;
  try {
    std::int64_t begin = track_ == nullptr ? 0 : now_ns();
    for (; current < bound_.size(); ++current) {
      bound_[current].kernel->run(*stream_);
      if (track_ == nullptr) continue;
      const std::int64_t end = now_ns();
      track_->add(bound_[current].name, SpanKind::Compute, begin, end);
      begin = end;
    }
  } catch (const DataError& error) {
    const Node& node = plan_.graph.node(plan_.steps[current].node);
    fail<DataError>("[{}] {}: {}", op_def(node.op).name, node.name, error.what());
  }
}

}  // namespace lockstep

#include "lockstep/exec/executor.h"

#include <algorithm>

#include "lockstep/base/error.h"
#include "lockstep/device/cpu/memory.h"
#include "lockstep/exec/device_steps.h"
#include "lockstep/exec/host_steps.h"

namespace lockstep {

Executor::Executor(Plan plan, const KernelLibrary& library, State& state, ExecutorOptions options)
    : plan_(std::move(plan)) {
  state.add(plan_.graph);
  state.device().enter();
  for (const Node& node : plan_.graph.nodes()) {
    if (node.op != Op::Variable) continue;
    const Layout& wanted = plan_.graph.info(node.outputs[0]).layout;
    const Layout& actual = state.layout(*node.variable);
    ensure(wanted == actual, "variable {} lies in layout '{}', but the plan wants '{}'", node.name,
           actual.str(), wanted.str());
  }
  memory_ = std::make_unique<PlanMemory>(plan_, state);
  Device& device = state.device();
  if (device.shares_host_memory()) {
    steps_ = std::make_unique<HostSteps>(plan_, library, *memory_, device, options);
    expect_memory_to_run("[plan] " + device.name());
  } else {
    steps_ = std::make_unique<DeviceSteps>(plan_, library, *memory_, device, options);
  }
}

Executor::~Executor() = default;

Tensor Executor::input(std::string_view name) {
  return memory_->host_view(plan_.graph.input_id(name));
}

Tensor Executor::output(std::string_view name) const {
  return memory_->host_view(plan_.graph.output_id(name));
}

bool Executor::has_input(std::string_view name) const {
  const auto& inputs = plan_.graph.inputs();
  return std::any_of(inputs.begin(), inputs.end(),
                     [&](const auto& entry) { return entry.first == name; });
}

bool Executor::lend(std::string_view name, const std::shared_ptr<Buffer>& memory,
                    std::size_t offset) {
  const auto& inputs = plan_.graph.inputs();
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    if (inputs[i].first == name) return steps_->lend(i, memory, offset);
  }
  return false;
}

}  // namespace lockstep

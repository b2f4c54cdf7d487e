#include "lockstep/exec/executor.h"

#include <algorithm>

#include "lockstep/base/error.h"
#include "lockstep/device/cpu/memory.h"
#include "lockstep/exec/device_runner.h"
#include "lockstep/exec/host_runner.h"

namespace lockstep {

Executor::Executor(Plan plan, const KernelLibrary& library, State& state, ExecutorOptions options)
    : plan_(std::move(plan)) {
  state.add(plan_.graph);
  state.device().make_current();
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
    runner_ = std::make_unique<HostRunner>(plan_, library, *memory_, device, options);
    expect_memory_to_run("[plan] " + device.name());
  } else {
    runner_ = std::make_unique<DeviceRunner>(plan_, library, *memory_, device, options);
  }
}

Executor::~Executor() = default;

void Executor::follow_arena() {
  if (memory_->follow_arena()) runner_->bind_again();
}

void Executor::run(Inputs inputs) {
  follow_arena();
  runner_->run(inputs);
}

std::vector<double> Executor::profile() {
  follow_arena();
  memory_->leave_arena();
  return runner_->profile();
}

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

bool Executor::bind_input(std::string_view name, const std::shared_ptr<Buffer>& memory,
                          std::size_t offset) {
  const auto& inputs = plan_.graph.inputs();
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    if (inputs[i].first == name) return runner_->bind_input(i, memory, offset);
  }
  return false;
}

}  // namespace lockstep

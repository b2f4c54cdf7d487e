#include <fmt/format.h>

#include "lockstep/graph/ops/collective.h"
#include "lockstep/plan/plan.h"

namespace lockstep {
namespace {

std::string in_mib(double bytes) {
  return fmt::format("{:.1f} MiB", bytes / (1 << 20));
}

}  // namespace

Cost Plan::total_cost() const {
  Cost total;
  for (const Instruction& instruction : instructions) {
    total.flops += instruction.cost.flops;
    total.bytes += instruction.cost.bytes;
  }
  return total;
}

std::size_t Plan::collective_bytes() const {
  std::size_t bytes = 0;
  for (const Node& node : graph.nodes()) {
    if (!is_collective(node)) continue;
    for (ValueId id : node.op == Op::ReduceScatter ? node.inputs : node.outputs) {
      bytes += graph.bytes(id);
    }
  }
  return bytes;
}

std::string print(const Plan& plan) {
  std::string text = fmt::format("{:>5}  {:<22} {:<34} {:<30} {:>12} {:>10} {:>14}\n", "step", "op",
                                 "name", "result", "bytes", "MFLOP", "arena offset");
  for (std::size_t s = 0; s < plan.instructions.size(); ++s) {
    const Instruction& instruction = plan.instructions[s];
    const Node& node = plan.graph.node(instruction.node);
    std::string result = "-";
    std::string offset = "-";
    std::size_t bytes = 0;
    if (!node.outputs.empty()) {
      const ValueInfo& value = plan.graph.info(node.outputs[0]);
      const Allocation& allocation = plan.values[static_cast<std::size_t>(node.outputs[0])];
      result = value.type.str();
      if (!value.layout.row_major()) result += ":" + value.layout.str();
      if (allocation.place == Place::Arena) offset = fmt::format("{}", allocation.offset);
      bytes = allocation.bytes;
    }
    text += fmt::format("{:>5}  {:<22} {:<34} {:<30} {:>12} {:>10.2f} {:>14}\n", s,
                        op_def(node.op).name, node.name, result, bytes,
                        instruction.cost.flops * 1e-6, offset);
  }
  const Cost total = plan.total_cost();
  text += fmt::format(
      "{} steps, {:.3f} GFLOP, {} read and written\n"
      "peak memory {}: arena {} (at least {}), variables {}, inputs and outputs {}, constants {}\n",
      plan.instructions.size(), total.flops * 1e-9, in_mib(total.bytes),
      in_mib(static_cast<double>(plan.peak_bytes())), in_mib(static_cast<double>(plan.arena_bytes)),
      in_mib(static_cast<double>(plan.live_bytes)),
      in_mib(static_cast<double>(plan.variable_bytes)),
      in_mib(static_cast<double>(plan.input_output_bytes)),
      in_mib(static_cast<double>(plan.constant_bytes)));
  if (plan.host_bytes > 0) {
    text += fmt::format("{} of variables in host memory, copied to the device and back\n",
                        in_mib(static_cast<double>(plan.host_bytes)));
  }
  if (plan.collective_bytes() > 0) {
    text += fmt::format("{} communicated with the other ranks per step\n",
                        in_mib(static_cast<double>(plan.collective_bytes())));
  }
  return text;
}

}  // namespace lockstep

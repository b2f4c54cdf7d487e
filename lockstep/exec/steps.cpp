#include "lockstep/exec/steps.h"

#include <algorithm>

#include "lockstep/base/error.h"
#include "lockstep/graph/ops/collective.h"

namespace lockstep {
namespace {

// Whether what a node reads comes from steps of the compute stream alone.
bool reads_compute_alone(const Plan& plan, const Node& node) {
  return std::ranges::none_of(node.inputs, [&](ValueId id) {
    NodeId from = plan.graph.info(id).producer;
    while (op_def(plan.graph.node(from).op).view) {
      from = plan.graph.info(plan.graph.node(from).inputs[0]).producer;
    }
    return std::ranges::any_of(plan.steps, [&](const PlanStep& step) {
      return step.stream == kCommunicationStream && step.node == from;
    });
  });
}

// One collective for each stretch of sums that lie side by side: one for all, as the plan lays
// them.
void bind_sums(BoundStep& bound, const Plan& plan, const Node& node, const PlanMemory& memory,
               Communicator& comm) {
  const DType dtype = plan.graph.type(node.outputs[0]).dtype;
  std::byte* begin = nullptr;
  std::byte* end = nullptr;
  const auto close = [&] {
    if (begin == end) return;
    bound.sums.push_back(comm.all_reduce({begin, static_cast<std::size_t>(end - begin)}, dtype));
  };
  for (std::size_t i = 0; i < node.outputs.size(); ++i) {
    std::byte* const to = memory.address(node.outputs[i]);
    const std::byte* const from = memory.address(node.inputs[i]);
    const std::size_t bytes = plan.graph.bytes(node.outputs[i]);
    if (bytes == 0) continue;
    if (from != to) bound.copies.push_back({to, from, bytes});
    if (to != end) {
      close();
      begin = to;
    }
    end = to + bytes;
  }
  close();
  bound.starts_early = reads_compute_alone(plan, node);
}

}  // namespace

std::string span_name(const Node& node) {
  return fmt::format("{}{}{}", op_def(node.op).name, node.name.empty() ? "" : " ", node.name);
}

std::vector<BoundStep> bind_steps(const Plan& plan, const KernelLibrary& library,
                                  const PlanMemory& memory, const ExecutorOptions& options,
                                  Fault* fault) {
  const bool alone = options.compute_comm == nullptr && options.gradient_comm == nullptr;
  std::vector<BoundStep> all;
  for (const PlanStep& step : plan.steps) {
    const Node& node = plan.graph.node(step.node);
    BoundStep bound;
    bound.waits = !step.waits.empty();
    bound.communication = step.stream == kCommunicationStream;
    if (options.recorder != nullptr) {
      bound.name = options.recorder->intern(span_name(node));
    }
    Communicator* comm = bound.communication ? options.gradient_comm : options.compute_comm;
    if (node.op == Op::AllReduce && comm != nullptr) {
      bind_sums(bound, plan, node, memory, *comm);
    } else {
      Binding binding;
      for (ValueId id : node.inputs) binding.inputs.push_back(memory.address(id));
      for (ValueId id : node.outputs) binding.outputs.push_back(memory.address(id));
      binding.workspace = memory.workspace(step);
      // Several replicas all make the update, so that they stay alike.
      binding.fault = node.op == Op::Update && !alone ? nullptr : fault;
      binding.step = static_cast<std::int64_t>(all.size()) + 1;
      bound.kernel = library.make(plan.graph, node);
      bound.kernel->bind(binding);
    }
    all.push_back(std::move(bound));
  }
  return all;
}

void fail_at(const Plan& plan, std::size_t step, const std::string& what) {
  const Node& node = plan.graph.node(plan.steps[step].node);
  fail<DataError>("[{}] {}: {}", op_def(node.op).name, node.name, what);
}

}  // namespace lockstep

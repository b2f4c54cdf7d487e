#include "lockstep/autodiff/gradients.h"

#include <algorithm>
#include <memory>

#include "lockstep/base/error.h"
#include "lockstep/graph/op_def.h"
#include "lockstep/graph/ops/elementwise.h"
#include "lockstep/graph/ops/shape.h"

namespace lockstep {
namespace {

Value filled(Graph& graph, double value, const ValueType& type) {
  const ValueType kept = type;  // a copy: `type` refers into the graph, which is about to grow
  return broadcast_to(graph.scalar(value, kept.dtype), kept.shape);
}

// For each value: whether it depends on a target. Only such values need a gradient.
std::vector<bool> depends_on_targets(const Graph& graph, std::span<const Value> targets,
                                     NodeId last) {
  std::vector<bool> depends(static_cast<std::size_t>(graph.value_count()));
  const auto mark = [&](ValueId id) { depends[static_cast<std::size_t>(id)] = true; };
  for (const Value& target : targets) mark(target.id());
  for (NodeId id = 0; id <= last; ++id) {
    const Node& node = graph.node(id);
    const bool reached = std::any_of(node.inputs.begin(), node.inputs.end(), [&](ValueId input) {
      return depends[static_cast<std::size_t>(input)];
    });
    if (reached) std::for_each(node.outputs.begin(), node.outputs.end(), mark);
  }
  return depends;
}

// The gradients of one node's inputs, from those of its outputs. `node` must be a copy: the rule
// adds nodes, which may move the graph's own.
std::vector<Value> differentiate(Graph& graph, const Node& node,
                                 std::span<const Value> output_grads,
                                 const std::vector<bool>& depends) {
  const OpDef& def = op_def(node.op);
  require(def.gradient != nullptr,
          "[{}] {}: the loss depends on a target through this op, which has no gradient", def.name,
          node.name);
  std::vector<Value> inputs;
  std::vector<Value> outputs;
  const auto needed = std::make_unique<bool[]>(node.inputs.size());
  for (std::size_t i = 0; i < node.inputs.size(); ++i) {
    inputs.emplace_back(&graph, node.inputs[i]);
    needed[i] = depends[static_cast<std::size_t>(node.inputs[i])] && is_floating(inputs[i].dtype());
  }
  for (ValueId id : node.outputs) outputs.emplace_back(&graph, id);
  std::vector<Value> grads = def.gradient({.graph = graph,
                                           .attrs = node.attrs,
                                           .inputs = inputs,
                                           .outputs = outputs,
                                           .grads = output_grads,
                                           .needed = {needed.get(), inputs.size()}});
  ensure(grads.size() == inputs.size(), "[{}] {}: the gradient rule gave {} values for {} inputs",
         def.name, node.name, grads.size(), inputs.size());
  for (std::size_t i = 0; i < grads.size(); ++i) {
    if (!needed[i]) grads[i] = Value();
    if (!grads[i].defined()) continue;
    ensure(grads[i].type() == inputs[i].type(),
           "[{}] {}: the gradient of input {} is {}, the input {}", def.name, node.name, i,
           grads[i].type().str(), inputs[i].type().str());
  }
  return grads;
}

}  // namespace

// Reverse mode: nodes are stored in an order in which they can run, so when a backward walk reaches
// a node, the gradients of its outputs are complete.
std::vector<Value> gradients(Value loss, std::span<const Value> targets) {
  require(loss.defined(), "[gradients] there is no loss to differentiate");
  Graph& graph = loss.graph();
  require(is_floating(loss.dtype()), "[gradients] the loss must be floating-point, not {}",
          loss.type().str());
  require(!targets.empty(),
          "[gradients] there is nothing to differentiate with respect to: the list is empty");
  for (const Value& target : targets) {
    require(target.defined() && &target.graph() == &graph,
            "[gradients] a target is not a value of the loss's graph");
    require(is_floating(target.dtype()), "[gradients] a target must be floating-point, not {} ({})",
            target.type().str(), graph.producer(target.id()).name);
  }
  const NodeId last = graph.info(loss.id()).producer;
  const std::vector<bool> depends = depends_on_targets(graph, targets, last);
  std::vector<Value> grads(depends.size());
  const auto grad_of = [&](ValueId id) -> Value& { return grads[static_cast<std::size_t>(id)]; };

  if (depends[static_cast<std::size_t>(loss.id())])
    grad_of(loss.id()) = filled(graph, 1, loss.type());
  for (NodeId id = last; id >= 0; --id) {
    const bool reached =
        std::any_of(graph.node(id).outputs.begin(), graph.node(id).outputs.end(),
                    [&](ValueId output) { return grad_of(output).defined(); }) &&
        std::any_of(graph.node(id).inputs.begin(), graph.node(id).inputs.end(),
                    [&](ValueId input) { return depends[static_cast<std::size_t>(input)]; });
    if (!reached) continue;
    const Node node = graph.node(id);
    const std::string_view origin = node.name.empty() ? op_def(node.op).name : node.name;
    Graph::NameScope scope(graph, fmt::format("{}.grad", origin));
    std::vector<Value> output_grads;
    for (ValueId output : node.outputs) output_grads.push_back(grad_of(output));
    const std::vector<Value> input_grads = differentiate(graph, node, output_grads, depends);
    for (std::size_t i = 0; i < input_grads.size(); ++i) {
      if (!input_grads[i].defined()) continue;
      Value& sum = grad_of(node.inputs[i]);
      sum = sum.defined() ? add(sum, input_grads[i]) : input_grads[i];
    }
  }

  std::vector<Value> results;
  for (const Value& target : targets) {
    const Value grad = grad_of(target.id());
    results.push_back(grad.defined() ? grad : filled(graph, 0, target.type()));
  }
  return results;
}

}  // namespace lockstep

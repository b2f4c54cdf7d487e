#include "lockstep/graph/ops/collective.h"

#include "lockstep/graph/ops/rules.h"

namespace lockstep {
namespace {

constexpr const char* kBucket = "bucket";
constexpr const char* kAside = "aside";

std::vector<ValueType> infer_all_reduce(const OpCall& call) {
  require(!call.inputs.empty(), "there is nothing to add up");
  for (std::size_t i = 1; i < call.inputs.size(); ++i) {
    require(call.dtype(i) == call.dtype(0),
            "value {} is {}, value 0 is {}: all must be of one type", i, call.inputs[i].str(),
            call.inputs[0].str());
  }
  return {call.inputs.begin(), call.inputs.end()};
}

std::vector<Value> gradient_all_reduce(const GradCall& call) {
  std::vector<Value> defined;
  for (const Value& grad : call.grads) {
    if (grad.defined()) defined.push_back(grad);
  }
  std::vector<Value> grads(call.inputs.size());
  if (defined.empty()) return grads;
  const std::vector<Value> sums = all_reduce(defined);
  for (std::size_t i = 0, next = 0; i < grads.size(); ++i) {
    if (call.grads[i].defined()) grads[i] = sums[next++];
  }
  return grads;
}

}  // namespace

std::vector<Value> all_reduce(std::span<const Value> values) {
  require(!values.empty(), "[all_reduce] there is nothing to add up");
  return values[0].graph().add(Op::AllReduce, values, {{kBucket, false}});
}

Value all_reduce(Value value) {
  return all_reduce(std::span<const Value>(&value, 1)).front();
}

std::vector<Value> all_reduce_gradients(std::span<const Value> values) {
  require(!values.empty(), "[all_reduce] there is nothing to add up");
  return values[0].graph().add(Op::AllReduce, values, {{kBucket, true}});
}

std::vector<Value> all_reduce_aside(std::span<const Value> values) {
  require(!values.empty(), "[all_reduce] there is nothing to add up");
  return values[0].graph().add(Op::AllReduce, values, {{kBucket, true}, {kAside, true}});
}

bool is_aside(const Node& node) {
  return is_bucket(node) && node.attrs.has(kAside);
}

bool is_bucket(const Node& node) {
  return node.op == Op::AllReduce && node.attrs.flag(kBucket);
}

Value replica_id(Graph& graph) {
  for (const auto& [name, id] : graph.inputs()) {
    if (name == kReplicaInput) return {&graph, id};
  }
  return graph.input(kReplicaInput, {DType::I64, {}});
}

std::vector<OpDef> collective_ops() {
  return {{.op = Op::AllReduce,
           .name = "all_reduce",
           .infer = infer_all_reduce,
           .gradient = gradient_all_reduce,
           .each_in_place = true}};
}

}  // namespace lockstep

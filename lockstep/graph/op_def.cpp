#include "lockstep/graph/op_def.h"

#include <algorithm>
#include <array>

#include "lockstep/base/error.h"

namespace lockstep {
namespace {

constexpr std::size_t kOps = static_cast<std::size_t>(Op::Reorder) + 1;

std::array<OpDef, kOps> make_table() {
  std::array<OpDef, kOps> table;
  const auto put = [&](std::vector<OpDef> defs) {
    for (OpDef& def : defs) table[static_cast<std::size_t>(def.op)] = std::move(def);
  };
  put({{.op = Op::Input, .name = "input"},
       {.op = Op::Variable, .name = "variable"},
       {.op = Op::Constant, .name = "constant"}});
  put(elementwise_ops());
  put(reduce_ops());
  put(shape_ops());
  put(matmul_ops());
  put(conv_ops());
  put(pool_ops());
  put(norm_ops());
  put(random_ops());
  put(softmax_ops());
  put(state_ops());
  put(update_ops());
  put(error_feedback_ops());
  put(collective_ops());
  put(pointwise_ops());
  put(layout_ops());
  for (std::size_t i = 0; i < kOps; ++i) {
    ensure(!table[i].name.empty(), "op {} has no definition", i);
  }
  return table;
}

}  // namespace

const OpDef& op_def(Op op) {
  static const std::array<OpDef, kOps> table = make_table();
  return table[static_cast<std::size_t>(op)];
}

Cost cost_of(const Graph& graph, const Node& node) {
  const OpDef& def = op_def(node.op);
  std::vector<ValueType> inputs;
  std::vector<ValueType> outputs;
  Cost cost;
  for (ValueId id : node.inputs) {
    inputs.push_back(graph.type(id));
    cost.bytes += static_cast<double>(graph.bytes(id));
  }
  for (ValueId id : node.outputs) {
    outputs.push_back(graph.type(id));
    cost.bytes += static_cast<double>(graph.bytes(id));
  }
  return def.cost == nullptr ? cost : def.cost({inputs, node.attrs}, outputs);
}

std::vector<std::pair<int, int>> in_place_pairs(const Graph& graph, const Node& node) {
  const OpDef& def = op_def(node.op);
  std::vector<std::pair<int, int>> pairs = def.in_place;
  if (def.each_in_place) {
    const int count = static_cast<int>(std::min(node.inputs.size(), node.outputs.size()));
    for (int i = 0; i < count; ++i) pairs.emplace_back(i, i);
  }
  if (def.find_in_place != nullptr) {
    std::vector<ValueType> types;
    for (ValueId id : node.inputs) types.push_back(graph.type(id));
    pairs = def.find_in_place({types, node.attrs});
  }
  return pairs;
}

}  // namespace lockstep

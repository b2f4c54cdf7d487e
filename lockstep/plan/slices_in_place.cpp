#include "lockstep/plan/slices_in_place.h"

#include <algorithm>
#include <optional>

#include "lockstep/graph/op_def.h"
#include "lockstep/graph/ops/collective.h"
#include "lockstep/graph/ops/matmul.h"
#include "lockstep/graph/ops/update.h"

namespace lockstep {
namespace {

class SliceFinder {
 public:
  explicit SliceFinder(const Graph& graph) : graph_(graph) {
    for (NodeId n = 0; n < static_cast<NodeId>(graph.nodes().size()); ++n) {
      for (ValueId id : graph.node(n).inputs) readers_[id].push_back(n);
    }
    for (const auto& [name, id] : graph.outputs()) outputs_.insert(id);
  }

  SlicesInPlace find() {
    for (NodeId n = 0; n < static_cast<NodeId>(graph_.nodes().size()); ++n) {
      const Node& node = graph_.node(n);
      if (node.op == Op::ReduceScatter) scatter(node);
      if (accumulates(node)) accumulate(n, node);
      if (node.op == Op::AllGather && !is_prefetched(node)) gather(n, node);
    }
    return std::move(result_);
  }

 private:
  static std::size_t index(ValueId id) { return static_cast<std::size_t>(id); }

  std::vector<std::size_t> begins(const std::vector<ValueId>& whole, const Node& node) const {
    std::vector<ValueType> types;
    for (ValueId id : whole) types.push_back(graph_.type(id));
    std::vector<std::size_t> bytes;
    for (const Slice& slice : slices_of(types, rank_in_group(node.attrs))) {
      bytes.push_back(slice.begin * size_of(types.front().dtype));
    }
    return bytes;
  }

  // Whether only one node reads a value.
  bool is_read_only_by(ValueId id, NodeId reader) const {
    const auto found = readers_.find(id);
    return !outputs_.contains(id) && found != readers_.end() && found->second.size() == 1 &&
           found->second.front() == reader;
  }

  // A value with memory of its own.
  bool is_computed(ValueId id) const {
    const Node& node = graph_.producer(id);
    return node.op != Op::Input && node.op != Op::Variable && node.op != Op::Constant &&
           !op_def(node.op).view;
  }

  void scatter(const Node& node) {
    const NodeId n = graph_.info(node.outputs.front()).producer;
    const bool ours = std::ranges::all_of(node.inputs, [&](ValueId id) {
      return is_computed(id) && is_read_only_by(id, n) && graph_.info(id).layout.row_major();
    });
    if (!ours) return;
    const std::vector<std::size_t> at = begins(node.inputs, node);
    for (std::size_t i = 0; i < node.inputs.size(); ++i) {
      result_.parts[node.outputs[i]] = {.whole = node.inputs[i], .begin = at[i]};
    }
  }

  // One member of a bucket: own_slice → update → all_gather → assign, all of one variable.
  struct Chain {
    ValueId variable = -1;
    ValueId slice = -1;
    ValueId updated = -1;
    NodeId update = -1;
    NodeId assign = -1;
  };

  std::optional<Chain> chain_of(NodeId gather, std::size_t i, ValueId variable) const {
    const Node& node = graph_.node(gather);
    Chain chain{.variable = variable, .updated = node.inputs[i]};
    chain.update = graph_.info(chain.updated).producer;
    const Node& update = graph_.node(chain.update);
    if (update.op != Op::Update || !is_read_only_by(chain.updated, gather)) return std::nullopt;
    const auto place = std::ranges::find(update.outputs, chain.updated) - update.outputs.begin();
    chain.slice = update.inputs[3 + static_cast<std::size_t>(place)];
    const Node& cut = graph_.producer(chain.slice);
    if (cut.op != Op::OwnSlice) return std::nullopt;
    const auto member = std::ranges::find(cut.outputs, chain.slice) - cut.outputs.begin();
    if (cut.inputs[static_cast<std::size_t>(member)] != variable) return std::nullopt;
    chain.assign = readers_.at(node.outputs[i]).front();
    return chain;
  }

  void gather(NodeId n, const Node& node) {
    const std::vector<ValueId> variables = gathered_variables(graph_, node);
    if (variables.empty()) return;
    std::vector<Chain> chains;
    for (std::size_t i = 0; i < variables.size(); ++i) {
      const std::optional<Chain> chain = chain_of(n, i, variables[i]);
      if (!chain) return;
      chains.push_back(*chain);
    }
    const std::vector<std::size_t> at = begins(variables, node);
    for (std::size_t i = 0; i < chains.size(); ++i) {
      const Chain& chain = chains[i];
      result_.parts[chain.slice] = {.whole = chain.variable, .begin = at[i]};
      result_.parts[chain.updated] = {.whole = chain.variable, .begin = at[i]};
      result_.parts[node.outputs[i]] = {.whole = chain.variable, .begin = 0};
      order_before(chain.variable, chain);
      order_before(chain.slice, chain);
    }
    result_.gathers.insert(n);
  }

  void accumulate(NodeId n, const Node& product) {
    const ValueId variable = product.inputs[2];
    const ValueId sum = product.outputs[0];
    const auto same_layout = graph_.info(variable).layout == graph_.info(sum).layout;
    if (graph_.producer(variable).op != Op::Variable || !same_layout || outputs_.contains(sum)) {
      return;
    }
    const auto assigns = [&](NodeId reader) {
      const Node& node = graph_.node(reader);
      return node.op == Op::Assign && node.inputs[0] == variable && node.inputs[1] == sum;
    };
    const std::vector<NodeId>& readers = readers_.at(variable);
    const bool assigned = std::ranges::any_of(readers, assigns);
    const bool ours =
        std::ranges::count(product.inputs, variable) == 1 &&
        std::ranges::all_of(readers, [&](NodeId reader) { return reader == n || assigns(reader); });
    if (assigned && ours) result_.parts[sum] = {.whole = variable, .begin = 0};
  }

  // Whoever reads a value, or a view of it, runs before the update.
  void order_before(ValueId id, const Chain& chain) {
    const auto found = readers_.find(id);
    if (found == readers_.end()) return;
    for (NodeId reader : found->second) {
      if (reader == chain.update || reader == chain.assign) continue;
      result_.before.emplace_back(reader, chain.update);
      if (!op_def(graph_.node(reader).op).view) continue;
      for (ValueId view : graph_.node(reader).outputs) order_before(view, chain);
    }
  }

  const Graph& graph_;
  std::map<ValueId, std::vector<NodeId>> readers_;
  std::set<ValueId> outputs_;
  SlicesInPlace result_;
};

}  // namespace

SlicesInPlace find_slices_in_place(const Graph& graph) {
  const bool has_any = std::ranges::any_of(graph.nodes(), [](const Node& node) {
    return node.op == Op::ReduceScatter || accumulates(node);
  });
  return has_any ? SliceFinder(graph).find() : SlicesInPlace();
}

std::vector<ValueId> gathered_variables(const Graph& graph, const Node& gather) {
  std::map<ValueId, std::vector<const Node*>> readers;
  for (const Node& node : graph.nodes()) {
    for (ValueId id : node.inputs) {
      if (graph.producer(id).op == Op::AllGather) readers[id].push_back(&node);
    }
  }
  std::vector<ValueId> variables;
  for (ValueId id : gather.outputs) {
    const std::vector<const Node*>& all = readers[id];
    const bool assigned = all.size() == 1 && all.front()->op == Op::Assign &&
                          all.front()->inputs[1] == id &&
                          graph.info(all.front()->inputs[0]).layout.row_major();
    if (!assigned) return {};
    variables.push_back(all.front()->inputs[0]);
  }
  for (const auto& [name, id] : graph.outputs()) {
    if (std::ranges::count(gather.outputs, id) > 0) return {};
  }
  return variables;
}

}  // namespace lockstep

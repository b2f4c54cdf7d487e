#include "lockstep/passes/pointwise_groups.h"

#include <algorithm>
#include <set>

#include "lockstep/graph/op_def.h"
#include "lockstep/graph/ops/collective.h"
#include "lockstep/graph/ops/pointwise.h"
#include "lockstep/graph/ops/state.h"

namespace lockstep {
namespace {

// Limits of one program's kernel, which has one pointer per operand or result and must compile
// quickly.
constexpr std::size_t kMostInstructions = 192;
constexpr std::size_t kMostValues = 128;
// With how many recent groups of scalars the next one may be fused.
constexpr std::size_t kOpenGroups = 4;

bool is_leaf(const Node& node) {
  return node.op == Op::Input || node.op == Op::Variable || node.op == Op::Constant;
}

std::int64_t elements(const Graph& graph, ValueId id) {
  return graph.type(id).shape.elements();
}

// The variable that a value is a view of, or -1.
ValueId variable_of(const Graph& graph, ValueId id) {
  const Node* node = &graph.producer(id);
  while (op_def(node->op).view) {
    id = node->inputs[0];
    node = &graph.producer(id);
  }
  return node->op == Op::Variable ? id : -1;
}

std::vector<NodeId> united(const std::vector<NodeId>& a, const std::vector<NodeId>& b) {
  std::vector<NodeId> nodes;
  std::ranges::set_union(a, b, std::back_inserter(nodes));
  return nodes;
}

bool contains(const std::vector<NodeId>& nodes, NodeId n) {
  return std::ranges::binary_search(nodes, n);
}

}  // namespace

PointwiseGroups::PointwiseGroups(const Graph& graph, const Uses& uses)
    : graph_(graph),
      uses_(uses),
      group_of_(graph.nodes().size(), -1),
      folded_(graph.nodes().size(), false),
      communicated_(graph.nodes().size(), false),
      feeds_all_reduce_(graph.nodes().size(), false),
      changed_by_(index(graph.value_count()), -1) {
  find_folded();
  find_communicated();
  find_all_reduced();
  find_changed();
  group_assigned();
  group_chains();
  fuse_scalars();
  drop_merged();
}

bool PointwiseGroups::is_literal(const Graph& graph, ValueId id) {
  return graph.producer(id).op == Op::Constant && graph.type(id).shape.rank() == 0;
}

// Elementwise over operands of its own size and scalars. Weights in 16 bits are casts of variables
// in the layout of the convolutions, and their gradients come back in it: those casts stay
// separate, for the layout pass.
bool PointwiseGroups::is_candidate(const Node& node) const {
  if (!is_elementwise(node.op) || folded_[index(graph_.info(node.outputs[0]).producer)]) {
    return false;
  }
  const std::int64_t size = elements(graph_, node.outputs[0]);
  if (size == 0) return false;
  if (node.op == Op::Cast && graph_.type(node.inputs[0]).shape.rank() > 1) {
    const Op from = graph_.producer(node.inputs[0]).op;
    if (from == Op::Variable || from == Op::Conv2DGradFilter) return false;
  }
  return std::ranges::all_of(node.inputs, [&](ValueId id) {
    return elements(graph_, id) == size || elements(graph_, id) == 1;
  });
}

void PointwiseGroups::find_folded() {
  std::vector<bool> constant(graph_.nodes().size(), false);
  for (NodeId n = 0; n < std::ssize(graph_.nodes()); ++n) {
    const Node& node = graph_.node(n);
    if (!is_candidate(node) || graph_.type(node.outputs[0]).shape.rank() > 0) continue;
    constant[index(n)] = std::ranges::all_of(node.inputs, [&](ValueId id) {
      return is_literal(graph_, id) || constant[index(graph_.info(id).producer)];
    });
  }
  for (NodeId n = 0; n < std::ssize(graph_.nodes()); ++n) {
    folded_[index(n)] =
        constant[index(n)] &&
        std::ranges::all_of(uses_.of(graph_.node(n).outputs[0]), [&](NodeId reader) {
          return reader >= 0 && is_candidate(graph_.node(reader));
        });
  }
}

void PointwiseGroups::find_communicated() {
  for (NodeId n = 0; n < std::ssize(graph_.nodes()); ++n) {
    const Node& node = graph_.node(n);
    communicated_[index(n)] = is_bucket(node) || std::ranges::any_of(node.inputs, [&](ValueId id) {
                                return communicated_[index(graph_.info(id).producer)];
                              });
  }
}

void PointwiseGroups::find_all_reduced() {
  for (NodeId n = static_cast<NodeId>(graph_.nodes().size()) - 1; n >= 0; --n) {
    const Node& node = graph_.node(n);
    const bool passes_on = is_bucket(node) || (op_def(node.op).view && feeds_all_reduce_[index(n)]);
    if (!passes_on) continue;
    for (ValueId id : node.inputs) feeds_all_reduce_[index(graph_.info(id).producer)] = true;
  }
}

void PointwiseGroups::find_changed() {
  for (NodeId n = 0; n < std::ssize(graph_.nodes()); ++n) {
    for (ValueId id : changed_variables(graph_.node(n))) changed_by_[index(id)] = n;
  }
}

int PointwiseGroups::add(NodeId n, bool assigns) {
  const Node& node = graph_.node(n);
  const ValueId like = assigns ? node.inputs[0] : node.outputs[0];
  groups_.push_back({{n}, graph_.type(like).shape, assigns, communicated_[index(n)]});
  group_of_[index(n)] = static_cast<int>(groups_.size()) - 1;
  return group_of_[index(n)];
}

void PointwiseGroups::merge(int a, int b) {
  if (a == b) return;
  PointwiseGroup& into = groups_[index(b)];
  for (NodeId n : groups_[index(a)].nodes) group_of_[index(n)] = b;
  into.nodes = united(groups_[index(a)].nodes, into.nodes);
  groups_[index(a)].nodes.clear();
}

// Chains that end in assignments, from the end: a node belongs to one if nothing else reads it.
void PointwiseGroups::group_assigned() {
  for (NodeId n = static_cast<NodeId>(graph_.nodes().size()) - 1; n >= 0; --n) {
    const Node& node = graph_.node(n);
    if (node.op == Op::Assign) add(n, true);
    if (!is_candidate(node)) continue;
    std::vector<int> joining;
    const auto joins = [&](NodeId reader) {
      const int group = reader < 0 ? -1 : of(reader);
      if (group < 0 || !groups_[index(group)].assigns) return false;
      joining.push_back(group);
      return groups_[index(group)].shape == graph_.type(node.outputs[0]).shape;
    };
    if (!std::ranges::all_of(uses_.of(node.outputs[0]), joins) || joining.empty()) continue;
    if (!may_assign(node, joining)) continue;
    const int group = add(n, false);
    groups_[index(group)].assigns = true;
    for (const int other : joining) {
      if (!groups_[index(other)].nodes.empty()) merge(other, group);
    }
  }
  // Groups that only copy a value stay plain assignments.
  for (PointwiseGroup& group : groups_) {
    const bool copies =
        std::ranges::all_of(group.nodes, [&](NodeId n) { return graph_.node(n).op == Op::Assign; });
    if (!copies) continue;
    for (NodeId n : group.nodes) group_of_[index(n)] = -1;
    group.nodes.clear();
  }
}

// A variable that another node changes must be read before that node. A group that also changes
// variables that others read might then have to run both before and after the same node.
bool PointwiseGroups::reads_changed(const Node& node, const std::vector<int>& joining) const {
  return std::ranges::any_of(node.inputs, [&](ValueId id) {
    const ValueId variable = variable_of(graph_, id);
    const int by = variable < 0 ? -1 : changed_by_[index(variable)];
    return by >= 0 && (of(by) < 0 || !std::ranges::count(joining, of(by)));
  });
}

bool PointwiseGroups::may_assign(const Node& node, const std::vector<int>& joining) const {
  if (reads_changed(node, joining)) return false;
  std::vector<NodeId> nodes = {graph_.info(node.outputs[0]).producer};
  for (const int group : joining) nodes = united(nodes, groups_[index(group)].nodes);
  if (!fits(nodes)) return false;
  // Variables with several axes may have different layouts, but one program runs over all of them
  // at once.
  const auto assigned =
      std::ranges::count_if(nodes, [&](NodeId n) { return graph_.node(n).op == Op::Assign; });
  if (assigned > 1 && graph_.type(node.outputs[0]).shape.rank() > 1) return false;
  // The node's inputs then live until the end of the step instead of its result: at most one large
  // one.
  const auto large = std::ranges::count_if(node.inputs, [&](ValueId id) {
    return elements(graph_, id) > kSmallElements && !is_leaf(graph_.producer(id));
  });
  return large <= 1;
}

void PointwiseGroups::group_chains() {
  for (NodeId n = 0; n < std::ssize(graph_.nodes()); ++n) {
    const Node& node = graph_.node(n);
    if (of(n) >= 0 || !is_candidate(node)) continue;
    add(n, false);
    for (ValueId id : node.inputs) {
      const int from = of(graph_.info(id).producer);
      if (from >= 0 && from != of(n)) join(from, of(n));
    }
  }
}

// Scalars are fused even if they are unrelated: all that they cost is a launch.
void PointwiseGroups::fuse_scalars() {
  std::vector<int> order;
  for (int group = 0; group < std::ssize(groups_); ++group) {
    const PointwiseGroup& candidate = groups_[index(group)];
    if (!candidate.nodes.empty() && candidate.shape.elements() == 1) order.push_back(group);
  }
  std::ranges::sort(order, {}, [&](int group) { return groups_[index(group)].last(); });
  std::vector<int> open;
  for (const int group : order) {
    for (std::size_t i = 0; i < std::min(open.size(), kOpenGroups); ++i) {
      if (join(open[open.size() - 1 - i], group)) {
        open.erase(open.end() - 1 - static_cast<std::ptrdiff_t>(i));
        break;
      }
    }
    open.push_back(group);
  }
}

// Merges group a into b if that is safe and does not cost memory.
bool PointwiseGroups::join(int a, int b) {
  const PointwiseGroup& from = groups_[index(a)];
  const PointwiseGroup& to = groups_[index(b)];
  if (from.shape != to.shape || from.assigns != to.assigns) return false;
  if (!from.assigns && from.communicated != to.communicated) return false;
  const std::vector<NodeId> joined = united(from.nodes, to.nodes);
  if (!fits(joined)) return false;
  if (from.assigns && from.shape.rank() > 1) return false;  // see may_assign
  if (!from.assigns) {
    if (!readers_come_after(joined)) return false;
    if (from.shape.elements() > kSmallElements && lives_longer(from, joined)) return false;
  }
  merge(a, b);
  return true;
}

bool PointwiseGroups::readers_come_after(const std::vector<NodeId>& nodes) const {
  return std::ranges::all_of(nodes, [&](NodeId n) {
    if (feeds_all_reduce_[index(n)] && n != nodes.back()) return false;
    return std::ranges::all_of(uses_.of(graph_.node(n).outputs[0]), [&](NodeId reader) {
      return reader < 0 || reader > nodes.back() || contains(nodes, reader);
    });
  });
}

bool PointwiseGroups::fits(const std::vector<NodeId>& nodes) const {
  if (nodes.size() > kMostInstructions) return false;
  std::set<ValueId> values;
  for (NodeId n : nodes) {
    const Node& node = graph_.node(n);
    for (ValueId id : node.inputs) {
      if (!is_literal(graph_, id) && !contains(nodes, graph_.info(id).producer)) values.insert(id);
    }
    for (ValueId id : node.outputs) {
      const auto outside = [&](NodeId reader) { return reader < 0 || !contains(nodes, reader); };
      if (std::ranges::any_of(uses_.of(id), outside)) values.insert(id);
    }
  }
  return values.size() <= kMostValues;
}

// Whether moving a group of large values to the end of the merged group keeps more bytes of its
// inputs alive than it saves of its results, while other work needs the memory.
bool PointwiseGroups::lives_longer(const PointwiseGroup& group,
                                   const std::vector<NodeId>& joined) const {
  bool others_between = false;
  for (NodeId n = group.last() + 1; n < joined.back(); ++n) {
    const Node& node = graph_.node(n);
    others_between |= !is_leaf(node) && !op_def(node.op).view && !is_elementwise(node.op);
  }
  if (!others_between) return false;
  std::size_t kept = 0;
  std::size_t saved = 0;
  std::set<ValueId> read;
  for (NodeId n : group.nodes) {
    const Node& node = graph_.node(n);
    read.insert(node.inputs.begin(), node.inputs.end());
    const auto joins = [&](NodeId reader) { return reader >= 0 && contains(joined, reader); };
    const auto inside = [&](NodeId reader) { return contains(group.nodes, reader); };
    const std::vector<NodeId>& readers = uses_.of(node.outputs[0]);
    if (std::ranges::all_of(readers, joins) && !std::ranges::all_of(readers, inside)) {
      saved += graph_.bytes(node.outputs[0]);
    }
  }
  for (ValueId id : read) {
    const NodeId producer = graph_.info(id).producer;
    if (is_leaf(graph_.node(producer)) || contains(group.nodes, producer)) continue;
    const auto ends = [&](NodeId reader) { return reader >= 0 && reader <= group.last(); };
    if (std::ranges::all_of(uses_.of(id), ends)) kept += graph_.bytes(id);
  }
  return kept > saved;
}

void PointwiseGroups::drop_merged() {
  std::erase_if(groups_, [](const PointwiseGroup& group) { return group.nodes.empty(); });
  std::ranges::sort(groups_, {}, [](const PointwiseGroup& group) { return group.last(); });
  for (int group = 0; group < std::ssize(groups_); ++group) {
    for (NodeId n : groups_[index(group)].nodes) group_of_[index(n)] = group;
  }
}

}  // namespace lockstep

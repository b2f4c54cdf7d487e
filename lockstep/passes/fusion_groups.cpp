#include "lockstep/passes/fusion_groups.h"

#include <set>
#include <utility>

namespace lockstep {
namespace {

class Writing {
 public:
  Writing(const Graph& graph, const FusionGroups& groups)
      : graph_(graph), groups_(groups), written_(graph.nodes().size(), false), rewriter_(graph) {}

  Graph run() {
    for (NodeId n = 0; n < std::ssize(graph_.nodes()); ++n) write(n);
    return rewriter_.finish();
  }

 private:
  // Writes a node, or the group that it is part of, after the producers of its inputs.
  void write(NodeId n) {
    if (written_[static_cast<std::size_t>(n)]) return;
    written_[static_cast<std::size_t>(n)] = true;
    const Node& node = graph_.node(n);
    const FusionGroup* const group = groups_.of(n);
    for (ValueId id : group != nullptr ? group->inputs : node.inputs) {
      write(graph_.info(id).producer);
    }
    if (group == nullptr) return rewriter_.copy(node);
    if (done_.insert(group).second) write(*group);
  }

  void write(const FusionGroup& group) {
    Graph& target = rewriter_.target();
    const Graph::NameScope scope(target, group.name);
    std::vector<Value> inputs = rewriter_.map(group.inputs);
    if (group.mask.by >= 0) {
      inputs[0] = target.add1(Op::ActivationGrad, {inputs[0], rewriter_.map(group.mask.by)},
                              group.mask.attrs);
    }
    std::vector<Value> outputs = target.add(group.op, inputs, group.attrs);
    if (group.clamp) outputs[0] = target.add1(Op::Activation, {outputs[0]}, *group.clamp);
    for (std::size_t i = 0; i < group.outputs.size(); ++i) {
      rewriter_.set(group.outputs[i], outputs[i]);
    }
  }

  const Graph& graph_;
  const FusionGroups& groups_;
  std::vector<bool> written_;
  std::set<const FusionGroup*> done_;
  Rewriter rewriter_;
};

}  // namespace

FusionGroups::FusionGroups(const Graph& graph) : graph_(graph), groups_(graph.nodes().size()) {}

void FusionGroups::replace(std::initializer_list<NodeId> nodes, FusionGroup group) {
  const auto shared = std::make_shared<const FusionGroup>(std::move(group));
  for (NodeId n : nodes) {
    if (n >= 0) groups_[static_cast<std::size_t>(n)] = shared;
  }
}

Graph FusionGroups::write() const {
  return Writing(graph_, *this).run();
}

}  // namespace lockstep

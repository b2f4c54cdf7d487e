#include "lockstep/distribute/parameter_gathers.h"

#include <algorithm>

#include "lockstep/base/error.h"
#include "lockstep/graph/ops/elementwise.h"
#include "lockstep/passes/uses.h"

namespace lockstep {

void ParameterGathers::plan(std::size_t gather_bytes) {
  if (groups_.all().empty()) return;
  find_reads();
  std::vector<GatheredGroup> groups;
  for (const Read& read : reads_) {
    GatheredGroup& group = groups.emplace_back();
    for (const VariableRef& member : *read.group) {
      group.bytes += static_cast<std::size_t>(member->shape.elements()) * size_of(read.dtype);
    }
    group.uses = uses_of(read);
  }
  gathers_ = plan_gathers(groups, static_cast<NodeId>(graph_.nodes().size()),
                          gather_bytes > 0 ? gather_bytes : default_gather_bytes(groups));
}

void ParameterGathers::find_reads() {
  for (const ParameterGroups::Group& group : groups_.all()) {
    Read read{.group = &group, .values = std::vector<std::vector<ValueId>>(group.size())};
    std::set<DType> types;
    std::vector<NodeId> parameters;
    for (NodeId n = 0; n < static_cast<NodeId>(graph_.nodes().size()); ++n) {
      const Node& node = graph_.node(n);
      if (node.op != Op::Variable) continue;
      const auto member = std::ranges::find(group, node.variable);
      if (member == group.end()) continue;
      parameters.push_back(n);
      types.insert(gathered_dtype(graph_, node.outputs[0]));
      read.values[static_cast<std::size_t>(member - group.begin())] = {node.outputs[0]};
    }
    if (parameters.empty()) continue;
    replaced_.insert(parameters.begin(), parameters.end());
    const DType own = group.front()->dtype;
    read.dtype = types.size() == 1 ? *types.begin() : own;
    for (std::vector<ValueId>& values : read.values) {
      if (values.empty() || read.dtype == own) continue;
      const ValueId parameter = values.front();
      values.clear();
      for (NodeId n = 0; n < static_cast<NodeId>(graph_.nodes().size()); ++n) {
        const Node& node = graph_.node(n);
        if (node.op != Op::Cast || node.inputs[0] != parameter) continue;
        values.push_back(node.outputs[0]);
        replaced_.insert(n);
      }
    }
    reads_.push_back(std::move(read));
  }
}

// An update reads slices. What is an output of the graph is used at its end.
std::vector<NodeId> ParameterGathers::uses_of(const Read& read) const {
  const Uses uses(graph_);
  std::set<NodeId> nodes;
  for (const std::vector<ValueId>& values : read.values) {
    for (ValueId id : values) {
      for (NodeId n : uses.of(id)) {
        if (n >= 0 && graph_.node(n).op == Op::Update) continue;
        nodes.insert(n >= 0 ? n : static_cast<NodeId>(graph_.nodes().size()) - 1);
      }
    }
  }
  return {nodes.begin(), nodes.end()};
}

void ParameterGathers::write(NodeId before, Rewriter& rewriter,
                             const std::function<std::size_t()>& order) {
  Graph& target = rewriter.target();
  for (; written_ < gathers_.size() && gathers_[written_].at <= before; ++written_) {
    const Read& read = reads_[gathers_[written_].group];
    std::vector<ValueType> types;
    std::vector<Shape> shapes;
    for (const VariableRef& member : *read.group) {
      types.push_back({member->dtype, member->shape});
      shapes.push_back(member->shape);
    }
    const std::vector<Slice> slices = slices_of(types, here_);
    const Graph::NameScope scope(target, "gather");
    std::vector<Value> own;
    for (std::size_t i = 0; i < slices.size(); ++i) {
      const Value slice = target.variable((*read.group)[i], slices[i]);
      own.push_back(cast(slice, read.dtype));
      for (const Value& value : {slice, own.back()}) {
        target.info(value.id()).placement = Placement::sharded_flat();
      }
    }
    const std::vector<Value> whole = all_gather(
        own, shapes, here_, {.order = static_cast<std::int64_t>(order()), .prefetched = true});
    for (std::size_t i = 0; i < whole.size(); ++i) {
      for (ValueId id : read.values[i]) rewriter.set(id, whole[i]);
    }
  }
}

bool ParameterGathers::replaces(const Node& node) const {
  if (node.outputs.empty()) return false;
  return replaced_.contains(graph_.info(node.outputs[0]).producer);
}

}  // namespace lockstep

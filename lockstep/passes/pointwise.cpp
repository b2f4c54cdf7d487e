#include "lockstep/passes/pointwise.h"

#include <algorithm>
#include <map>

#include "lockstep/graph/ops/pointwise.h"
#include "lockstep/passes/pointwise_groups.h"

namespace lockstep {
namespace {

// A group as a segment of a node: the program, and which values of the old graph it reads and
// computes.
struct Segment {
  int group = 0;
  PointwiseForm form = {};
  std::vector<ValueId> inputs = {};
  std::vector<ValueId> outputs = {};
};

class SegmentWriter {
 public:
  SegmentWriter(const Graph& graph, const Uses& uses, const PointwiseGroups& groups, int group)
      : graph_(graph), uses_(uses), groups_(groups), group_(groups.all()[index(group)]) {
    segment_.group = group;
  }

  Segment write() {
    for (NodeId n : group_.nodes) {
      const Node& node = graph_.node(n);
      if (node.op == Op::Assign) {
        keep(result_of_.at(node.inputs[1]), input(node.inputs[0]));
        continue;
      }
      const int result = add(node);
      if (!is_read_outside(node.outputs[0])) continue;
      keep(result, -1);
      segment_.outputs.push_back(node.outputs[0]);
    }
    return std::move(segment_);
  }

 private:
  int add(const Node& node) {
    PointwiseInstruction instruction{node.op, node.attrs, {}};
    for (ValueId id : node.inputs) instruction.operands.push_back(operand(id));
    segment_.form.program.push_back(std::move(instruction));
    const int result = static_cast<int>(segment_.form.program.size()) - 1;
    result_of_[node.outputs[0]] = result;
    return result;
  }

  PointwiseOperand operand(ValueId id) {
    if (PointwiseGroups::is_literal(graph_, id)) return literal_of(graph_.producer(id).constant);
    const NodeId producer = graph_.info(id).producer;
    if (groups_.folded(producer) && !result_of_.contains(id)) add(graph_.node(producer));
    const auto known = result_of_.find(id);
    if (known != result_of_.end()) {
      return {.kind = PointwiseOperand::Kind::Result, .index = known->second};
    }
    return {.kind = PointwiseOperand::Kind::Input, .index = input(id)};
  }

  int input(ValueId id) {
    const auto known = std::ranges::find(segment_.inputs, id);
    const auto number = static_cast<int>(known - segment_.inputs.begin());
    if (known != segment_.inputs.end()) return number;
    segment_.inputs.push_back(id);
    segment_.form.scalar.push_back(graph_.type(id).shape.elements() != group_.shape.elements());
    ++segment_.form.operands;
    return number;
  }

  void keep(int result, int target) {
    segment_.form.results.push_back(result);
    segment_.form.targets.push_back(target);
  }

  bool is_read_outside(ValueId id) const {
    return std::ranges::any_of(uses_.of(id), [&](NodeId reader) {
      return reader < 0 || !std::ranges::binary_search(group_.nodes, reader);
    });
  }

  const Graph& graph_;
  const Uses& uses_;
  const PointwiseGroups& groups_;
  const PointwiseGroup& group_;
  Segment segment_;
  std::map<ValueId, int> result_of_;  // by value that the program has computed so far
};

class PointwiseFusion {
 public:
  explicit PointwiseFusion(const Graph& graph)
      : graph_(graph),
        uses_(graph),
        groups_(graph, uses_),
        rewriter_(graph),
        mapped_(graph.nodes().size(), false) {}

  Graph run() {
    find_bundles();
    std::map<NodeId, const Bundle*> at;
    for (const Bundle& bundle : bundles_) {
      if (!assigns(bundle)) at[last(bundle)] = &bundle;
    }
    for (NodeId n = 0; n < std::ssize(graph_.nodes()); ++n) {
      if (groups_.of(n) < 0 && !groups_.folded(n)) copy(n);
      if (const auto bundle = at.find(n); bundle != at.end()) write(*bundle->second);
    }
    for (const Bundle& bundle : bundles_) {
      if (assigns(bundle)) write(bundle);
    }
    return rewriter_.finish();
  }

 private:
  using Bundle = std::vector<Segment>;  // the segments of one node

  const PointwiseGroup& group(const Segment& segment) const {
    return groups_.all()[index(segment.group)];
  }
  bool assigns(const Bundle& bundle) const { return group(bundle.front()).assigns; }
  // Groups are sorted by their last nodes.
  NodeId last(const Bundle& bundle) const { return group(bundle.back()).last(); }

  // Small groups with the same program go to the last bundle with that program, if it takes them.
  void find_bundles() {
    std::map<std::string, std::size_t> open;  // by program, dtypes of operands and stream
    for (int g = 0; g < std::ssize(groups_.all()); ++g) {
      Segment segment = SegmentWriter(graph_, uses_, groups_, g).write();
      if (group(segment).shape.elements() > kSmallElements || segment.inputs.empty()) {
        bundles_.push_back({std::move(segment)});
        continue;
      }
      const auto [known, first] = open.try_emplace(key_of(segment), bundles_.size());
      if (!first && takes(bundles_[known->second], segment)) {
        bundles_[known->second].push_back(std::move(segment));
      } else {
        known->second = bundles_.size();
        bundles_.push_back({std::move(segment)});
      }
    }
  }

  std::string key_of(const Segment& segment) const {
    const PointwiseGroup& from = group(segment);
    std::string key = pointwise_attrs(segment.form).str();
    for (ValueId id : segment.inputs) key += fmt::format(" {}", name_of(graph_.type(id).dtype));
    return fmt::format("{} {} {}", key, from.assigns, from.communicated && !from.assigns);
  }

  // Whether a bundle may move to the place of one more segment, from a later group: nothing before
  // that place may read the bundle, not even the new segment, and no all-reduce may wait for it.
  bool takes(const Bundle& bundle, const Segment& next) const {
    if (assigns(bundle)) return true;
    const NodeId place = group(next).last();
    const auto reads_early = [&](const Segment& segment) {
      return std::ranges::any_of(segment.outputs, [&](ValueId id) {
        if (groups_.feeds_all_reduce(graph_.info(id).producer)) return true;
        return std::ranges::any_of(uses_.of(id), [&](NodeId reader) {
          return reader >= 0 && reader <= place && groups_.of(reader) != segment.group;
        });
      });
    };
    return std::ranges::none_of(bundle, reads_early);
  }

  void copy(NodeId n) {
    if (mapped_[index(n)]) return;
    mapped_[index(n)] = true;
    provide(graph_.node(n).inputs);
    rewriter_.copy(graph_.node(n));
  }

  // Writes folded nodes for readers that are not part of a program.
  void provide(const std::vector<ValueId>& ids) {
    for (ValueId id : ids) {
      const NodeId producer = graph_.info(id).producer;
      if (groups_.folded(producer)) copy(producer);
    }
  }

  void write(const Bundle& bundle) {
    const std::vector<NodeId>& nodes = group(bundle.front()).nodes;
    if (bundle.size() == 1 && nodes.size() == 1) {
      copy(nodes.front());
      return;
    }
    std::vector<Value> inputs;
    for (const Segment& segment : bundle) {
      provide(segment.inputs);
      for (ValueId id : segment.inputs) inputs.push_back(rewriter_.map(id));
    }
    PointwiseForm form = bundle.front().form;
    form.count = bundle.size();
    const Graph::NameScope scope(rewriter_.target(), name_of_bundle(bundle));
    const std::vector<Value> outputs = rewriter_.target().add(
        assigns(bundle) ? Op::PointwiseAssign : Op::Pointwise, inputs, pointwise_attrs(form));
    std::size_t next = 0;
    for (const Segment& segment : bundle) {
      for (ValueId id : segment.outputs) rewriter_.set(id, outputs[next++]);
    }
  }

  // The name of the last node, and how many more there are.
  std::string name_of_bundle(const Bundle& bundle) const {
    std::size_t nodes = 0;
    for (const Segment& segment : bundle) nodes += group(segment).nodes.size();
    return fmt::format("{} +{}", graph_.node(last(bundle)).name, nodes - 1);
  }

  const Graph& graph_;
  const Uses uses_;
  const PointwiseGroups groups_;
  Rewriter rewriter_;
  std::vector<bool> mapped_;  // by node: copied already
  std::vector<Bundle> bundles_;
};

}  // namespace

void FusePointwise::run(Graph& graph) {
  graph = PointwiseFusion(graph).run();
}

}  // namespace lockstep

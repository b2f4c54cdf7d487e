#include "lockstep/passes/fuse_casts.h"

#include <algorithm>
#include <map>
#include <tuple>

#include "lockstep/passes/uses.h"

namespace lockstep {
namespace {

class CastFusion {
 public:
  CastFusion(const Graph& graph, const Backend& backend)
      : graph_(graph),
        backend_(backend),
        uses_(graph),
        group_of_(graph.nodes().size(), -1),
        written_(graph.nodes().size(), false),
        rewriter_(graph) {}

  Graph run() {
    find_groups();
    for (NodeId n = 0; n < count(); ++n) {
      const int group = group_of_[index(n)];
      if (group < 0) {
        write(n);
      } else if (n == places_[index(group)]) {
        write_group(groups_[index(group)]);
      }
    }
    return rewriter_.finish();
  }

 private:
  NodeId count() const { return static_cast<NodeId>(graph_.nodes().size()); }
  template <class I>
  static std::size_t index(I i) {
    return static_cast<std::size_t>(i);
  }

  // Casts are fused if their types agree and they either read variables, which have their values
  // from before the step wherever they are read, or have the same readers.
  using Kind = std::tuple<DType, DType, bool, std::vector<NodeId>>;

  Kind kind_of(const Node& cast) const {
    const DType from = graph_.type(cast.inputs[0]).dtype;
    const DType to = graph_.type(cast.outputs[0]).dtype;
    if (graph_.producer(cast.inputs[0]).op == Op::Variable) return {from, to, true, {}};
    std::vector<NodeId> readers = uses_.of(cast.outputs[0]);
    std::ranges::sort(readers);
    readers.erase(std::unique(readers.begin(), readers.end()), readers.end());
    return {from, to, false, std::move(readers)};
  }

  void find_groups() {
    std::map<Kind, std::vector<NodeId>> kinds;
    for (NodeId n = 0; n < count(); ++n) {
      const Node& node = graph_.node(n);
      if (node.op != Op::Cast || !backend_.offers(graph_, node, "list")) continue;
      kinds[kind_of(node)].push_back(n);
    }
    for (auto& [kind, casts] : kinds) {
      if (casts.size() < 2) continue;
      // Casts of variables can run at once, the others when the last input is ready.
      const bool at_once = std::get<2>(kind);
      for (NodeId n : casts) group_of_[index(n)] = static_cast<int>(groups_.size());
      places_.push_back(at_once ? casts.front() : casts.back());
      groups_.push_back(std::move(casts));
    }
  }

  void write(NodeId n) {
    if (written_[index(n)]) return;
    written_[index(n)] = true;
    rewriter_.copy(graph_.node(n));
  }

  void write_group(const std::vector<NodeId>& casts) {
    std::vector<Value> inputs;
    for (NodeId n : casts) {
      const ValueId id = graph_.node(n).inputs[0];
      if (graph_.producer(id).op == Op::Variable) write(graph_.info(id).producer);
      inputs.push_back(rewriter_.map(id));
    }
    const Node& first = graph_.node(casts.front());
    Graph::NameScope scope(rewriter_.target(), first.name);
    const std::vector<Value> outputs = rewriter_.target().add(Op::Cast, inputs, first.attrs);
    for (std::size_t i = 0; i < casts.size(); ++i) {
      const ValueId id = graph_.node(casts[i]).outputs[0];
      rewriter_.target().info(outputs[i].id()).layout = graph_.info(id).layout;
      rewriter_.set(id, outputs[i]);
    }
  }

  const Graph& graph_;
  const Backend& backend_;
  Uses uses_;
  std::vector<int> group_of_;  // by node; -1: none
  std::vector<std::vector<NodeId>> groups_;
  std::vector<NodeId> places_;  // the node in whose place each group is written
  std::vector<bool> written_;
  Rewriter rewriter_;
};

}  // namespace

void FuseCasts::run(Graph& graph) {
  graph = CastFusion(graph, backend_).run();
}

}  // namespace lockstep

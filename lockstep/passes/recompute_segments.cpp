#include "lockstep/passes/recompute_segments.h"

#include <algorithm>
#include <set>
#include <string_view>

#include "lockstep/graph/recomputed.h"
#include "lockstep/passes/uses.h"

namespace lockstep {
namespace {

template <class I>
std::size_t at(I i) {
  return static_cast<std::size_t>(i);
}

// A value that lives through more than this fraction of the forward pass is read nearly everywhere.
constexpr std::size_t kLongLived = 4;

// A place where the forward pass can be cut.
struct Cut {
  NodeId after = -1;
  ValueId value = -1;    // all that is read after it
  std::size_t kept = 0;  // what the backward pass reads of all nodes up to here
};

class ForwardCuts {
 public:
  explicit ForwardCuts(const RecomputeAnalysis& analysis) : analysis_(analysis) {
    const Graph& graph = analysis.graph();
    last_read_.assign(at(graph.value_count()), -1);
    for (NodeId n = 0; n < analysis.node_count(); ++n) {
      if (analysis.backward(n) || analysis.leaf(n) || analysis.fixed(n)) continue;
      position_of_.push_back(n);
      for (ValueId id : graph.node(n).inputs) {
        last_read_[at(analysis.root(id))] = static_cast<int>(position_of_.size()) - 1;
      }
    }
    find();
  }

  const std::vector<Cut>& cuts() const { return cuts_; }
  std::size_t kept() const { return kept_; }

 private:
  // Whether a value counts as one that the rest of the forward pass reads.
  bool crosses(ValueId root, int position) const {
    const int last = last_read_[at(root)];
    return last > position && at(last - position) < position_of_.size() / kLongLived + 2;
  }

  void find() {
    const Graph& graph = analysis_.graph();
    std::set<ValueId> live;
    for (int p = 0; p < static_cast<int>(position_of_.size()); ++p) {
      const Node& node = graph.node(position_of_[at(p)]);
      for (ValueId id : node.outputs) {
        if (analysis_.root(id) != id) continue;
        if (crosses(id, p)) live.insert(id);
        if (analysis_.read_late(id)) kept_ += analysis_.bytes(id);
      }
      std::erase_if(live, [&](ValueId root) { return last_read_[at(root)] <= p; });
      if (live.size() != 1) continue;
      cuts_.push_back({.after = position_of_[at(p)], .value = *live.begin(), .kept = kept_});
    }
  }

  const RecomputeAnalysis& analysis_;
  std::vector<NodeId> position_of_;  // the nodes of the forward pass
  std::vector<int> last_read_;       // by root: the last position that reads it
  std::vector<Cut> cuts_;
  std::size_t kept_ = 0;
};

}  // namespace

Selection marked_layers(const RecomputeAnalysis& analysis) {
  const Graph& graph = analysis.graph();
  const Uses uses(graph);
  Selection selection = analysis.none();
  bool any = false;
  for (NodeId n = 0; n < analysis.node_count(); ++n) {
    const Node& node = graph.node(n);
    const std::string_view layer = checkpoint_of(node.name);
    if (layer.empty() || !analysis.recomputable(n)) continue;
    bool leaves = false;
    for (ValueId id : node.outputs) {
      for (NodeId reader : uses.of(id)) {
        leaves = leaves || reader < 0 ||
                 (!analysis.backward(reader) && analysis.recomputable(reader) &&
                  checkpoint_of(graph.node(reader).name) != layer);
      }
    }
    any = true;
    selection[at(n)] = !leaves;
  }
  return any ? selection : Selection();
}

std::vector<Selection> segment_selections(const RecomputeAnalysis& analysis) {
  const ForwardCuts forward(analysis);
  std::vector<Selection> selections;
  const std::vector<Cut>& cuts = forward.cuts();
  for (std::size_t segments = 2; segments <= cuts.size() + 1; segments += segments / 8 + 1) {
    std::set<ValueId> ends;
    NodeId last = -1;
    std::size_t next = 1;
    for (const Cut& cut : cuts) {
      if (next == segments || cut.kept * segments < forward.kept() * next) continue;
      ends.insert(cut.value);
      last = cut.after;
      while (next < segments && cut.kept * segments >= forward.kept() * next) ++next;
    }
    if (ends.empty()) continue;
    Selection selection = analysis.none();
    for (NodeId n = 0; n <= last; ++n) {
      const Node& node = analysis.graph().node(n);
      const bool ends_segment = std::ranges::any_of(
          node.outputs, [&](ValueId id) { return ends.contains(analysis.root(id)); });
      selection[at(n)] = analysis.recomputable(n) && !analysis.fixed(n) && !ends_segment;
    }
    selections.push_back(std::move(selection));
  }
  return selections;
}

}  // namespace lockstep

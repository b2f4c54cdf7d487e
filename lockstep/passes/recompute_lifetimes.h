// RecomputeAnalysis: what of a step can be computed again, what that costs, and how long values
// then live. Lifetimes follow the planner's rules (views, results in place, contiguous gradients)
// without placing anything, so that hundreds of selections can be compared in a second; what is
// decided by them is checked by the planner.
#pragma once

#include <cstddef>
#include <vector>

#include "lockstep/graph/backend.h"
#include "lockstep/graph/graph.h"

namespace lockstep {

// Which nodes of the forward pass are computed again, by NodeId.
using Selection = std::vector<bool>;

// A node in the order in which a step runs, or its copy.
struct OrderedNode {
  NodeId node = -1;
  bool again = false;
};

// A step with recomputation. Positions are places in its order; what belongs to a value is indexed
// by the value whose memory it is (RecomputeAnalysis::root).
struct Lifetimes {
  std::vector<OrderedNode> order;
  std::vector<bool> again;           // by value: whether the backward pass reads a copy of it
  std::vector<bool> of_copy;         // by value: whether it is a view of a copy, or again
  double work = 0;                   // of all copies
  std::size_t peak_bytes = 0;        // the most that is live at once
  int peak_at = 0;                   // where
  std::vector<int> first_late_read;  // by the backward pass and by copies; the order's size: none
  std::vector<int> last_early_read;  // by the forward pass, or where it is computed
  std::vector<int> last_read;
};

class RecomputeAnalysis {
 public:
  RecomputeAnalysis(const Graph& graph, const Backend& backend);

  const Graph& graph() const { return graph_; }
  NodeId node_count() const { return static_cast<NodeId>(graph_.nodes().size()); }
  bool has_backward() const { return has_backward_; }
  // Whether a node belongs to the backward pass.
  bool backward(NodeId n) const { return nodes_[index(n)].backward; }
  // Whether a node of the forward pass may be computed twice.
  bool recomputable(NodeId n) const { return nodes_[index(n)].recomputable; }
  // Whether it depends on variables and constants alone.
  bool fixed(NodeId n) const { return nodes_[index(n)].fixed; }
  bool leaf(NodeId n) const { return nodes_[index(n)].leaf; }
  bool view(NodeId n) const { return nodes_[index(n)].view; }
  // What computing a node takes, in FLOPs; a byte moved counts as several.
  double work(NodeId n) const { return nodes_[index(n)].work; }
  std::size_t workspace(NodeId n) const { return nodes_[index(n)].workspace; }
  // The value whose memory a value refers to.
  ValueId root(ValueId id) const { return root_[index(id)]; }
  NodeId producer(ValueId id) const { return graph_.info(id).producer; }
  std::size_t bytes(ValueId id) const { return bytes_[index(id)]; }
  // Whether an output is copied when its node is computed again. Statistics and other small ones
  // are kept, so that what reads them does not depend on the copy.
  bool copied(ValueId id) const { return copied_[index(id)]; }
  // Whether the backward pass reads a value or a view of it.
  bool read_late(ValueId root) const { return read_late_[index(root)]; }

  Selection none() const { return Selection(nodes_.size(), false); }
  Lifetimes lifetimes(const Selection& selection) const;
  // The step with the selection computed again. `sources`, if given, gets the node of this graph
  // that each of its nodes is or repeats.
  Graph write(const Selection& selection, std::vector<NodeId>* sources = nullptr) const;

 private:
  struct NodeFacts {
    bool backward = false;
    bool recomputable = false;
    bool fixed = false;
    bool leaf = false;
    bool view = false;
    double work = 0;
    std::size_t workspace = 0;
    std::vector<std::pair<int, int>> in_place;
  };
  template <class I>
  static std::size_t index(I i) {
    return static_cast<std::size_t>(i);
  }
  class Account;

  void find_backward();
  void find_copied(const Node& node);
  void find_groups();
  std::vector<bool> copied_values(const Selection& selection) const;
  std::vector<OrderedNode> order(const std::vector<bool>& again) const;

  const Graph& graph_;
  bool has_backward_ = false;
  std::vector<NodeFacts> nodes_;
  std::vector<ValueId> root_;
  std::vector<std::size_t> bytes_;
  std::vector<bool> copied_;
  std::vector<bool> read_late_;
  std::vector<bool> output_;                  // by root: a result of the step, not in the arena
  std::vector<std::vector<ValueId>> groups_;  // roots that are placed together, by the planner
};

}  // namespace lockstep

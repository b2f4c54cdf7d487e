// Which elementwise nodes of a graph become one program. Decided by the order of the nodes: a group
// takes the place of its last node, and so every node outside that reads one of its values must
// stand behind that one. This rules out paths that leave a group and come back.
#pragma once

#include <vector>

#include "lockstep/graph/graph.h"
#include "lockstep/passes/uses.h"

namespace lockstep {

// Elements up to which a value is small: how long it lives makes no difference to peak memory, and
// what it costs is the launch.
inline constexpr std::int64_t kSmallElements = 65536;

// A group's number as an index.
inline std::size_t index(int group) {
  return static_cast<std::size_t>(group);
}

struct PointwiseGroup {
  std::vector<NodeId> nodes = {};  // in the graph's order
  Shape shape = {};                // of all that they compute
  // Ends in Assign nodes, which are among the nodes; nothing outside reads it, and it comes behind
  // all else.
  bool assigns = false;
  bool communicated = false;  // follows from sums over replicas that run beside the step
  NodeId last() const { return nodes.back(); }
};

class PointwiseGroups {
 public:
  PointwiseGroups(const Graph& graph, const Uses& uses);

  // In the order of their last nodes; many have one node only.
  const std::vector<PointwiseGroup>& all() const { return groups_; }
  // The group of a node, or -1.
  int of(NodeId n) const { return group_of_[static_cast<std::size_t>(n)]; }
  // Whether a node computes a number from constants for elementwise nodes alone: it is in no group,
  // and every program that reads it computes it anew, which its compiler does once.
  bool folded(NodeId n) const { return folded_[static_cast<std::size_t>(n)]; }
  // Whether a sum over replicas that runs beside the step waits for a node: it must not come later.
  bool hurried(NodeId n) const { return hurried_[static_cast<std::size_t>(n)]; }
  // Whether a value is written into programs as a number.
  static bool is_literal(const Graph& graph, ValueId id);

 private:
  void find_folded();
  void find_communicated();
  void find_hurried();
  void find_changed();
  void group_assigned();
  void group_chains();
  void join_scalars();
  void drop_merged();

  bool is_candidate(const Node& node) const;
  bool reads_changed(const Node& node, const std::vector<int>& joining) const;
  bool may_assign(const Node& node, const std::vector<int>& joining) const;
  bool lives_longer(const PointwiseGroup& group, const std::vector<NodeId>& joined) const;
  bool fits(const std::vector<NodeId>& nodes) const;
  bool readers_stand_behind(const std::vector<NodeId>& nodes) const;
  bool join(int a, int b);
  void merge(int a, int b);
  int add(NodeId n, bool assigns);

  const Graph& graph_;
  const Uses& uses_;
  std::vector<PointwiseGroup> groups_;
  std::vector<int> group_of_;       // by node
  std::vector<bool> folded_;        // by node
  std::vector<bool> communicated_;  // by node
  std::vector<bool> hurried_;       // by node
  std::vector<int> changed_by_;     // by value of a variable: the node that changes it, or -1
};

}  // namespace lockstep

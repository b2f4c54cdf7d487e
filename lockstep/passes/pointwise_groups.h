// Which elementwise nodes of a graph become one program. The order of the nodes decides: a group
// takes the place of its last node, so every outside reader of its values must come after that
// node. This rules out paths that leave a group and come back.
#pragma once

#include <vector>

#include "lockstep/graph/graph.h"
#include "lockstep/passes/uses.h"

namespace lockstep {

// Up to this many elements a value is small: its lifetime does not affect peak memory, and all that
// it costs is the launch.
inline constexpr std::int64_t kSmallElements = 65536;

// A group's number as an index.
inline std::size_t index(int group) {
  return static_cast<std::size_t>(group);
}

struct PointwiseGroup {
  std::vector<NodeId> nodes = {};  // in the graph's order
  Shape shape = {};                // of all their results
  // Ends in Assign nodes, which are part of the group; nothing outside reads it, and it runs last.
  bool assigns = false;
  bool communicated = false;  // depends on an all-reduce on the side stream
  NodeId last() const { return nodes.back(); }
};

class PointwiseGroups {
 public:
  PointwiseGroups(const Graph& graph, const Uses& uses);

  // Sorted by their last nodes; many have only one node.
  const std::vector<PointwiseGroup>& all() const { return groups_; }
  // The group of a node, or -1.
  int of(NodeId n) const { return group_of_[static_cast<std::size_t>(n)]; }
  // Whether a node computes a number from constants that only elementwise nodes read: it is in no
  // group, and every program that reads it contains it, for the compiler to fold.
  bool folded(NodeId n) const { return folded_[static_cast<std::size_t>(n)]; }
  // Whether an all-reduce on the side stream waits for a node, which must then not move later.
  bool feeds_all_reduce(NodeId n) const { return feeds_all_reduce_[static_cast<std::size_t>(n)]; }
  // Whether a value is written into programs as a number.
  static bool is_literal(const Graph& graph, ValueId id);

 private:
  void find_folded();
  void find_communicated();
  void find_all_reduced();
  void find_changed();
  void group_assigned();
  void group_chains();
  void fuse_scalars();
  void drop_merged();

  bool is_candidate(const Node& node) const;
  bool reads_changed(const Node& node, const std::vector<int>& joining) const;
  bool may_assign(const Node& node, const std::vector<int>& joining) const;
  bool lives_longer(const PointwiseGroup& group, const std::vector<NodeId>& joined) const;
  bool fits(const std::vector<NodeId>& nodes) const;
  bool readers_come_after(const std::vector<NodeId>& nodes) const;
  bool join(int a, int b);
  void merge(int a, int b);
  int add(NodeId n, bool assigns);

  const Graph& graph_;
  const Uses& uses_;
  std::vector<PointwiseGroup> groups_;
  std::vector<int> group_of_;           // by node
  std::vector<bool> folded_;            // by node
  std::vector<bool> communicated_;      // by node
  std::vector<bool> feeds_all_reduce_;  // by node
  std::vector<int> changed_by_;         // by value of a variable: the node that changes it, or -1
};

}  // namespace lockstep

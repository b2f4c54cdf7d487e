// When parameters of which ranks have slices are whole: gathered before they are used, released
// after it, and gathered again for the next use, within a budget of bytes.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "lockstep/graph/graph.h"

namespace lockstep {

// Parameters that are gathered together, and the nodes that read some of them, in their order.
struct GatheredGroup {
  std::size_t bytes = 0;
  std::vector<NodeId> uses;
};

// One gather of a group: started before node `at`, and used by nodes from `first` to `last`.
struct PlannedGather {
  std::size_t group = 0;
  NodeId at = 0;
  NodeId first = 0;
  NodeId last = 0;
  bool operator==(const PlannedGather&) const = default;
};

// The gathers of a graph, in the order in which they are started. A group stays whole between two
// uses where the budget allows that for all nodes between them, short stretches before long ones;
// otherwise it is released and gathered again. Each gather is then started as early as the budget
// and its order among the others allow, so that it overlaps what comes before its first use. What
// nodes need to run is gathered even where the budget is too small for it.
std::vector<PlannedGather> plan_gathers(std::span<const GatheredGroup> groups, NodeId nodes,
                                        std::size_t budget);

// The budget if none is given: a group in use, and the next one on its way.
std::size_t default_gather_bytes(std::span<const GatheredGroup> groups);

// The type in which a parameter is gathered for a graph: a 16-bit one if all that its nodes read is
// rounded to that (an update reads the slices), else its own.
DType gathered_dtype(const Graph& graph, ValueId parameter);

// Which parameters ranks keep slices of, in groups: the slices are those of a group's members, laid
// out one after another. Graphs that only read the parameters gather the groups of the one that
// updates them.
class ParameterGroups {
 public:
  using Group = std::vector<VariableRef>;

  const std::vector<Group>& all() const { return groups_; }
  // The group that has a variable; null: none.
  const Group* of(const Variable& variable) const;
  // UsageError if a member is in another group already.
  void add(const Group& group);
  void clear() { groups_.clear(); }

 private:
  std::vector<Group> groups_;
};

}  // namespace lockstep

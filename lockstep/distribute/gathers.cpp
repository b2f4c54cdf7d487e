#include "lockstep/distribute/gathers.h"

#include <algorithm>
#include <optional>

#include "lockstep/base/error.h"
#include "lockstep/graph/op_def.h"

namespace lockstep {
namespace {

// A stretch between two uses of a group.
struct UseGap {
  std::size_t group = 0;
  NodeId begin = 0;
  NodeId end = 0;
};

// How many bytes of whole parameters there are at each node.
class GatheredBytes {
 public:
  explicit GatheredBytes(NodeId nodes, std::size_t budget)
      : bytes_(static_cast<std::size_t>(nodes), 0), budget_(budget) {}

  void add(NodeId node, std::size_t bytes) { bytes_[static_cast<std::size_t>(node)] += bytes; }
  bool has_room(NodeId node, std::size_t bytes) const {
    return bytes_[static_cast<std::size_t>(node)] + bytes <= budget_;
  }
  // Between two nodes, both excluded.
  bool has_room_between(const UseGap& gap, std::size_t bytes) const {
    for (NodeId n = gap.begin + 1; n < gap.end; ++n) {
      if (!has_room(n, bytes)) return false;
    }
    return true;
  }

 private:
  std::vector<std::size_t> bytes_;
  std::size_t budget_;
};

}  // namespace

std::vector<PlannedGather> plan_gathers(std::span<const GatheredGroup> groups, NodeId nodes,
                                        std::size_t budget) {
  GatheredBytes gathered(nodes, budget);
  std::vector<UseGap> gaps;
  for (std::size_t g = 0; g < groups.size(); ++g) {
    const std::vector<NodeId>& uses = groups[g].uses;
    for (std::size_t i = 0; i < uses.size(); ++i) {
      gathered.add(uses[i], groups[g].bytes);
      if (i > 0) gaps.push_back({.group = g, .begin = uses[i - 1], .end = uses[i]});
    }
  }
  std::ranges::stable_sort(gaps, {}, [](const UseGap& gap) { return gap.end - gap.begin; });
  std::vector<PlannedGather> all;
  std::vector<UseGap> released;
  for (const UseGap& gap : gaps) {
    const std::size_t bytes = groups[gap.group].bytes;
    if (!gathered.has_room_between(gap, bytes)) {
      released.push_back(gap);
      continue;
    }
    for (NodeId n = gap.begin + 1; n < gap.end; ++n) gathered.add(n, bytes);
  }
  for (std::size_t g = 0; g < groups.size(); ++g) {
    const std::vector<NodeId>& uses = groups[g].uses;
    if (uses.empty()) continue;
    std::vector<NodeId> firsts{uses.front()};
    for (const UseGap& gap : released) {
      if (gap.group == g) firsts.push_back(gap.end);
    }
    std::ranges::sort(firsts);
    for (std::size_t i = 0; i < firsts.size(); ++i) {
      const auto next = i + 1 < firsts.size() ? std::ranges::find(uses, firsts[i + 1]) : uses.end();
      all.push_back({.group = g, .at = firsts[i], .first = firsts[i], .last = *std::prev(next)});
    }
  }
  std::ranges::stable_sort(all, {}, &PlannedGather::first);
  NodeId earliest = 0;
  std::vector<NodeId> released_at(groups.size(), -1);  // the last use of a group so far
  for (PlannedGather& gather : all) {
    const NodeId least = std::max(earliest, released_at[gather.group] + 1);
    while (gather.at > least && gathered.has_room(gather.at - 1, groups[gather.group].bytes)) {
      gathered.add(--gather.at, groups[gather.group].bytes);
    }
    earliest = gather.at;
    released_at[gather.group] = gather.last;
  }
  return all;
}

std::size_t default_gather_bytes(std::span<const GatheredGroup> groups) {
  std::size_t largest = 0;
  for (const GatheredGroup& group : groups) largest = std::max(largest, group.bytes);
  return 2 * largest;
}

DType gathered_dtype(const Graph& graph, ValueId parameter) {
  const DType own = graph.type(parameter).dtype;
  std::optional<DType> rounded;
  for (const Node& node : graph.nodes()) {
    if (node.op == Op::Update || std::ranges::count(node.inputs, parameter) == 0) continue;
    if (node.op != Op::Cast) return own;
    const DType to = graph.type(node.outputs[0]).dtype;
    if (!is_small_float(to) || rounded.value_or(to) != to) return own;
    rounded = to;
  }
  for (const auto& [name, id] : graph.outputs()) {
    if (id == parameter) return own;
  }
  return rounded.value_or(own);
}

const ParameterGroups::Group* ParameterGroups::of(const Variable& variable) const {
  for (const Group& group : groups_) {
    for (const VariableRef& member : group) {
      if (member.get() == &variable) return &group;
    }
  }
  return nullptr;
}

void ParameterGroups::add(const Group& group) {
  const Group* const known = of(*group.front());
  if (known != nullptr && *known == group) return;
  for (const VariableRef& member : group) {
    require(of(*member) == nullptr,
            "[shard] {} is updated together with other parameters than in another step: ranks have "
            "slices of it that do not fit; update the same parameters in all steps, or keep them "
            "whole (shard 2)",
            member->name);
  }
  groups_.push_back(group);
}

}  // namespace lockstep

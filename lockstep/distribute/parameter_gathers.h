// ParameterGathers: writes the all_gathers of parameters of which ranks have slices into a graph,
// where its nodes read them.
#pragma once

#include <functional>
#include <map>
#include <set>
#include <vector>

#include "lockstep/distribute/gathers.h"
#include "lockstep/graph/ops/collective.h"

namespace lockstep {

class ParameterGathers {
 public:
  // Graph and groups must outlive it.
  ParameterGathers(const Graph& graph, const ParameterGroups& groups, RankInGroup here)
      : graph_(graph), groups_(groups), here_(here) {}

  // When all groups are known: which of them the graph reads, and when they are gathered.
  void plan(std::size_t gather_bytes);
  std::size_t count() const { return gathers_.size(); }

  // Writes those that are due before a node, and maps what they give: each is asked for its number
  // among the collectives.
  void write(NodeId before, Rewriter& rewriter, const std::function<std::size_t()>& order);
  // Whether a node is not copied: a parameter, or a cast to the type in which it is gathered.
  bool replaces(const Node& node) const;

 private:
  // A group that the graph reads.
  struct Read {
    const ParameterGroups::Group* group = nullptr;
    DType dtype = DType::F32;                  // in which it is gathered
    std::vector<std::vector<ValueId>> values;  // by member: of the graph, that are then known
  };

  void find_reads();
  std::vector<NodeId> uses_of(const Read& read) const;

  const Graph& graph_;
  const ParameterGroups& groups_;
  RankInGroup here_;
  std::vector<Read> reads_;
  std::vector<PlannedGather> gathers_;
  std::size_t written_ = 0;
  std::set<NodeId> replaced_;
};

}  // namespace lockstep

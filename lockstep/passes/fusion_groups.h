// FusionGroups: nodes of a new graph that each replace several of the old one. A pass says which
// nodes are fused; all others are copied.
#pragma once

#include <initializer_list>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/graph/graph.h"

namespace lockstep {

// Op, attributes, inputs, and for each output the old value that it replaces.
struct FusionGroup {
  std::string name = {};
  Op op = Op::Input;
  Attrs attrs = {};
  std::vector<ValueId> inputs = {};
  std::vector<ValueId> outputs = {};
  // If set, input 0 is masked first: relu_grad(input 0, this value).
  struct Mask {
    ValueId by = -1;
    Attrs attrs = {};
  } mask = {};
  // If set, output 0 goes through an activation with these attributes.
  std::optional<Attrs> clamp = {};
};

class FusionGroups {
 public:
  explicit FusionGroups(const Graph& graph);

  // The group that a node is part of, or null.
  const FusionGroup* of(NodeId n) const { return groups_[static_cast<std::size_t>(n)].get(); }
  // Makes the nodes (-1: none) part of this group, whatever they were part of before.
  void replace(std::initializer_list<NodeId> nodes, FusionGroup group);
  // The new graph.
  Graph write() const;

 private:
  const Graph& graph_;
  std::vector<std::shared_ptr<const FusionGroup>> groups_;  // by node; null: copied as it is
};

}  // namespace lockstep

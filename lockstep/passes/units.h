// Units: nodes of a new graph that each stand for several of the old one. A pass says which go
// together; everything else is copied.
#pragma once

#include <initializer_list>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/graph/graph.h"

namespace lockstep {

// Op, attributes, inputs, and for each output the old value that it stands for.
struct Unit {
  std::string name = {};
  Op op = Op::Input;
  Attrs attrs = {};
  std::vector<ValueId> inputs = {};
  std::vector<ValueId> outputs = {};
  // Where input 0 is masked first: relu_grad(input 0, this value).
  struct Mask {
    ValueId by = -1;
    Attrs attrs = {};
  } mask = {};
  // Where output 0 goes through an activation with these attributes.
  std::optional<Attrs> clamp = {};
};

class Units {
 public:
  explicit Units(const Graph& graph);

  // The unit that a node is part of, or null.
  const Unit* of(NodeId n) const { return units_[static_cast<std::size_t>(n)].get(); }
  // From now on the nodes (-1: none) are parts of this unit, whatever they were.
  void replace(std::initializer_list<NodeId> nodes, Unit unit);
  // The new graph.
  Graph write() const;

 private:
  const Graph& graph_;
  std::vector<std::shared_ptr<const Unit>> units_;  // by node; null: copied as it is
};

}  // namespace lockstep

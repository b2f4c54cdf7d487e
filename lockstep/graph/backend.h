// What passes and the planner may ask a backend. `kernels` implements it and `train` passes it in,
// so that graph, passes and plan depend on no backend.
#pragma once

#include <string_view>
#include <vector>

#include "lockstep/graph/graph.h"

namespace lockstep {

// The layouts in which a backend runs a node best.
struct NodeLayouts {
  std::vector<Layout> inputs;
  std::vector<Layout> outputs;
};

class Backend {
 public:
  virtual ~Backend() = default;
  // Layouts for the node's inputs and outputs, given the current layouts of its inputs (the answer
  // may differ from them if a reorder pays off). Row-major everywhere is always a valid answer.
  virtual NodeLayouts layouts(const Graph& graph, const Node& node) const = 0;
  // Whether an activation ("relu", ...) can be computed in the same kernel as the node.
  virtual bool fuses_activation(const Graph& graph, const Node& node,
                                std::string_view activation) const = 0;
  // Whether the node's kernel has an optional extra that pays off, such as one more output that
  // saves another node a pass over memory. The ops' headers list the extras.
  virtual bool offers(const Graph& /*graph*/, const Node& /*node*/,
                      std::string_view /*extra*/) const {
    return false;
  }
  // Whether it compiles a chain of elementwise nodes (ops/pointwise.h) to one kernel that is faster
  // than one kernel per node.
  virtual bool fuses_pointwise() const { return false; }
  // The workspace that the node's kernel needs while it runs.
  virtual std::size_t workspace_bytes(const Graph& graph, const Node& node) const = 0;
  // The results of a node whose inputs are constants, computed now, with the bits that a CPU gives;
  // empty if they cannot be computed.
  virtual std::vector<Tensor> evaluate(const Graph& /*graph*/, const Node& /*node*/) const {
    return {};
  }
};

}  // namespace lockstep

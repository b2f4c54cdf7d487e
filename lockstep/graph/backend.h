// What passes and the planner may ask of a backend. `kernels` implements it; `train` hands it in,
// so that graph, passes and plan know no backend.
#pragma once

#include <string_view>
#include <vector>

#include "lockstep/graph/graph.h"

namespace lockstep {

// The layouts in which a backend would best run a node.
struct NodeLayouts {
  std::vector<Layout> inputs;
  std::vector<Layout> outputs;
};

class Backend {
 public:
  virtual ~Backend() = default;
  // Layouts for the node's inputs and outputs, given those that its inputs have now (an answer may
  // differ from them where a reorder pays). Row-major everywhere is always a valid answer.
  virtual NodeLayouts layouts(const Graph& graph, const Node& node) const = 0;
  // Whether an activation ("relu", ...) can be computed in the same kernel as the node.
  virtual bool fuses_activation(const Graph& graph, const Node& node,
                                std::string_view activation) const = 0;
  // Whether the node's kernel can give or take more than its op must, and it pays: an output that
  // spares another node a sweep over memory, say. The ops' headers name what there is.
  virtual bool offers(const Graph& /*graph*/, const Node& /*node*/,
                      std::string_view /*extra*/) const {
    return false;
  }
  // Whether it makes one kernel of a chain of elementwise nodes (ops/pointwise.h) that is better
  // than theirs one after the other.
  virtual bool fuses_pointwise() const { return false; }
  // Scratch memory that the node's kernel needs while it runs.
  virtual std::size_t workspace_bytes(const Graph& graph, const Node& node) const = 0;
  // What a node gives whose inputs are constants, computed now; nothing where nobody can. The bits
  // are those of a CPU.
  virtual std::vector<Tensor> evaluate(const Graph& /*graph*/, const Node& /*node*/) const {
    return {};
  }
};

}  // namespace lockstep

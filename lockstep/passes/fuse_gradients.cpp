#include "lockstep/passes/fuse_gradients.h"

#include <algorithm>
#include <set>

#include "lockstep/graph/op_def.h"
#include "lockstep/passes/fusion_groups.h"
#include "lockstep/passes/uses.h"

namespace lockstep {
namespace {

class GradientFusion {
 public:
  GradientFusion(const Graph& graph, const Backend& backend)
      : graph_(graph), backend_(backend), uses_(graph), groups_(graph) {}

  Graph run() {
    for (NodeId n = 0; n < count(); ++n) {
      const Op op = graph_.node(n).op;
      if (op == Op::MatMul) fuse_column_sums(n);
      if (op == Op::SparseCrossEntropy) fuse_cross_entropy(n);
    }
    return groups_.write();
  }

 private:
  NodeId count() const { return static_cast<NodeId>(graph_.nodes().size()); }
  // The value that a value is a view of.
  ValueId root(ValueId id) const {
    while (op_def(graph_.producer(id).op).view) id = graph_.producer(id).inputs[0];
    return id;
  }

  // All values that are views of the same memory, including this one.
  std::vector<ValueId> views_of(ValueId id) const {
    std::vector<ValueId> views = {root(id)};
    for (std::size_t i = 0; i < views.size(); ++i) {
      for (NodeId reader : uses_.of(views[i])) {
        if (reader < 0 || !op_def(graph_.node(reader).op).view) continue;
        views.push_back(graph_.node(reader).outputs[0]);
      }
    }
    return views;
  }

  // aᵀ × dy, and the sums over all axes of dy except the last.
  void fuse_column_sums(NodeId n) {
    const Node& product = graph_.node(n);
    const ValueId dy = product.inputs[1];
    const bool plain = product.inputs.size() == 2 && product.attrs.flag("transpose_a") &&
                       !product.attrs.flag("transpose_b") && !product.attrs.has("activation") &&
                       graph_.type(dy).shape.rank() == 2;
    if (!plain) return;
    const NodeId sum = column_sum_of(dy);
    if (sum < 0) return;
    const auto comes_before_both = [&](ValueId id) {
      return graph_.info(id).producer < std::min(n, sum);
    };
    if (!std::ranges::all_of(product.inputs, comes_before_both)) return;
    if (!backend_.offers(graph_, product, "column_sums")) return;
    Attrs attrs = product.attrs;
    attrs.set("column_sums", true);
    groups_.replace({n, sum}, {product.name,
                               Op::MatMul,
                               std::move(attrs),
                               product.inputs,
                               {product.outputs[0], graph_.node(sum).outputs[0]}});
  }

  // The node that sums the columns of a matrix or of another view of its memory, or -1.
  NodeId column_sum_of(ValueId matrix) const {
    const std::int64_t columns = graph_.type(matrix).shape[-1];
    for (ValueId id : views_of(matrix)) {
      for (NodeId reader : uses_.of(id)) {
        if (reader < 0 || groups_.of(reader) != nullptr) continue;
        const Node& node = graph_.node(reader);
        const Shape& shape = graph_.type(id).shape;
        if (node.op != Op::ReduceSum || shape.rank() < 2 || shape[-1] != columns) continue;
        const Ints& axes = node.attrs.ints("axes");
        const bool all_but_last =
            std::ssize(axes) == shape.rank() - 1 && std::ranges::count(axes, shape.rank() - 1) == 0;
        if (all_but_last && graph_.type(node.outputs[0]).shape == Shape{columns}) return reader;
      }
    }
    return -1;
  }

  // sparse_cross_entropy with its gradient, if dloss is known beforehand, and with the sum of its
  // losses, if nothing reads them one by one.
  void fuse_cross_entropy(NodeId n) {
    const Node& forward = graph_.node(n);
    if (forward.inputs.size() != 2 || !backend_.offers(graph_, forward, "gradient")) return;
    const NodeId backward = uses_.only(forward.outputs[1]);
    if (backward < 0) return;
    const Node& gradient = graph_.node(backward);
    if (gradient.op != Op::SparseCrossEntropyGrad || gradient.inputs[2] != forward.inputs[1]) {
      return;
    }
    if (follows_from_losses(gradient.inputs[0], n)) return;
    FusionGroup group{forward.name,
                      Op::SparseCrossEntropy,
                      forward.attrs,
                      {forward.inputs[0], forward.inputs[1], gradient.inputs[0]},
                      {forward.outputs[0], gradient.outputs[0]}};
    NodeId sum = uses_.only(forward.outputs[0]);
    if (sum >= 0 && is_total(graph_.node(sum))) {
      group.attrs.set("sum", true);
      group.outputs[0] = graph_.node(sum).outputs[0];
    } else {
      sum = -1;
    }
    groups_.replace({n, backward, sum}, std::move(group));
  }

  bool is_total(const Node& node) const {
    return node.op == Op::ReduceSum && graph_.type(node.outputs[0]).shape.rank() == 0;
  }

  // Whether a value is computed from the cross entropy at `node` or from a later one: it is then
  // not known before `node`, or two fused gradients would wait for each other.
  bool follows_from_losses(ValueId id, NodeId node) const {
    std::set<NodeId> seen;
    std::vector<NodeId> open = {graph_.info(id).producer};
    while (!open.empty()) {
      const NodeId next = open.back();
      open.pop_back();
      if (next < node || !seen.insert(next).second) continue;
      if (graph_.node(next).op == Op::SparseCrossEntropy) return true;
      for (ValueId input : graph_.node(next).inputs) open.push_back(graph_.info(input).producer);
    }
    return false;
  }

  const Graph& graph_;
  const Backend& backend_;
  Uses uses_;
  FusionGroups groups_;
};

}  // namespace

void FuseGradients::run(Graph& graph) {
  graph = GradientFusion(graph, backend_).run();
}

}  // namespace lockstep

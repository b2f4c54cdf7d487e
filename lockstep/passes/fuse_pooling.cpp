#include "lockstep/passes/fuse_pooling.h"

#include "lockstep/graph/ops/conv.h"
#include "lockstep/passes/fusion_groups.h"
#include "lockstep/passes/uses.h"

namespace lockstep {
namespace {

class PoolingFusion {
 public:
  PoolingFusion(const Graph& graph, const Backend& backend)
      : graph_(graph), backend_(backend), uses_(graph), groups_(graph) {}

  Graph run() {
    for (NodeId n = 0; n < static_cast<NodeId>(graph_.nodes().size()); ++n) {
      const Op op = graph_.node(n).op;
      if (op == Op::Conv2D) fuse_forward(n);
      if (op == Op::Conv2DGradFilter) fuse_backward(n);
    }
    return groups_.write();
  }

 private:
  void fuse_forward(NodeId n) {
    const Node& conv = graph_.node(n);
    const NodeId next = uses_.only(conv.outputs[0]);
    if (next < 0 || conv.outputs.size() > 1 || conv.attrs.has("activation")) return;
    const Node& pool = graph_.node(next);
    if (pool.op != Op::MaxPool || !fit_a_byte(pool.outputs[1])) return;
    if (!backend_.offers(graph_, conv, "pool")) return;
    groups_.replace({n, next},
                    {conv.name, Op::Conv2D, with_pooling(conv, pool), conv.inputs, pool.outputs});
  }

  void fuse_backward(NodeId n) {
    const Node& grad = graph_.node(n);
    const ValueId dy = grad.inputs[1];
    const NodeId before = graph_.info(dy).producer;
    const Node& unpool = graph_.node(before);
    if (unpool.op != Op::MaxPoolGrad || uses_.only(dy) != n) return;
    if (!fit_a_byte(unpool.inputs[1]) || !backend_.offers(graph_, grad, "pool")) return;
    groups_.replace({before, n}, {grad.name,
                                  Op::Conv2DGradFilter,
                                  with_pooling(grad, unpool),
                                  {grad.inputs[0], unpool.inputs[0], unpool.inputs[1]},
                                  grad.outputs});
  }

  // Whether the argmax indices fit a byte: the window has at most 255 elements.
  bool fit_a_byte(ValueId indices) const { return graph_.type(indices).dtype == DType::U8; }

  static Attrs with_pooling(const Node& conv, const Node& pool) {
    Attrs attrs = conv.attrs;
    set_pooling(attrs, pool.attrs);
    return attrs;
  }

  const Graph& graph_;
  const Backend& backend_;
  Uses uses_;
  FusionGroups groups_;
};

}  // namespace

void FusePooling::run(Graph& graph) {
  graph = PoolingFusion(graph, backend_).run();
}

}  // namespace lockstep

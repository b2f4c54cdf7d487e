#include "lockstep/passes/join_pooling.h"

#include "lockstep/graph/ops/conv.h"
#include "lockstep/passes/units.h"
#include "lockstep/passes/uses.h"

namespace lockstep {
namespace {

class PoolingJoining {
 public:
  PoolingJoining(const Graph& graph, const Backend& backend)
      : graph_(graph), backend_(backend), uses_(graph), units_(graph) {}

  Graph run() {
    for (NodeId n = 0; n < static_cast<NodeId>(graph_.nodes().size()); ++n) {
      const Op op = graph_.node(n).op;
      if (op == Op::Conv2D) join_forward(n);
      if (op == Op::Conv2DGradFilter) join_backward(n);
    }
    return units_.write();
  }

 private:
  void join_forward(NodeId n) {
    const Node& conv = graph_.node(n);
    const NodeId next = uses_.only(conv.outputs[0]);
    if (next < 0 || conv.outputs.size() > 1 || conv.attrs.has("activation")) return;
    const Node& pool = graph_.node(next);
    if (pool.op != Op::MaxPool || !fit_a_byte(pool.outputs[1])) return;
    if (!backend_.offers(graph_, conv, "pool")) return;
    units_.replace({n, next},
                   {conv.name, Op::Conv2D, with_pooling(conv, pool), conv.inputs, pool.outputs});
  }

  void join_backward(NodeId n) {
    const Node& grad = graph_.node(n);
    const ValueId dy = grad.inputs[1];
    const NodeId before = graph_.info(dy).producer;
    const Node& unpool = graph_.node(before);
    if (unpool.op != Op::MaxPoolGrad || uses_.only(dy) != n) return;
    if (!fit_a_byte(unpool.inputs[1]) || !backend_.offers(graph_, grad, "pool")) return;
    units_.replace({before, n}, {grad.name,
                                 Op::Conv2DGradFilter,
                                 with_pooling(grad, unpool),
                                 {grad.inputs[0], unpool.inputs[0], unpool.inputs[1]},
                                 grad.outputs});
  }

  // The winners' places in windows that are not huge.
  bool fit_a_byte(ValueId places) const { return graph_.type(places).dtype == DType::U8; }

  static Attrs with_pooling(const Node& conv, const Node& pool) {
    Attrs attrs = conv.attrs;
    set_pooling(attrs, pool.attrs);
    return attrs;
  }

  const Graph& graph_;
  const Backend& backend_;
  Uses uses_;
  Units units_;
};

}  // namespace

void JoinPooling::run(Graph& graph) {
  graph = PoolingJoining(graph, backend_).run();
}

}  // namespace lockstep

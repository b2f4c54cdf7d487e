#include "lockstep/passes/fuse.h"

#include <algorithm>

#include "lockstep/graph/op_def.h"
#include "lockstep/passes/units.h"
#include "lockstep/passes/uses.h"

namespace lockstep {
namespace {

class Fusing {
 public:
  Fusing(const Graph& graph, const Backend& backend)
      : graph_(graph), backend_(backend), uses_(graph), units_(graph) {}

  Graph run() {
    for (NodeId n = 0; n < count(); ++n) {
      const Op op = graph_.node(n).op;
      if (op == Op::BatchNorm || op == Op::BatchNormInference) join_norm(n);
      if (op == Op::MaxPoolGrad) mask_before_unpooling(n);
    }
    for (NodeId n = 0; n < count(); ++n) {
      if (graph_.node(n).op == Op::MaxPool) clamp_behind_pooling(n);
    }
    for (NodeId n = 0; n < count(); ++n) {
      const Op op = graph_.node(n).op;
      if (op == Op::Conv2D || op == Op::MatMul) join_activation(n);
    }
    return units_.write();
  }

 private:
  NodeId count() const { return static_cast<NodeId>(graph_.nodes().size()); }

  // conv2d or matmul → activation, where nobody else reads what lies between.
  void join_activation(NodeId n) {
    const Node& node = graph_.node(n);
    const NodeId next = uses_.only(node.outputs[0]);
    if (next < 0 || node.attrs.has("activation") || units_.of(next) != nullptr) return;
    const Node& activation = graph_.node(next);
    if (activation.op != Op::Activation) return;
    const std::string& kind = activation.attrs.text("kind");
    if (!backend_.fuses_activation(graph_, node, kind)) return;
    Attrs attrs = node.attrs;
    attrs.set("activation", kind);
    attrs.set("alpha", activation.attrs.real("alpha"));
    units_.replace({n, next},
                   {node.name, node.op, std::move(attrs), node.inputs, activation.outputs});
  }

  // Where the residual of a batch norm is another's result and nobody else reads that, both become
  // one node, and so do their gradients: all or nothing.
  bool join_projection(NodeId n, NodeId add, NodeId relu) {
    const Node& norm = graph_.node(n);
    const Node& sum = graph_.node(add);
    const ValueId residual = sum.inputs[sum.inputs[0] == norm.outputs[0] ? 1 : 0];
    const NodeId o = graph_.info(residual).producer;
    const Node& other = graph_.node(o);
    if (norm.op != Op::BatchNorm || other.op != Op::BatchNorm || other.inputs.size() != 3 ||
        residual != other.outputs[0] || uses_.only(residual) != add || units_.of(o) != nullptr ||
        other.attrs.real("epsilon") != norm.attrs.real("epsilon") ||
        graph_.type(other.inputs[1]) != graph_.type(norm.inputs[1]) ||
        !backend_.offers(graph_, norm, "projection")) {
      return false;
    }
    const ValueId y = graph_.node(relu).outputs[0];
    const NodeId grad = grad_of(norm);
    const NodeId other_grad = grad_of(other);
    if ((grad >= 0) != (other_grad >= 0)) return false;
    if (grad >= 0 && !join_projected_grads(grad, other_grad, y)) return false;
    std::vector<ValueId> inputs = norm.inputs;
    inputs.insert(inputs.end(), other.inputs.begin(), other.inputs.end());
    const std::vector<ValueId> outputs{y, norm.outputs[1], norm.outputs[2], other.outputs[1],
                                       other.outputs[2]};
    Attrs attrs = norm.attrs;
    attrs.set("activation", std::string("relu"));
    attrs.set("projection", true);
    units_.replace({n, o, add, relu},
                   {norm.name, Op::BatchNorm, std::move(attrs), inputs, outputs});
    return true;
  }

  // Both read the same masked gradient, and only they do.
  bool join_projected_grads(NodeId n, NodeId o, ValueId y) {
    const Node& grad = graph_.node(n);
    const Node& other = graph_.node(o);
    const NodeId relu_grad = masked_by(grad, y);
    if (relu_grad < 0 || other.inputs[0] != grad.inputs[0]) return false;
    if (uses_.of(grad.inputs[0]).size() != 2) return false;
    std::vector<ValueId> inputs = grad.inputs;
    inputs[0] = graph_.node(relu_grad).inputs[0];
    inputs.push_back(y);
    inputs.insert(inputs.end(), other.inputs.begin() + 1, other.inputs.end());
    Attrs attrs = grad.attrs;
    attrs.set("activation", std::string("relu"));
    attrs.set("projection", true);
    NodeId sum = -1;
    if (backend_.offers(graph_, grad, "summands")) sum = take_summands(inputs, attrs);
    std::vector<ValueId> outputs = grad.outputs;
    outputs.insert(outputs.end(), other.outputs.begin(), other.outputs.end());
    units_.replace({relu_grad, n, o, sum},
                   {grad.name, Op::BatchNormGrad, std::move(attrs), inputs, outputs});
    return true;
  }

  // batch norm → relu → max_pool, and behind it max_pool_grad → relu_grad → batch norm grad, where
  // nobody else reads the images between them: both or none.
  bool join_pooling(NodeId n, NodeId relu) {
    const Node& norm = graph_.node(n);
    const ValueId y = graph_.node(relu).outputs[0];
    const std::vector<NodeId>& readers = uses_.of(y);
    const auto pools = [&](NodeId reader) {
      return reader >= 0 && graph_.node(reader).op == Op::MaxPool;
    };
    const auto reader = std::ranges::find_if(readers, pools);
    if (norm.op != Op::BatchNorm || reader == readers.end() || readers.size() != 2) return false;
    const Node& pool = graph_.node(*reader);
    const NodeId grad = grad_of(norm);
    if (grad < 0 || !backend_.offers(graph_, pool, "batch_norm")) return false;
    if (!join_pooled_grad(grad, norm, pool)) return false;
    const std::vector<ValueId> outputs{pool.outputs[0], norm.outputs[1], norm.outputs[2],
                                       pool.outputs[1], winners_of(norm)};
    units_.replace({n, relu, *reader}, {norm.name, Op::BatchNorm, with_pooling(norm.attrs, pool),
                                        norm.inputs, outputs});
    return true;
  }

  // pool's input is relu(norm), and this is norm's gradient.
  bool join_pooled_grad(NodeId n, const Node& norm, const Node& pool) {
    const Node& grad = graph_.node(n);
    const NodeId relu_grad = masked_by(grad, pool.inputs[0]);
    if (relu_grad < 0 || uses_.only(grad.inputs[0]) != n) return false;
    const ValueId unpooled = graph_.node(relu_grad).inputs[0];
    const NodeId unpool = graph_.info(unpooled).producer;
    const Node& node = graph_.node(unpool);
    if (node.op != Op::MaxPoolGrad || uses_.only(unpooled) != relu_grad ||
        uses_.only(pool.outputs[1]) != unpool) {
      return false;
    }
    std::vector<ValueId> inputs = grad.inputs;
    inputs[0] = node.inputs[0];
    inputs.insert(inputs.end(), {norm.inputs[2], pool.outputs[1], winners_of(norm)});
    Attrs attrs = with_pooling(grad.attrs, pool);
    attrs.set("beta", true);
    NodeId sum = -1;
    if (backend_.offers(graph_, grad, "summands")) sum = take_summands(inputs, attrs);
    units_.replace({unpool, relu_grad, n, sum},
                   {grad.name, Op::BatchNormGrad, std::move(attrs), inputs, grad.outputs});
    return true;
  }

  // The elements of x that won are a new value. What stands for it is the norm's old result, which
  // nobody reads any more.
  static ValueId winners_of(const Node& norm) { return norm.outputs[0]; }

  static Attrs with_pooling(Attrs attrs, const Node& pool) {
    attrs.set("activation", std::string("relu"));
    attrs.set("pool", true);
    for (const char* name : {"window", "strides", "padding"}) {
      attrs.set(name, pool.attrs.ints(name));
    }
    return attrs;
  }

  // The gradient of a batch norm, or -1.
  NodeId grad_of(const Node& norm) const {
    for (NodeId reader : uses_.of(norm.outputs[1])) {
      if (reader >= 0 && graph_.node(reader).op == Op::BatchNormGrad) return reader;
    }
    return -1;
  }

  // The node that masks what a gradient reads by the sign of y, or -1.
  NodeId masked_by(const Node& grad, ValueId y) const {
    const NodeId n = graph_.info(grad.inputs[0]).producer;
    const Node& node = graph_.node(n);
    const bool masks = node.op == Op::ActivationGrad && node.attrs.text("kind") == "relu";
    return masks && node.inputs[1] == y ? n : -1;
  }

  // batch norm → (add →) relu, and behind it relu_grad → batch norm grad: both or none. With given
  // statistics there is no batch norm grad, and a relu_grad stays as it is.
  void join_norm(NodeId n) {
    const Node& norm = graph_.node(n);
    const std::size_t own_inputs = norm.op == Op::BatchNorm ? 3 : 5;
    if (norm.inputs.size() != own_inputs || norm.attrs.has("activation")) return;
    NodeId add = -1;
    NodeId relu = uses_.only(norm.outputs[0]);
    std::vector<ValueId> inputs = norm.inputs;
    if (relu >= 0 && graph_.node(relu).op == Op::Add) {
      add = relu;
      const Node& sum = graph_.node(add);
      const ValueId residual = sum.inputs[sum.inputs[0] == norm.outputs[0] ? 1 : 0];
      if (graph_.type(residual) != graph_.type(norm.outputs[0])) return;
      // A residual that is itself made by a fused unit of this very norm cannot be: norm's result
      // has one reader. One whose producer stands behind the norm is written first (see write).
      inputs.push_back(residual);
      relu = uses_.only(sum.outputs[0]);
    }
    if (relu < 0 || !is_relu(graph_.node(relu))) return;
    if (units_.of(relu) != nullptr) return;  // both sides of the addition are norms: one has it
    if (!backend_.fuses_activation(graph_, norm, "relu")) return;
    if (add >= 0 && join_projection(n, add, relu)) return;
    if (add < 0 && join_pooling(n, relu)) return;

    const ValueId y = graph_.node(relu).outputs[0];
    std::vector<ValueId> outputs = norm.outputs;
    outputs[0] = y;
    if (norm.op == Op::BatchNorm) {
      const NodeId norm_grad = grad_of(norm);
      if (norm_grad >= 0 && !join_norm_grad(norm_grad, y, norm.inputs[2], add >= 0)) return;
    }
    Attrs attrs = norm.attrs;
    attrs.set("activation", std::string("relu"));
    units_.replace({n, add, relu}, {norm.name, norm.op, std::move(attrs), inputs, outputs});
  }

  bool join_norm_grad(NodeId n, ValueId y, ValueId beta, bool residual) {
    const Node& grad = graph_.node(n);
    const NodeId relu_grad = masked_by(grad, y);
    if (relu_grad < 0) return false;
    const Node& node = graph_.node(relu_grad);
    if (!residual && uses_.of(node.outputs[0]).size() != 1) return false;
    std::vector<ValueId> inputs = grad.inputs;
    inputs[0] = node.inputs[0];
    std::vector<ValueId> outputs = grad.outputs;
    Attrs attrs = grad.attrs;
    attrs.set("activation", std::string("relu"));
    attrs.set("residual", residual);
    if (residual) outputs.push_back(node.outputs[0]);
    const bool from_input = !residual && backend_.offers(graph_, grad, "beta");
    if (from_input) attrs.set("beta", true);
    inputs.push_back(from_input ? beta : y);
    NodeId sum = -1;
    if (residual && backend_.offers(graph_, grad, "summands")) sum = take_summands(inputs, attrs);
    units_.replace({relu_grad, n, sum},
                   {grad.name, Op::BatchNormGrad, std::move(attrs), inputs, outputs});
    return true;
  }

  // Where dy is a sum that nobody else reads, its summands take its place. Gives the sum's node, or
  // -1.
  NodeId take_summands(std::vector<ValueId>& inputs, Attrs& attrs) const {
    const NodeId sum = graph_.info(inputs[0]).producer;
    const Node& node = graph_.node(sum);
    if (node.op != Op::Add || uses_.of(inputs[0]).size() != 1 || units_.of(sum) != nullptr)
      return -1;
    const ValueType& type = graph_.type(inputs[0]);
    if (graph_.type(node.inputs[0]) != type || graph_.type(node.inputs[1]) != type) return -1;
    inputs[0] = node.inputs[0];
    inputs.push_back(node.inputs[1]);
    attrs.set("summands", true);
    return sum;
  }

  // relu → max_pool has the gradient max_pool_grad → relu_grad. The winner of a window is the
  // pooled value, so its sign is the mask: max_pool_grad(relu_grad(dy, pooled)) is the same, on
  // fewer elements, and the image before pooling need not be kept.
  void mask_before_unpooling(NodeId n) {
    const Node& unpool = graph_.node(n);
    const NodeId next = uses_.only(unpool.outputs[0]);
    if (next < 0) return;
    const Node& mask = graph_.node(next);
    const Node& pool = graph_.producer(unpool.inputs[1]);
    if (mask.op != Op::ActivationGrad || mask.attrs.text("kind") != "relu") return;
    if (pool.op != Op::MaxPool || mask.inputs[1] != pool.inputs[0]) return;
    if (mask.inputs[0] != unpool.outputs[0] || units_.of(next) != nullptr) return;
    Unit unit{unpool.name, Op::MaxPoolGrad, unpool.attrs, unpool.inputs, mask.outputs};
    unit.mask = {pool.outputs[0], mask.attrs};
    units_.replace({n, next}, std::move(unit));
  }

  // conv2d → relu → max_pool is conv2d → max_pool → relu on fewer elements: the largest of clamped
  // values is the largest value, clamped. Where they differ in which place won, all are clamped and
  // no gradient flows.
  void clamp_behind_pooling(NodeId n) {
    const Node& pool = graph_.node(n);
    const NodeId before = graph_.info(pool.inputs[0]).producer;
    const Node& relu = graph_.node(before);
    if (!is_relu(relu) || graph_.producer(relu.inputs[0]).op != Op::Conv2D) return;
    if (units_.of(before) != nullptr || uses_.only(relu.inputs[0]) != before) return;
    for (NodeId reader : uses_.of(pool.inputs[0])) {
      // Besides the pooling only the gradient's mask, which has become one of the pooled values.
      if (reader == n) continue;
      if (reader < 0 || units_.of(reader) == nullptr) return;
      if (units_.of(reader)->mask.by != pool.outputs[0]) return;
    }
    Unit unit{pool.name, Op::MaxPool, pool.attrs, {relu.inputs[0]}, pool.outputs};
    unit.clamp = relu.attrs;
    units_.replace({before, n}, std::move(unit));
  }

  static bool is_relu(const Node& node) {
    return node.op == Op::Activation && node.attrs.text("kind") == "relu";
  }

  const Graph& graph_;
  const Backend& backend_;
  Uses uses_;
  Units units_;
};

}  // namespace

void Fuse::run(Graph& graph) {
  graph = Fusing(graph, backend_).run();
}

}  // namespace lockstep

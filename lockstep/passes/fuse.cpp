#include "lockstep/passes/fuse.h"

#include <algorithm>

#include "lockstep/graph/op_def.h"
#include "lockstep/passes/fusion_groups.h"
#include "lockstep/passes/uses.h"

namespace lockstep {
namespace {

class Fusing {
 public:
  Fusing(const Graph& graph, const Backend& backend)
      : graph_(graph), backend_(backend), uses_(graph), groups_(graph) {}

  Graph run() {
    for (NodeId n = 0; n < count(); ++n) {
      const Op op = graph_.node(n).op;
      if (op == Op::BatchNorm || op == Op::BatchNormInference) fuse_norm(n);
      if (op == Op::MaxPoolGrad) mask_before_unpooling(n);
    }
    for (NodeId n = 0; n < count(); ++n) {
      if (graph_.node(n).op == Op::MaxPool) clamp_after_pooling(n);
    }
    for (NodeId n = 0; n < count(); ++n) {
      const Op op = graph_.node(n).op;
      if (op == Op::Conv2D || op == Op::MatMul) fuse_activation(n);
    }
    return groups_.write();
  }

 private:
  NodeId count() const { return static_cast<NodeId>(graph_.nodes().size()); }

  // conv2d or matmul → activation, if nothing else reads the value between them.
  void fuse_activation(NodeId n) {
    const Node& node = graph_.node(n);
    const NodeId next = uses_.only(node.outputs[0]);
    if (next < 0 || node.attrs.has("activation") || groups_.of(next) != nullptr) return;
    const Node& activation = graph_.node(next);
    if (activation.op != Op::Activation) return;
    const std::string& kind = activation.attrs.text("kind");
    if (!backend_.fuses_activation(graph_, node, kind)) return;
    Attrs attrs = node.attrs;
    attrs.set("activation", kind);
    attrs.set("alpha", activation.attrs.real("alpha"));
    groups_.replace({n, next},
                    {node.name, node.op, std::move(attrs), node.inputs, activation.outputs});
  }

  // If the residual of a batch norm is the result of another one and nothing else reads it, both
  // become one node, and so do their gradients: all or nothing.
  bool fuse_projection(NodeId n, NodeId add, NodeId relu) {
    const Node& norm = graph_.node(n);
    const Node& sum = graph_.node(add);
    const ValueId residual = sum.inputs[sum.inputs[0] == norm.outputs[0] ? 1 : 0];
    const NodeId o = graph_.info(residual).producer;
    const Node& other = graph_.node(o);
    if (norm.op != Op::BatchNorm || other.op != Op::BatchNorm || other.inputs.size() != 3 ||
        residual != other.outputs[0] || uses_.only(residual) != add || groups_.of(o) != nullptr ||
        other.attrs.real("epsilon") != norm.attrs.real("epsilon") ||
        graph_.type(other.inputs[1]) != graph_.type(norm.inputs[1]) ||
        !backend_.offers(graph_, norm, "projection")) {
      return false;
    }
    const ValueId y = graph_.node(relu).outputs[0];
    const NodeId grad = grad_of(norm);
    const NodeId other_grad = grad_of(other);
    if ((grad >= 0) != (other_grad >= 0)) return false;
    if (grad >= 0 && !fuse_projected_grads(grad, other_grad, y)) return false;
    std::vector<ValueId> inputs = norm.inputs;
    inputs.insert(inputs.end(), other.inputs.begin(), other.inputs.end());
    const std::vector<ValueId> outputs{y, norm.outputs[1], norm.outputs[2], other.outputs[1],
                                       other.outputs[2]};
    Attrs attrs = norm.attrs;
    attrs.set("activation", std::string("relu"));
    attrs.set("projection", true);
    groups_.replace({n, o, add, relu},
                    {norm.name, Op::BatchNorm, std::move(attrs), inputs, outputs});
    return true;
  }

  // Both must read the same masked gradient, and nothing else may.
  bool fuse_projected_grads(NodeId n, NodeId o, ValueId y) {
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
    groups_.replace({relu_grad, n, o, sum},
                    {grad.name, Op::BatchNormGrad, std::move(attrs), inputs, outputs});
    return true;
  }

  // batch norm → relu → max_pool, and max_pool_grad → relu_grad → batch norm grad in the backward
  // pass, if nothing else reads the images between them: both or neither.
  bool fuse_pooling(NodeId n, NodeId relu) {
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
    if (!fuse_pooled_grad(grad, norm, pool)) return false;
    const std::vector<ValueId> outputs{pool.outputs[0], norm.outputs[1], norm.outputs[2],
                                       pool.outputs[1], maxima_of(norm)};
    groups_.replace({n, relu, *reader}, {norm.name, Op::BatchNorm, with_pooling(norm.attrs, pool),
                                         norm.inputs, outputs});
    return true;
  }

  // `n` is the gradient of `norm`, and the input of `pool` is relu(norm).
  bool fuse_pooled_grad(NodeId n, const Node& norm, const Node& pool) {
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
    inputs.insert(inputs.end(), {norm.inputs[2], pool.outputs[1], maxima_of(norm)});
    Attrs attrs = with_pooling(grad.attrs, pool);
    attrs.set("beta", true);
    NodeId sum = -1;
    if (backend_.offers(graph_, grad, "summands")) sum = take_summands(inputs, attrs);
    groups_.replace({unpool, relu_grad, n, sum},
                    {grad.name, Op::BatchNormGrad, std::move(attrs), inputs, grad.outputs});
    return true;
  }

  // The elements of x at the argmax are a new value. It takes the id of the norm's old result,
  // which nothing reads any more.
  static ValueId maxima_of(const Node& norm) { return norm.outputs[0]; }

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

  // The node that masks a gradient's dy by the sign of y, or -1.
  NodeId masked_by(const Node& grad, ValueId y) const {
    const NodeId n = graph_.info(grad.inputs[0]).producer;
    const Node& node = graph_.node(n);
    const bool masks = node.op == Op::ActivationGrad && node.attrs.text("kind") == "relu";
    return masks && node.inputs[1] == y ? n : -1;
  }

  // batch norm → (add →) relu, and relu_grad → batch norm grad in the backward pass: both or
  // neither. With given statistics there is no batch norm grad, and a relu_grad stays as it is.
  void fuse_norm(NodeId n) {
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
      // The residual cannot come from a fused group of this norm, whose result has only one reader.
      // If its producer comes after the norm, it is written first (FusionGroups::write).
      inputs.push_back(residual);
      relu = uses_.only(sum.outputs[0]);
    }
    if (relu < 0 || !is_relu(graph_.node(relu))) return;
    if (groups_.of(relu) != nullptr) return;  // fused with the norm on the other side of the add
    if (!backend_.fuses_activation(graph_, norm, "relu")) return;
    if (add >= 0 && fuse_projection(n, add, relu)) return;
    if (add < 0 && fuse_pooling(n, relu)) return;

    const ValueId y = graph_.node(relu).outputs[0];
    std::vector<ValueId> outputs = norm.outputs;
    outputs[0] = y;
    if (norm.op == Op::BatchNorm) {
      const NodeId norm_grad = grad_of(norm);
      if (norm_grad >= 0 && !fuse_norm_grad(norm_grad, y, norm.inputs[2], add >= 0)) return;
    }
    Attrs attrs = norm.attrs;
    attrs.set("activation", std::string("relu"));
    groups_.replace({n, add, relu}, {norm.name, norm.op, std::move(attrs), inputs, outputs});
  }

  bool fuse_norm_grad(NodeId n, ValueId y, ValueId beta, bool residual) {
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
    groups_.replace({relu_grad, n, sum},
                    {grad.name, Op::BatchNormGrad, std::move(attrs), inputs, outputs});
    return true;
  }

  // If dy is a sum that nothing else reads, replaces it by its summands. Returns the sum's node, or
  // -1.
  NodeId take_summands(std::vector<ValueId>& inputs, Attrs& attrs) const {
    const NodeId sum = graph_.info(inputs[0]).producer;
    const Node& node = graph_.node(sum);
    if (node.op != Op::Add || uses_.of(inputs[0]).size() != 1 || groups_.of(sum) != nullptr)
      return -1;
    const ValueType& type = graph_.type(inputs[0]);
    if (graph_.type(node.inputs[0]) != type || graph_.type(node.inputs[1]) != type) return -1;
    inputs[0] = node.inputs[0];
    inputs.push_back(node.inputs[1]);
    attrs.set("summands", true);
    return sum;
  }

  // relu → max_pool has the gradient max_pool_grad → relu_grad. The largest element of a window is
  // the pooled value, so its sign is the mask: max_pool_grad(relu_grad(dy, pooled)) is the same, on
  // fewer elements, and the image before pooling need not be stored.
  void mask_before_unpooling(NodeId n) {
    const Node& unpool = graph_.node(n);
    const NodeId next = uses_.only(unpool.outputs[0]);
    if (next < 0) return;
    const Node& mask = graph_.node(next);
    const Node& pool = graph_.producer(unpool.inputs[1]);
    if (mask.op != Op::ActivationGrad || mask.attrs.text("kind") != "relu") return;
    if (pool.op != Op::MaxPool || mask.inputs[1] != pool.inputs[0]) return;
    if (mask.inputs[0] != unpool.outputs[0] || groups_.of(next) != nullptr) return;
    FusionGroup group{unpool.name, Op::MaxPoolGrad, unpool.attrs, unpool.inputs, mask.outputs};
    group.mask = {pool.outputs[0], mask.attrs};
    groups_.replace({n, next}, std::move(group));
  }

  // conv2d → relu → max_pool equals conv2d → max_pool → relu, which clamps fewer elements: the
  // maximum of clamped values is the clamped maximum. Where the argmax differs, all are clamped and
  // no gradient flows.
  void clamp_after_pooling(NodeId n) {
    const Node& pool = graph_.node(n);
    const NodeId before = graph_.info(pool.inputs[0]).producer;
    const Node& relu = graph_.node(before);
    if (!is_relu(relu) || graph_.producer(relu.inputs[0]).op != Op::Conv2D) return;
    if (groups_.of(before) != nullptr || uses_.only(relu.inputs[0]) != before) return;
    for (NodeId reader : uses_.of(pool.inputs[0])) {
      // Besides the pooling, only the gradient's mask may read it, which now uses the pooled
      // values.
      if (reader == n) continue;
      if (reader < 0 || groups_.of(reader) == nullptr) return;
      if (groups_.of(reader)->mask.by != pool.outputs[0]) return;
    }
    FusionGroup group{pool.name, Op::MaxPool, pool.attrs, {relu.inputs[0]}, pool.outputs};
    group.clamp = relu.attrs;
    groups_.replace({before, n}, std::move(group));
  }

  static bool is_relu(const Node& node) {
    return node.op == Op::Activation && node.attrs.text("kind") == "relu";
  }

  const Graph& graph_;
  const Backend& backend_;
  Uses uses_;
  FusionGroups groups_;
};

}  // namespace

void Fuse::run(Graph& graph) {
  graph = Fusing(graph, backend_).run();
}

}  // namespace lockstep

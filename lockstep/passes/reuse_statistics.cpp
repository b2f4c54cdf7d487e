#include "lockstep/passes/reuse_statistics.h"

#include <algorithm>
#include <map>
#include <utility>

#include "lockstep/passes/uses.h"

namespace lockstep {
namespace {

class StatisticsReuse {
 public:
  StatisticsReuse(const Graph& graph, const Backend& backend)
      : graph_(graph), backend_(backend), uses_(graph), rewriter_(graph) {}

  Graph run() {
    for (const Node& node : graph_.nodes()) {
      if (node.op == Op::Conv2D && gives_statistics(node)) {
        const std::vector<Value> outputs = write(node, {}, "statistics");
        statistics_[node.outputs[0]] = {outputs[1], outputs[2]};
      } else if (node.op == Op::BatchNorm) {
        write_norm(node);
      } else if (node.op == Op::BatchNormGrad && bits_.contains(masking(node))) {
        std::vector<Value> inputs = rewriter_.map(node.inputs);
        inputs[kMask] = bits_.at(masking(node));
        write(node, inputs, "bits");
      } else if (node.op == Op::MatMul) {
        write_product(node);
      } else if (node.op == Op::ActivationGrad && masked_.contains(node.inputs[0])) {
        rewriter_.set(node.outputs[0], masked_.at(node.inputs[0]));
      } else {
        rewriter_.copy(node);
      }
    }
    return rewriter_.finish();
  }

 private:
  static constexpr std::size_t kMask = 5;        // the input of batch norm's gradient
  static constexpr std::size_t kProjection = 3;  // the input of a batch norm that has one

  // The result of ReLU that masks the gradient of a batch norm, or -1.
  static ValueId masking(const Node& grad) {
    if (!grad.attrs.has("activation") || grad.attrs.has("beta")) return -1;
    return grad.inputs[kMask];
  }

  bool is_read_by(ValueId id, Op op, std::size_t input) const {
    for (NodeId reader : uses_.of(id)) {
      if (reader < 0) continue;
      const Node& node = graph_.node(reader);
      if (node.op == op && node.inputs.size() > input && node.inputs[input] == id) return true;
    }
    return false;
  }

  bool gives_statistics(const Node& conv) const {
    const ValueId y = conv.outputs[0];
    return (is_read_by(y, Op::BatchNorm, 0) || is_projection(y)) &&
           backend_.offers(graph_, conv, "statistics");
  }

  bool is_projection(ValueId id) const {
    return std::ranges::any_of(uses_.of(id), [&](NodeId reader) {
      if (reader < 0) return false;
      const Node& node = graph_.node(reader);
      return node.op == Op::BatchNorm && node.attrs.has("projection") &&
             node.inputs[kProjection] == id;
    });
  }

  bool gives_bits(const Node& norm) const {
    return norm.attrs.has("activation") && norm.inputs.size() > 3 &&
           is_read_by(norm.outputs[0], Op::BatchNormGrad, kMask) &&
           backend_.offers(graph_, norm, "bits");
  }

  void write_norm(const Node& node) {
    std::vector<Value> inputs = rewriter_.map(node.inputs);
    Attrs attrs = node.attrs;
    const bool bits = gives_bits(node);
    if (bits) attrs.set("bits", true);
    const auto take_statistics = [&](ValueId of, const char* attribute) {
      const auto known = statistics_.find(of);
      if (known == statistics_.end()) return;
      attrs.set(attribute, true);
      inputs.insert(inputs.end(), {known->second.first, known->second.second});
    };
    take_statistics(node.inputs[0], "statistics");
    if (attrs.has("projection")) {
      take_statistics(node.inputs[kProjection], "projected_statistics");
    }
    const std::vector<Value> outputs = write_as(node, inputs, std::move(attrs));
    if (bits) bits_[node.outputs[0]] = outputs.back();
  }

  // The gradient of ReLU that masks a product and is its only reader, or null.
  const Node* mask_after(const Node& product) const {
    const NodeId reader = uses_.only(product.outputs[0]);
    if (reader < 0 || product.inputs.size() != 2 || product.outputs.size() != 1) return nullptr;
    const Node& node = graph_.node(reader);
    if (node.op != Op::ActivationGrad || node.attrs.text("kind") != "relu") return nullptr;
    const bool masks = node.inputs[0] == product.outputs[0] && !product.attrs.has("activation");
    return masks ? &node : nullptr;
  }

  bool is_plain(const Node& product) const {
    return graph_.type(product.inputs[0]).shape.rank() == 2 && product.outputs.size() == 1;
  }

  // Whether a product with ReLU has a reader that takes its mask as bits.
  bool product_gives_bits(const Node& product) const {
    if (product.attrs.text_or_empty("activation") != "relu" || !is_plain(product)) return false;
    const auto takes_bits = [&](NodeId reader) {
      if (reader < 0 || graph_.node(reader).op != Op::ActivationGrad) return false;
      const Node& grad = graph_.node(reader);
      const Node& masked = graph_.producer(grad.inputs[0]);
      return masked.op == Op::MatMul && is_plain(masked) && mask_after(masked) == &grad &&
             grad.inputs[1] == product.outputs[0] && backend_.offers(graph_, masked, "masked");
    };
    return std::ranges::any_of(uses_.of(product.outputs[0]), takes_bits) &&
           backend_.offers(graph_, product, "bits");
  }

  void write_product(const Node& node) {
    const Node* const mask = mask_after(node);
    if (mask != nullptr && is_plain(node) && bits_.contains(mask->inputs[1]) &&
        backend_.offers(graph_, node, "masked")) {
      std::vector<Value> inputs = rewriter_.map(node.inputs);
      inputs.push_back(bits_.at(mask->inputs[1]));
      masked_[node.outputs[0]] = write(node, inputs, "masked")[0];
    } else if (product_gives_bits(node)) {
      bits_[node.outputs[0]] = write(node, {}, "bits")[1];
    } else {
      rewriter_.copy(node);
    }
  }

  // Writes the node with an extra, and with these inputs if there are any.
  std::vector<Value> write(const Node& node, const std::vector<Value>& inputs,
                           std::string_view extra) {
    Attrs attrs = node.attrs;
    attrs.set(std::string(extra), true);
    return write_as(node, inputs.empty() ? rewriter_.map(node.inputs) : inputs, std::move(attrs));
  }

  std::vector<Value> write_as(const Node& node, const std::vector<Value>& inputs, Attrs attrs) {
    Graph::NameScope scope(rewriter_.target(), node.name);
    std::vector<Value> outputs = rewriter_.target().add(node.op, inputs, std::move(attrs));
    for (std::size_t i = 0; i < node.outputs.size(); ++i) {
      rewriter_.set(node.outputs[i], outputs[i]);
    }
    return outputs;
  }

  const Graph& graph_;
  const Backend& backend_;
  Uses uses_;
  std::map<ValueId, std::pair<Value, Value>> statistics_;  // by the convolution's result
  std::map<ValueId, Value> bits_;                          // by the result of ReLU
  std::map<ValueId, Value> masked_;                        // by the unmasked product
  Rewriter rewriter_;
};

}  // namespace

void ReuseStatistics::run(Graph& graph) {
  graph = StatisticsReuse(graph, backend_).run();
}

}  // namespace lockstep

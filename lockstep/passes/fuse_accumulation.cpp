#include "lockstep/passes/fuse_accumulation.h"

#include <algorithm>
#include <map>

#include "lockstep/graph/op_def.h"
#include "lockstep/graph/ops/collective.h"
#include "lockstep/graph/ops/matmul.h"
#include "lockstep/graph/ops/state.h"
#include "lockstep/graph/ops/update.h"
#include "lockstep/passes/accumulate.h"
#include "lockstep/passes/uses.h"

namespace lockstep {
namespace {

constexpr std::size_t kBeforeAccumulators = 3;  // inputs of an accumulation: scalars

class AccumulationFusion {
 public:
  AccumulationFusion(const Graph& graph, const Backend& backend)
      : graph_(graph),
        backend_(backend),
        uses_(graph),
        written_(graph.nodes().size(), false),
        rewriter_(graph) {}

  // Whether there is anything to fuse.
  bool find() {
    for (NodeId n = 0; n < count(); ++n) {
      const Node& node = graph_.node(n);
      if (is_accumulation(node)) {
        const std::size_t listed = list_size(node);
        for (std::size_t i = kBeforeAccumulators; i < kBeforeAccumulators + listed; ++i) {
          consider(n, node.inputs[i], node.inputs[i + listed], node.inputs[0]);
        }
      } else if (node.op == Op::Add) {
        for (const std::size_t i : {0u, 1u}) consider(n, node.inputs[i], node.inputs[1 - i], -1);
      }
    }
    return !sums_.empty();
  }

  Graph run() {
    for (NodeId n = 0; n < count(); ++n) write(n);
    return rewriter_.finish();
  }

 private:
  // What a product becomes.
  struct Sum {
    NodeId reader = -1;  // the accumulation, or the addition
    ValueId accumulator = -1;
    ValueId accumulated = -1;  // whether the accumulator counts; -1: it does
  };

  NodeId count() const { return static_cast<NodeId>(graph_.nodes().size()); }
  static std::size_t list_size(const Node& accumulation) {
    return static_cast<std::size_t>(accumulation.attrs.integer("count"));
  }
  const Sum* sum_of(ValueId gradient) const {
    const auto found = sums_.find(graph_.info(gradient).producer);
    return found == sums_.end() ? nullptr : &found->second;
  }

  void consider(NodeId reader, ValueId accumulator, ValueId gradient, ValueId accumulated) {
    const Node& variable = graph_.producer(accumulator);
    const bool ours = variable.op == Op::Variable && Accumulators::is_one(*variable.variable) &&
                      uses_.only(accumulator) == reader && uses_.only(gradient) == reader &&
                      graph_.type(accumulator) == graph_.type(gradient);
    const Node& product = graph_.producer(gradient);
    if (!ours || !is_plain_product(product)) return;
    if (!backend_.offers(graph_, product, kAccumulates)) return;
    sums_[graph_.info(gradient).producer] = {reader, accumulator, accumulated};
  }

  bool is_plain_product(const Node& node) const {
    return node.op == Op::MatMul && node.inputs.size() == 2 && node.outputs.size() == 1 &&
           graph_.type(node.outputs[0]).shape.rank() == 2 && !node.attrs.has("activation");
  }

  // Writes a node after the producers of what it reads.
  void write(NodeId n) {
    if (written_[static_cast<std::size_t>(n)]) return;
    written_[static_cast<std::size_t>(n)] = true;
    const Node& node = graph_.node(n);
    for (ValueId id : node.inputs) write(graph_.info(id).producer);
    if (const auto found = sums_.find(n); found != sums_.end()) {
      write_sum(node, found->second);
    } else if (is_accumulation(node)) {
      write_accumulation(node);
    } else if (!is_fused_addition(n)) {
      rewriter_.copy(node);
    }
  }

  void write_sum(const Node& product, const Sum& sum) {
    std::vector<ValueId> ids = product.inputs;
    ids.push_back(sum.accumulator);
    if (sum.accumulated >= 0) ids.push_back(sum.accumulated);
    for (ValueId id : ids) write(graph_.info(id).producer);
    Attrs attrs = product.attrs;
    attrs.set(kAccumulates, true);
    rewriter_.copy_as(product, rewriter_.map(ids), std::move(attrs));
    if (sum.accumulated >= 0) return;
    const ValueId total = graph_.node(sum.reader).outputs[0];
    rewriter_.set(total, rewriter_.map(product.outputs[0]));
    if (!is_communicated(total)) store(sum, product.outputs[0], graph_.node(sum.reader));
  }

  void store(const Sum& sum, ValueId gradient, const Node& reader) {
    const Graph::NameScope scope(rewriter_.target(), reader.name);
    assign(graph_.producer(sum.accumulator).variable, rewriter_.map(gradient));
  }

  bool is_communicated(ValueId id) const {
    return std::ranges::any_of(uses_.of(id), [&](NodeId reader) {
      return reader < 0 || is_collective(graph_.node(reader)) ||
             (op_def(graph_.node(reader).op).view &&
              is_communicated(graph_.node(reader).outputs[0]));
    });
  }

  bool is_fused_addition(NodeId n) const {
    const Node& node = graph_.node(n);
    return node.op == Op::Add && std::ranges::any_of(node.inputs, [&](ValueId id) {
             const Sum* const sum = sum_of(id);
             return sum != nullptr && sum->reader == n;
           });
  }

  // What is left of an accumulation.
  void write_accumulation(const Node& node) {
    const std::size_t listed = list_size(node);
    std::vector<Value> accumulators, gradients;
    for (std::size_t i = kBeforeAccumulators; i < kBeforeAccumulators + listed; ++i) {
      const ValueId gradient = node.inputs[i + listed];
      if (const Sum* const sum = sum_of(gradient); sum != nullptr) {
        store(*sum, gradient, node);
      } else {
        accumulators.push_back(rewriter_.map(node.inputs[i]));
        gradients.push_back(rewriter_.map(gradient));
      }
    }
    if (accumulators.empty()) return;
    std::vector<Value> inputs = rewriter_.map(std::span(node.inputs).first(kBeforeAccumulators));
    inputs.insert(inputs.end(), accumulators.begin(), accumulators.end());
    inputs.insert(inputs.end(), gradients.begin(), gradients.end());
    Attrs attrs = node.attrs;
    attrs.set("count", static_cast<std::int64_t>(accumulators.size()));
    rewriter_.copy_as(node, inputs, std::move(attrs));
  }

  const Graph& graph_;
  const Backend& backend_;
  Uses uses_;
  std::map<NodeId, Sum> sums_;  // by product
  std::vector<bool> written_;   // by node
  Rewriter rewriter_;
};

}  // namespace

void FuseAccumulation::run(Graph& graph) {
  AccumulationFusion fusion(graph, backend_);
  if (fusion.find()) graph = fusion.run();
}

}  // namespace lockstep

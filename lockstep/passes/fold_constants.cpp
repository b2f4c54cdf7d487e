#include "lockstep/passes/fold_constants.h"

#include <algorithm>
#include <set>

#include "lockstep/graph/op_def.h"
#include "lockstep/graph/ops/collective.h"

namespace lockstep {
namespace {

// A result with more elements than its inputs becomes a constant only up to this size, where its
// memory matters less than the launch that it saves.
constexpr std::int64_t kMostElements = 65536;

// Whether a value is a constant whose elements are all this number.
bool is_filled_with(const Graph& graph, Value value, double number) {
  const Node& node = graph.producer(value.id());
  if (node.op != Op::Constant) return false;
  return dispatch(node.constant.dtype(), [&](auto zero) {
    using T = decltype(zero);
    const std::span<const T> values = node.constant.values<T>();
    return !values.empty() &&
           std::ranges::all_of(values, [&](T each) { return static_cast<double>(each) == number; });
  });
}

class Folding {
 public:
  Folding(const Graph& graph, const Backend& backend)
      : graph_(graph), backend_(backend), rewriter_(graph) {
    for (const auto& [name, id] : graph.outputs()) outputs_.insert(id);
  }

  Graph run() {
    for (const Node& node : graph_.nodes()) {
      if (!pass_through(node) && !(is_constant(node) && compute(node))) rewriter_.copy(node);
    }
    return rewriter_.finish();
  }

 private:
  bool is_constant(const Node& node) {
    const OpDef& def = op_def(node.op);
    if (node.inputs.empty() || def.effect || is_for_ranks(node)) return false;
    std::int64_t read = 0;
    for (ValueId id : node.inputs) {
      if (rewriter_.target().producer(rewriter_.map(id).id()).op != Op::Constant) return false;
      read += graph_.type(id).shape.elements();
    }
    std::int64_t written = 0;
    for (ValueId id : node.outputs) written += graph_.type(id).shape.elements();
    return written > 0 && written <= std::max(read, kMostElements);
  }

  // Replaces the node's results by constants, if the backend can compute them.
  bool compute(const Node& node) {
    Graph alone;
    std::vector<Value> inputs;
    for (ValueId id : node.inputs) inputs.push_back(alone.constant(constant(id)));
    std::vector<Tensor> results;
    if (op_def(node.op).view) {
      results.push_back(constant(node.inputs[0]).reshaped(graph_.type(node.outputs[0]).shape));
    } else {
      alone.add(node.op, inputs, node.attrs);
      results = backend_.evaluate(alone, alone.nodes().back());
    }
    if (results.size() != node.outputs.size()) return false;
    const Graph::NameScope scope(rewriter_.target(), node.name);
    for (std::size_t i = 0; i < results.size(); ++i) {
      rewriter_.set(node.outputs[i], rewriter_.target().constant(std::move(results[i])));
    }
    return true;
  }

  const Tensor& constant(ValueId id) {
    return rewriter_.target().producer(rewriter_.map(id).id()).constant;
  }

  // Replaces the result by an input of the same type if the node changes nothing. An output of the
  // graph keeps its node: its replacement might be a variable that the step changes.
  bool pass_through(const Node& node) {
    if (node.outputs.size() != 1 || outputs_.contains(node.outputs[0])) return false;
    const auto filled = [&](std::size_t i, double number) {
      return is_filled_with(rewriter_.target(), rewriter_.map(node.inputs[i]), number);
    };
    const auto give = [&](std::size_t i) {
      const Value input = rewriter_.map(node.inputs[i]);
      if (input.type() != graph_.type(node.outputs[0])) return false;
      rewriter_.set(node.outputs[0], input);
      return true;
    };
    switch (node.op) {
      case Op::Mul:
        return (filled(1, 1) && give(0)) || (filled(0, 1) && give(1));
      case Op::Div:
        return filled(1, 1) && give(0);
      case Op::Sub:
        return filled(1, 0) && is_positive_zero(node.inputs[1]) && give(0);
      case Op::Select:
        return (filled(0, 1) && give(1)) || (filled(0, 0) && give(2));
      default:
        return false;
    }
  }

  // x - 0 is x; -0 - (-0) is 0.
  bool is_positive_zero(ValueId id) {
    const Tensor& zeros = constant(id);
    return std::all_of(zeros.raw(), zeros.raw() + zeros.bytes(),
                       [](std::byte each) { return each == std::byte{0}; });
  }

  const Graph& graph_;
  const Backend& backend_;
  std::set<ValueId> outputs_;
  Rewriter rewriter_;
};

}  // namespace

void FoldConstants::run(Graph& graph) {
  graph = Folding(graph, backend_).run();
}

}  // namespace lockstep

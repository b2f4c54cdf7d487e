#include "lockstep/passes/join_scalars.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "lockstep/graph/op_def.h"

namespace lockstep {
namespace {

class ScalarJoining {
 public:
  explicit ScalarJoining(const Graph& graph) : graph_(graph), rewriter_(graph) {
    for (const auto& [name, id] : graph.outputs()) outputs_.insert(id);
  }

  Graph run() {
    for (const Node& node : graph_.nodes()) {
      if (!is_scalar(node) || !joined(node)) rewriter_.copy(node);
    }
    return rewriter_.finish();
  }

 private:
  // Whether a node is a number, or makes numbers of numbers, the same ones every time.
  bool is_scalar(const Node& node) const {
    const auto one_element = [&](ValueId id) { return graph_.type(id).shape.elements() == 1; };
    if (op_def(node.op).effect || node.op == Op::AllReduce) return false;
    if (node.inputs.empty() && node.op != Op::Constant) return false;
    return std::ranges::all_of(node.inputs, one_element) &&
           std::ranges::all_of(node.outputs, one_element);
  }

  // Lets an earlier node that computes the same stand for this one. A result of the graph stays
  // its own.
  bool joined(const Node& node) {
    if (std::ranges::any_of(node.outputs, [&](ValueId id) { return outputs_.contains(id); })) {
      return false;
    }
    std::vector<ValueId> inputs;
    for (ValueId id : node.inputs) inputs.push_back(rewriter_.map(id).id());
    std::vector<const Node*>& alike = seen_[{node.op, std::move(inputs)}];
    const auto same = std::ranges::find_if(alike, [&](const Node* earlier) {
      return earlier->attrs == node.attrs &&
             (node.op != Op::Constant || earlier->constant.same_bits(node.constant));
    });
    if (same == alike.end()) {
      alike.push_back(&node);
      return false;
    }
    for (std::size_t i = 0; i < node.outputs.size(); ++i) {
      rewriter_.set(node.outputs[i], rewriter_.map((*same)->outputs[i]));
    }
    return true;
  }

  const Graph& graph_;
  Rewriter rewriter_;
  std::set<ValueId> outputs_;
  std::map<std::pair<Op, std::vector<ValueId>>, std::vector<const Node*>>
      seen_;  // inputs: target's
};

}  // namespace

void JoinScalars::run(Graph& graph) {
  graph = ScalarJoining(graph).run();
}

}  // namespace lockstep

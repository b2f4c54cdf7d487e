#include "lockstep/passes/layout.h"

#include <algorithm>
#include <map>
#include <set>

#include "lockstep/base/error.h"
#include "lockstep/graph/op_def.h"
#include "lockstep/graph/ops/error_feedback.h"
#include "lockstep/graph/ops/layout.h"
#include "lockstep/graph/ops/pointwise.h"

namespace lockstep {
namespace {

constexpr std::size_t kScalars = 3;  // inputs of an update before its parameters

// What an assignment or Update needs on any backend: variables in the layout that they have in
// memory, and everything that is combined with a variable in that variable's layout.
NodeLayouts effect_layouts(const Graph& graph, const Node& node) {
  NodeLayouts wanted{std::vector<Layout>(node.inputs.size()),
                     std::vector<Layout>(node.outputs.size())};
  const auto layout = [&](std::size_t i) { return graph.info(node.inputs[i]).layout; };
  if (node.op == Op::Assign) {
    wanted.inputs = {layout(0), layout(0)};
    return wanted;
  }
  if (node.op == Op::PointwiseAssign) {
    const PointwiseForm form = read_pointwise(node.attrs, node.inputs.size());
    const auto variable =
        std::ranges::find_if(form.targets, [](auto target) { return target >= 0; });
    for (std::size_t i = 0; i < node.inputs.size(); ++i) {
      if (!form.scalar[i % form.operands]) {
        wanted.inputs[i] = layout(form.input(i / form.operands, *variable));
      }
    }
    return wanted;
  }
  const std::size_t count = static_cast<std::size_t>(node.attrs.integer("count"));
  if (node.op == Op::RoundGradients) {
    for (std::size_t i = 0; i < count; ++i) {
      const std::size_t error = kRoundScalars + count + i;
      wanted.outputs[i] = wanted.inputs[kRoundScalars + i] = wanted.inputs[error] = layout(error);
    }
    return wanted;
  }
  for (std::size_t i = kScalars; i < node.inputs.size(); ++i) {
    wanted.inputs[i] = layout(kScalars + (i - kScalars) % count);
  }
  return wanted;
}

class Choice {
 public:
  Choice(Graph& graph, const Backend& backend, const LayoutOf& layout_of)
      : graph_(graph), backend_(backend) {
    for (const Node& node : graph.nodes()) {
      if (node.op != Op::Update) continue;
      const auto count = static_cast<std::size_t>(node.attrs.integer("count"));
      for (std::size_t i = 0; i < count; ++i) {
        name_parameter(node.inputs[kScalars + count + i], node.inputs[kScalars + i]);
      }
    }
    for (const Node& node : graph.nodes()) {
      if (node.op != Op::Variable) continue;
      const std::optional<Layout> known =
          layout_of ? layout_of(*node.variable) : std::optional<Layout>();
      if (known) {
        graph.info(node.outputs[0]).layout = *known;
      } else {
        free_.insert(node.outputs[0]);
      }
    }
  }

  // Sets the layouts of every node's outputs in the graph, and returns the layouts that each node
  // wants for its inputs.
  std::vector<std::vector<Layout>> decide() {
    std::vector<std::vector<Layout>> wanted_inputs;
    std::map<ValueId, std::size_t> casts;  // of variables with undecided layouts; index of the node
    for (const Node& node : graph_.nodes()) {
      if (node.op == Op::Input || node.op == Op::Variable || node.op == Op::Constant) {
        wanted_inputs.emplace_back();
        continue;
      }
      if (node.op == Op::RoundGradients) lay_out_errors(node);
      const NodeLayouts wanted = node.op == Op::AllReduce ? all_reduce_layouts(node)
                                 : op_def(node.op).effect ? effect_layouts(graph_, node)
                                                          : backend_.layouts(graph_, node);
      ensure(wanted.inputs.size() == node.inputs.size() &&
                 wanted.outputs.size() == node.outputs.size(),
             "[layout] {} {}: the backend named {} layouts for {} inputs", op_def(node.op).name,
             node.name, wanted.inputs.size(), node.inputs.size());
      for (std::size_t i = 0; i < node.inputs.size(); ++i) {
        if (wanted.inputs[i].row_major()) continue;
        if (free_.erase(node.inputs[i]) > 0) {
          graph_.info(node.inputs[i]).layout = wanted.inputs[i];
        }
        // In mixed precision a node reads the cast of its variable: both get the layout that it
        // wants.
        const auto cast = casts.find(node.inputs[i]);
        if (cast == casts.end()) continue;
        const ValueId variable = graph_.nodes()[cast->second].inputs[0];
        if (free_.erase(variable) > 0) {
          graph_.info(variable).layout = graph_.info(node.inputs[i]).layout = wanted.inputs[i];
          wanted_inputs[cast->second] = {wanted.inputs[i]};
        }
      }
      if (node.op == Op::Cast && free_.contains(node.inputs[0])) {
        casts[node.outputs[0]] = wanted_inputs.size();
      }
      for (std::size_t i = 0; i < node.outputs.size(); ++i) {
        graph_.info(node.outputs[i]).layout = wanted.outputs[i];
      }
      wanted_inputs.push_back(wanted.inputs);
    }
    return wanted_inputs;
  }

 private:
  // A gradient that an update reads, and what it comes from: its sum in 16 bits, and the rounded
  // gradient.
  void name_parameter(ValueId gradient, ValueId parameter) {
    parameter_of_[gradient] = parameter;
    const Node& widened = graph_.producer(gradient);
    if (widened.op != Op::Cast || widened.inputs.size() != 1) return;
    parameter_of_[widened.inputs[0]] = parameter;
    const Node& sums = graph_.producer(widened.inputs[0]);
    if (sums.op != Op::AllReduce) return;
    const auto place = std::ranges::find(sums.outputs, widened.inputs[0]) - sums.outputs.begin();
    parameter_of_[sums.inputs[static_cast<std::size_t>(place)]] = parameter;
  }

  // What rounding a gradient loses is kept in the parameter's layout.
  void lay_out_errors(const Node& node) {
    for (std::size_t i = 0; i < node.outputs.size(); ++i) {
      const ValueId error = node.inputs[kRoundScalars + node.outputs.size() + i];
      const auto parameter = parameter_of_.find(node.outputs[i]);
      if (parameter == parameter_of_.end() || free_.erase(error) == 0) continue;
      graph_.info(error).layout = graph_.info(parameter->second).layout;
    }
  }

  // What is all-reduced must have the same layout on all replicas, whatever the sizes of their
  // pieces: gradients that of their parameters, everything else row-major.
  NodeLayouts all_reduce_layouts(const Node& node) const {
    NodeLayouts wanted;
    for (ValueId id : node.outputs) {
      const auto parameter = parameter_of_.find(id);
      wanted.outputs.push_back(
          parameter == parameter_of_.end() ? Layout() : graph_.info(parameter->second).layout);
    }
    wanted.inputs = wanted.outputs;
    return wanted;
  }

  Graph& graph_;
  const Backend& backend_;
  std::map<ValueId, ValueId> parameter_of_;  // by gradient that an update reads
  std::set<ValueId> free_;                   // variables whose layout is not decided yet
};

}  // namespace

void ChooseLayouts::run(Graph& graph) {
  const std::vector<std::vector<Layout>> wanted_inputs =
      Choice(graph, backend_, layout_of_).decide();

  Rewriter rewriter(graph);
  std::map<std::pair<ValueId, std::string>, Value> reordered;
  const auto in_layout = [&](ValueId id, const Layout& layout) {
    if (graph.info(id).layout == layout) return rewriter.map(id);
    Value& known = reordered[{id, layout.str()}];
    if (!known.defined()) {
      Graph::NameScope scope(rewriter.target(), graph.producer(id).name);
      known = reorder(rewriter.map(id), layout);
    }
    return known;
  };
  for (std::size_t n = 0; n < graph.nodes().size(); ++n) {
    const Node& node = graph.nodes()[n];
    std::vector<Value> inputs;
    for (std::size_t i = 0; i < node.inputs.size(); ++i) {
      inputs.push_back(in_layout(node.inputs[i], wanted_inputs[n][i]));
    }
    rewriter.copy_as(node, inputs, node.attrs);
  }
  for (const auto& [name, id] : graph.outputs()) rewriter.set(id, in_layout(id, {}));
  graph = rewriter.finish();
}

}  // namespace lockstep

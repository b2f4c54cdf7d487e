#include "lockstep/distribute/place.h"

#include <algorithm>
#include <set>

#include "lockstep/base/error.h"
#include "lockstep/graph/op_def.h"
#include "lockstep/graph/ops/collective.h"
#include "lockstep/graph/ops/random.h"
#include "lockstep/graph/ops/shape.h"
#include "lockstep/graph/ops/update.h"

namespace lockstep {
namespace {

constexpr std::size_t kPlaceScalars = 3;  // inputs of an Update before its parameters

// On one rank an all-reduce returns its inputs, and slices are whole.
void take_out(Graph& graph) {
  Rewriter rewriter(graph);
  for (const Node& node : graph.nodes()) {
    if (!is_for_ranks(node)) {
      rewriter.copy(node);
      continue;
    }
    ensure(!node.attrs.has("size") || node.attrs.integer("size") == 1,
           "[{}] {}: written for {} ranks, placed on one", op_def(node.op).name, node.name,
           node.attrs.has("size") ? node.attrs.integer("size") : 1);
    for (std::size_t i = 0; i < node.inputs.size(); ++i) {
      const Value value = rewriter.map(node.inputs[i]);
      const Shape& shape = graph.type(node.outputs[i]).shape;
      rewriter.set(node.outputs[i], value.shape() == shape ? value : reshape(value, shape));
    }
  }
  graph = rewriter.finish();
}

std::vector<Placement> place_node(const Graph& graph, const Node& node, std::string_view axis,
                                  std::span<const Placement> inputs) {
  const OpDef& def = op_def(node.op);
  const std::string where =
      fmt::format("[{}] {}{}", def.name, node.name, node.name.empty() ? "" : ": ");
  require(def.place != nullptr,
          "{}nobody knows how its result lies on the ranks of axis {}: it has no placement rule; "
          "run the step on one rank, or write it with other ops",
          where, axis);
  try {
    return def.place({.graph = graph, .node = node, .axis = axis, .inputs = inputs});
  } catch (const UsageError& error) {
    std::string placements;
    for (const Placement& p : inputs) placements += (placements.empty() ? "" : ", ") + p.str();
    fail<UsageError>("{}{} (its operands are {})", where, error.what(), placements);
  }
}

// Marks what ranks keep slices of, where that is possible: slots, and parameters, of updates.
class UpdateSharding {
 public:
  UpdateSharding(Graph& graph, const PlaceOptions& options) : graph_(graph), options_(options) {
    for (const Node& node : graph.nodes()) {
      for (ValueId id : node.inputs) readers_[id].push_back(&node);
    }
    for (const auto& [name, id] : graph.outputs()) outputs_.insert(id);
  }

  void run() {
    for (const Node& node : graph_.nodes()) {
      if (node.op != Op::Update || node.attrs.has(kOfSlices)) continue;
      const bool has_slots = node.attrs.integer("slots") > 0;
      const bool demanded =
          has_slots && graph_.info(node.inputs.back()).placement.on(kDataAxis).is_flat();
      const bool asked = options_.parameters.is_flat() || (has_slots && options_.slots.is_flat());
      if (!demanded && !asked) continue;
      const std::string obstacle = obstacle_to(node);
      require(obstacle.empty() || !demanded, "[{}] {}: keep its slots Replicated", node.name,
              obstacle);
      if (obstacle.empty()) mark(node);
    }
  }

 private:
  static std::size_t count_of(const Node& update) {
    return static_cast<std::size_t>(update.attrs.integer("count"));
  }

  // Why ranks cannot update slices; empty: they can.
  std::string obstacle_to(const Node& update) {
    const std::size_t count = count_of(update);
    for (std::size_t i = 0; i < count; ++i) {
      const std::string& parameter = graph_.producer(update.inputs[kPlaceScalars + i]).name;
      const ValueId sum = update.inputs[kPlaceScalars + count + i];
      const Node& list = graph_.producer(sum);
      if (!is_bucket(list) || is_aside(list)) {
        return fmt::format(
            "the gradient of {} is not added up by all_reduce_gradients, as slots that are "
            "Sharded(flat) need it",
            parameter);
      }
      const auto updates = std::ranges::count_if(
          readers_[sum], [](const Node* reader) { return reader->op == Op::Update; });
      if (updates != 1)
        return fmt::format("{} updates read the gradient of {}", updates, parameter);
    }
    for (std::size_t i = kPlaceScalars + 2 * count; i < update.inputs.size(); ++i) {
      if (readers_[update.inputs[i]].size() > 1 || outputs_.contains(update.inputs[i])) {
        return fmt::format("{} is read by more than its update, and is Sharded(flat)",
                           graph_.producer(update.inputs[i]).name);
      }
    }
    return "";
  }

  void mark(const Node& update) {
    const std::size_t count = count_of(update);
    const auto mark_from = [&](std::size_t begin, std::size_t end) {
      for (std::size_t i = begin; i < end; ++i) {
        graph_.info(update.inputs[i]).placement.set(kDataAxis, Placement::sharded_flat());
      }
    };
    mark_from(kPlaceScalars + 2 * count, update.inputs.size());
    if (options_.parameters.is_flat()) mark_from(kPlaceScalars, kPlaceScalars + count);
  }

  Graph& graph_;
  const PlaceOptions& options_;
  std::map<ValueId, std::vector<const Node*>> readers_;
  std::set<ValueId> outputs_;
};

}  // namespace

Placement input_placement(const std::string& name, const ValueType& type) {
  const bool of_rank = name == kReplicaInput || name == kRandomStateInput;
  return of_rank || type.shape.rank() == 0 ? Placement::local() : Placement::sharded(0);
}

void derive_placements(Graph& graph, std::string_view axis,
                       const std::map<std::string, Placement>& inputs) {
  for (const Node& node : graph.nodes()) {
    if (node.op == Op::Input) {
      const auto given = inputs.find(node.name);
      const Placement placement = given != inputs.end()
                                      ? given->second
                                      : input_placement(node.name, graph.type(node.outputs[0]));
      graph.info(node.outputs[0]).placement.set(axis, placement);
      continue;
    }
    if (node.op == Op::Variable) {
      if (node.attrs.has("begin")) continue;  // a slice already
      graph.info(node.outputs[0]).placement.set(axis, node.variable->placement.on(axis));
      continue;
    }
    if (node.op == Op::Constant) continue;
    std::vector<Placement> read;
    for (ValueId id : node.inputs) read.push_back(graph.info(id).placement.on(axis));
    const std::vector<Placement> results = place_node(graph, node, axis, read);
    ensure(results.size() == node.outputs.size(), "[{}] {}: {} placements for {} results",
           op_def(node.op).name, node.name, results.size(), node.outputs.size());
    for (std::size_t i = 0; i < results.size(); ++i) {
      graph.info(node.outputs[i]).placement.set(axis, results[i]);
    }
  }
}

void PlacePass::run(Graph& graph) {
  ensure(options_.ranks > 0, "a step is placed on {} ranks", options_.ranks);
  if (options_.ranks == 1) {
    take_out(graph);
    return;
  }
  derive_placements(graph, kDataAxis, options_.inputs);
  for (const Placement& placement : {options_.slots, options_.parameters}) {
    require(placement.is_replicated() || placement.is_flat(),
            "[place] slots or parameters are {}; they can be Replicated or Sharded(flat)",
            placement.str());
  }
  require(options_.slots.is_flat() || !options_.parameters.is_flat(),
          "[place] parameters are Sharded(flat) and slots are not: shard both");
  UpdateSharding(graph, options_).run();
}

}  // namespace lockstep

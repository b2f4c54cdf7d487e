#include "lockstep/passes/offload.h"

#include <algorithm>
#include <numeric>
#include <vector>

#include "lockstep/graph/ops/update.h"

namespace lockstep {
namespace {

constexpr std::size_t kOffloadScalars = 3;  // inputs of an update before its parameters

// The parameters of an update, by their positions, in groups whose slots fit into a buffer: in the
// order in which the backward pass finishes their gradients, so that each group can begin early.
std::vector<std::vector<std::size_t>> staged_groups(const Graph& graph, const Node& update,
                                                    std::size_t staging_bytes) {
  const auto count = static_cast<std::size_t>(update.attrs.integer("count"));
  const auto slots = static_cast<std::size_t>(update.attrs.integer("slots"));
  std::vector<std::size_t> order(count);
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::ranges::stable_sort(order, {}, [&](std::size_t i) {
    return graph.info(update.inputs[kOffloadScalars + count + i]).producer;
  });
  std::vector<std::vector<std::size_t>> groups;
  std::size_t filled = 0;
  for (const std::size_t i : order) {
    const std::size_t bytes = slots * graph.bytes(update.inputs[kOffloadScalars + i]);
    if (groups.empty() || filled + bytes > staging_bytes) {
      groups.emplace_back();
      filled = 0;
    }
    groups.back().push_back(i);
    filled += bytes;
  }
  return groups;
}

void write_staged(Rewriter& rewriter, const Node& update, const std::vector<std::size_t>& group) {
  const auto count = static_cast<std::size_t>(update.attrs.integer("count"));
  std::vector<Value> inputs;
  for (std::size_t i = 0; i < kOffloadScalars; ++i) {
    inputs.push_back(rewriter.map(update.inputs[i]));
  }
  for (std::size_t list = kOffloadScalars; list < update.inputs.size(); list += count) {
    for (const std::size_t i : group) inputs.push_back(rewriter.map(update.inputs[list + i]));
  }
  Attrs attrs = update.attrs;
  attrs.set("count", static_cast<std::int64_t>(group.size()));
  attrs.set(kStaged, true);
  const Graph::NameScope scope(rewriter.target(), update.name);
  const std::vector<Value> after = rewriter.target().add(Op::Update, inputs, std::move(attrs));
  for (std::size_t i = 0; i < after.size(); ++i) {
    const ValueId old = update.outputs[group[i]];
    rewriter.set(old, after[i]);
  }
}

}  // namespace

void OffloadPass::run(Graph& graph) {
  Rewriter rewriter(graph);
  for (const Node& node : graph.nodes()) {
    const bool staged = node.op == Op::Update && !is_accumulation(node) &&
                        node.attrs.integer("slots") > 0 && !node.attrs.has(kStaged);
    if (!staged) {
      rewriter.copy(node);
      continue;
    }
    for (const auto& group : staged_groups(graph, node, options_.staging_bytes)) {
      write_staged(rewriter, node, group);
    }
  }
  graph = rewriter.finish();
}

}  // namespace lockstep

#include "lockstep/passes/recompute.h"

#include <algorithm>
#include <cmath>

#include "lockstep/base/error.h"
#include "lockstep/passes/recompute_choice.h"
#include "lockstep/passes/recompute_segments.h"

namespace lockstep {
namespace {

// The backend, for a graph with copies: the workspaces of its nodes are those of their sources.
class KnownWorkspaces final : public Backend {
 public:
  KnownWorkspaces(const Backend& backend, const RecomputeAnalysis& analysis,
                  std::vector<NodeId> sources)
      : backend_(backend), analysis_(analysis), sources_(std::move(sources)) {}

  NodeLayouts layouts(const Graph& graph, const Node& node) const override {
    return backend_.layouts(graph, node);
  }
  bool fuses_activation(const Graph& graph, const Node& node,
                        std::string_view activation) const override {
    return backend_.fuses_activation(graph, node, activation);
  }
  std::size_t workspace_bytes(const Graph& graph, const Node& node) const override {
    const auto place = static_cast<std::size_t>(&node - graph.nodes().data());
    ensure(place < sources_.size(), "[recompute] a node of another graph: {}", node.name);
    return analysis_.workspace(sources_[place]);
  }

 private:
  const Backend& backend_;
  const RecomputeAnalysis& analysis_;
  std::vector<NodeId> sources_;
};

// A number of bytes as a budget is written, rounded up.
std::string budget_text(std::size_t bytes) {
  constexpr double kMebibyte = 1024.0 * 1024;
  return fmt::format("{:.1f} MiB", std::ceil(static_cast<double>(bytes) / kMebibyte * 10) / 10);
}

class RecomputeChoice {
 public:
  RecomputeChoice(const RecomputeAnalysis& analysis, const Backend& backend, const PlanPeak& peak)
      : analysis_(analysis), backend_(backend), peak_(peak) {}

  Selection blocks() const {
    Selection marked = marked_layers(analysis_);
    if (!marked.empty()) return marked;
    Selection best = analysis_.none();
    std::size_t least = analysis_.lifetimes(best).peak_bytes;
    for (Selection& each : segment_selections(analysis_)) {
      const std::size_t bytes = analysis_.lifetimes(each).peak_bytes;
      if (bytes >= least) continue;
      least = bytes;
      best = std::move(each);
    }
    return best;
  }

  // The selection with the least work whose plan needs no more than the budget.
  Selection within(std::size_t budget) const {
    if (peak_of(analysis_.none()) <= budget) return analysis_.none();
    std::size_t least = std::numeric_limits<std::size_t>::max();
    for (RecomputePoint& each : recompute_points(analysis_)) {
      const std::size_t bytes = peak_of(each.selection);
      if (bytes <= budget) return std::move(each.selection);
      least = std::min(least, bytes);
    }
    fail<UsageError>(
        "[recompute] the step cannot be brought down to {}: with all that helps computed again, it "
        "needs {}. Allow at least that, or use a smaller batch, accumulate micro-batches "
        "(accumulate, --accumulate), 16 bits (precision, --precision), or sharded state (shard, "
        "--shard)",
        budget_text(budget), budget_text(least));
  }

 private:
  std::size_t peak_of(const Selection& selection) const {
    std::vector<NodeId> sources;
    Graph graph = analysis_.write(selection, &sources);
    const KnownWorkspaces backend(backend_, analysis_, std::move(sources));
    return peak_(std::move(graph), backend);
  }

  const RecomputeAnalysis& analysis_;
  const Backend& backend_;
  const PlanPeak& peak_;
};

}  // namespace

void RecomputePass::run(Graph& graph) {
  const Recompute::Kind kind = options_.recompute.kind;
  if (kind == Recompute::Kind::None) return;
  const RecomputeAnalysis analysis(graph, backend_);
  if (!analysis.has_backward()) return;
  const RecomputeChoice choice(analysis, backend_, options_.peak);
  Selection selection;
  switch (kind) {
    case Recompute::Kind::Blocks:
      selection = choice.blocks();
      break;
    case Recompute::Kind::Auto:
      selection = choice.within(options_.memory_bytes);
      break;
    default:
      selection = choice.within(options_.recompute.budget_bytes);
  }
  graph = analysis.write(selection);
}

}  // namespace lockstep

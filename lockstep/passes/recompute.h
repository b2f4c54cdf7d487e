// Recomputation: the backward pass computes activations again instead of keeping them, so that the
// step's memory shrinks (Chen, Xu, Zhang, Guestrin, "Training Deep Nets with Sublinear Memory
// Cost", 2016).
//
// It is the last pass. What it copies are the nodes that run, with their fusions, layouts and
// attributes: a copy has the bits of its original (dropout draws its mask from a seed, a key and
// the sample's number), fusions stay as they are, and what a choice needs can be asked of the
// planner itself. Each node is computed again at most once, just before the first node of the
// backward pass that reads it; nodes that change variables and collectives never are, so that
// moving averages change once and all ranks communicate as before.
//
// Which nodes: those of marked layers, or of segments (recompute_segments.h), or, for a budget, the
// selection with the least extra work whose plan fits, out of a list that does not depend on the
// budget (recompute_choice.h). A larger budget therefore never means more work, and a smaller one
// never more memory.
#pragma once

#include <cstddef>
#include <functional>

#include "lockstep/graph/backend.h"
#include "lockstep/passes/memory_options.h"
#include "lockstep/passes/pass.h"

namespace lockstep {

// The peak of a graph's plan. The backend knows the workspaces of this graph's nodes.
using PlanPeak = std::function<std::size_t(Graph graph, const Backend& backend)>;

struct RecomputeOptions {
  Recompute recompute = {};
  std::size_t memory_bytes = 0;  // of the device: the budget of "auto"
  PlanPeak peak = {};
};

class RecomputePass final : public Pass {
 public:
  RecomputePass(const Backend& backend, RecomputeOptions options)
      : backend_(backend), options_(std::move(options)) {}
  std::string_view name() const override { return "recompute"; }
  // UsageError, with the smallest peak that can be reached, if a budget cannot be met. A graph
  // without gradients stays as it is.
  void run(Graph& graph) override;

 private:
  const Backend& backend_;
  RecomputeOptions options_;
};

}  // namespace lockstep

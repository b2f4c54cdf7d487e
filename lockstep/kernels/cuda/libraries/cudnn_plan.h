// Plans: how cuDNN computes a graph. A plan is an engine with its knobs set, ready to run. It is
// chosen once per problem: the fastest of those that cuDNN's heuristics suggest. Engines that are
// not deterministic, or less precise than requested, are excluded.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/kernels/cuda/cuda.h"
#include "lockstep/kernels/cuda/libraries/cudnn_graph.h"

namespace lockstep {

// Enough to rebuild a plan with the same version of cuDNN.
struct CudnnEngine {
  std::int64_t index = 0;
  std::vector<std::pair<std::int64_t, std::int64_t>> knobs = {};  // type and value

  std::string str() const;  // "12 2=3 14=5"
  static std::optional<CudnnEngine> parse(const std::string& text);
};

class CudnnPlan {
 public:
  // The plan for an engine's finished configuration; null if cuDNN has none.
  static std::shared_ptr<const CudnnPlan> make(std::shared_ptr<const CudnnGraph> graph,
                                               CudnnDescriptor configuration);
  // The plan for an engine; null if cuDNN has none.
  static std::shared_ptr<const CudnnPlan> make(std::shared_ptr<const CudnnGraph> graph,
                                               const CudnnEngine& engine);

  const CudnnGraph& graph() const { return *graph_; }
  const CudnnEngine& engine() const { return engine_; }
  std::size_t workspace_bytes() const { return workspace_bytes_; }

  // Binds memory to every tensor that is not virtual, once for all runs.
  using Places = std::vector<std::pair<CudnnGraph::Id, void*>>;
  CudnnDescriptor bind(const Places& places, void* workspace) const;
  // Launches the plan; for one thread at a time.
  cudnnStatus_t run(const CudnnDescriptor& bound, cudaStream_t stream) const;

 private:
  CudnnPlan(std::shared_ptr<const CudnnGraph> graph, CudnnDescriptor configuration);
  bool finish();

  std::shared_ptr<const CudnnGraph> graph_;
  CudnnDescriptor configuration_;
  CudnnDescriptor plan_;
  CudnnEngine engine_;
  std::size_t workspace_bytes_ = 0;
};

struct CudnnPlanOptions {
  bool exact = false;  // no TF32, nor anything else that reduces the precision of f32
  bool small = false;  // too small for measuring to matter: take the first that runs
  std::size_t most_workspace = std::size_t{1} << 30;
};

// The plan for a problem: the one chosen earlier, from this context or its plan cache, otherwise a
// new choice. `describe` builds the graph; `problem` is its unique name, in one line. Null if cuDNN
// cannot compute it; Cudnn::last_refusal then says why.
std::shared_ptr<const CudnnPlan> cudnn_plan(CudaContext& context, const std::string& problem,
                                            const std::function<void(CudnnGraph&)>& describe,
                                            const CudnnPlanOptions& options);

// A plan's time in milliseconds, measured on scratch memory; nothing if it does not run or there is
// too little memory.
std::optional<float> measure_plan(const CudnnPlan& plan);

}  // namespace lockstep

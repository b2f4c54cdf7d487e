// Plans: how cuDNN computes a graph. An engine with its knobs set, made ready, chosen once for each
// problem: of those that cuDNN's heuristics suggest, the fastest measured. Engines that are not
// deterministic, or less precise than asked for, are left out.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/kernels/cuda/cuda.h"
#include "lockstep/kernels/cuda/cudnn_graph.h"

namespace lockstep {

// What a plan can be made from again, with the same version of cuDNN.
struct CudnnEngine {
  std::int64_t index = 0;
  std::vector<std::pair<std::int64_t, std::int64_t>> knobs = {};  // type and value

  std::string str() const;  // "12 2=3 14=5"
  static std::optional<CudnnEngine> parse(const std::string& text);
};

class CudnnPlan {
 public:
  // The plan of an engine's finished configuration; null where cuDNN has none.
  static std::shared_ptr<const CudnnPlan> make(std::shared_ptr<const CudnnGraph> graph,
                                               CudnnDescriptor configuration);
  // The plan of such an engine; null where cuDNN has none.
  static std::shared_ptr<const CudnnPlan> make(std::shared_ptr<const CudnnGraph> graph,
                                               const CudnnEngine& engine);

  const CudnnGraph& graph() const { return *graph_; }
  const CudnnEngine& engine() const { return engine_; }
  std::size_t workspace_bytes() const { return workspace_bytes_; }

  // The memory of a call, for every tensor that is not virtual, made once and used for every run.
  using Places = std::vector<std::pair<CudnnGraph::Id, void*>>;
  CudnnDescriptor bind(const Places& places, void* workspace) const;
  // Issues a call; for one thread at a time.
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
  bool exact = false;  // no TF32, nor anything else that shortens f32
  bool small = false;  // too small for measuring to matter: the first that runs
  std::size_t most_workspace = std::size_t{1} << 30;
};

// The plan for a problem: the one chosen before, in this context or in its plan cache, or else a
// new choice. `describe` writes the graph; `problem` names it, in one line, and nothing else has
// that name. Null where cuDNN cannot compute it, which Cudnn::refusals then explains.
std::shared_ptr<const CudnnPlan> cudnn_plan(CudaContext& context, const std::string& problem,
                                            const std::function<void(CudnnGraph&)>& describe,
                                            const CudnnPlanOptions& options);

// A plan's time in milliseconds, on memory of its own; nothing where it does not run, or there is
// too little memory.
std::optional<float> measure_plan(const CudnnPlan& plan);

}  // namespace lockstep

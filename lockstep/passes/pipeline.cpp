#include "lockstep/passes/pipeline.h"

#include "lockstep/base/error.h"
#include "lockstep/passes/dead_code.h"
#include "lockstep/passes/fold_constants.h"
#include "lockstep/passes/fuse.h"
#include "lockstep/passes/fuse_accumulation.h"
#include "lockstep/passes/fuse_casts.h"
#include "lockstep/passes/fuse_gradients.h"
#include "lockstep/passes/fuse_pooling.h"
#include "lockstep/passes/layout.h"
#include "lockstep/passes/pointwise.h"
#include "lockstep/passes/reuse_statistics.h"

namespace lockstep {

void run_passes(Graph& graph, std::span<const std::unique_ptr<Pass>> passes) {
  verify(graph);
  for (const std::unique_ptr<Pass>& pass : passes) {
    pass->run(graph);
    try {
      verify(graph);
    } catch (const InternalError& error) {
      fail<InternalError>("pass {} broke the graph: {}", pass->name(), error.what());
    }
  }
}

std::vector<std::unique_ptr<Pass>> backend_passes(const Backend& backend,
                                                  const LayoutOf& layout_of) {
  std::vector<std::unique_ptr<Pass>> passes;
  passes.push_back(std::make_unique<DeadCode>());
  passes.push_back(std::make_unique<FoldConstants>(backend));
  passes.push_back(std::make_unique<Fuse>(backend));
  passes.push_back(std::make_unique<FusePooling>(backend));
  passes.push_back(std::make_unique<FuseGradients>(backend));
  passes.push_back(std::make_unique<FuseAccumulation>(backend));
  passes.push_back(std::make_unique<ReuseStatistics>(backend));
  if (backend.fuses_pointwise()) passes.push_back(std::make_unique<FusePointwise>());
  passes.push_back(std::make_unique<DeadCode>());
  passes.push_back(std::make_unique<ChooseLayouts>(backend, layout_of));
  passes.push_back(std::make_unique<FuseCasts>(backend));
  return passes;
}

void optimize(Graph& graph, const Backend& backend, const LayoutOf& layout_of) {
  run_passes(graph, backend_passes(backend, layout_of));
}

}  // namespace lockstep

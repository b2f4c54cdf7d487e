// The pipeline that turns a traced step into one that a backend runs well.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "lockstep/graph/backend.h"
#include "lockstep/passes/pass.h"

namespace lockstep {

// The layout that a variable already has in memory, if it has one.
using LayoutOf = std::function<std::optional<Layout>(const Variable& variable)>;

// Runs the passes in order and verifies the graph before the first and after each; an error names
// the pass that broke it.
void run_passes(Graph& graph, std::span<const std::unique_ptr<Pass>> passes);

// The passes of optimize(), in their order (docs/architecture.md names them).
std::vector<std::unique_ptr<Pass>> backend_passes(const Backend& backend,
                                                  const LayoutOf& layout_of = {});

// Runs them. Variables that have memory keep its layout; the others get the one that suits the
// graph best.
void optimize(Graph& graph, const Backend& backend, const LayoutOf& layout_of = {});

}  // namespace lockstep

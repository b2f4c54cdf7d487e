// The one list of passes that turns a traced step into one that a backend runs well, in the order
// of docs/architecture.md. A rank first distributes its graph; the rest depends on the layouts that
// the ranks agree on for the variables. At last, each decides what it computes again to save
// memory.
#pragma once

#include <memory>
#include <optional>
#include <string_view>
#include <vector>

#include "lockstep/distribute/bucket.h"
#include "lockstep/passes/accumulate.h"
#include "lockstep/passes/memory_options.h"
#include "lockstep/passes/pipeline.h"
#include "lockstep/runtime/world.h"

namespace lockstep {

// precision (in mixed precision), accumulate (of several micro-batches), place, bucket,
// offload (if the options ask for it).
std::vector<std::unique_ptr<Pass>> distribute_passes(std::optional<DType> precision,
                                                     const MemoryOptions& memory,
                                                     const BucketOptions& options,
                                                     const Accumulation& accumulation = {});

// The last pass of a local rank's step, which has then only to be planned: recompute. For "auto",
// the rank may use all of its device's memory, less what libraries take, divided by the local ranks
// that share it.
// `variable_bytes`: CompileRequest.
std::unique_ptr<Pass> recompute_pass(const Backend& backend, const Recompute& recompute,
                                     const World& world, int local, std::size_t variable_bytes = 0);

// The names of all passes of a step that accumulates, in mixed precision, with all options, on a
// backend: those of distribute_passes and of backend_passes, and recompute.
std::vector<std::string_view> pass_names(const Backend& backend);

}  // namespace lockstep

// The one list of passes that turns a traced step into one that a backend runs well, in the order
// of docs/architecture.md. A rank first distributes its graph; the rest depends on the layouts that
// the ranks agree on for the variables.
#pragma once

#include <memory>
#include <optional>
#include <string_view>
#include <vector>

#include "lockstep/distribute/bucket.h"
#include "lockstep/passes/pipeline.h"

namespace lockstep {

// precision (in mixed precision), place, bucket.
std::vector<std::unique_ptr<Pass>> distribute_passes(std::optional<DType> precision,
                                                     const BucketOptions& options);

// The names of all passes of a step in mixed precision on a backend: those of distribute_passes and
// of backend_passes.
std::vector<std::string_view> pass_names(const Backend& backend);

}  // namespace lockstep

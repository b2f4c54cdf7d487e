// How workers divide a pipeline: which policy it gets, and where it is applied. The context carries
// a worker's share from the end of the pipeline towards its sources. The last batch takes it
// (transformations/batch.cpp); the files are dealt out at the sources. A node that needs whole
// elements gets them, and the worker's rows are sliced from what it makes.
#pragma once

#include <memory>

#include "lockstep/data/pipeline/node.h"

namespace lockstep {

// The share with the policy that the pipeline ending with this node gets: File, Data or Off.
// `chosen` replaces Auto. UsageError if the share is invalid or the policy cannot be followed.
WorkerShare resolved(const DatasetNode& node, WorkerShare share, AutoShardPolicy chosen);

// The rows of the batches that a worker makes itself, with the policies File and Off, where the
// global batch has n: split over the ranks so that no two differ by more than one row.
std::int64_t own_batch_rows(const WorkerShare& share, std::int64_t n);

// The node's cursor in this context: it gives the worker's rows where a share asks for them.
std::unique_ptr<Cursor> cursor_of_share(const DatasetNode& node, const Context& context);

// Whether a pass may start early: whether no user's generator could notice.
bool may_start_early_throughout(const DatasetNode& node);

}  // namespace lockstep

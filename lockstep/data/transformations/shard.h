// Which data sets depend on the shard of the iterator.
#pragma once

#include "lockstep/data/pipeline/node.h"

namespace lockstep {

// Whether a node or any of its inputs is a shard() without arguments.
bool depends_on_shard(const DatasetNode& node);

}  // namespace lockstep

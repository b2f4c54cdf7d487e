// Which data sets depend on the shard that an iterator is for.
#pragma once

#include "lockstep/data/node.h"

namespace lockstep {

// Whether shard() without arguments is in a node or in anything it reads.
bool depends_on_shard(const DatasetNode& node);

}  // namespace lockstep

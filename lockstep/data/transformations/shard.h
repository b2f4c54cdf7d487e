// Which data sets depend on the shard of the iterator, and which parts of a cache they need.
#pragma once

#include "lockstep/data/pipeline/node.h"

namespace lockstep {

// Whether a node or any of its inputs is a shard() without arguments.
bool depends_on_shard(const DatasetNode& node);

// Names the elements that a cache holds in this context, if they are not those of all iterators:
// ".1-of-4". `per_shard`: whether the cached data set depends on the shard.
std::string cached_part(const Context& context, bool per_shard);

}  // namespace lockstep

// The makers of the room's nodes, one file each. They check their options: UsageError.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "lockstep/data/dataset.h"
#include "lockstep/data/node.h"
#include "lockstep/data/table.h"

namespace lockstep {

NodePtr make_tensors(std::vector<Column> columns);
NodePtr make_shuffle(NodePtr input, ShuffleOptions options);
NodePtr make_batch(NodePtr input, std::int64_t size, BatchOptions options);
NodePtr make_take(NodePtr input, std::int64_t count);
NodePtr make_skip(NodePtr input, std::int64_t count);
NodePtr make_repeat(NodePtr input, std::int64_t count);
NodePtr make_map(NodePtr input, MapFunction function, MapOptions options);
NodePtr make_prefetch(NodePtr input, int buffer);

// "u8 (28, 28), i32 ()", for signatures and messages.
std::string describe(const std::vector<ElementSpec>& spec);

}  // namespace lockstep

// map on several threads; parallel_map.cpp explains how.
#pragma once

#include <memory>

#include "lockstep/data/transformations.h"
#include "lockstep/data/transformations/map_function.h"

namespace lockstep {

std::unique_ptr<Cursor> make_parallel_map_cursor(NodePtr input, const Context& context,
                                                 std::shared_ptr<const MappedFunction> function,
                                                 Stage& stage);

}  // namespace lockstep

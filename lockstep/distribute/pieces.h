// The piece of a batch that each replica gets: evenly split (base/pieces.h) or by speed.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "lockstep/base/pieces.h"

namespace lockstep {

// Pieces in proportion to the speeds of the replicas (samples per second), in whole multiples of
// `quantum` samples where possible; every replica gets at least one sample if there are enough.
std::vector<Piece> split_by_speed(std::int64_t samples, std::span<const double> speeds,
                                  std::int64_t quantum);

}  // namespace lockstep

// The pieces of a batch that replicas get where all are equally fast.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace lockstep {

// Samples [begin, end) of a batch; may be empty.
struct Piece {
  std::int64_t begin = 0;
  std::int64_t end = 0;
  std::int64_t size() const { return end - begin; }
  bool operator==(const Piece&) const = default;
};

// Pieces of these sizes, one after another.
std::vector<Piece> in_a_row(std::span<const std::int64_t> sizes);

// n samples in pieces of ceil(n / replicas), the last ones shorter or empty, as tf.distribute does:
// four samples over three replicas are [0, 2) [2, 4) [4, 4).
std::vector<Piece> split_evenly(std::int64_t samples, int replicas);

// The pieces of replicas first to end - 1 in that split, together; in constant time.
Piece evenly_split_range(std::int64_t samples, int replicas, int first, int end);

}  // namespace lockstep

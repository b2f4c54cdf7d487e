#include "lockstep/base/pieces.h"

#include <algorithm>

#include "lockstep/base/error.h"

namespace lockstep {

std::vector<Piece> in_a_row(std::span<const std::int64_t> sizes) {
  std::vector<Piece> pieces;
  std::int64_t begin = 0;
  for (std::int64_t size : sizes) {
    pieces.push_back({begin, begin + size});
    begin += size;
  }
  return pieces;
}

std::vector<Piece> split_evenly(std::int64_t samples, int replicas) {
  ensure(samples >= 0 && replicas > 0, "{} samples cannot be split over {} replicas", samples,
         replicas);
  std::vector<Piece> pieces;
  for (int i = 0; i < replicas; ++i) {
    pieces.push_back(evenly_split_range(samples, replicas, i, i + 1));
  }
  return pieces;
}

Piece evenly_split_range(std::int64_t samples, int replicas, int first, int end) {
  ensure(samples >= 0 && first >= 0 && first <= end && end <= replicas && replicas > 0,
         "{} samples over {} replicas have no pieces {} to {}", samples, replicas, first, end);
  const std::int64_t most = samples / replicas + (samples % replicas != 0 ? 1 : 0);
  return {.begin = std::min(samples, first * most), .end = std::min(samples, end * most)};
}

}  // namespace lockstep

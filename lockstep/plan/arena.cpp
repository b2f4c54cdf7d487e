#include "lockstep/plan/arena.h"

#include <algorithm>
#include <map>
#include <numeric>

namespace lockstep {
namespace {

std::size_t most_live(std::span<const ArenaBlock> blocks) {
  std::map<int, std::ptrdiff_t> change;
  for (const ArenaBlock& block : blocks) {
    change[block.first] += static_cast<std::ptrdiff_t>(arena_aligned(block.bytes));
    change[block.last + 1] -= static_cast<std::ptrdiff_t>(arena_aligned(block.bytes));
  }
  std::ptrdiff_t live = 0;
  std::ptrdiff_t most = 0;
  for (const auto& [step, delta] : change) most = std::max(most, live += delta);
  return static_cast<std::size_t>(most);
}

}  // namespace

Arena place_blocks(std::span<const ArenaBlock> blocks) {
  std::vector<std::size_t> order(blocks.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](std::size_t a, std::size_t b) { return blocks[a].bytes > blocks[b].bytes; });

  Arena arena{.offsets = std::vector<std::size_t>(blocks.size()),
              .bytes = 0,
              .live_bytes = most_live(blocks)};
  std::vector<std::size_t> placed;  // by offset
  for (std::size_t b : order) {
    const std::size_t bytes = arena_aligned(blocks[b].bytes);
    std::size_t offset = 0;
    for (std::size_t other : placed) {
      const bool together =
          blocks[other].first <= blocks[b].last && blocks[b].first <= blocks[other].last;
      if (!together || bytes == 0) continue;
      if (offset + bytes <= arena.offsets[other]) break;
      offset = std::max(offset, arena.offsets[other] + arena_aligned(blocks[other].bytes));
    }
    arena.offsets[b] = offset;
    arena.bytes = std::max(arena.bytes, offset + bytes);
    const auto behind = std::upper_bound(
        placed.begin(), placed.end(), offset,
        [&](std::size_t value, std::size_t other) { return value < arena.offsets[other]; });
    placed.insert(behind, b);
  }
  return arena;
}

}  // namespace lockstep

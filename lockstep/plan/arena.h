// Places blocks with lifetimes in one arena, so that blocks that live at the same time do not
// overlap.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

namespace lockstep {

// The alignment of offsets: what GPU libraries want for their workspaces.
inline constexpr std::size_t kArenaAlignment = 256;
constexpr std::size_t arena_aligned(std::size_t bytes) {
  return (bytes + kArenaAlignment - 1) / kArenaAlignment * kArenaAlignment;
}

struct ArenaBlock {
  std::size_t bytes = 0;
  int first = 0;  // instructions, both inclusive
  int last = 0;
};

struct Arena {
  std::vector<std::size_t> offsets;  // of each block
  std::size_t bytes = 0;
  std::size_t live_bytes = 0;  // the most that lives at once: a lower bound
};

// Greedy by size: the largest block first, each at the lowest offset where it fits (Pisarchyk and
// Lee, "Efficient Memory Management for Deep Neural Net Inference", 2020). Quadratic in the number
// of blocks.
Arena place_blocks(std::span<const ArenaBlock> blocks);

}  // namespace lockstep

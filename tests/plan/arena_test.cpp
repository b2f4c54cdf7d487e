#include "lockstep/plan/arena.h"

#include <gtest/gtest.h>

#include "lockstep/base/random.h"

namespace lockstep {
namespace {

bool live_together(const ArenaBlock& a, const ArenaBlock& b) {
  return a.first <= b.last && b.first <= a.last;
}

TEST(Arena, BlocksThatLiveTogetherNeverOverlap) {
  for (std::uint64_t seed = 0; seed < 200; ++seed) {
    RandomSequence random(seed, 1);
    std::vector<ArenaBlock> blocks(1 + random.below(60));
    for (ArenaBlock& block : blocks) {
      block.first = static_cast<int>(random.below(40));
      block.last = block.first + static_cast<int>(random.below(20));
      block.bytes = random.below(5000);
    }
    const Arena arena = place_blocks(blocks);
    EXPECT_GE(arena.bytes, arena.live_bytes);
    for (std::size_t i = 0; i < blocks.size(); ++i) {
      EXPECT_EQ(arena.offsets[i] % 256, 0u);
      EXPECT_LE(arena.offsets[i] + blocks[i].bytes, arena.bytes);
      for (std::size_t j = 0; j < i; ++j) {
        if (blocks[i].bytes == 0 || blocks[j].bytes == 0) continue;
        if (!live_together(blocks[i], blocks[j])) continue;
        const bool apart = arena.offsets[i] + blocks[i].bytes <= arena.offsets[j] ||
                           arena.offsets[j] + blocks[j].bytes <= arena.offsets[i];
        EXPECT_TRUE(apart) << "seed " << seed << ": blocks " << j << " and " << i;
      }
    }
  }
}

TEST(Arena, MemoryOfTheDeadIsUsedAgain) {
  const std::vector<ArenaBlock> chain = {{1024, 0, 1}, {1024, 1, 2}, {1024, 2, 3}, {1024, 3, 4}};
  EXPECT_EQ(place_blocks(chain).bytes, 2048u);
}

}  // namespace
}  // namespace lockstep

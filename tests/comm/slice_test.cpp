#include <gtest/gtest.h>

#include <algorithm>

#include "lockstep/base/error.h"
#include "lockstep/comm/communicator.h"

namespace lockstep {
namespace {

TEST(Slice, SlicesCoverAllElementsInOrderAndDifferByALineAtMost) {
  for (int size = 1; size <= 9; ++size) {
    for (std::size_t bytes : {1, 2, 4, 8}) {
      for (std::size_t elements : {0, 1, 2, 3, 7, 16, 17, 63, 64, 65, 512, 1000, 65537}) {
        std::size_t expected = 0;
        std::size_t least = elements;
        std::size_t most = 0;
        for (int rank = 0; rank < size; ++rank) {
          const Slice slice = slice_of(elements, bytes, rank, size);
          EXPECT_EQ(slice.begin, expected);
          EXPECT_LE(slice.begin, slice.end);
          expected = slice.end;
          least = std::min(least, slice.end - slice.begin);
          most = std::max(most, slice.end - slice.begin);
        }
        EXPECT_EQ(expected, elements);
        const std::size_t line = std::max<std::size_t>(64 / bytes, 32);
        const bool enough = elements >= line * static_cast<std::size_t>(size);
        // The last line may be short, which can make its rank's slice one line smaller still.
        EXPECT_LE(most - least, enough ? 2 * line - 1 : 1u)
            << elements << " elements of " << bytes << " bytes for " << size;
      }
    }
  }
}

TEST(Slice, EnoughElementsAreCutAtWholeLines) {
  for (int rank = 1; rank < 5; ++rank) {
    EXPECT_EQ(slice_of(1001, 4, rank, 5).begin % 16, 0u);
    EXPECT_EQ(slice_of(1001, 2, rank, 5).begin % 32, 0u);
  }
}

TEST(Slice, ARankOutsideTheGroupIsABug) {
  EXPECT_THROW(slice_of(10, 4, 2, 2), InternalError);
  EXPECT_THROW(slice_of(10, 4, -1, 2), InternalError);
}

}  // namespace
}  // namespace lockstep

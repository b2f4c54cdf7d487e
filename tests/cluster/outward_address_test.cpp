// Where the chief is reached from other hosts; tests/hosts has names that stand for loopback.
#include "lockstep/cluster/outward_address.h"

#include <gtest/gtest.h>

#include <string>

namespace lockstep {
namespace {

TEST(OutwardAddress, LeavesLoopbackAndDigitsAsTheyAreWritten) {
  for (const std::string address : {"localhost:5000", "127.0.0.1:5000", "127.0.1.1:5000",
                                    "[::1]:5000", "10.0.0.1:5000", "[fd00::1]:5000"}) {
    EXPECT_EQ(outward_address(address), address);
  }
}

}  // namespace
}  // namespace lockstep

// Waiting for a host's name that is not known yet.
#include "lockstep/cluster/await_name.h"

#include <gtest/gtest.h>

#include <vector>

namespace lockstep {
namespace {

using namespace std::chrono_literals;

// A name that is known at the n-th try; the pauses take no time.
struct LateName {
  int known_at;
  int tries = 0;
  std::vector<std::chrono::milliseconds> pauses = {};

  NameLookup names() {
    return {.knows =
                [this](const std::string& host) {
                  EXPECT_EQ(host, "job-0.service");
                  return ++tries >= known_at;
                },
            .pause = [this](std::chrono::milliseconds time) { pauses.push_back(time); }};
  }
};

TEST(AwaitName, AKnownNameTakesNoTime) {
  LateName late{.known_at = 1};
  EXPECT_EQ(await_name("job-0.service", 5min, late.names()), 0ms);
  EXPECT_TRUE(late.pauses.empty());
}

TEST(AwaitName, TriesAgainUntilTheNameIsKnown) {
  LateName late{.known_at = 5};
  EXPECT_EQ(await_name("job-0.service", 5min, late.names()), 50ms + 100ms + 200ms + 400ms);
  EXPECT_EQ(late.tries, 5);
}

TEST(AwaitName, TriesEveryTwoSecondsAfterAWhile) {
  LateName late{.known_at = 20};
  await_name("job-0.service", 5min, late.names());
  EXPECT_EQ(late.pauses.back(), 2s);
}

TEST(AwaitName, GivesUpAfterTheTimeout) {
  LateName late{.known_at = 1'000'000};
  EXPECT_EQ(await_name("job-0.service", 5s, late.names()), 5s);
  EXPECT_LT(late.tries, 20);
}

}  // namespace
}  // namespace lockstep

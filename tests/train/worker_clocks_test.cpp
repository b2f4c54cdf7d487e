// Clocks of workers: the difference is found within the stated error, drift included.
#include "lockstep/train/worker_clocks.h"

#include <gtest/gtest.h>

#include <cmath>

namespace lockstep {
namespace {

// Two workers in a world of its own time: the second one's clock is `offset` ahead and runs
// `drift` faster; a message takes from `fast` to `fast + jitter` nanoseconds.
struct ClockPair {
  double offset;
  double drift;
  double fast;
  double jitter;
  double now = 1e9;  // true time
  std::uint64_t random = 7;

  std::int64_t theirs(double time) const {
    return static_cast<std::int64_t>(time * (1 + drift) + offset);
  }
  double latency() {
    random = random * 6364136223846793005ULL + 1442695040888963407ULL;
    return fast + jitter * static_cast<double>(random >> 40) / static_cast<double>(1 << 24);
  }
  // The second worker's side of an exchange; the chief begins at about the same time.
  std::vector<std::string> exchange(std::string_view mine) {
    const double chief_begin = now + latency() / 3;
    const auto told = static_cast<std::int64_t>(chief_begin);
    now = chief_begin + latency();
    return {mine.empty() ? "" : std::to_string(told), std::string(mine)};
  }
};

TEST(WorkerClocks, FindTheDifferenceWithinTheirError) {
  for (const double offset : {0.0, 3e9, -7.5e8}) {
    ClockPair pair{.offset = offset, .drift = 0, .fast = 20'000, .jitter = 100'000};
    WorkerClocks clocks(1, [&] { return pair.theirs(pair.now); });
    clocks.measure([&](std::string_view mine) { return pair.exchange(mine); });
    const double error = clocks.on_chief(pair.theirs(pair.now)) - pair.now;
    EXPECT_LE(std::abs(error), clocks.error_ns()) << offset;
    EXPECT_LT(clocks.error_ns(), 100'000);
  }
}

TEST(WorkerClocks, FollowAClockThatRunsFast) {
  ClockPair pair{.offset = 5e8, .drift = 40e-6, .fast = 10'000, .jitter = 20'000};
  WorkerClocks clocks(1, [&] { return pair.theirs(pair.now); });
  const auto exchange = [&](std::string_view mine) { return pair.exchange(mine); };
  clocks.measure(exchange);
  const double begin = pair.now;
  pair.now += 600e9;  // ten minutes: 24 ms of drift
  clocks.measure(exchange);
  const double middle = (begin + pair.now) / 2;
  const double error = clocks.on_chief(pair.theirs(middle)) - middle;
  EXPECT_LE(std::abs(error), clocks.error_ns());
}

TEST(WorkerClocks, TheChiefsOwnIsTheOne) {
  ClockPair pair{.offset = 0, .drift = 0, .fast = 10'000, .jitter = 20'000};
  WorkerClocks clocks(0, [&] { return pair.theirs(pair.now); });
  clocks.measure([&](std::string_view mine) { return pair.exchange(mine); });
  EXPECT_EQ(clocks.on_chief(123), 123.0);
  EXPECT_EQ(clocks.error_ns(), 0.0);
}

}  // namespace
}  // namespace lockstep

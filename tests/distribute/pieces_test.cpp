#include "lockstep/distribute/pieces.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "lockstep/distribute/balance.h"
#include "lockstep/distribute/buckets.h"

namespace lockstep {
namespace {

void expect_cover(const std::vector<Piece>& pieces, std::int64_t samples) {
  std::int64_t next = 0;
  for (const Piece& piece : pieces) {
    EXPECT_EQ(piece.begin, next);
    EXPECT_GE(piece.size(), 0);
    next = piece.end;
  }
  EXPECT_EQ(next, samples);
}

TEST(Share, PiecesAreThoseOfTfDistribute) {
  EXPECT_EQ(split_evenly(4, 3), (std::vector<Piece>{{0, 2}, {2, 4}, {4, 4}}));
  EXPECT_EQ(split_evenly(7, 2), (std::vector<Piece>{{0, 4}, {4, 7}}));
  EXPECT_EQ(split_evenly(0, 2), (std::vector<Piece>{{0, 0}, {0, 0}}));
  for (std::int64_t samples = 0; samples < 40; ++samples) {
    for (int replicas = 1; replicas < 9; ++replicas) {
      expect_cover(split_evenly(samples, replicas), samples);
    }
  }
}

TEST(Share, FollowsTheSpeeds) {
  const std::vector<double> speeds{3, 1};
  EXPECT_EQ(split_by_speed(64, speeds, 1), (std::vector<Piece>{{0, 48}, {48, 64}}));
  for (std::int64_t samples = 0; samples < 60; ++samples) {
    for (std::int64_t quantum : {1, 2, 5, 100}) {
      const auto pieces = split_by_speed(samples, std::vector<double>{1, 4, 2.5}, quantum);
      expect_cover(pieces, samples);
      if (samples >= 3) {
        for (const Piece& piece : pieces) EXPECT_GT(piece.size(), 0);
      }
    }
  }
}

// Replicas of given speeds, in simulated time.
struct World {
  std::vector<double> speeds;
  double overhead = 0;  // seconds of a step that do not depend on the piece

  std::vector<double> times(const std::vector<Piece>& pieces) const {
    std::vector<double> seconds;
    for (std::size_t r = 0; r < speeds.size(); ++r) {
      seconds.push_back(overhead + static_cast<double>(pieces[r].size()) / speeds[r]);
    }
    return seconds;
  }
  // Samples per second of steps that take as long as their slowest replica, after `warm` steps.
  double throughput(Balancer& balancer, std::int64_t batch, int warm, int steps) const {
    double seconds = 0;
    for (int step = 0; step < warm + steps; ++step) {
      const std::vector<Piece> pieces = balancer.split(batch);
      const std::vector<double> took = times(pieces);
      if (step >= warm) seconds += *std::ranges::max_element(took);
      balancer.observe(pieces, took);
    }
    return static_cast<double>(batch) * steps / seconds;
  }
};

TEST(Balance, ReachesTheSumOfWhatTheReplicasCanDo) {
  for (const std::vector<double>& speeds :
       {std::vector<double>{100, 50}, {100, 33, 80}, {10, 100}, {70, 71}}) {
    double sum = 0;
    for (double speed : speeds) sum += speed;
    Balancer balancer(static_cast<int>(speeds.size()));
    EXPECT_GT((World{.speeds = speeds}).throughput(balancer, 128, 40, 40), 0.9 * sum);
  }
}

TEST(Balance, GivesLessToAReplicaWhileItIsSlowAndMoreAgainAfterwards) {
  Balancer balancer(2);
  World world{.speeds = {100, 100}, .overhead = 0.01};
  world.throughput(balancer, 64, 0, 40);
  EXPECT_EQ(balancer.split(64), split_evenly(64, 2));
  world.speeds[1] = 40;
  world.throughput(balancer, 64, 0, 60);
  EXPECT_LT(balancer.split(64)[1].size(), 22);
  world.speeds[1] = 100;
  world.throughput(balancer, 64, 0, 60);
  EXPECT_GE(balancer.split(64)[1].size(), 30);
}

TEST(Balance, NoiseDoesNotMoveThePieces) {
  Balancer balancer(2);
  for (int step = 0; step < 100; ++step) {
    const std::vector<Piece> pieces = balancer.split(64);
    EXPECT_EQ(pieces, split_evenly(64, 2));
    const double noise = step % 2 == 0 ? 0.005 : -0.005;
    balancer.observe(pieces, std::vector<double>{1 + noise, 1 - noise});
  }
}

TEST(Balance, PiecesThatMustBePlannedWaitUntilTheyPay) {
  const World world{.speeds = {100, 50}};
  Balancer balancer(2);
  const std::vector<Piece> even = balancer.split(96);
  const double step = world.times(even)[1];
  balancer.planned(even, 4 * step);  // each step would save a third of one
  int steps = 0;
  while (balancer.split(96) == even && steps < 100) {
    balancer.observe(even, world.times(even));
    ++steps;
  }
  EXPECT_EQ(steps, 16);
  // It goes back to a split that is already planned at once, if it is worth it.
  const std::vector<Piece> uneven = balancer.split(96);
  const World alike{.speeds = {100, 100}};
  steps = 0;
  while (balancer.split(96) == uneven && steps < 100) {
    balancer.observe(uneven, alike.times(uneven));
    ++steps;
  }
  EXPECT_EQ(steps, 8);
}

TEST(Balance, PiecesFollowSpeedsToAFewPercent) {
  for (const double slow : {0.5, 0.4, 0.7, 0.23}) {
    Balancer balancer(2);
    const World world{.speeds = {100, 100 * slow}};
    EXPECT_GT(world.throughput(balancer, 128, 40, 40), 0.97 * (100 + 100 * slow)) << slow;
  }
}

TEST(Balance, ASplitThatIsPlannedAndNearlyAsGoodIsTakenAtOnce) {
  const World world{.speeds = {100, 50}};
  Balancer balancer(2);
  const std::vector<Piece> near = {{0, 65}, {65, 96}};
  const std::vector<Piece> even = balancer.split(96);
  balancer.planned(near, 1e6);
  balancer.planned(even, 1e6);
  for (int step = 0; step < 8; ++step) balancer.observe(even, world.times(even));
  EXPECT_EQ(balancer.split(96), near);
  for (int step = 0; step < 80; ++step) balancer.observe(near, world.times(near));
  EXPECT_EQ(balancer.split(96), near);
}

TEST(Balance, ASplitThatLeavesAReplicaOutIsNotTaken) {
  const World world{.speeds = {100, 100, 100, 30}};
  Balancer balancer(4);
  balancer.planned(split_evenly(5, 4), 1e6);  // 2, 2, 1, 0
  const std::vector<Piece> some = in_a_row(std::vector<std::int64_t>{2, 1, 1, 1});
  balancer.planned(some, 1e6);
  for (int step = 0; step < 80; ++step) {
    const std::vector<Piece> pieces = step < 8 ? some : balancer.split(5);
    if (step >= 8 && pieces.back().size() == 0) break;
    balancer.observe(pieces, world.times(pieces));
  }
  expect_cover(balancer.split(64), 64);
}

TEST(Balance, ASplitThatIsTakenIsTakenAsItWasPlanned) {
  const World world{.speeds = {100, 100, 50}};
  Balancer balancer(3);
  const std::vector<Piece> planned = in_a_row(std::vector<std::int64_t>{401, 398, 201});
  const std::vector<Piece> even = balancer.split(1000);
  balancer.planned(planned, 1e6);
  balancer.planned(even, 1e6);
  for (int step = 0; step < 8; ++step) balancer.observe(even, world.times(even));
  EXPECT_EQ(balancer.split(1000), planned);
  expect_cover(balancer.split(999), 999);
}

TEST(Buckets, TheFirstIsSmallAndLatencyIsASmallPartOfTheOthers) {
  const BucketSizes sizes = choose_bucket_sizes({}, {.latency_s = 1e-5, .bytes_per_s = 1e10});
  EXPECT_EQ(sizes.first_bytes, 100'000u);
  EXPECT_EQ(sizes.bytes, 2'000'000u);
  const BucketSizes asked =
      choose_bucket_sizes({.first_bytes = 7, .bytes = 9}, {.latency_s = 1e-5, .bytes_per_s = 1e10});
  EXPECT_EQ(asked.first_bytes, 7u);
  EXPECT_EQ(asked.bytes, 9u);
}

TEST(Buckets, AreClosedWhenTheyAreFull) {
  const std::vector<std::size_t> bytes{4, 4, 10, 30, 2, 1};
  EXPECT_EQ(cut_into_buckets(bytes, {.first_bytes = 8, .bytes = 20}),
            (std::vector<std::size_t>{2, 4, 6}));
  EXPECT_EQ(cut_into_buckets(bytes, {.first_bytes = 1000, .bytes = 1}),
            (std::vector<std::size_t>{6}));
  EXPECT_TRUE(cut_into_buckets({}, {.first_bytes = 8, .bytes = 20}).empty());
}

}  // namespace
}  // namespace lockstep

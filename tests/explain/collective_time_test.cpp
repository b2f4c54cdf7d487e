#include "lockstep/explain/collective_time.h"

#include <gtest/gtest.h>

#include "lockstep/base/error.h"

namespace lockstep {
namespace {

constexpr double kAlpha = 1e-5;
constexpr double kRate = 1e9;
constexpr double kBytes = 1e8;
const Link kLink{.name = "made", .latency_s = kAlpha, .bytes_per_s = kRate, .shared_by_host = true};

TEST(CollectiveTime, RingFollowsItsClosedForm) {
  for (const int n : {2, 3, 8, 256}) {
    const double moved = (n - 1.0) / n * kBytes;
    const double gamma = 1e-10;
    EXPECT_DOUBLE_EQ(ring_seconds(CollectiveOp::AllReduce, n, kBytes, kLink, gamma),
                     2 * ((n - 1) * kAlpha + moved / kRate) + moved * gamma);
    EXPECT_DOUBLE_EQ(ring_seconds(CollectiveOp::AllGather, n, kBytes, kLink, gamma),
                     (n - 1) * kAlpha + moved / kRate);
  }
}

TEST(CollectiveTime, TreeTakesTwiceTheLogarithmInLatencies) {
  EXPECT_DOUBLE_EQ(tree_seconds(CollectiveOp::AllReduce, 1024, 0, kLink), 20 * kAlpha);
  EXPECT_DOUBLE_EQ(tree_seconds(CollectiveOp::AllReduce, 1000, 0, kLink), 20 * kAlpha);
  EXPECT_DOUBLE_EQ(tree_seconds(CollectiveOp::AllReduce, 8, kBytes, kLink),
                   6 * kAlpha + 2 * kBytes / kRate);
}

TEST(CollectiveTime, DirectTakesOneLatencyPerPhase) {
  EXPECT_DOUBLE_EQ(direct_seconds(CollectiveOp::AllReduce, 4, kBytes, kLink),
                   2 * (kAlpha + 0.75 * kBytes / kRate));
  EXPECT_DOUBLE_EQ(direct_seconds(CollectiveOp::AllReduce, 4, 1000, kLink),
                   kAlpha + 3 * 1000 / kRate);
}

TEST(CollectiveTime, AReduceScatterAndAnAllGatherAreAnAllReduce) {
  for (const auto seconds : {ring_seconds, tree_seconds, direct_seconds}) {
    EXPECT_NEAR(seconds(CollectiveOp::ReduceScatter, 16, kBytes, kLink, 1e-10) +
                    seconds(CollectiveOp::AllGather, 16, kBytes, kLink, 1e-10),
                seconds(CollectiveOp::AllReduce, 16, kBytes, kLink, 1e-10), 1e-12);
  }
}

TEST(CollectiveTime, OneRankTakesNone) {
  for (const auto algorithm :
       {CollectiveAlgorithm::Ring, CollectiveAlgorithm::Tree, CollectiveAlgorithm::Hierarchical,
        CollectiveAlgorithm::Direct, CollectiveAlgorithm::Best}) {
    EXPECT_EQ(collective_seconds(algorithm, CollectiveOp::AllReduce, kBytes,
                                 {.ranks = 1, .within = kLink, .between = kLink}),
              0);
  }
}

TEST(CollectiveTime, HierarchicalSendsEachByteOfAHostOnce) {
  Link fast = kLink;
  fast.bytes_per_s = 1e12;
  fast.latency_s = 0;
  Link slow = kLink;
  slow.latency_s = 0;
  const double seconds =
      collective_seconds(CollectiveAlgorithm::Hierarchical, CollectiveOp::AllReduce, kBytes,
                         {.ranks = 32, .per_host = 8, .within = fast, .between = slow});
  // 4 hosts: each card carries 2 × 3/4 of the data; within a host 2 × 7/8.
  EXPECT_NEAR(seconds, 1.5 * kBytes / kRate + 1.75 * kBytes / 1e12, 1e-9);
}

TEST(CollectiveTime, TheBestIsNoSlowerThanAnyAndItsLatencyIsLessThanItsTime) {
  for (const double bytes : {1e3, 1e5, 1e7, 1e9}) {
    for (const int ranks : {2, 16, 4096}) {
      const RankPlaces places{.ranks = ranks, .per_host = 8, .within = kLink, .between = kLink};
      const auto seconds = [&](CollectiveAlgorithm algorithm) {
        return collective_seconds(algorithm, CollectiveOp::AllReduce, bytes, places);
      };
      const double best = seconds(CollectiveAlgorithm::Best);
      EXPECT_LE(best, seconds(CollectiveAlgorithm::Ring));
      EXPECT_LE(best, seconds(CollectiveAlgorithm::Tree));
      EXPECT_LE(best, seconds(CollectiveAlgorithm::Hierarchical));
      const double latency =
          collective_latency(CollectiveAlgorithm::Best, CollectiveOp::AllReduce, bytes, places);
      EXPECT_GT(latency, 0);
      EXPECT_LT(latency, best);
    }
  }
}

TEST(CollectiveTime, UnknownCollectivesAreNamed) {
  EXPECT_EQ(collective_op("reduce_scatter"), CollectiveOp::ReduceScatter);
  EXPECT_THROW(collective_op("all_to_all"), UsageError);
}

}  // namespace
}  // namespace lockstep

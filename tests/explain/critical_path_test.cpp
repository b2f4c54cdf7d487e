// The critical path goes where the plan's dependencies lead: to the rank that came last.
#include "lockstep/explain/critical_path.h"

#include <gtest/gtest.h>

namespace lockstep {
namespace {

// forward, backward, a collective beside a second backward, and the update that needs it.
std::vector<PlannedInstruction> plan() {
  return {{.name = "forward"},
          {.name = "backward 1"},
          {.name = "all_reduce"},
          {.name = "backward 2"},
          {.name = "update", .after = {2}}};
}

// A rank that begins its collective at `started`; it ends at 12 on both.
void add_rank(ExampleStep& step, int worker, double forward, double backward, double second) {
  const double begun = forward + backward;
  const std::string name = "cpu:" + std::to_string(worker);
  ProfiledTrack own{.name = name, .worker = worker};
  own.spans = {{"forward", SpanKind::Compute, 0, forward},
               {"backward 1", SpanKind::Compute, forward, begun},
               {"backward 2", SpanKind::Compute, begun, begun + second},
               {"all_reduce", SpanKind::Wait, begun + second, 11},
               {"all_reduce", SpanKind::Communication, 11, 12},
               {"update", SpanKind::Compute, 12, 13 + 0.1 * worker}};
  ProfiledTrack beside{.name = name + " communication", .worker = worker};
  beside.spans = {{"all_reduce", SpanKind::Communication, begun, 12}};
  step.tracks.push_back(own);
  step.tracks.push_back(beside);
}

std::vector<std::string> names(const ExampleStep& step, const std::vector<CriticalSpan>& path) {
  std::vector<std::string> all;
  for (const CriticalSpan& each : path) {
    const ProfiledTrack& track = step.tracks[each.track];
    all.push_back(track.name + ": " + track.spans[each.span].name);
  }
  return all;
}

TEST(CriticalPath, GoesThroughTheRankThatCameLastToACollective) {
  ExampleStep step;
  add_rank(step, 0, 6, 4, 1);  // starts the collective at 10
  add_rank(step, 1, 2, 2, 1);  // starts it at 4, and ends last
  const std::vector<std::string> expected = {"cpu:0: forward", "cpu:0: backward 1",
                                             "cpu:1 communication: all_reduce", "cpu:1: all_reduce",
                                             "cpu:1: update"};
  EXPECT_EQ(names(step, critical_path(step, plan(), true)), expected);
}

TEST(CriticalPath, WithinAHostGoesOnWithWhatTheLastRankDoes) {
  ExampleStep step;
  add_rank(step, 0, 6, 4, 1);
  add_rank(step, 1, 2, 2, 1);
  // The last rank adds up until 11; then rank 1, which waited for it, does its part.
  step.tracks[0].spans[3] = {"all_reduce", SpanKind::Communication, 11, 11.5};
  const std::vector<std::string> expected = {"cpu:0: forward",    "cpu:0: backward 1",
                                             "cpu:0: backward 2", "cpu:1: all_reduce",
                                             "cpu:1: all_reduce", "cpu:1: update"};
  EXPECT_EQ(names(step, critical_path(step, plan(), false)), expected);
}

TEST(CriticalPath, DoesNotLeaveARankThatNobodyWaitsFor) {
  ExampleStep step;
  add_rank(step, 0, 2, 2, 1);
  step.tracks[0].spans = {{"forward", SpanKind::Compute, 0, 2},
                          {"backward 1", SpanKind::Compute, 2, 4},
                          {"backward 2", SpanKind::Compute, 4, 12.5},
                          {"update", SpanKind::Compute, 12.5, 13}};
  const std::vector<std::string> expected = {"cpu:0: forward", "cpu:0: backward 1",
                                             "cpu:0: backward 2", "cpu:0: update"};
  EXPECT_EQ(names(step, critical_path(step, plan(), true)), expected);
}

// Two collectives of one name on a slow link: the second waits for the first.
TEST(CriticalPath, GoesThroughCollectivesThatQueueOnALink) {
  const std::vector<PlannedInstruction> queued = {{.name = "forward"},
                                                  {.name = "backward 1"},
                                                  {.name = "all_reduce"},
                                                  {.name = "backward 2"},
                                                  {.name = "all_reduce"},
                                                  {.name = "update 1", .after = {2}},
                                                  {.name = "update 2", .after = {4}}};
  ExampleStep step;
  for (int worker = 0; worker < 2; ++worker) {
    const std::string name = "cpu:" + std::to_string(worker);
    ProfiledTrack own{.name = name, .worker = worker};
    own.spans = {{"forward", SpanKind::Compute, 0, 2},
                 {"backward 1", SpanKind::Compute, 2, 3},
                 {"backward 2", SpanKind::Compute, 3, 4},
                 {"all_reduce", SpanKind::Communication, 4, 10},
                 {"update 1", SpanKind::Compute, 10, 10.5},
                 {"all_reduce", SpanKind::Communication, 10.5, 12},
                 {"update 2", SpanKind::Compute, 12, 13 + 0.1 * worker}};
    ProfiledTrack beside{.name = name + " communication", .worker = worker};
    beside.spans = {{"all_reduce", SpanKind::Communication, 3, 10},
                    {"all_reduce", SpanKind::Communication, 4, 12}};
    step.tracks.push_back(own);
    step.tracks.push_back(beside);
  }
  const std::vector<CriticalSpan> path = critical_path(step, queued, true);
  const std::vector<std::string> expected = {"cpu:1: forward",
                                             "cpu:1: backward 1",
                                             "cpu:1 communication: all_reduce",
                                             "cpu:1 communication: all_reduce",
                                             "cpu:1: all_reduce",
                                             "cpu:1: update 2"};
  EXPECT_EQ(names(step, path), expected);
  const std::vector<CriticalShare> shares = critical_shares(step, path);
  ASSERT_FALSE(shares.empty());
  EXPECT_EQ(shares.front().kind, SpanKind::Communication);
  EXPECT_NEAR(shares.front().seconds, 9, 1e-9);
}

TEST(CriticalPath, IsAsLongAsTheStep) {
  ExampleStep step;
  add_rank(step, 0, 6, 4, 1);
  add_rank(step, 1, 2, 2, 1);
  double seconds = 0;
  for (const CriticalShare& share : critical_shares(step, critical_path(step, plan(), true))) {
    seconds += share.seconds;
  }
  EXPECT_NEAR(seconds, 13.1, 1e-9);
}

TEST(CriticalPath, OfAStepWithoutReplicasIsEmpty) {
  EXPECT_TRUE(critical_path({}, plan(), true).empty());
  ExampleStep step;
  step.tracks.push_back({.name = "host"});
  step.tracks.back().spans = {{"callbacks", SpanKind::Host, 0, 1}};
  EXPECT_TRUE(critical_path(step, plan(), true).empty());
}

}  // namespace
}  // namespace lockstep

// Forty faults at random moments. The program `faults --count 1000 --seed S` tries more.
#include "faults/faults.h"

#include <gtest/gtest.h>

#include "lockstep/cluster/control/control_server.h"

namespace lockstep::faults {
namespace {

// Ten at a time, which share the undisturbed runs.
class AtRandomMoments : public ::testing::TestWithParam<int> {};

TEST_P(AtRandomMoments, FaultsHaveTheOutcomeThatTheTableSays) {
  if (control_version().empty()) GTEST_SKIP() << "this build has no gRPC";
  Jobs jobs;
  for (int i = 0; i < 10; ++i) {
    const auto seed = static_cast<std::uint64_t>(1000 + 10 * GetParam() + i);
    const Case what = case_of(seed, has_etcd());
    EXPECT_EQ(jobs.run(what).wrong, "") << "seed " << seed << ", " << what.text();
  }
}

class ByStore : public ::testing::TestWithParam<bool> {
 protected:
  void SetUp() override {
    if (control_version().empty()) GTEST_SKIP() << "this build has no gRPC";
    if (GetParam() && !has_etcd()) GTEST_SKIP() << "etcd is not installed (Debian: etcd-server)";
  }
  void expect_as_the_table_says(Case what) {
    what.etcd = GetParam();
    EXPECT_EQ(jobs_.run(what).wrong, "") << what.text();
  }

  Jobs jobs_;
};

// It takes part from the next copy of the state on, as if three workers had begun there.
TEST_P(ByStore, AWorkerThatComesLaterTakesPartFromTheNextCopyOn) {
  EXPECT_EQ(jobs_.run_with_newcomer(GetParam()).wrong, "");
}

TEST_P(ByStore, WorkersWithFilesOfTheirOwnGoOn) {
  expect_as_the_table_says({.policy = "restart", .worker = 1, .step = 11, .program = "files"});
  expect_as_the_table_says({.policy = "shrink", .worker = 0, .step = 14, .program = "files"});
}

TEST_P(ByStore, WorkersWithPiecesBySpeedGoOn) {
  expect_as_the_table_says({.policy = "restart", .worker = 2, .step = 17, .program = "balance"});
  expect_as_the_table_says({.policy = "shrink", .worker = 1, .step = 6, .program = "balance"});
}

TEST_P(ByStore, WorkersWithTwoReplicasGoOn) {
  expect_as_the_table_says(
      {.policy = "restart", .workers = 2, .worker = 0, .step = 13, .program = "replicas"});
  expect_as_the_table_says({.policy = "shrink", .worker = 2, .step = 9, .program = "replicas"});
}

TEST_P(ByStore, WorkersWithSlicesOfParametersAndSlotsGoOn) {
  expect_as_the_table_says({.policy = "restart", .worker = 1, .step = 11, .program = "sharded"});
  expect_as_the_table_says({.policy = "shrink", .worker = 0, .step = 14, .program = "sharded"});
}

// A worker that is started again skips the call that the others have done.
TEST_P(ByStore, TheSecondCallOfFitGoesOnLikeTheFirst) {
  for (const int step : {1, 8}) {
    expect_as_the_table_says({.policy = "restart", .worker = 1, .step = step, .program = "fits"});
  }
  expect_as_the_table_says({.policy = "restart", .worker = 0, .step = 3, .program = "fits"});
  expect_as_the_table_says({.policy = "shrink", .worker = 2, .step = 5, .program = "fits"});
}

// They do not go on: all others end, and name the worker.
TEST_P(ByStore, EvaluateAndPredictEndWithTheFailureThatTheyName) {
  expect_as_the_table_says({.policy = "restart", .worker = 1, .step = 3, .program = "evaluate"});
  expect_as_the_table_says({.policy = "shrink", .worker = 2, .step = 2, .program = "predict"});
}

INSTANTIATE_TEST_SUITE_P(Faults, ByStore, ::testing::Bool(),
                         [](const auto& tested) { return tested.param ? "Etcd" : "Launcher"; });

INSTANTIATE_TEST_SUITE_P(Faults, AtRandomMoments, ::testing::Range(0, 4));

}  // namespace
}  // namespace lockstep::faults

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

// It takes part from the next copy of the state on, as if three workers had begun there.
TEST(Joining, AWorkerThatComesLaterTakesPartFromTheNextCopyOn) {
  if (control_version().empty()) GTEST_SKIP() << "this build has no gRPC";
  Jobs jobs;
  EXPECT_EQ(jobs.run_with_newcomer().wrong, "");
}

INSTANTIATE_TEST_SUITE_P(Faults, AtRandomMoments, ::testing::Range(0, 4));

}  // namespace
}  // namespace lockstep::faults

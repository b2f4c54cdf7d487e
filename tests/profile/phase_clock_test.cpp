#include "lockstep/profile/phase_clock.h"

#include <gtest/gtest.h>

namespace lockstep {
namespace {

TEST(PhaseClock, CountsSpansInsidePhasesOnly) {
  Track track("replica 0", 8);
  const Track other("another", 8);
  PhaseClock clock({&track});
  track.add("step", SpanKind::Compute, 0, 5);
  {
    const PhaseScope validation(clock, Phase::Validation);
    track.add("step", SpanKind::Compute, 5, 12);
    EXPECT_EQ(clock.ns(track, SpanKind::Compute), 7);  // including the open phase
    track.add("next batch", SpanKind::Input, 12, 13);
  }
  track.add("step", SpanKind::Compute, 20, 30);
  EXPECT_EQ(clock.ns(track, SpanKind::Compute), 7);
  EXPECT_EQ(clock.ns(track, SpanKind::Input), 1);
  EXPECT_EQ(clock.ns(other, SpanKind::Compute), 0);
}

TEST(PhaseClock, APhaseInsideAnotherTakesItsTimeFromIt) {
  PhaseClock clock({});
  const auto spin = [] {
    for (const std::int64_t begin = now_ns(); now_ns() - begin < 200'000;) {
    }
  };
  std::int64_t outer_before = 0;
  std::int64_t outer_after = 0;
  {
    const PhaseScope validation(clock, Phase::Validation);
    outer_before = clock.ns(Phase::Validation);
    {
      const PhaseScope start(clock, Phase::Start);
      outer_before = clock.ns(Phase::Validation);
      spin();
      outer_after = clock.ns(Phase::Validation);
    }
    spin();
  }
  EXPECT_EQ(outer_before, outer_after);
  EXPECT_GE(clock.ns(Phase::Start), 200'000);
  EXPECT_GE(clock.ns(Phase::Validation), 200'000);
  EXPECT_EQ(clock.ns(Phase::Checkpoint), 0);
  EXPECT_EQ(clock.ns(), clock.ns(Phase::Start) + clock.ns(Phase::Validation));
}

}  // namespace
}  // namespace lockstep

#include "lockstep/exec/run_clock.h"

#include <gtest/gtest.h>

namespace lockstep {
namespace {

// An event of a device whose clock shows this.
class At final : public Event {
 public:
  explicit At(double ms) : ms_(ms) {}
  void record(Stream&) override {}
  bool reached() override { return true; }
  void wait() override {}
  double ms_since(const Event& earlier) override {
    return ms_ - static_cast<const At&>(earlier).ms_;
  }

 private:
  double ms_;
};

constexpr std::int64_t kMs = 1'000'000;

std::int64_t ms_of(const Track& track, SpanKind kind) {
  return track.total_ns(kind) / kMs;
}

TEST(RunClock, WhatTheHostDoesWhileTheDeviceIsAtWorkCostsNoTime) {
  Recorder recorder;
  Track& track = recorder.track("replica 0");
  RunClock clock({.recorder = &recorder, .track = "replica 0"});
  // The device, whose clock is 1000 ms ahead, is busy from 10 to 30 and, without a gap, to 50.
  At copied_first(1010), first(1030), copied_second(1025), second(1050);
  track.add("next batch", SpanKind::Input, 0, 8 * kMs);
  track.add("next batch", SpanKind::Input, 12 * kMs, 22 * kMs);
  clock.ended({.issued_ns = 9 * kMs,
               .copied = &copied_first,
               .done = &first,
               .seen_ns = 30 * kMs,
               .awaited = true});
  EXPECT_EQ(ms_of(track, SpanKind::Compute), 20);
  EXPECT_EQ(ms_of(track, SpanKind::Input), 8 + 1);  // the first batch, and its copy to the device
  track.add("next batch", SpanKind::Input, 31 * kMs, 45 * kMs);
  clock.ended({.issued_ns = 24 * kMs,
               .copied = &copied_second,
               .done = &second,
               .done_before = &first,
               .seen_ns = 55 * kMs,
               .awaited = false});
  EXPECT_EQ(ms_of(track, SpanKind::Compute), 40);
  EXPECT_EQ(ms_of(track, SpanKind::Input), 9);
}

// Two plans that take turns, as the forms of a step that accumulates do: while one runs, the other
// was issued already, and waits.
TEST(RunClock, PlansOfARankThatTakeTurnsShareItsTime) {
  Recorder recorder;
  Track& track = recorder.track("replica 0");
  std::int64_t last_end = 0;
  RunClock add({.recorder = &recorder, .track = "replica 0"}, &last_end);
  RunClock last({.recorder = &recorder, .track = "replica 0"}, &last_end);
  // Both are issued at once; the device runs one from 10 to 30 and the other from 30 to 50.
  At copied_first(1010), first(1030), copied_second(1012), second(1050);
  add.ended({.issued_ns = 10 * kMs,
             .copied = &copied_first,
             .done = &first,
             .seen_ns = 30 * kMs,
             .awaited = true});
  last.ended({.issued_ns = 11 * kMs,
              .copied = &copied_second,
              .done = &second,
              .seen_ns = 50 * kMs,
              .awaited = true});
  EXPECT_EQ(ms_of(track, SpanKind::Compute), 40);
}

TEST(RunClock, WhatTheDeviceStandsStillForIsInput) {
  Recorder recorder;
  Track& track = recorder.track("replica 0");
  Track& host = recorder.track("host");
  RunClock clock({.recorder = &recorder, .track = "replica 0", .host_track = "host"});
  At copied_first(1), first(11), copied_second(32), second(42);
  // The next batch takes from 5 to 30, and its copy to the device then takes 1.
  host.add("next batch", SpanKind::Input, 5 * kMs, 30 * kMs);
  clock.ended({.issued_ns = 1 * kMs, .copied = &copied_first, .done = &first, .seen_ns = 32 * kMs});
  track.add("wait for the others", SpanKind::Wait, 34 * kMs, 36 * kMs);
  clock.ended({.issued_ns = 31 * kMs,
               .copied = &copied_second,
               .done = &second,
               .done_before = &first,
               .seen_ns = 60 * kMs});
  EXPECT_EQ(ms_of(track, SpanKind::Compute), 10 + 10);
  EXPECT_EQ(ms_of(track, SpanKind::Input) + ms_of(host, SpanKind::Input), 30 - 11 + 1);
  EXPECT_EQ(ms_of(track, SpanKind::Wait), 0);
}

// A stream whose device's clock reads from a list.
class Stamping final : public Stream {
 public:
  explicit Stamping(std::vector<std::int64_t> ms) : ms_(std::move(ms)) {}
  void synchronize() override {}
  void wait_for(Stream&) override {}
  void wait_for(Event&) override {}
  void copy(std::byte*, const std::byte*, std::size_t) override {}
  void stamp(std::int64_t* to) override { *to = ms_.at(made_++) * kMs; }
  std::unique_ptr<Recording> record(const std::function<void()>&) override { return nullptr; }

 private:
  std::vector<std::int64_t> ms_;
  std::size_t made_ = 0;
};

TEST(RunClock, SumsCostWhatTheComputeStreamStandsStillForThem) {
  // Each from, to: a collective on the compute stream, one that overlaps it, one that continues for
  // 6 ms after the compute stream began to wait, and that wait, which includes 2 ms of an update.
  Stamping stream({3, 4, 5, 9, 12, 26, 20, 28, 30});
  Recorder recorder;
  Track& track = recorder.track("replica 0");
  CommTimer sums(host(), 4, recorder.track("replica 0 communication"));
  const auto nothing = [] {};
  sums.begin(1);
  sums.collective(stream, true, "own", nothing);
  sums.collective(stream, false, "beside", nothing);
  sums.collective(stream, false, "last", nothing);
  sums.wait(stream, nothing);
  sums.end(stream);
  RunClock clock({.recorder = &recorder, .track = "replica 0"});
  At copied(1), done(30);
  clock.ended({.issued_ns = 101 * kMs,
               .copied = &copied,
               .done = &done,
               .seen_ns = 130 * kMs,
               .awaited = true,
               .collectives = &sums,
               .turn = 1});
  EXPECT_EQ(ms_of(track, SpanKind::Communication), 1 + 6);
  EXPECT_EQ(ms_of(track, SpanKind::Compute), 29 - 7);
  const std::vector<Span> spans = recorder.track("replica 0 communication").spans();
  ASSERT_EQ(spans.size(), 3U);
  EXPECT_EQ(spans[2].begin_ns, 112 * kMs);
  EXPECT_EQ(spans[2].end_ns, 126 * kMs);
}

}  // namespace
}  // namespace lockstep

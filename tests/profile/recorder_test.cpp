#include "lockstep/profile/recorder.h"

#include <gtest/gtest.h>

#include <thread>

#include "lockstep/base/error.h"

namespace lockstep {
namespace {

TEST(Track, KeepsTheLastSpansOldestFirst) {
  Track track("replica 0", 4);
  const char* names[] = {"a", "b", "c", "d", "e", "f"};
  for (int i = 0; i < 6; ++i) track.add(names[i], SpanKind::Compute, i, i + 1);
  const std::vector<Span> spans = track.spans();
  ASSERT_EQ(spans.size(), 4u);
  EXPECT_STREQ(spans.front().name, "c");
  EXPECT_STREQ(spans.back().name, "f");
  EXPECT_EQ(spans.back().begin_ns, 5);
}

TEST(Track, TotalsCountSpansThatWereOverwritten) {
  Track track("replica 0", 2);
  for (int i = 0; i < 10; ++i) track.add("op", SpanKind::Compute, 0, 7);
  track.add("batch", SpanKind::Input, 100, 103);
  EXPECT_EQ(track.total_ns(SpanKind::Compute), 70);
  EXPECT_EQ(track.total_ns(SpanKind::Input), 3);
  EXPECT_EQ(track.total_ns(SpanKind::Wait), 0);
}

TEST(Track, SumsEachKindBetweenTwoTimes) {
  Track track("replica 0", 16);
  track.add("next batch", SpanKind::Input, 0, 10);
  track.add("op", SpanKind::Compute, 10, 14);
  track.add("next batch", SpanKind::Input, 14, 30);
  track.add("wake", SpanKind::Host, 1, 2);  // of a job, added when it has ended
  const auto within = track.between(5, 20);
  EXPECT_EQ(within[static_cast<std::size_t>(SpanKind::Input)], 5 + 6);
  EXPECT_EQ(within[static_cast<std::size_t>(SpanKind::Compute)], 4);
  EXPECT_EQ(within[static_cast<std::size_t>(SpanKind::Host)], 0);
  track.count(SpanKind::Input, -11);
  EXPECT_EQ(track.total_ns(SpanKind::Input), 26 - 11);
  EXPECT_EQ(track.spans().size(), 4u);
}

TEST(Track, HasAtLeastTheRequestedCapacity) {
  Track track("replica 0", 5);
  for (int i = 0; i < 5; ++i) track.add("op", SpanKind::Host, i, i);
  EXPECT_EQ(track.spans().size(), 5u);
}

TEST(Recorder, CreatesATrackOnFirstUseOnly) {
  Recorder recorder;
  Track& track = recorder.track("replica 0");
  recorder.track("replica 1");
  EXPECT_EQ(&recorder.track("replica 0"), &track);
  EXPECT_EQ(recorder.tracks().size(), 2u);
  EXPECT_THROW(Recorder(0), UsageError);
}

TEST(Recorder, InternedNamesOutliveTheirSource) {
  Recorder recorder;
  const char* name = nullptr;
  {
    const std::string source = "conv_" + std::to_string(1);
    name = recorder.intern(source);
  }
  EXPECT_STREQ(name, "conv_1");
  EXPECT_EQ(recorder.intern("conv_1"), name);
}

TEST(Recorder, ThreadsWriteSeparateTracks) {
  Recorder recorder(1 << 10);
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&recorder, t] {
      Track& track = recorder.track(std::to_string(t));
      for (int i = 0; i < 1000; ++i) track.add("op", SpanKind::Compute, 0, t + 1);
    });
  }
  for (std::thread& thread : threads) thread.join();
  ASSERT_EQ(recorder.tracks().size(), 4u);
  for (const Track* track : recorder.tracks()) {
    EXPECT_EQ(track->total_ns(SpanKind::Compute), 1000 * (std::stoi(track->name()) + 1));
  }
}

TEST(ScopedSpan, CoversItsScope) {
  Recorder recorder;
  Track& track = recorder.track("replica 0");
  const std::int64_t before = now_ns();
  { ScopedSpan span(track, "input", SpanKind::Input); }
  const std::int64_t after = now_ns();
  const Span span = track.spans().at(0);
  EXPECT_STREQ(span.name, "input");
  EXPECT_LE(before, span.begin_ns);
  EXPECT_LE(span.begin_ns, span.end_ns);
  EXPECT_LE(span.end_ns, after);
}

}  // namespace
}  // namespace lockstep

// Spans, always on: every thread that works on a training step records what it did in its own
// track, a ring buffer of the latest spans. Nothing else happens until a track is read.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep {

enum class SpanKind : std::uint8_t { Compute, Communication, Input, Copy, Wait, Host };
std::string_view name_of(SpanKind kind);

// Nanoseconds of a monotonic clock; comparable between threads of one process.
std::int64_t now_ns();

// A named, timed interval on a track. `name` must outlive the recorder (Recorder::intern).
struct Span {
  const char* name = "";
  SpanKind kind = SpanKind::Host;
  std::int64_t begin_ns = 0;
  std::int64_t end_ns = 0;
};

// One thread writes a track; others may read it while that thread is idle (between steps).
class Track {
 public:
  Track(std::string name, std::size_t capacity);

  void add(const char* name, SpanKind kind, std::int64_t begin_ns, std::int64_t end_ns) {
    Span& slot = ring_[static_cast<std::size_t>(written_ & mask_)];
    slot = {name, kind, begin_ns, end_ns};
    ++written_;
    total_ns_[static_cast<std::size_t>(kind)] += end_ns - begin_ns;
  }

  // Adds time of a kind without a span: what a device did alongside this thread. Negative: what
  // this thread did meanwhile, which therefore cost no time.
  void count(SpanKind kind, std::int64_t ns) { total_ns_[static_cast<std::size_t>(kind)] += ns; }

  const std::string& name() const { return name_; }
  // How much time of each kind falls between two recent points in time, according to the spans
  // still in the ring.
  std::array<std::int64_t, 6> between(std::int64_t begin_ns, std::int64_t end_ns) const;
  // The spans still in the ring, oldest first.
  std::vector<Span> spans() const;
  // Time of a kind since the track began, including spans already overwritten and what was counted.
  std::int64_t total_ns(SpanKind kind) const { return total_ns_[static_cast<std::size_t>(kind)]; }

 private:
  std::string name_;
  std::vector<Span> ring_;
  std::uint64_t mask_;
  std::uint64_t written_ = 0;
  std::int64_t total_ns_[6] = {};
};

// The tracks of one run. Tracks live as long as the recorder.
class Recorder {
 public:
  explicit Recorder(std::size_t spans_per_track = 1 << 14);

  Track& track(std::string_view name);        // created on first use
  const char* intern(std::string_view name);  // a copy that lives as long as the recorder
  std::vector<const Track*> tracks() const;

 private:
  mutable std::mutex mutex_;
  std::size_t capacity_;
  std::deque<Track> tracks_;
  std::deque<std::string> names_;
};

// Times a scope: { ScopedSpan span(track, "input", SpanKind::Input); ... }
class ScopedSpan {
 public:
  ScopedSpan(Track& track, const char* name, SpanKind kind)
      : track_(track), name_(name), kind_(kind), begin_(now_ns()) {}
  ~ScopedSpan() { track_.add(name_, kind_, begin_, now_ns()); }
  ScopedSpan(const ScopedSpan&) = delete;
  ScopedSpan& operator=(const ScopedSpan&) = delete;

 private:
  Track& track_;
  const char* name_;
  SpanKind kind_;
  std::int64_t begin_;
};

}  // namespace lockstep

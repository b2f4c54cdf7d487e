#include "lockstep/profile/recorder.h"

#include <algorithm>
#include <bit>
#include <chrono>

#include "lockstep/base/error.h"

namespace lockstep {

std::string_view name_of(SpanKind kind) {
  switch (kind) {
    case SpanKind::Compute:
      return "compute";
    case SpanKind::Communication:
      return "communication";
    case SpanKind::Input:
      return "input";
    case SpanKind::Copy:
      return "copy";
    case SpanKind::Wait:
      return "wait";
    case SpanKind::Host:
      return "host";
  }
  fail<InternalError>("unknown span kind {}", static_cast<int>(kind));
}

std::int64_t now_ns() {
  using namespace std::chrono;
  return duration_cast<nanoseconds>(steady_clock::now().time_since_epoch()).count();
}

Track::Track(std::string name, std::size_t capacity)
    : name_(std::move(name)), ring_(std::bit_ceil(capacity)), mask_(ring_.size() - 1) {}

std::vector<Span> Track::spans() const {
  std::vector<Span> spans;
  const std::uint64_t first = written_ > ring_.size() ? written_ - ring_.size() : 0;
  for (std::uint64_t i = first; i < written_; ++i) {
    spans.push_back(ring_[static_cast<std::size_t>(i & mask_)]);
  }
  return spans;
}

std::array<std::int64_t, 6> Track::between(std::int64_t begin_ns, std::int64_t end_ns) const {
  // Spans are sorted by their ends, except for a few that are added when a job is over.
  constexpr int kOutOfOrder = 8;
  std::array<std::int64_t, 6> within = {};
  const std::uint64_t first = written_ > ring_.size() ? written_ - ring_.size() : 0;
  int before = 0;
  for (std::uint64_t i = written_; i > first && before < kOutOfOrder; --i) {
    const Span& span = ring_[static_cast<std::size_t>((i - 1) & mask_)];
    before = span.end_ns <= begin_ns ? before + 1 : 0;
    const std::int64_t inside = std::min(span.end_ns, end_ns) - std::max(span.begin_ns, begin_ns);
    if (inside > 0) within[static_cast<std::size_t>(span.kind)] += inside;
  }
  return within;
}

Recorder::Recorder(std::size_t spans_per_track) : capacity_(spans_per_track) {
  require(spans_per_track > 0, "[recorder] a track needs room for at least one span");
}

Track& Recorder::track(std::string_view name) {
  std::lock_guard lock(mutex_);
  for (Track& track : tracks_) {
    if (track.name() == name) return track;
  }
  return tracks_.emplace_back(std::string(name), capacity_);
}

const char* Recorder::intern(std::string_view name) {
  std::lock_guard lock(mutex_);
  for (const std::string& known : names_) {
    if (known == name) return known.c_str();
  }
  return names_.emplace_back(name).c_str();
}

std::vector<const Track*> Recorder::tracks() const {
  std::lock_guard lock(mutex_);
  std::vector<const Track*> tracks;
  for (const Track& track : tracks_) tracks.push_back(&track);
  return tracks;
}

}  // namespace lockstep

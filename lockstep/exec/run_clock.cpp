#include "lockstep/exec/run_clock.h"

#include <algorithm>

namespace lockstep {
namespace {

std::int64_t ns_between(Event& earlier, Event& later) {
  return static_cast<std::int64_t>(later.ms_since(earlier) * 1e6);
}

}  // namespace

RunClock::RunClock(const ExecutorOptions& options, std::int64_t* last_end_of_rank)
    : track_(options.recorder->track(options.track)),
      host_(options.host_track.empty() || options.host_track == options.track
                ? nullptr
                : &options.recorder->track(options.host_track)),
      device_track_(options.recorder->track(options.track + " device")),
      last_end_of_rank_(last_end_of_rank != nullptr ? last_end_of_rank : &last_end_ns_) {}

void RunClock::ended(const Run& run) {
  std::int64_t end = run.seen_ns;
  if (!run.awaited && run.done_before != nullptr) {
    end = std::min(end, last_end_ns_ + ns_between(*run.done_before, *run.done));
  } else if (!run.awaited && run.copied != nullptr) {
    end = std::min(end, run.issued_ns + ns_between(*run.copied, *run.done));
  }
  // From here on it had everything but its inputs.
  const std::int64_t ready =
      std::min(end, std::max({run.issued_ns, last_end_ns_, *last_end_of_rank_}));
  std::int64_t begin = ready;
  if (run.copied != nullptr) {
    begin = std::clamp(end - ns_between(*run.copied, *run.done), ready, end);
  }
  std::int64_t communicating = 0;
  if (run.collectives != nullptr) {
    communicating = std::min(run.collectives->account(run.turn, end), end - begin);
  }
  take_back(ready, end);
  track_.count(SpanKind::Input, begin - ready);
  track_.count(SpanKind::Communication, communicating);
  track_.count(SpanKind::Compute, end - begin - communicating);
  if (begin > ready) device_track_.add("await inputs", SpanKind::Input, ready, begin);
  device_track_.add("run step", SpanKind::Compute, begin, end);
  last_end_ns_ = end;
  *last_end_of_rank_ = std::max(*last_end_of_rank_, end);
}

void RunClock::take_back(std::int64_t begin_ns, std::int64_t end_ns) {
  for (const Track* from : {static_cast<const Track*>(&track_), static_cast<const Track*>(host_)}) {
    if (from == nullptr) continue;
    const auto within = from->between(begin_ns, end_ns);
    for (const SpanKind kind : {SpanKind::Input, SpanKind::Copy, SpanKind::Wait}) {
      track_.count(kind, -within[static_cast<std::size_t>(kind)]);
    }
  }
}

void RunClock::launched(std::int64_t since_ns) {
  track_.add("launch step", SpanKind::Host, since_ns, now_ns());
}

void RunClock::waited(std::int64_t since_ns) {
  track_.add("await step", SpanKind::Host, since_ns, now_ns());
}

}  // namespace lockstep

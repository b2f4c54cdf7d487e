#include "lockstep/train/attribution_meter.h"

#include <algorithm>
#include <cstring>
#include <map>

namespace lockstep {

AttributionMeter::AttributionMeter(std::vector<const Track*> replicas, const Track& host,
                                   const PhaseClock& phases)
    : phases_(phases), host_(begin_of(host)), begin_ns_(now_ns()) {
  for (const Track* track : replicas) replicas_.push_back(begin_of(*track));
  for (std::size_t i = 0; i < kPhases; ++i) {
    phases_before_ns_[i] = phases_.ns(static_cast<Phase>(i));
  }
}

AttributionMeter::Begin AttributionMeter::begin_of(const Track& track) const {
  Begin begin{.track = &track, .before_ns = {}};
  for (std::size_t kind = 0; kind < begin.before_ns.size(); ++kind) {
    begin.before_ns[kind] = training_ns(track, static_cast<SpanKind>(kind));
  }
  return begin;
}

std::int64_t AttributionMeter::training_ns(const Track& track, SpanKind kind) const {
  return track.total_ns(kind) - phases_.ns(track, kind);
}

std::int64_t AttributionMeter::since_ns(const Begin& begin, SpanKind kind) const {
  return training_ns(*begin.track, kind) - begin.before_ns[static_cast<std::size_t>(kind)];
}

double AttributionMeter::seconds() const {
  return static_cast<double>(now_ns() - begin_ns_) * 1e-9;
}

std::vector<Attribution> AttributionMeter::by_replica() const {
  const std::int64_t wall = now_ns() - begin_ns_;
  const auto phase = [&](Phase which) {
    return static_cast<double>(phases_.ns(which) -
                               phases_before_ns_[static_cast<std::size_t>(which)]);
  };
  std::vector<Attribution> all;
  for (const Begin& replica : replicas_) {
    const auto time = [&](SpanKind kind) { return static_cast<double>(since_ns(replica, kind)); };
    Attribution part{.compute = time(SpanKind::Compute),
                     .communication = time(SpanKind::Communication),
                     .input = time(SpanKind::Input) + time(SpanKind::Copy),
                     .wait = time(SpanKind::Wait),
                     .host = 0,
                     .start = phase(Phase::Start),
                     .validation = phase(Phase::Validation),
                     .checkpoint = phase(Phase::Checkpoint)};
    if (host_.track != replica.track) {
      part.input += static_cast<double>(since_ns(host_, SpanKind::Input));
    }
    double known = 0;
    for (const auto& [name, ns] : parts_of(part)) known += ns;
    // Device clocks differ from the host's: the known times may add up to more than the wall time.
    const double whole = std::max({known, static_cast<double>(wall), 1.0});
    part.host = whole - known;
    Attribution fractions;
    fractions.add(part, 1 / whole);
    all.push_back(fractions);
  }
  return all;
}

Attribution AttributionMeter::read() const {
  Attribution mean;
  const std::vector<Attribution> all = by_replica();
  for (const Attribution& part : all) mean.add(part, 1 / static_cast<double>(all.size()));
  return mean;
}

std::vector<OpTime> slowest_ops(const Track& track, std::size_t count) {
  const auto by_text = [](const char* a, const char* b) { return std::strcmp(a, b) < 0; };
  std::map<const char*, double, decltype(by_text)> seconds(by_text);
  double total = 0.0;
  for (const Span& span : track.spans()) {
    if (span.kind != SpanKind::Compute) continue;
    const double duration = static_cast<double>(span.end_ns - span.begin_ns) * 1e-9;
    seconds[span.name] += duration;
    total += duration;
  }
  std::vector<OpTime> ops;
  for (const auto& [name, time] : seconds) {
    ops.push_back({.name = name, .seconds = time, .share = total > 0 ? time / total : 0.0});
  }
  std::ranges::stable_sort(ops,
                           [](const OpTime& a, const OpTime& b) { return a.seconds > b.seconds; });
  if (ops.size() > count) ops.resize(count);
  return ops;
}

}  // namespace lockstep

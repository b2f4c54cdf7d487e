#include "lockstep/train/history.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <map>

namespace lockstep {
namespace {

double quantile(std::vector<float> values, double q) {
  if (values.empty()) return 0.0;
  const auto place = static_cast<std::size_t>(q * static_cast<double>(values.size() - 1) + 0.5);
  const auto nth = values.begin() + static_cast<std::ptrdiff_t>(place);
  std::nth_element(values.begin(), nth, values.end());
  return *nth;
}

}  // namespace

void Attribution::add(const Attribution& other, double times) {
  compute += other.compute * times;
  communication += other.communication * times;
  input += other.input * times;
  wait += other.wait * times;
  host += other.host * times;
  start += other.start * times;
  validation += other.validation * times;
  checkpoint += other.checkpoint * times;
}

AttributionParts parts_of(const Attribution& attribution) {
  return {{{"compute", attribution.compute},
           {"communication", attribution.communication},
           {"input", attribution.input},
           {"wait", attribution.wait},
           {"host", attribution.host},
           {"start", attribution.start},
           {"validation", attribution.validation},
           {"checkpoint", attribution.checkpoint}}};
}

std::string summary(const Attribution& attribution) {
  std::string text;
  for (const auto& [name, share] : parts_of(attribution)) {
    if (share < 0.01) continue;
    text += fmt::format("{}{} {:.0f}%", text.empty() ? "" : ", ", name, 100 * share);
  }
  return text;
}

std::vector<double> History::series(std::string_view name) const {
  std::vector<double> values;
  bool known = epochs.empty();
  for (const EpochLog& epoch : epochs) {
    const std::optional<double> value = epoch.logs.find(name);
    known = known || value.has_value();
    values.push_back(value.value_or(std::numeric_limits<double>::quiet_NaN()));
  }
  if (!known) epochs.front().logs.at(name);  // an error, with the names there are
  return values;
}

double History::median_step_ms() const {
  return quantile(step_ms, 0.5);
}

double History::p99_step_ms() const {
  return quantile(step_ms, 0.99);
}

AttributionMeter::AttributionMeter(std::vector<const Track*> replicas, const Track& host,
                                   const PhaseClock& phases)
    : phases_(phases), host_(begun(host)), begin_ns_(now_ns()) {
  for (const Track* track : replicas) replicas_.push_back(begun(*track));
  for (std::size_t i = 0; i < kPhases; ++i) {
    phases_before_ns_[i] = phases_.ns(static_cast<Phase>(i));
  }
}

AttributionMeter::Begun AttributionMeter::begun(const Track& track) const {
  Begun begun{.track = &track, .before_ns = {}};
  for (std::size_t kind = 0; kind < begun.before_ns.size(); ++kind) {
    begun.before_ns[kind] = training_ns(track, static_cast<SpanKind>(kind));
  }
  return begun;
}

std::int64_t AttributionMeter::training_ns(const Track& track, SpanKind kind) const {
  return track.total_ns(kind) - phases_.ns(track, kind);
}

std::int64_t AttributionMeter::since_ns(const Begun& begun, SpanKind kind) const {
  return training_ns(*begun.track, kind) - begun.before_ns[static_cast<std::size_t>(kind)];
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
  for (const Begun& replica : replicas_) {
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
    // Clocks of devices are read apart from the host's: what is known may pass the wall time.
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

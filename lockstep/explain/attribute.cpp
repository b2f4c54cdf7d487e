#include "lockstep/explain/attribute.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>

namespace lockstep {
namespace {

double mean(const std::vector<double>& values) {
  if (values.empty()) return 0;
  return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}

double mean_of(const RunProfile& profile, double TimeParts::*part) {
  std::vector<double> values;
  for (const ReplicaProfile& replica : profile.by_replica) values.push_back(replica.time.*part);
  return mean(values);
}

// The parts of computation, waiting for others, and for input that is late on some replicas only.
struct Together {
  double usual = 0;      // what a replica that is not slow computed
  double input = 0;      // that all waited for alike
  double imbalance = 0;  // beyond these, because some replicas were slower than the others
  double variation = 0;  // the rest: steps vary, and all wait for the last
};

Together divide(const RunProfile& profile, double compute, double wait, double input) {
  double counted = 0, counted_input = 0, usual = 0, usual_input = 0, late = 0;
  for (const RunStretch& stretch : stretches_of(profile)) {
    counted += stretch.steps * stretch.compute_s;
    counted_input += stretch.steps * stretch.input_s;
    usual += stretch.steps * stretch.usual_compute_s;
    usual_input += stretch.steps * stretch.usual_input_s;
    late += stretch.steps * stretch.late_s;
  }
  Together parts{.usual = compute, .input = input, .imbalance = 0, .variation = wait};
  if (counted <= 0 || profile.replicas == 1) return parts;
  // Windows leave out the first step and those that were planned.
  const double scale = compute / counted;
  parts.usual = std::min(usual * scale, compute + wait);
  if (counted_input > 0) parts.input = std::min(input, input * usual_input / counted_input);
  const double rest = compute + wait + input - parts.usual - parts.input;
  parts.imbalance = std::clamp(late * scale, 0.0, rest);
  parts.variation = rest - parts.imbalance;
  return parts;
}

double link_wait(const RunProfile& profile, double wait) {
  double idle = 0, steps = 0, counted = 0;
  for (const RunStretch& stretch : stretches_of(profile)) {
    idle += stretch.steps * stretch.idle_s;
    steps += stretch.steps;
  }
  for (const StepWindow& window : profile.windows) {
    if (std::ssize(window.wait_s) == profile.replicas) {
      counted += static_cast<double>(window.steps) * mean(window.wait_s);
    }
  }
  return steps > 0 && counted > 0 ? idle * wait / counted : 0;
}

std::string stage_text(const RunProfile& profile) {
  return profile.input_limit.empty() ? "" : "limited by " + profile.input_limit;
}

std::string slow_text(const RunProfile& profile, const SlowReplica& slow) {
  const ReplicaProfile& replica = profile.by_replica[static_cast<std::size_t>(slow.replica)];
  const char* why = slow.why == SlowReplica::Why::Work    ? "has more samples"
                    : slow.why == SlowReplica::Why::Input ? "waits for its input"
                                                          : "is a slower device";
  return fmt::format("{} {}: {:.2f}x as long as the others, since step {}", replica.device, why,
                     slow.times, slow.since);
}

std::string bucket_text(const RunProfile& profile) {
  const CollectiveProfile* most = nullptr;
  double total = 0;
  for (const CollectiveProfile& one : profile.collectives) {
    total += one.exposed_s;
    if (most == nullptr || one.exposed_s > most->exposed_s) most = &one;
  }
  if (most == nullptr || total <= 0) return "";
  return fmt::format("{:.0f}% in {} ({:.2f} MB)", 100 * most->exposed_s / total, most->name,
                     static_cast<double>(most->bytes) * 1e-6);
}

// The part of exposed communication that remains however fast the link.
double latency_share(const RunProfile& profile) {
  const std::optional<LinkFit> link = link_of(profile);
  if (!link) return 0;
  double latency = 0;
  double all = 0;
  for (const CollectiveProfile& one : profile.collectives) {
    const double bytes = link->s_per_byte * static_cast<double>(one.bytes);
    const double whole = link->latency_s + bytes;
    if (whole <= 0) continue;
    latency += one.exposed_s * link->latency_s / whole;
    all += one.exposed_s;
  }
  return all > 0 ? latency / all : 0;
}

}  // namespace

AloneTime alone_time(const MeasuredStep& step, int ranks) {
  const double none = compute_seconds(step, 0, ranks);
  return {.compute_s = {.fixed = none, .per_sample = compute_seconds(step, 1, ranks) - none},
          .host_s = step.host_seconds};
}

std::optional<LinkFit> link_of(const RunProfile& profile) {
  if (profile.link.s_per_byte > 0) return profile.link;
  double count = 0, x = 0, y = 0, xx = 0, xy = 0;
  for (const CollectiveProfile& one : profile.collectives) {
    if (one.seconds <= 0) continue;
    const auto bytes = static_cast<double>(one.bytes);
    // Weighted by 1/t: the small ones say as much as the large ones.
    const double weight = 1 / one.seconds;
    count += weight;
    x += weight * bytes;
    y += weight * one.seconds;
    xx += weight * bytes * bytes;
    xy += weight * bytes * one.seconds;
  }
  const double spread = count * xx - x * x;
  if (count <= 0 || spread <= 1e-9 * count * xx) return std::nullopt;
  const double slope = std::max(0.0, (count * xy - x * y) / spread);
  const double first = (y - slope * x) / count;
  if (first < 0) return LinkFit{.latency_s = 0, .s_per_byte = y / x};
  return LinkFit{.latency_s = first, .s_per_byte = slope};
}

Explanation explain(const RunProfile& profile, const MeasuredStep* alone) {
  Explanation result;
  result.replicas = profile.replicas;
  result.seconds = profile.seconds;
  result.step_ms = profile.step_s * 1e3;
  result.predicted = profile.predicted;
  if (result.predicted) result.predicted->measured_ms = result.step_ms;
  const double whole = profile.seconds;
  if (whole <= 0 || profile.by_replica.empty()) return result;

  const auto add = [&](Cause cause, double seconds, std::string where = "") {
    if (seconds <= 0) return;
    result.lost.push_back({.cause = cause,
                           .seconds = seconds,
                           .fraction = seconds / whole,
                           .where = std::move(where)});
  };
  const double compute = mean_of(profile, &TimeParts::compute);
  double wait = mean_of(profile, &TimeParts::wait);
  double communication = mean_of(profile, &TimeParts::communication);
  double host = mean_of(profile, &TimeParts::host);
  // Between hosts the word that another replica has come travels behind the data that is under way:
  // what even the last replica waited for was the link.
  if (is_over_a_network(profile)) {
    const double link = std::min(wait, link_wait(profile, wait));
    wait -= link;
    communication += link;
  }
  const Together parts = divide(profile, compute, wait, mean_of(profile, &TimeParts::input));

  // What one device needs for the same samples, over the replicas.
  const auto replicas = static_cast<double>(profile.replicas);
  const auto steps = static_cast<double>(profile.steps);
  const auto samples = static_cast<double>(profile.samples);
  double ideal = parts.usual;
  double ideal_host = 0;
  if (alone != nullptr && samples > 0) {
    const AloneTime time = alone_time(*alone, profile.replicas);
    const AloneTime whole = alone_time(*alone, 1);  // nothing is sliced
    const auto of = [&](const PerPiece& part, double pieces) {
      return steps * part.fixed * pieces + samples * part.per_sample;
    };
    const double in_pieces = of(time.compute_s, replicas) / replicas;
    const double at_once = of(whole.compute_s, 1) / replicas;
    // Measured on another day, or in a calmer hour, the device may have been slower than here.
    const double scale = std::min(1.0, in_pieces > 0 ? parts.usual / in_pieces : 1.0);
    ideal = at_once * scale;
    add(Cause::SmallPieces, (in_pieces - at_once) * scale,
        fmt::format("{:.3g} ms of each step do not shrink with the batch",
                    time.compute_s.fixed * scale * 1e3));
    add(Cause::Contention, parts.usual - in_pieces * scale,
        profile.replicas > 1 ? "the devices slow one another down when all compute"
                             : "computation took longer than on the idle device");
    ideal_host = std::min(host, of(time.host_s, 1) / replicas);
    host -= ideal_host;
  }
  const double latency = communication * latency_share(profile);
  const std::string buckets = bucket_text(profile);
  add(Cause::Latency, latency, buckets);
  add(Cause::Bandwidth, communication - latency, buckets);
  add(Cause::Input, parts.input, stage_text(profile));
  const std::optional<SlowReplica> slow = slow_replica(profile);
  add(Cause::Imbalance, parts.imbalance, slow ? slow_text(profile, *slow) : "");
  add(Cause::Synchronisation, parts.variation, "steps vary, and all wait for the last");
  add(Cause::Host, host,
      profile.callback_s > host / 2 ? fmt::format("callbacks took {:.2f} s", profile.callback_s)
                                    : "");
  add(Cause::Start, mean_of(profile, &TimeParts::start), "planning, opening data");
  add(Cause::Validation, mean_of(profile, &TimeParts::validation));
  add(Cause::Checkpoint, mean_of(profile, &TimeParts::checkpoint));
  double failures = 0;
  for (const RecoveryProfile& recovery : profile.recoveries) failures += recovery.seconds;

  double known = ideal + ideal_host;
  for (const LostTime& lost : result.lost) known += lost.seconds;
  // Between a failure and the next step nothing is trained, and the tracks show nothing.
  add(Cause::Failures, std::min(failures, std::max(0.0, whole - known)),
      profile.recoveries.empty() ? "" : profile.recoveries.front().cause);
  known = ideal + ideal_host;
  for (const LostTime& lost : result.lost) known += lost.seconds;
  if (whole - known > 1e-9 * whole) add(Cause::Host, whole - known);
  // Device clocks differ from the host's by parts per million: the sum is made exact.
  known = ideal + ideal_host;
  for (const LostTime& lost : result.lost) known += lost.seconds;
  const double exact = known > 0 ? whole / known : 1;
  double lost_fraction = 0;
  double avoidable = 0;
  for (LostTime& lost : result.lost) {
    lost.seconds *= exact;
    lost.fraction = lost.seconds / whole;
    lost_fraction += lost.fraction;
    if (lost.cause != Cause::Contention) avoidable += lost.fraction;
  }
  result.speed_up = replicas * (1 - lost_fraction);
  const double left = 1 - avoidable;
  result.possible = left > 0 ? result.speed_up / left : replicas;
  return result;
}

}  // namespace lockstep

#include "lockstep/train/history.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
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

constexpr double kWorthNaming = 0.05;

// The replica that the others waited for, where they waited long enough to speak of it.
std::string slow_replica(const std::vector<ReplicaTime>& replicas) {
  if (replicas.size() < 2) return "";
  const auto wait = [](const ReplicaTime& replica) { return replica.attribution.wait; };
  const auto slowest = std::ranges::min_element(replicas, {}, wait);
  const auto most = std::ranges::max_element(replicas, {}, wait);
  if (wait(*most) - wait(*slowest) < kWorthNaming) return "";
  return fmt::format(
      "{} is the slowest replica: {} waited for it {:.0f}% of the time. balance = auto gives each "
      "replica\n  the share that it can do; else look at what else runs on its cores.\n",
      slowest->device, most->device, 100 * wait(*most));
}

std::string advice(const History& history) {
  const Attribution& part = history.attribution;
  std::string text;
  if (history.first_non_finite_step) {
    text += fmt::format(
        "warning: the loss was not a finite number at step {} (counted from the beginning of "
        "training).\n  Look for NaN or very large numbers in the data; lower the learning rate, or "
        "clip gradients\n  (.clip = {{.global_norm = 1}}). TerminateOnNaN() stops at the first "
        "such step.\n",
        *history.first_non_finite_step);
  }
  text += slow_replica(history.replicas);
  if (part.communication > 0.1) {
    text += fmt::format(
        "Adding up gradients took {:.0f}% of the time: a larger batch per replica makes it less.\n",
        100 * part.communication);
  }
  if (part.input > 0.1) {
    text += fmt::format("The steps waited for input {:.0f}% of the time", 100 * part.input);
    text += history.input ? fmt::format("; what limits it: {}.\n  {}\n", history.input->limiting,
                                        history.input->advice)
                          : std::string(".\n");
  }
  if (history.skipped > 0 && history.input) {
    text += fmt::format("Passed over {} samples because of errors; in the last pass:\n",
                        history.skipped);
    for (const std::string& what : history.input->skipped_first) text += "  " + what + "\n";
  }
  if (part.host > 0.15) {
    text += history.steps < 50
                ? "Much of the time went into the start (tracing and planning); it is paid once "
                  "for each batch size.\n"
                : "Much of the time was spent between kernels and in callbacks: take a larger "
                  "batch, or let\n  callbacks do less at every step.\n";
  }
  if (text.empty()) {
    text =
        history.top_ops.empty()  // a GPU runs the step as a whole
            ? "The time goes into computation. `lockstep bench --ops` shows which nodes take it; "
              "16-bit precision,\n  more devices or a smaller model would make it faster.\n"
            : "The time goes into computation. The nodes above are where to look; more cores or "
              "a\n  smaller model would make it faster.\n";
  }
  return text;
}

}  // namespace

std::string summary(const Attribution& attribution) {
  const std::pair<const char*, double> parts[] = {{"compute", attribution.compute},
                                                  {"communication", attribution.communication},
                                                  {"input", attribution.input},
                                                  {"wait", attribution.wait},
                                                  {"host", attribution.host}};
  std::string text;
  for (const auto& [name, share] : parts) {
    if (share < 0.01) continue;
    text += fmt::format("{}{} {:.0f}%", text.empty() ? "" : ", ", name, 100 * share);
  }
  return text;
}

std::vector<double> History::series(std::string_view name) const {
  std::vector<double> values;
  for (const EpochLog& epoch : epochs) values.push_back(epoch.logs.at(name));
  return values;
}

double History::median_step_ms() const {
  return quantile(step_ms, 0.5);
}

double History::p99_step_ms() const {
  return quantile(step_ms, 0.99);
}

std::string History::report() const {
  std::string text = fmt::format("epochs {}, steps {}, samples {} in {:.2f} s ({:.0f} samples/s)\n",
                                 epochs.size(), steps, samples, seconds,
                                 seconds > 0 ? static_cast<double>(samples) / seconds : 0.0);
  text += fmt::format("step: median {:.3f} ms, 99th percentile {:.3f} ms; memory {:.1f} MB\n",
                      median_step_ms(), p99_step_ms(), static_cast<double>(peak_bytes) * 1e-6);
  if (loss_scale) {
    text += fmt::format("skipped {} steps on overflow; loss scale now {:g}\n", overflowed_steps,
                        *loss_scale);
  }
  text += "where the time went\n";
  const std::pair<const char*, double> parts[] = {{"compute", attribution.compute},
                                                  {"communication", attribution.communication},
                                                  {"input", attribution.input},
                                                  {"wait", attribution.wait},
                                                  {"host", attribution.host}};
  for (const auto& [name, share] : parts) {
    if (share <= 0.0) continue;
    text += fmt::format("  {:<14}{:6.1f} %  {:9.3f} s\n", name, 100 * share, share * seconds);
  }
  if (replicas.size() > 1) {
    text += fmt::format("  {:<10}{:>9}{:>15}{:>9}{:>9}{:>9}{:>12}\n", "replica", "compute",
                        "communication", "input", "wait", "host", "samples");
    for (const ReplicaTime& replica : replicas) {
      const Attribution& a = replica.attribution;
      text += fmt::format("  {:<10}{:>8.1f}%{:>14.1f}%{:>8.1f}%{:>8.1f}%{:>8.1f}%{:>12}\n",
                          replica.device, 100 * a.compute, 100 * a.communication, 100 * a.input,
                          100 * a.wait, 100 * a.host, replica.samples);
    }
  }
  if (!top_ops.empty()) text += "slowest nodes (share of computation, last steps)\n";
  for (const OpTime& op : top_ops) {
    text += fmt::format("  {:<40}{:6.1f} %\n", op.name, 100 * op.share);
  }
  return text + advice(*this);
}

AttributionMeter::AttributionMeter(std::vector<const Track*> replicas, const Track& host)
    : host_(begun(host)), begin_ns_(now_ns()) {
  for (const Track* track : replicas) replicas_.push_back(begun(*track));
}

AttributionMeter::Begun AttributionMeter::begun(const Track& track) {
  Begun begun{.track = &track, .before_ns = {}};
  for (std::size_t kind = 0; kind < begun.before_ns.size(); ++kind) {
    begun.before_ns[kind] = track.total_ns(static_cast<SpanKind>(kind));
  }
  return begun;
}

double AttributionMeter::Begun::share(SpanKind kind, double wall_ns) const {
  return static_cast<double>(track->total_ns(kind) - before_ns[static_cast<std::size_t>(kind)]) /
         wall_ns;
}

double AttributionMeter::seconds() const {
  return static_cast<double>(now_ns() - begin_ns_) * 1e-9;
}

std::vector<Attribution> AttributionMeter::by_replica() const {
  const double wall = static_cast<double>(std::max<std::int64_t>(now_ns() - begin_ns_, 1));
  std::vector<Attribution> all;
  for (const Begun& replica : replicas_) {
    const auto share = [&](SpanKind kind) { return replica.share(kind, wall); };
    Attribution part{.compute = share(SpanKind::Compute),
                     .communication = share(SpanKind::Communication),
                     .input = share(SpanKind::Input) + share(SpanKind::Copy),
                     .wait = share(SpanKind::Wait),
                     .host = 0};
    if (host_.track != replica.track) part.input += host_.share(SpanKind::Input, wall);
    const double known = part.compute + part.communication + part.input + part.wait;
    part.host = std::max(0.0, 1.0 - known);
    all.push_back(part);
  }
  return all;
}

Attribution AttributionMeter::read() const {
  Attribution mean;
  const std::vector<Attribution> all = by_replica();
  const auto count = static_cast<double>(all.size());
  for (const Attribution& part : all) {
    mean.compute += part.compute / count;
    mean.communication += part.communication / count;
    mean.input += part.input / count;
    mean.wait += part.wait / count;
    mean.host += part.host / count;
  }
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

#include "lockstep/explain/page_of_run.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "lockstep/explain/advise.h"
#include "lockstep/explain/critical_path.h"

namespace lockstep {
namespace {

using TraceJson = nlohmann::json;

std::string track_name(const ProfiledTrack& track, int workers) {
  return workers > 1 ? fmt::format("worker {} {}", track.worker, track.name) : track.name;
}

std::set<std::pair<std::size_t, std::size_t>> critical_spans(const ExampleStep& step,
                                                             const RunProfile& profile) {
  std::set<std::pair<std::size_t, std::size_t>> critical;
  for (const CriticalSpan& each : critical_path(step, profile.plan, is_over_a_network(profile))) {
    critical.emplace(each.track, each.span);
  }
  return critical;
}

page::Replica replica_of(const ReplicaProfile& replica, int workers) {
  const TimeParts& time = replica.time;
  const double whole = time.sum();
  const auto share = [&](double seconds) { return whole > 0 ? seconds / whole : 0; };
  return {.name = workers > 1 ? fmt::format("worker {} {}", replica.worker, replica.device)
                              : replica.device,
          .parts = {{"compute", share(time.compute)},
                    {"communication", share(time.communication)},
                    {"input", share(time.input)},
                    {"wait", share(time.wait)},
                    {"host", share(time.host)},
                    {"start", share(time.start)},
                    {"validation", share(time.validation)},
                    {"checkpoint", share(time.checkpoint)}}};
}

// Of the time that the last pass over the data took: how busy the threads of a stage were, and how
// long the stage after it waited.
std::vector<page::InputStage> stages_of(const RunProfile& profile) {
  std::vector<page::InputStage> stages;
  const double seconds = profile.input_seconds;
  if (!(seconds > 0)) return stages;
  for (const InputStageProfile& stage : profile.stages) {
    const double threads = std::max(stage.threads, 1);
    stages.push_back({.name = stage.name,
                      .busy = stage.busy_s / (seconds * threads),
                      .waiting = stage.wait_s / seconds,
                      .threads = stage.threads});
  }
  return stages;
}

std::string subtitle_of(const RunProfile& profile) {
  std::string text = profile.model;
  const auto add = [&](const std::string& part) {
    if (!part.empty()) text += (text.empty() ? "" : ", ") + part;
  };
  if (profile.global_batch > 0) add(fmt::format("batch {}", profile.global_batch));
  add(profile.precision);
  add(fmt::format("{} replica{}{}", profile.replicas, profile.replicas == 1 ? "" : "s",
                  profile.hardware.empty() ? "" : " on " + profile.hardware));
  if (profile.workers > 1) {
    add(fmt::format("{} workers over {}", profile.workers, profile.transport));
  }
  add(fmt::format("{} step{}", profile.steps, profile.steps == 1 ? "" : "s"));
  return text;
}

TraceJson process_name(int worker, double error_s) {
  const std::string name =
      error_s > 0 ? fmt::format("worker {} (clock within {:.1f} us)", worker, error_s * 1e6)
                  : fmt::format("worker {}", worker);
  return {{"ph", "M"}, {"name", "process_name"}, {"pid", worker}, {"args", {{"name", name}}}};
}

}  // namespace

std::optional<page::Timeline> timeline_of(const RunProfile& profile) {
  const ExampleStep* typical = nullptr;
  for (const ExampleStep& example : profile.examples) {
    if (!example.slow || typical == nullptr) typical = &example;
  }
  if (typical == nullptr) return std::nullopt;
  const auto critical = critical_spans(*typical, profile);
  page::Timeline timeline{.step_ms = typical->seconds * 1e3, .tracks = {}};
  for (std::size_t t = 0; t < typical->tracks.size(); ++t) {
    const ProfiledTrack& track = typical->tracks[t];
    page::TimelineTrack& made = timeline.tracks.emplace_back();
    made.name = track_name(track, profile.workers);
    made.clock_error_ms = track.clock_error_s * 1e3;
    for (std::size_t s = 0; s < track.spans.size(); ++s) {
      const ProfiledSpan& span = track.spans[s];
      // What began before the step, or on a clock that is ahead, is shown from its beginning on.
      made.spans.push_back({.name = span.name,
                            .kind = span.kind,
                            .begin_ms = std::max(0.0, span.begin_s * 1e3),
                            .end_ms = std::max(0.0, span.end_s * 1e3),
                            .critical = critical.contains({t, s})});
    }
  }
  return timeline;
}

PageContents page_of(const RunProfile& profile, const Explanation& explanation,
                     const ScalingCurve& curve) {
  PageContents contents{.title = explanation.run, .subtitle = subtitle_of(profile)};
  contents.explanation = explanation;
  for (const ScalingPoint& point : curve.points) {
    contents.speed_up.push_back(
        {.replicas = point.replicas, .measured = point.measured, .predicted = point.speed_up});
  }
  if (!curve.assumed.empty()) {
    contents.speed_up_note = fmt::format(
        "Replicas on other hosts are taken to be connected by {}; lockstep scale --network "
        "predicts "
        "others.",
        curve.assumed);
  }
  contents.outlook = loss_outlook(profile, curve);
  contents.timeline = timeline_of(profile);
  contents.input = stages_of(profile);
  if (!profile.memory.instructions.empty()) contents.memory = profile.memory;
  for (const ReplicaProfile& replica : profile.by_replica) {
    contents.replicas.push_back(replica_of(replica, profile.workers));
  }
  if (profile.learning.losses.size() > 1) {
    page::Chart loss{.title = "Loss", .x_label = "step", .curves = {{"loss", {}, {}}}};
    for (const LossPoint& point : profile.learning.losses) {
      loss.curves[0].x.push_back(static_cast<double>(point.step));
      loss.curves[0].y.push_back(point.loss);
    }
    contents.charts.push_back(std::move(loss));
  }
  for (const NoiseAt& each : profile.learning.noises) {
    contents.noise.push_back({.step = static_cast<double>(each.step),
                              .samples = each.value,
                              .low = each.low,
                              .high = each.high});
  }
  contents.global_batch = static_cast<double>(profile.global_batch);
  return contents;
}

std::string trace_of(const RunProfile& profile) {
  TraceJson events = TraceJson::array();
  std::map<int, double> error_of;                   // by worker
  std::map<std::pair<int, std::string>, int> line;  // by worker and track
  double begin_s = 0;                               // of the step that is shown next
  constexpr double kGap = 0.1;                      // of a step, between two of them
  std::vector<const ExampleStep*> steps;
  for (const ExampleStep& example : profile.examples) steps.push_back(&example);
  std::ranges::stable_sort(steps, {}, [](const ExampleStep* step) { return step->step; });
  for (const ExampleStep* step : steps) {
    const auto critical = critical_spans(*step, profile);
    double first_s = 0;
    double last_s = step->seconds;
    for (const ProfiledTrack& track : step->tracks) {
      for (const ProfiledSpan& span : track.spans) {
        first_s = std::min(first_s, span.begin_s);
        last_s = std::max(last_s, span.end_s);
      }
    }
    const double shift_s = begin_s - first_s;
    for (std::size_t t = 0; t < step->tracks.size(); ++t) {
      const ProfiledTrack& track = step->tracks[t];
      double& error = error_of[track.worker];
      error = std::max(error, track.clock_error_s);
      const auto [place, is_new] =
          line.try_emplace({track.worker, track.name}, static_cast<int>(line.size()));
      if (is_new) {
        events.push_back({{"ph", "M"},
                          {"name", "thread_name"},
                          {"pid", track.worker},
                          {"tid", place->second},
                          {"args", {{"name", track.name}}}});
      }
      for (std::size_t s = 0; s < track.spans.size(); ++s) {
        const ProfiledSpan& span = track.spans[s];
        TraceJson arguments = {{"step", step->step}, {"slow", step->slow}};
        if (track.clock_error_s > 0) arguments["clock_error_us"] = track.clock_error_s * 1e6;
        if (critical.contains({t, s})) arguments["critical"] = true;
        events.push_back({{"ph", "X"},
                          {"name", span.name},
                          {"cat", name_of(span.kind)},
                          {"pid", track.worker},
                          {"tid", place->second},
                          {"ts", (span.begin_s + shift_s) * 1e6},
                          {"dur", std::max(0.0, span.end_s - span.begin_s) * 1e6},
                          {"args", std::move(arguments)}});
      }
    }
    // A line over all workers that says which step this is.
    events.push_back({{"ph", "X"},
                      {"name", fmt::format("step {}{}", step->step, step->slow ? " (slow)" : "")},
                      {"cat", "step"},
                      {"pid", -1},
                      {"tid", 0},
                      {"ts", begin_s * 1e6},
                      {"dur", (last_s - first_s) * 1e6}});
    begin_s += (last_s - first_s) + kGap * step->seconds;
  }
  for (const auto& [worker, error_s] : error_of) events.push_back(process_name(worker, error_s));
  events.push_back(
      {{"ph", "M"}, {"name", "process_name"}, {"pid", -1}, {"args", {{"name", "steps"}}}});
  return TraceJson{{"traceEvents", std::move(events)}, {"displayTimeUnit", "ms"}}.dump(
      -1, ' ', false, TraceJson::error_handler_t::replace);
}

}  // namespace lockstep

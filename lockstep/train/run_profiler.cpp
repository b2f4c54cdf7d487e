#include "lockstep/train/run_profiler.h"

#include <algorithm>
#include <map>
#include <string_view>

#include "lockstep/base/error.h"
#include "lockstep/device/device_memory.h"
#include "lockstep/exec/runner.h"
#include "lockstep/graph/ops/collective.h"
#include "lockstep/train/measure_host.h"

namespace lockstep {
namespace {

constexpr std::size_t kMostWindows = 512;
constexpr std::int64_t kFirstExample = 8;
constexpr std::int64_t kExampleFactor = 8;  // steps 8, 64, 512, …
constexpr std::size_t kTypicalKept = 2;
constexpr std::size_t kSlowKept = 4;
constexpr double kSlow = 1.5;           // times the mean of the last window
constexpr double kCopyingShare = 2e-3;  // of the time of all steps, at most, for slow examples
constexpr std::size_t kMostTracks = 24;
constexpr std::size_t kMostSpansOfTrack = 4000;

double seconds(std::int64_t ns) {
  return static_cast<double>(ns) * 1e-9;
}

double middle_of(std::vector<double> values) {
  if (values.empty()) return 0;
  const auto middle = values.begin() + std::ssize(values) / 2;
  std::ranges::nth_element(values, middle);
  return *middle;
}

StepWindow merged(const StepWindow& a, const StepWindow& b) {
  const auto steps = static_cast<double>(a.steps + b.steps);
  const double of_a = static_cast<double>(a.steps) / steps;
  const double of_b = static_cast<double>(b.steps) / steps;
  StepWindow both{
      .first = a.first, .steps = a.steps + b.steps, .step_s = a.step_s * of_a + b.step_s * of_b};
  const auto mean = [&](std::vector<double> StepWindow::*field) {
    for (std::size_t r = 0; r < (a.*field).size(); ++r) {
      (both.*field).push_back((a.*field)[r] * of_a + (b.*field)[r] * of_b);
    }
  };
  mean(&StepWindow::compute_s);
  mean(&StepWindow::input_s);
  mean(&StepWindow::wait_s);
  mean(&StepWindow::samples);
  return both;
}

// The same window of another worker: its replicas follow.
void append(StepWindow& window, const StepWindow& other) {
  const auto add = [&](std::vector<double> StepWindow::*field) {
    (window.*field).insert((window.*field).end(), (other.*field).begin(), (other.*field).end());
  };
  add(&StepWindow::compute_s);
  add(&StepWindow::input_s);
  add(&StepWindow::wait_s);
  add(&StepWindow::samples);
}

// Only windows that all workers have.
std::vector<StepWindow> joined(const std::vector<RunProfile>& workers) {
  std::vector<StepWindow> all;
  for (const StepWindow& window : workers.front().windows) {
    StepWindow whole = window;
    bool known = true;
    for (std::size_t w = 1; w < workers.size() && known; ++w) {
      const auto found = std::ranges::find_if(workers[w].windows, [&](const StepWindow& theirs) {
        return theirs.first == window.first && theirs.steps == window.steps;
      });
      known = found != workers[w].windows.end();
      if (known) append(whole, *found);
    }
    if (known) all.push_back(std::move(whole));
  }
  return all;
}

// The chief's examples, with the tracks of the other workers in the same steps.
std::vector<ExampleStep> joined_examples(std::vector<RunProfile>& workers) {
  std::vector<ExampleStep> all = std::move(workers.front().examples);
  for (ExampleStep& example : all) {
    for (std::size_t w = 1; w < workers.size(); ++w) {
      for (ExampleStep& theirs : workers[w].examples) {
        if (theirs.step != example.step) continue;
        for (ProfiledTrack& track : theirs.tracks) {
          if (example.tracks.size() < kMostTracks) example.tracks.push_back(std::move(track));
        }
      }
    }
    // Times count from the beginning of the step on the chief, which is its earliest span.
    double first = 0;
    for (const ProfiledTrack& track : example.tracks) {
      for (const ProfiledSpan& span : track.spans) {
        if (track.worker == 0) first = first == 0 ? span.begin_s : std::min(first, span.begin_s);
      }
    }
    for (ProfiledTrack& track : example.tracks) {
      for (ProfiledSpan& span : track.spans) {
        span.begin_s -= first;
        span.end_s -= first;
      }
    }
  }
  return all;
}

}  // namespace

TimeParts seconds_of(const Attribution& attribution, double seconds) {
  return {.compute = attribution.compute * seconds,
          .communication = attribution.communication * seconds,
          .input = attribution.input * seconds,
          .wait = attribution.wait * seconds,
          .host = attribution.host * seconds,
          .start = attribution.start * seconds,
          .validation = attribution.validation * seconds,
          .checkpoint = attribution.checkpoint * seconds};
}

RunProfiler::RunProfiler(Session& session)
    : session_(session), clocks_(session.world().worker()), next_example_(kFirstExample) {}

void RunProfiler::begin() {
  World& world = session_.world();
  clocks_ = WorkerClocks(world.worker());
  if (world.workers() > 1) {
    clocks_.measure([&](std::string_view mine) { return world.exchange(mine); });
  }
  before_.clear();
  windows_.clear();
  window_steps_ = window_ns_ = 0;
  window_length_ = 1;
  seen_ = 0;
  next_example_ = kFirstExample;
  typical_.clear();
  curve_.go_back_to(session_.step);
}

std::vector<RunProfiler::Totals> RunProfiler::read(std::span<const std::int64_t> samples) const {
  const PhaseClock& phases = session_.phases();
  const auto training = [&](const Track& track, SpanKind kind) {
    return track.total_ns(kind) - phases.ns(track, kind);
  };
  const Track& host = session_.host_track();
  std::vector<Totals> all;
  for (int r = 0; r < session_.local_size(); ++r) {
    const Track& track = session_.track(r);
    Totals totals{.compute_ns = training(track, SpanKind::Compute),
                  .input_ns = training(track, SpanKind::Input) + training(track, SpanKind::Copy),
                  .wait_ns = training(track, SpanKind::Wait),
                  .samples = samples[static_cast<std::size_t>(r)]};
    if (&host != &track) totals.input_ns += training(host, SpanKind::Input);
    all.push_back(totals);
  }
  return all;
}

void RunProfiler::step_done(std::int64_t step, std::int64_t begin_ns, std::int64_t end_ns,
                            std::span<const std::int64_t> samples) {
  ++seen_;
  running_ns_ += end_ns - begin_ns;
  if (before_.empty()) {  // the first step also planned, which is not typical
    before_ = read(samples);
    return;
  }
  if (window_steps_ == 0) window_first_ = step;
  ++window_steps_;
  window_ns_ += end_ns - begin_ns;
  if (seen_ == next_example_) {
    next_example_ *= kExampleFactor;
    typical_.push_back(copy_step(step, begin_ns, end_ns, false));
    if (typical_.size() > kTypicalKept) typical_.erase(typical_.begin());
  } else if (is_slow(end_ns - begin_ns)) {
    const auto fastest = std::ranges::min_element(slow_, {}, &ExampleStep::seconds);
    if (slow_.size() < kSlowKept) {
      slow_.push_back(copy_step(step, begin_ns, end_ns, true));
    } else if (fastest->seconds < seconds(end_ns - begin_ns)) {
      *fastest = copy_step(step, begin_ns, end_ns, true);
    }
  }
  if (window_steps_ == window_length_) end_window(samples);
}

bool RunProfiler::is_slow(std::int64_t ns) const {
  if (windows_.size() < 8) return false;
  if (static_cast<double>(copying_ns_) > kCopyingShare * static_cast<double>(running_ns_)) {
    return false;
  }
  return seconds(ns) > kSlow * windows_.back().step_s;
}

void RunProfiler::end_window(std::span<const std::int64_t> samples) {
  const std::vector<Totals> now = read(samples);
  const auto steps = static_cast<double>(window_steps_);
  StepWindow window{
      .first = window_first_, .steps = window_steps_, .step_s = seconds(window_ns_) / steps};
  for (std::size_t r = 0; r < now.size(); ++r) {
    const auto mean = [&](std::int64_t Totals::*field) {
      return seconds(now[r].*field - before_[r].*field) / steps;
    };
    window.compute_s.push_back(mean(&Totals::compute_ns));
    window.input_s.push_back(mean(&Totals::input_ns));
    window.wait_s.push_back(mean(&Totals::wait_ns));
    window.samples.push_back(static_cast<double>(now[r].samples - before_[r].samples) / steps);
  }
  before_ = now;
  window_steps_ = window_ns_ = 0;
  windows_.push_back(std::move(window));
  if (windows_.size() == kMostWindows) merge_windows();
}

void RunProfiler::merge_windows() {
  std::vector<StepWindow> half;
  for (std::size_t i = 0; i + 1 < windows_.size(); i += 2) {
    half.push_back(merged(windows_[i], windows_[i + 1]));
  }
  windows_ = std::move(half);
  window_length_ *= 2;
}

ExampleStep RunProfiler::copy_step(std::int64_t step, std::int64_t begin_ns, std::int64_t end_ns,
                                   bool slow) {
  const std::int64_t began = now_ns();
  ExampleStep example{.step = step, .seconds = seconds(end_ns - begin_ns), .slow = slow};
  for (const Track* track : session_.recorder().tracks()) {
    if (example.tracks.size() == kMostTracks) break;
    ProfiledTrack copy{.name = track->name(),
                       .worker = session_.world().worker(),
                       .clock_error_s = clocks_.error_ns() * 1e-9};
    for (const Span& span : track->spans()) {
      if (span.end_ns <= begin_ns || span.begin_ns >= end_ns) continue;
      if (copy.spans.size() == kMostSpansOfTrack) break;
      copy.spans.push_back({.name = span.name,
                            .kind = span.kind,
                            .begin_s = seconds(span.begin_ns),
                            .end_s = seconds(span.end_ns)});
    }
    if (!copy.spans.empty()) example.tracks.push_back(std::move(copy));
  }
  copying_ns_ += now_ns() - began;
  return example;
}

// Collectives of one name run in the order of the plan, so spans are counted from the last one
// back.
std::vector<CollectiveProfile> RunProfiler::collectives() const {
  std::map<std::string_view, std::vector<std::size_t>> of_name;
  for (std::size_t i = 0; i < planned_.size(); ++i) of_name[planned_[i].name].push_back(i);
  const Track& track = session_.track(0);
  const std::string beside = track.name() + " communication";
  std::vector<CollectiveProfile> found = planned_;
  for (const Track* each : session_.recorder().tracks()) {
    if (each->name() != beside) continue;
    std::vector<std::vector<double>> times(found.size());
    std::map<std::string_view, std::size_t> seen;
    const std::vector<Span> spans = each->spans();
    for (std::size_t i = spans.size(); i-- > 0;) {
      const Span& span = spans[i];
      const auto places = of_name.find(span.name);
      if (places == of_name.end()) continue;
      const std::size_t count = places->second.size();
      const std::size_t from_last = seen[places->first]++ % count;
      const std::size_t place = places->second[count - 1 - from_last];
      // One after another: a collective that was started while another ran waited for its end.
      const std::int64_t before_ns = i > 0 ? spans[i - 1].end_ns : 0;
      times[place].push_back(seconds(span.end_ns - std::max(span.begin_ns, before_ns)));
    }
    for (std::size_t i = 0; i < found.size(); ++i) found[i].seconds = middle_of(times[i]);
  }
  // What a replica waited for all of one name is divided by how long each took.
  std::map<std::string_view, double> exposed;
  std::map<std::string_view, double> steps;
  for (const Span& span : track.spans()) {
    if (span.kind == SpanKind::Communication) {
      exposed[span.name] += seconds(span.end_ns - span.begin_ns);
    }
  }
  for (const Track* each : session_.recorder().tracks()) {
    if (each->name() != beside) continue;
    for (const Span& span : each->spans()) steps[span.name] += 1;
  }
  for (CollectiveProfile& one : found) {
    const auto count = static_cast<double>(of_name[one.name].size());
    double whole = 0;
    for (const std::size_t i : of_name[one.name]) whole += found[i].seconds;
    if (steps[one.name] <= 0 || whole <= 0) continue;
    const double per_step = exposed[one.name] / (steps[one.name] / count);
    one.exposed_s = per_step * one.seconds / whole;
  }
  return found;
}

void RunProfiler::planned(const Plan& plan) {
  if (!plan_.empty()) return;
  memory_ = memory_of(plan);
  for (const Instruction& instruction : plan.instructions) {
    const Node& node = plan.graph.node(instruction.node);
    plan_.push_back({.name = span_name(node), .after = instruction.waits});
    if (!is_collective(node)) continue;
    CollectiveProfile one{.name = span_name(node)};
    for (const ValueId value : node.outputs) {
      one.bytes += static_cast<std::int64_t>(plan.values[static_cast<std::size_t>(value)].bytes);
    }
    planned_.push_back(std::move(one));
  }
}

RunProfile RunProfiler::collect(const History& history) {
  World& world = session_.world();
  if (world.workers() > 1) {
    clocks_.measure([&](std::string_view mine) { return world.exchange(mine); });
  }
  RunProfile mine;
  mine.windows = windows_;
  mine.examples = typical_;
  mine.examples.insert(mine.examples.end(), slow_.begin(), slow_.end());
  for (ExampleStep& example : mine.examples) {
    for (ProfiledTrack& track : example.tracks) {
      track.clock_error_s = clocks_.error_ns() * 1e-9;
      for (ProfiledSpan& span : track.spans) {
        span.begin_s = clocks_.on_chief(static_cast<std::int64_t>(span.begin_s * 1e9)) * 1e-9;
        span.end_s = clocks_.on_chief(static_cast<std::int64_t>(span.end_s * 1e9)) * 1e-9;
      }
    }
  }
  for (int r = 0; r < session_.local_size(); ++r) mine.by_replica.emplace_back();
  mine.replicas = session_.local_size();

  std::vector<RunProfile> workers;
  if (world.workers() == 1) {
    workers.push_back(std::move(mine));
  } else {
    for (const std::string& theirs : world.exchange(to_json(mine))) {
      workers.push_back(run_profile_from_json(theirs, "a worker"));
    }
  }

  RunProfile profile;
  profile.windows = joined(workers);
  profile.examples = joined_examples(workers);
  profile.collectives = collectives();
  profile.plan = plan_;
  profile.memory = memory_;
  profile.memory.capacity = static_cast<double>(memory_of(world.device(0)).bytes);
  profile.learning = {.optimizer = history.optimizer,
                      .noise = history.noise_scale,
                      .losses = curve_.losses(),
                      .noises = curve_.noises()};
  if (!history.epochs.empty()) {
    profile.learning.learning_rate = history.epochs.back().logs.find("lr").value_or(0);
  }
  profile.transport = world.transport();
  profile.workers = world.workers();
  if (const std::optional<LinkSpeed>& link = world.link()) {
    profile.link = link_fit(*link, is_over_a_network(profile));
  }
  profile.hardware = hardware_of(world.device(0));
  profile.replicas = world.size();
  profile.global_batch = history.batch_size;
  profile.balanced = history.balanced;
  profile.steps = history.steps;
  profile.samples = history.samples;
  profile.seconds = history.seconds;
  profile.callback_s = history.callback_seconds;
  profile.step_s = history.median_step_ms() * 1e-3;
  profile.step_p99_s = history.p99_step_ms() * 1e-3;
  profile.peak_bytes = history.peak_bytes;
  int worker = 0;
  int left = world.ranks_of(0);
  for (const ReplicaTime& replica : history.replicas) {
    if (left == 0) left = world.ranks_of(++worker);
    --left;
    profile.by_replica.push_back({.device = replica.device,
                                  .worker = worker,
                                  .samples = replica.samples,
                                  .time = seconds_of(replica.attribution, history.seconds)});
  }
  if (history.input) {
    profile.input_limit = history.input->limiting;
    profile.input_advice = history.input->advice;
    profile.input_seconds = history.input->seconds;
    for (const StageReport& stage : history.input->stages) {
      profile.stages.push_back({.name = stage.name,
                                .depth = stage.depth,
                                .busy_s = stage.busy_s,
                                .wait_s = stage.wait_s,
                                .threads = stage.threads});
    }
  }
  for (const Recovery& recovery : history.recoveries) {
    profile.recoveries.push_back({.cause = recovery.cause,
                                  .step = recovery.step,
                                  .lost_steps = recovery.lost_steps,
                                  .seconds = recovery.seconds});
  }
  return profile;
}

}  // namespace lockstep

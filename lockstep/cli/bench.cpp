// lockstep bench: how fast a training step runs. The samples already lie in the executor's input,
// so that nothing but the step itself is timed.
#include <fmt/core.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <ctime>
#include <fstream>
#include <optional>
#include <sstream>

#include "lockstep/cli/command.h"
#include "lockstep/cli/core_probe.h"
#include "lockstep/cli/format.h"
#include "lockstep/cli/number.h"
#include "lockstep/cli/op_table.h"
#include "lockstep/cli/step_run.h"
#include "lockstep/cli/taken_time.h"
#include "lockstep/profile/trace.h"
#include "lockstep/train/history.h"

namespace lockstep::cli {
namespace {

struct BenchOptions {
  std::string model = "mlp";
  BatchFlags batch;
  Placement placement;
  std::int64_t steps = 0;  // 0: as many as fit into two seconds
  std::string optimizer;
  std::optional<double> learning_rate;
  std::uint64_t seed = 0;
  bool ops = false;
  std::string json;
  std::string trace;
};

constexpr double kSeconds = 2.0;
constexpr std::int64_t kFewestSteps = 5;
constexpr std::int64_t kMostSteps = 20'000;
constexpr std::int64_t kRounds = 12;  // in which several numbers of replicas take turns
constexpr double kSettleMs = 200;     // before each turn
constexpr int kProbePieces = 4;       // of arithmetic in each, to see what the cores can do
constexpr double kMostProbeMs = 100;
constexpr std::size_t kNodesShown = 25;

// Seconds since this process began, loading of libraries included; from the start time that the
// kernel keeps, to a hundredth.
double seconds_since_start() {
  std::ifstream file("/proc/self/stat");
  std::string text((std::istreambuf_iterator<char>(file)), {});
  std::istringstream fields(text.substr(std::min(text.size(), text.rfind(')') + 1)));
  std::string field;
  for (int i = 0; i < 20; ++i) fields >> field;  // the 22nd of the line, behind the name
  timespec now{};
  clock_gettime(CLOCK_BOOTTIME, &now);
  const double ticks = fields ? std::stod(field) : 0;
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9 -
         ticks / static_cast<double>(sysconf(_SC_CLK_TCK));
}

// The most memory that this process ever held.
std::int64_t peak_rss_bytes() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return std::int64_t{usage.ru_maxrss} * 1024;
}

// The cores of each replica; none on GPUs.
std::vector<std::vector<int>> cores_by_replica(const Replicas& replicas) {
  std::vector<std::vector<int>> cores;
  for (int r = 0; r < replicas.size(); ++r) {
    const auto* cpu = dynamic_cast<const CpuDevice*>(&replicas.device(r));
    if (cpu != nullptr) cores.push_back(cpu->cores());
  }
  return cores;
}

std::size_t cores_of(const Replicas& replicas) {
  std::size_t cores = 0;
  for (const std::vector<int>& own : cores_by_replica(replicas)) cores += own.size();
  return cores;
}

std::vector<const Track*> tracks_of(Session& session) {
  std::vector<const Track*> tracks;
  for (int r = 0; r < session.size(); ++r) tracks.push_back(&session.track(r));
  return tracks;
}

// A number of replicas, with its step and what was measured of it so far.
class Contender {
 public:
  Contender(const BenchOptions& options, int replicas, int most, std::int64_t batch)
      : strategy_(make_strategy(options.placement, replicas, most)),
        step_(strategy_, {.model = options.model,
                          .batch = batch,
                          .optimizer = options.optimizer,
                          .learning_rate = options.learning_rate,
                          .seed = options.seed,
                          .precision = options.placement.precision}),
        first_step_s_(seconds_since_start()),
        by_replica_(static_cast<std::size_t>(replicas)),
        taken_(by_replica_.size()) {}

  void warm_up(std::int64_t steps) {
    for (std::int64_t i = 0; i < steps; ++i) step_.run();
    step_.wait();
  }

  void measure(std::int64_t steps) {
    settle();
    const std::vector<std::optional<double>> before = seconds_taken();
    Session& session = step_.session();
    const AttributionMeter meter(tracks_of(session), session.host_track(), session.phases());
    const std::vector<double> here = behind_the_host() ? mean_of(steps) : each_of(steps);
    round_ms_.push_back(median(here));
    step_ms_.insert(step_ms_.end(), here.begin(), here.end());
    const std::vector<Attribution> parts = meter.by_replica();
    const double share = meter.seconds();
    for (std::size_t r = 0; r < parts.size(); ++r) by_replica_[r].add(parts[r], share);
    seconds_ += share;
    const std::vector<std::optional<double>> after = seconds_taken();
    for (std::size_t r = 0; r < after.size(); ++r) {
      if (before[r] && after[r]) taken_[r] = taken_[r].value_or(0.0) + *after[r] - *before[r];
    }
  }

  // Looks at what the cores of several replicas can do at once, in pieces as long as a step alone.
  void probe(double step_ms) {
    if (replicas() == 1 || behind_the_host()) return;
    if (!probe_) {
      probe_.emplace(cores_by_replica(step_.session().replicas()), std::min(step_ms, kMostProbeMs));
    }
    probe_->measure(kProbePieces);
  }
  std::optional<double> cores_at_once() const {
    return probe_ ? std::optional(probe_->at_once()) : std::nullopt;
  }

  // By replica, the share of its time in which something else ran on its thread's core; none where
  // nobody tells.
  std::vector<double> taken() const {
    std::vector<double> shares;
    for (const std::optional<double>& seconds : taken_) {
      if (!seconds) return {};
      shares.push_back(*seconds / seconds_);
    }
    return shares;
  }

  StepRun& step() { return step_; }
  const Strategy& strategy() const { return strategy_; }
  int replicas() { return step_.session().size(); }
  double first_step_s() const { return first_step_s_; }
  double median_ms() const { return median(step_ms_); }
  // How much of its replicas' speed alone it has: rounds are compared with those beside them, so
  // that a machine whose speed wavers does not decide.
  double efficiency(const Contender& one) const {
    std::vector<double> ratios;
    for (std::size_t i = 0; i < std::min(round_ms_.size(), one.round_ms_.size()); ++i) {
      ratios.push_back(one.round_ms_[i] / round_ms_[i]);
    }
    return median(ratios);
  }
  std::int64_t steps() const { return static_cast<std::int64_t>(step_ms_.size()); }
  std::vector<Attribution> by_replica() const {
    std::vector<Attribution> all(by_replica_.size());
    for (std::size_t r = 0; r < all.size(); ++r) all[r].add(by_replica_[r], 1 / seconds_);
    return all;
  }
  Attribution attribution() const {
    Attribution mean;
    const auto count = static_cast<double>(by_replica_.size());
    for (const Attribution& part : by_replica()) mean.add(part, 1 / count);
    return mean;
  }

 private:
  bool behind_the_host() { return cores_of(step_.session().replicas()) == 0; }

  // By replica; nothing of GPUs, which do not share their time with the host's programs.
  std::vector<std::optional<double>> seconds_taken() {
    std::vector<std::optional<double>> seconds(by_replica_.size());
    if (behind_the_host()) return seconds;
    step_.session().replicas().run([&](int replica) {
      seconds[static_cast<std::size_t>(replica)] = seconds_taken_from_this_thread();
    });
    return seconds;
  }

  // A core that had nothing to do in the others' turns is slower at first; what a step costs is
  // what it costs behind that. Steps so long that it does not matter are made for it but once.
  void settle() {
    if (behind_the_host() || (!round_ms_.empty() && round_ms_.back() > kSettleMs)) return;
    const std::int64_t begin = now_ns();
    while (static_cast<double>(now_ns() - begin) * 1e-6 < kSettleMs) step_.run();
  }

  // The time of each of some steps.
  std::vector<double> each_of(std::int64_t steps) {
    std::vector<double> times;
    std::int64_t before = now_ns();
    for (std::int64_t i = 0; i < steps; ++i) {
      step_.run();
      const std::int64_t after = now_ns();
      times.push_back(static_cast<double>(after - before) * 1e-6);
      before = after;
    }
    return times;
  }

  // On a GPU the host only issues them: what each took of all, the last one's end included.
  std::vector<double> mean_of(std::int64_t steps) {
    const std::int64_t begin = now_ns();
    for (std::int64_t i = 0; i < steps; ++i) step_.run();
    step_.wait();
    const double ms = static_cast<double>(now_ns() - begin) * 1e-6 / static_cast<double>(steps);
    return std::vector<double>(static_cast<std::size_t>(steps), ms);
  }

  Strategy strategy_;
  StepRun step_;
  double first_step_s_;
  std::vector<double> step_ms_;
  std::vector<double> round_ms_;              // the median of each round
  std::vector<Attribution> by_replica_;       // times seconds
  std::vector<std::optional<double>> taken_;  // seconds
  double seconds_ = 0;
  std::optional<CoreProbe> probe_;
};

// On a GPU each node is run by itself.
std::vector<OpRow> node_times_of(StepRun& step) {
  const KernelLibrary& library = step.session().replicas().kernels(0);
  const std::vector<double> ms = step.profile();
  return ms.empty() ? node_times(step.plan(), library, step.session().track(0))
                    : node_times(step.plan(), library, ms);
}

Json as_json(const Attribution& attribution) {
  Json json = Json::object();
  for (const auto& [name, share] : parts_of(attribution)) json[name] = share;
  return json;
}

Json as_json(const std::vector<OpRow>& rows) {
  Json json = Json::array();
  for (const OpRow& row : rows) {
    json.push_back({{"op", row.op},
                    {"kernel", row.kernel},
                    {"name", row.name},
                    {"calls", row.calls},
                    {"ms", row.ms},
                    {"share", row.share},
                    {"gflops", row.gflops}});
  }
  return json;
}

// How many steps make a good measurement.
std::int64_t steps_for(const BenchOptions& options, Contender& contender) {
  if (options.steps > 0) return options.steps;
  const std::int64_t begin = now_ns();
  contender.warm_up(2);
  const double ms = std::max(static_cast<double>(now_ns() - begin) * 1e-6 / 2, 1e-3);
  const auto steps =
      std::clamp(static_cast<std::int64_t>(kSeconds * 1e3 / ms), kFewestSteps, kMostSteps);
  contender.warm_up(steps / 10);
  return steps;
}

Json result_of(const BenchOptions& options, Contender& contender, std::int64_t batch,
               const Contender& one) {
  const int replicas = contender.replicas();
  const double step_ms = contender.median_ms();
  const double samples_per_s = static_cast<double>(batch * replicas) * 1e3 / step_ms;
  const double efficiency = contender.efficiency(one);
  StepRun& step = contender.step();
  const double gflops = step.plan().total_cost().flops * replicas * 1e-6 / step_ms;
  const std::size_t cores = cores_of(step.session().replicas());
  const Attribution a = contender.attribution();

  Json json = {{"replicas", replicas},
               {"step_ms", step_ms},
               {"samples_per_s", samples_per_s},
               {"efficiency", efficiency},
               {"peak_bytes", step.peak_bytes()},
               {"attribution", as_json(a)},
               {"steps", contender.steps()},
               {"cores", cores},
               {"gflops", gflops},
               {"peak_rss_bytes", peak_rss_bytes()},
               {"first_step_s", contender.first_step_s()}};
  const std::optional<double> cores_at_once = contender.cores_at_once();
  if (cores_at_once) json["cores_at_once"] = *cores_at_once;
  json["by_replica"] = Json::array();
  for (const Attribution& part : contender.by_replica()) {
    json["by_replica"].push_back(as_json(part));
  }
  std::vector<std::string> taken;
  for (double share : contender.taken()) {
    json["taken"].push_back(share);
    taken.push_back(fmt::format("{:.1f}%", 100 * share));
  }

  // Of the first replica; GPUs run each node by itself for it, which takes one that is alone.
  const bool by_node = options.ops && (replicas == 1 || cores > 0);
  const auto nodes = by_node ? node_times_of(step) : std::vector<OpRow>();
  if (by_node) json["ops"] = as_json(op_times(nodes));
  if (is_standard_output(options.json)) return json;

  fmt::print("{}{}, {} replica{} × batch {}, {}{}, {} steps\n", options.model,
             precision_text(options.placement, contender.strategy()), replicas,
             replicas == 1 ? "" : "s", batch, fmt::join(contender.strategy().devices(), ", "),
             cores == 0 ? "" : fmt::format(" ({} core{})", cores, cores == 1 ? "" : "s"),
             contender.steps());
  fmt::print("step {:.3f} ms (median), {:.0f} samples/s, {:.1f} GFLOP/s\n", step_ms, samples_per_s,
             gflops);
  if (replicas > 1) fmt::print("{:.1f}% of {} times one replica\n", 100 * efficiency, replicas);
  if (cores_at_once) {
    fmt::print("{:.1f}% is what these cores do at once of arithmetic in registers\n",
               100 * *cores_at_once);
  }
  fmt::print("memory {} planned for a replica, {} held by the process at most\n",
             bytes_text(static_cast<double>(step.peak_bytes())),
             bytes_text(static_cast<double>(peak_rss_bytes())));
  fmt::print(
      "time: compute {:.1f}%, communication {:.1f}%, wait {:.1f}%, host {:.1f}%; first step done "
      "{:.2f} s after the start\n",
      a.compute * 100, a.communication * 100, a.wait * 100, a.host * 100, contender.first_step_s());
  if (!taken.empty()) {
    fmt::print("other threads had the core{} for {} of it\n", replicas == 1 ? "" : "s of replicas",
               fmt::join(taken, ", "));
  }
  for (const std::string& remark : step.session().replicas().kernels(0).remarks()) {
    fmt::print("note: {}\n", remark);
  }
  if (by_node) {
    auto slowest = nodes;
    std::sort(slowest.begin(), slowest.end(),
              [](const OpRow& x, const OpRow& y) { return x.ms > y.ms; });
    const auto ops = op_times(nodes);
    fmt::print("\n{}\nslowest nodes\n{}", print(ops, ops.size()), print(slowest, kNodesShown));
  }
  return json;
}

void run(const BenchOptions& options) {
  check_target("--json", options.json);
  check_target("--trace", options.trace);
  // Efficiency is against one replica, which is measured too.
  std::vector<int> counts = replica_counts(options.placement);
  if (std::erase(counts, 1) > 0 || counts.front() != 1) counts.insert(counts.begin(), 1);
  const int most = *std::max_element(counts.begin(), counts.end());
  require(options.batch.global == 0 || counts.size() == 1,
          "--global-batch {}: bench compares replicas of one size; give --batch-per-replica",
          options.batch.global);
  const std::int64_t batch = batch_per_replica(options.batch, 1, zoo_entry(options.model).batch);

  // In turns, so that a slow minute of the machine hits all alike.
  std::vector<std::unique_ptr<Contender>> contenders;
  std::vector<std::int64_t> steps;
  for (int replicas : counts) {
    contenders.push_back(std::make_unique<Contender>(options, replicas, most, batch));
    steps.push_back(steps_for(options, *contenders.back()));
  }
  const std::int64_t rounds =
      counts.size() == 1 ? 1 : std::min(kRounds, *std::min_element(steps.begin(), steps.end()));
  for (std::int64_t round = 0; round < rounds; ++round) {
    for (std::size_t i = 0; i < contenders.size(); ++i) {
      contenders[i]->measure(steps[i] * (round + 1) / rounds - steps[i] * round / rounds);
    }
    for (const auto& contender : contenders) contender->probe(contenders.front()->median_ms());
  }
  Json json;
  json["model"] = options.model;
  json["batch_per_replica"] = batch;
  json["precision"] = options.placement.precision;
  json["results"] = Json::array();
  for (const auto& contender : contenders) {
    json["results"].push_back(result_of(options, *contender, batch, *contenders.front()));
  }
  if (!options.trace.empty()) {
    write_target("--trace", options.trace,
                 trace_text(contenders.back()->step().session().recorder()));
  }
  write_json(json, options.json);
}

}  // namespace

void add_bench(Program& program) {
  Command app = program.add_command("bench", "Times a training step on synthetic samples.");
  auto options = std::make_shared<BenchOptions>();
  app.add_option("--model", options->model, "one of " + zoo_names()).capture_default_str();
  add_batch(app, options->batch);
  add_placement(app, options->placement);
  app.add_option("--steps", options->steps, "steps to time (as many as take two seconds)")
      .check(whole_number(1, kMostStepsOfAnEpoch));
  app.add_option("--optimizer", options->optimizer, "sgd, adam, … (what suits the model)");
  app.add_option("--learning-rate", options->learning_rate, "rate (what suits the optimizer)")
      .check(number(0, kMostRate));
  app.add_option("--seed", options->seed, "of weights and samples")
      .capture_default_str()
      .check(seed_number());
  app.add_flag("--ops", options->ops, "show the time of every kind of op");
  app.add_option("--trace", options->trace, "write the last steps as a trace for Perfetto");
  app.add_option("--json", options->json, "write the result to this file (-: here)");
  app.callback([options] { run(*options); });
}

}  // namespace lockstep::cli

// lockstep bench: how fast a training step runs. The samples are already in the executor's inputs,
// so only the step itself is timed. As one of several workers it times the step of all of them; the
// chief compares that with one replica of its own, for which the others wait, and shows the result.
#include <fmt/core.h>

#include <algorithm>
#include <optional>

#include "lockstep/cli/bench_explain.h"
#include "lockstep/cli/bench_workers.h"
#include "lockstep/cli/command.h"
#include "lockstep/cli/core_probe.h"
#include "lockstep/cli/explain_charts.h"
#include "lockstep/cli/explanation_json.h"
#include "lockstep/cli/format.h"
#include "lockstep/cli/number.h"
#include "lockstep/cli/op_table.h"
#include "lockstep/cli/process_figures.h"
#include "lockstep/cli/run_queue_delay.h"
#include "lockstep/cli/scale_source.h"
#include "lockstep/cli/step_run.h"
#include "lockstep/explain/attribute.h"
#include "lockstep/explain/explanation_text.h"
#include "lockstep/profile/trace.h"
#include "lockstep/train/attribution_meter.h"
#include "lockstep/train/strategy_impl.h"

namespace lockstep::cli {
namespace {

struct BenchOptions {
  std::string model = "mlp";
  BatchFlags batch;
  Placement placement;
  MemoryFlags memory;
  std::int64_t steps = 0;  // 0: as many as fit into two seconds
  std::string optimizer;
  std::optional<double> learning_rate;
  std::uint64_t seed = 0;
  bool ops = false;
  bool explain = false;
  std::string json;
  std::string trace;
};

constexpr double kSeconds = 2.0;
constexpr std::int64_t kFewestSteps = 5;
constexpr std::int64_t kMostSteps = 20'000;
constexpr std::int64_t kRounds = 12;  // the replica counts take turns, once per round
constexpr double kSettleMs = 200;     // warm-up before each turn
constexpr int kProbePieces = 4;       // pieces of arithmetic per round, see core_probe.h
constexpr double kMostProbeMs = 100;
constexpr std::size_t kNodesShown = 25;

// One replica count, with its step and the measurements so far. If it has several workers, all make
// the same calls.
class Contender {
 public:
  Contender(const BenchOptions& options, Strategy strategy, std::int64_t batch)
      : strategy_(std::move(strategy)),
        step_(strategy_, {.model = options.model,
                          .batch = batch,
                          .optimizer = options.optimizer,
                          .learning_rate = options.learning_rate,
                          .seed = options.seed,
                          .precision = options.placement.precision,
                          .memory = memory_options(options.memory)}),
        first_step_s_(seconds_since_start()),
        cores_(cores_of_job(world())),
        by_replica_(static_cast<std::size_t>(world().local_size())),
        delays_(by_replica_.size()) {}

  void warm_up(std::int64_t steps) {
    for (std::int64_t i = 0; i < steps; ++i) step_.run();
    step_.wait();
  }

  void measure(std::int64_t steps) {
    agreed(world(), 0);  // until then, other workers' cores are idle
    settle();
    const std::vector<std::optional<double>> before = run_queue_delays();
    Session& session = step_.session();
    const AttributionMeter meter(session.tracks(), session.host_track(), session.phases());
    const std::vector<double> times = on_gpu() ? mean_of(steps) : each_of(steps);
    round_ms_.push_back(median(times));
    step_ms_.insert(step_ms_.end(), times.begin(), times.end());
    const std::vector<Attribution> parts = meter.by_replica();
    const double seconds = meter.seconds();
    for (std::size_t r = 0; r < parts.size(); ++r) by_replica_[r].add(parts[r], seconds);
    seconds_ += seconds;
    const std::vector<std::optional<double>> after = run_queue_delays();
    for (std::size_t r = 0; r < after.size(); ++r) {
      if (before[r] && after[r]) delays_[r] = delays_[r].value_or(0.0) + *after[r] - *before[r];
    }
  }

  // Measures how fast the cores of several replicas are when all are busy, in pieces as long as one
  // replica's step.
  void probe(double step_ms) {
    if (replicas() == 1 || !cores_.on_one_host || on_gpu() || !world().chief()) return;
    if (!probe_) probe_.emplace(cores_.by_replica, std::min(step_ms, kMostProbeMs));
    probe_->measure(kProbePieces);
  }
  std::optional<double> cores_at_once() const {
    return probe_ ? std::optional(probe_->at_once()) : std::nullopt;
  }

  // Per replica, the fraction of the time in which something else ran on its thread's core; empty
  // if the system does not report it.
  std::vector<double> delays() const {
    std::vector<double> shares;
    for (const std::optional<double>& seconds : delays_) {
      if (!seconds) return {};
      shares.push_back(*seconds / seconds_);
    }
    return shares;
  }

  StepRun& step() { return step_; }
  const Strategy& strategy() const { return strategy_; }
  World& world() { return step_.session().world(); }
  int replicas() { return world().size(); }
  std::size_t cores() const { return cores_.count(); }  // of all workers; 0 on GPUs
  double first_step_s() const { return first_step_s_; }
  double median_ms() const { return median(step_ms_); }
  // Speed per replica relative to one replica alone. Each round is compared with the neighbouring
  // round of `one`, so that changes in the machine's speed cancel out.
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
  // Of all workers. Collective.
  BenchedReplicas benched(std::int64_t batch) {
    std::vector<BenchedReplica> mine;
    const std::vector<Attribution> parts = by_replica();
    for (std::size_t r = 0; r < parts.size(); ++r) {
      const auto rank = static_cast<std::size_t>(world().rank(static_cast<int>(r)));
      mine.push_back(
          {.device = world().names()[rank], .worker = world().worker(), .parts = parts[r]});
    }
    return {.batch = batch,
            .steps = steps(),
            .seconds = seconds_,
            .step_ms = median_ms(),
            .by_replica = of_all_workers(world(), mine),
            .workers = world().workers(),
            .transport = world().transport(),
            .link = world().link(),
            .collectives = collectives_of(step_.plan())};
  }
  // How many of its replicas one host has.
  int replicas_per_host() { return cores_.on_one_host ? replicas() : world().local_size(); }
  Attribution attribution() const {
    Attribution mean;
    const auto count = static_cast<double>(by_replica_.size());
    for (const Attribution& part : by_replica()) mean.add(part, 1 / count);
    return mean;
  }

 private:
  bool on_gpu() const { return cores() == 0; }

  // Per replica; nothing for GPUs.
  std::vector<std::optional<double>> run_queue_delays() {
    std::vector<std::optional<double>> seconds(by_replica_.size());
    if (on_gpu()) return seconds;
    world().run([&](int replica) {
      seconds[static_cast<std::size_t>(replica)] = run_queue_delay_of_this_thread();
    });
    return seconds;
  }

  // A core that was idle during the others' turns is slower at first, so each turn starts with
  // steps that are not timed. If a step takes longer than kSettleMs, only the first turn does.
  void settle() {
    const bool slow = !round_ms_.empty() && round_ms_.back() > kSettleMs;
    if (on_gpu() || agreed(world(), slow ? 1 : 0) != 0) return;
    const std::int64_t begin = now_ns();
    const auto goes_on = [&] { return static_cast<double>(now_ns() - begin) * 1e-6 < kSettleMs; };
    while (agreed(world(), goes_on() ? 1 : 0) != 0) step_.run();
  }

  // The time of each step.
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

  // On a GPU the host only launches the steps: their mean time, up to the end of the last one.
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
  JobCores cores_;
  std::vector<double> step_ms_;
  std::vector<double> round_ms_;               // the median of each round
  std::vector<Attribution> by_replica_;        // in seconds
  std::vector<std::optional<double>> delays_;  // seconds
  double seconds_ = 0;
  std::optional<CoreProbe> probe_;
};

// On a GPU each node is run on its own.
std::vector<OpRow> node_times_of(StepRun& step) {
  const KernelLibrary& library = step.session().world().kernels(0);
  const std::vector<double> ms = step.profile();
  return ms.empty() ? node_times(step.plan(), library, step.session().track(0))
                    : node_times(step.plan(), library, ms);
}

std::int64_t steps_for(const BenchOptions& options, Contender& contender) {
  if (options.steps > 0) return options.steps;
  const std::int64_t begin = now_ns();
  contender.warm_up(2);
  const double ms = std::max(static_cast<double>(now_ns() - begin) * 1e-6 / 2, 1e-3);
  const std::int64_t steps =
      agreed(contender.world(),
             std::clamp(static_cast<std::int64_t>(kSeconds * 1e3 / ms), kFewestSteps, kMostSteps));
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
  const double gflops = step.flops() * replicas * 1e-6 / step_ms;
  const std::size_t cores = contender.cores();
  const World& world = contender.world();
  const Attribution a = contender.attribution();

  Json json = {{"replicas", replicas},
               {"step_ms", step_ms},
               {"samples_per_s", samples_per_s},
               {"efficiency", efficiency},
               {"peak_bytes", step.peak_bytes()},
               {"attribution", attribution_json(a)},
               {"steps", contender.steps()},
               {"micro_batches", step.micro_batches()},
               {"cores", cores},
               {"gflops", gflops},
               {"peak_rss_bytes", peak_rss_bytes()},
               {"first_step_s", contender.first_step_s()}};
  if (world.workers() > 1) {
    json["workers"] = world.workers();
    json["transport"] = world.transport();
  }
  const std::optional<double> cores_at_once = contender.cores_at_once();
  if (cores_at_once) json["cores_at_once"] = *cores_at_once;
  json["by_replica"] = Json::array();
  for (const Attribution& part : contender.by_replica()) {
    json["by_replica"].push_back(attribution_json(part));
  }
  std::vector<std::string> delays;
  for (double share : contender.delays()) {
    json["run_queue_delay"].push_back(share);
    delays.push_back(fmt::format("{:.1f}%", 100 * share));
  }

  // Times of the first replica. GPUs run each node on its own, which works for one replica only.
  const bool by_node = options.ops && (replicas == 1 || cores > 0);
  const auto nodes = by_node ? node_times_of(step) : std::vector<OpRow>();
  if (by_node) json["ops"] = ops_json(op_times(nodes));
  if (is_standard_output(options.json)) return json;

  fmt::print("{}{}, {} replica{} × batch {}{}, {}{}, {} steps\n", options.model,
             precision_text(options.placement, contender.strategy()), replicas,
             replicas == 1 ? "" : "s", batch,
             step.micro_batches() > 1 ? fmt::format(" in {} micro-batches", step.micro_batches())
                                      : std::string(),
             fmt::join(contender.strategy().devices(), ", "),
             cores == 0 ? "" : fmt::format(" ({} core{})", cores, cores == 1 ? "" : "s"),
             contender.steps());
  if (world.workers() > 1) {
    fmt::print("{} workers over {}; all figures but the speed are worker 0's\n", world.workers(),
               world.transport());
  }
  fmt::print("step {:.3f} ms (median), {:.0f} samples/s, {:.1f} GFLOP/s\n", step_ms, samples_per_s,
             gflops);
  if (replicas > 1) {
    fmt::print("scaling efficiency {:.1f}% of {} × one replica\n", 100 * efficiency, replicas);
  }
  if (cores_at_once) {
    fmt::print("these cores compute at {:.1f}% of their speed alone when all are busy\n",
               100 * *cores_at_once);
  }
  fmt::print("memory: {} planned per replica, process peak {}\n",
             bytes_text(static_cast<double>(step.peak_bytes())),
             bytes_text(static_cast<double>(peak_rss_bytes())));
  fmt::print(
      "time: compute {:.1f}%, communication {:.1f}%, wait {:.1f}%, host {:.1f}%; first step done "
      "{:.2f} s after the start\n",
      a.compute * 100, a.communication * 100, a.wait * 100, a.host * 100, contender.first_step_s());
  if (!delays.empty()) {
    fmt::print("other threads occupied the replicas' cores for {} of the time\n",
               fmt::join(delays, ", "));
  }
  for (const std::string& remark : step.session().world().kernels(0).remarks()) {
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

// The replica counts that are compared, the first one being one replica, to which the efficiency is
// relative.
using Contenders = std::vector<std::unique_ptr<Contender>>;

Contenders contenders_here(const BenchOptions& options, std::vector<int> counts,
                           std::int64_t batch) {
  if (std::erase(counts, 1) > 0 || counts.front() != 1) counts.insert(counts.begin(), 1);
  const int most = *std::max_element(counts.begin(), counts.end());
  Contenders contenders;
  for (int replicas : counts) {
    contenders.push_back(std::make_unique<Contender>(
        options, make_strategy(options.placement, replicas, most), batch));
  }
  return contenders;
}

// All workers together; on the chief also one replica alone.
Contenders contenders_of_job(const BenchOptions& options, const Strategy& all, std::int64_t batch) {
  Contenders contenders;
  const World& world = *impl_of(all).world;
  if (world.chief() && world.size() > 1) {
    contenders.push_back(std::make_unique<Contender>(options, AloneStrategy(world), batch));
  }
  contenders.push_back(std::make_unique<Contender>(options, all, batch));
  return contenders;
}

// They take turns, so that a slow minute of the machine affects all of them.
void measure(const BenchOptions& options, const Contenders& contenders) {
  std::vector<std::int64_t> steps;
  for (const auto& contender : contenders) steps.push_back(steps_for(options, *contender));
  World& world = contenders.back()->world();
  const std::int64_t rounds =
      agreed(world, contenders.size() == 1
                        ? 1
                        : std::min(kRounds, *std::min_element(steps.begin(), steps.end())));
  for (std::int64_t round = 0; round < rounds; ++round) {
    for (std::size_t i = 0; i < contenders.size(); ++i) {
      contenders[i]->measure(steps[i] * (round + 1) / rounds - steps[i] * round / rounds);
    }
    for (const auto& contender : contenders) contender->probe(contenders.front()->median_ms());
  }
}

// Why each number of replicas is not as many times as fast as one. On the chief.
void explain_all(const BenchOptions& options, const Contenders& contenders,
                 const std::vector<BenchedReplicas>& benched, Json& results) {
  ScaleSourceOptions source;
  source.model = options.model;
  source.batch.per_replica = benched.front().batch;
  source.precision = options.placement.precision;
  source.optimizer = options.optimizer;
  source.memory = options.memory;
  source.cores = options.placement.cores;
  for (const auto& contender : contenders) {
    source.counts.push_back(contender->replicas());
    source.most = std::max(source.most, contender->replicas_per_host());
  }
  source.topology = Topology{.per_host = source.most};
  const MeasuredStep alone = scale_source(source).step;
  for (std::size_t i = 0; i < contenders.size(); ++i) {
    if (contenders[i]->replicas() == 1) continue;
    const Explanation explanation = explain_bench(benched[i], alone);
    results[i]["explanation"] = explanation_json(explanation);
    if (is_standard_output(options.json)) continue;
    fmt::print("\n{}\n{}", text_of(explanation),
               terminal_waterfall(explanation, style_of_output()));
  }
}

// Of each number of replicas, for the explanation; nothing where nobody asks for one. Collective.
std::vector<BenchedReplicas> benched_of(const BenchOptions& options, const Contenders& contenders,
                                        std::int64_t batch) {
  std::vector<BenchedReplicas> benched;
  if (!options.explain) return benched;
  for (const auto& contender : contenders) benched.push_back(contender->benched(batch));
  return benched;
}

void show(const BenchOptions& options, const Contenders& contenders, std::int64_t batch,
          const std::vector<BenchedReplicas>& benched) {
  Json json;
  json["model"] = options.model;
  json["batch_per_replica"] = batch;
  json["precision"] = options.placement.precision;
  json["results"] = Json::array();
  for (const auto& contender : contenders) {
    json["results"].push_back(result_of(options, *contender, batch, *contenders.front()));
  }
  if (options.explain) explain_all(options, contenders, benched, json["results"]);
  if (!options.trace.empty()) {
    write_target("--trace", options.trace,
                 trace_text(contenders.back()->step().session().recorder()));
  }
  write_json(json, options.json);
}

void run_as_worker(const BenchOptions& options, int replicas, std::int64_t batch) {
  const Strategy all = make_strategy(options.placement, replicas, replicas);
  World& world = *impl_of(all).world;
  try {
    const Contenders contenders = contenders_of_job(options, all, batch);
    measure(options, contenders);
    const std::vector<BenchedReplicas> benched = benched_of(options, contenders, batch);
    if (world.chief()) show(options, contenders, batch, benched);
  } catch (...) {
    world.report(std::current_exception());
    throw;
  }
}

void run(const BenchOptions& options) {
  check_target("--json", options.json);
  check_target("--trace", options.trace);
  const std::vector<int> counts = replica_counts(options.placement);
  const bool several = is_one_of_several(options.placement);
  require(options.batch.global == 0 || (!several && counts == std::vector{1}),
          "--global-batch {}: bench keeps the batch per replica fixed; give --batch-per-replica",
          options.batch.global);
  const std::int64_t batch = batch_per_replica(options.batch, 1, zoo_entry(options.model).batch);
  if (several) {
    require(counts.size() == 1,
            "--replicas {}: as one of several workers, bench takes one number, the replicas of "
            "each worker",
            fmt::join(counts, ","));
    return run_as_worker(options, counts.front(), batch);
  }
  const Contenders contenders = contenders_here(options, counts, batch);
  measure(options, contenders);
  show(options, contenders, batch, benched_of(options, contenders, batch));
}

}  // namespace

void add_bench(Program& program) {
  Command app = program.add_command("bench", "Times a training step on synthetic samples.");
  auto options = std::make_shared<BenchOptions>();
  app.add_option("--model", options->model, "one of " + zoo_names()).capture_default_str();
  add_batch(app, options->batch);
  add_placement(app, options->placement);
  add_memory(app, options->memory);
  app.add_option("--steps", options->steps, "steps to time (as many as fit into two seconds)")
      .check(whole_number(1, kMostStepsOfAnEpoch));
  app.add_option("--optimizer", options->optimizer, "sgd, adam, … (depends on the model)");
  app.add_option("--learning-rate", options->learning_rate, "rate (depends on the optimizer)")
      .check(number(0, kMostRate));
  app.add_option("--seed", options->seed, "seed of weights and samples")
      .capture_default_str()
      .check(seed_number());
  app.add_flag("--ops", options->ops, "show the time per op and the slowest nodes");
  app.add_flag(
      "--explain", options->explain,
      "say why several replicas, or all workers together, are not as many times as fast as "
      "one");
  app.add_option("--trace", options->trace, "write the last steps as a trace for Perfetto");
  app.add_option("--json", options->json, "write the result to this file (-: standard output)");
  app.callback([options] { run(*options); });
}

}  // namespace lockstep::cli

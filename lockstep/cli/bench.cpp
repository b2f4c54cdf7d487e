// lockstep bench: how fast a training step runs. The samples already lie in the executor's input,
// so that nothing but the step itself is timed.
#include <fmt/core.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <ctime>
#include <fstream>
#include <sstream>

#include "lockstep/cli/command.h"
#include "lockstep/cli/format.h"
#include "lockstep/cli/op_table.h"
#include "lockstep/cli/step_run.h"
#include "lockstep/profile/trace.h"
#include "lockstep/train/history.h"

namespace lockstep::cli {
namespace {

struct Options {
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

struct Measured {
  std::vector<double> step_ms;
  Attribution attribution;
  std::vector<Attribution> by_replica;
};

std::vector<const Track*> tracks_of(Session& session) {
  std::vector<const Track*> tracks;
  for (int r = 0; r < session.size(); ++r) tracks.push_back(&session.track(r));
  return tracks;
}

Measured measure(StepRun& step, std::int64_t steps) {
  Measured measured;
  measured.step_ms.reserve(static_cast<std::size_t>(steps));
  const AttributionMeter meter(tracks_of(step.session()), step.session().host_track());
  std::int64_t before = now_ns();
  for (std::int64_t i = 0; i < steps; ++i) {
    step.run();
    const std::int64_t after = now_ns();
    measured.step_ms.push_back(static_cast<double>(after - before) * 1e-6);
    before = after;
  }
  measured.attribution = meter.read();
  measured.by_replica = meter.by_replica();
  return measured;
}

Json as_json(const Attribution& a) {
  return {{"compute", a.compute},
          {"communication", a.communication},
          {"input", a.input},
          {"wait", a.wait},
          {"host", a.host}};
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

// One number of replicas, measured.
struct Result {
  Json json;
  double samples_per_s = 0;
};

Result measure_replicas(const Options& options, int replicas, int most, std::int64_t batch,
                        double one_samples_per_s) {
  const Strategy strategy = make_strategy(options.placement, replicas, most);
  StepRun step(strategy, {.model = options.model,
                          .batch = batch,
                          .optimizer = options.optimizer,
                          .learning_rate = options.learning_rate,
                          .seed = options.seed});
  step.run();
  const double first_step_s = seconds_since_start();

  // Warm up, and find out how many steps make a good measurement.
  const Measured warm_up = measure(step, 2);
  std::int64_t steps = options.steps;
  if (steps == 0) {
    const double ms = std::max(warm_up.step_ms.back(), 1e-3);
    steps = std::clamp(static_cast<std::int64_t>(kSeconds * 1e3 / ms), kFewestSteps, kMostSteps);
    measure(step, steps / 10);
  }
  const Measured measured = measure(step, steps);
  const double step_ms = median(measured.step_ms);
  const double samples_per_s = static_cast<double>(batch * replicas) * 1e3 / step_ms;
  const double efficiency =
      one_samples_per_s > 0 ? samples_per_s / (replicas * one_samples_per_s) : 1.0;
  const double gflops = step.plan().total_cost().flops * replicas * 1e-6 / step_ms;
  std::size_t cores = 0;
  for (int r = 0; r < replicas; ++r) {
    cores += dynamic_cast<const CpuDevice&>(step.session().replicas().device(r)).cores().size();
  }

  Json json = {{"replicas", replicas},
               {"step_ms", step_ms},
               {"samples_per_s", samples_per_s},
               {"efficiency", efficiency},
               {"peak_bytes", step.peak_bytes()},
               {"attribution", as_json(measured.attribution)},
               {"steps", steps},
               {"cores", cores},
               {"gflops", gflops},
               {"peak_rss_bytes", peak_rss_bytes()},
               {"first_step_s", first_step_s}};
  json["by_replica"] = Json::array();
  for (const Attribution& part : measured.by_replica) json["by_replica"].push_back(as_json(part));

  // On several replicas spans of sums stand between those of the nodes.
  const bool by_node = options.ops && replicas == 1;
  const auto nodes = by_node ? node_times(step.plan(), cpu_kernels(), step.session().track(0))
                             : std::vector<OpRow>();
  if (by_node) json["ops"] = as_json(op_times(nodes));

  if (options.json != "-") {
    const Attribution& a = measured.attribution;
    fmt::print("{}, {} replica{} × batch {}, {} ({} core{}), {} steps\n", options.model, replicas,
               replicas == 1 ? "" : "s", batch, fmt::join(strategy.devices(), ", "), cores,
               cores == 1 ? "" : "s", steps);
    fmt::print("step {:.3f} ms (median), {:.0f} samples/s, {:.1f} GFLOP/s\n", step_ms,
               samples_per_s, gflops);
    if (one_samples_per_s > 0) {
      fmt::print("{:.1f}% of {} times one replica\n", 100 * efficiency, replicas);
    }
    fmt::print("memory {} planned for a replica, {} held by the process at most\n",
               bytes_text(static_cast<double>(step.peak_bytes())),
               bytes_text(static_cast<double>(peak_rss_bytes())));
    fmt::print(
        "time: compute {:.1f}%, communication {:.1f}%, wait {:.1f}%, host {:.1f}%; first step done "
        "{:.2f} s after the start\n",
        a.compute * 100, a.communication * 100, a.wait * 100, a.host * 100, first_step_s);
    if (by_node) {
      auto slowest = nodes;
      std::sort(slowest.begin(), slowest.end(),
                [](const OpRow& x, const OpRow& y) { return x.ms > y.ms; });
      const auto ops = op_times(nodes);
      fmt::print("\n{}\nslowest nodes\n{}", print(ops, ops.size()), print(slowest, kNodesShown));
    }
  }
  if (!options.trace.empty()) write_trace(step.session().recorder(), options.trace);
  return {std::move(json), samples_per_s};
}

void run(const Options& options) {
  check_target("--json", options.json);
  check_target("--trace", options.trace);
  const std::vector<int> counts = replica_counts(options.placement);
  const int most = *std::max_element(counts.begin(), counts.end());
  const std::int64_t batch =
      batch_per_replica(options.batch, counts.front(), zoo_entry(options.model).batch);
  Json json;
  json["model"] = options.model;
  json["batch_per_replica"] = batch;
  json["results"] = Json::array();
  double one_samples_per_s = 0;
  for (int replicas : counts) {
    Result result = measure_replicas(options, replicas, most, batch, one_samples_per_s);
    if (replicas == 1) one_samples_per_s = result.samples_per_s;
    json["results"].push_back(std::move(result.json));
  }
  write_json(json, options.json);
}

}  // namespace

void add_bench(CLI::App& program) {
  CLI::App* app = program.add_subcommand("bench", "Times a training step on synthetic samples.");
  auto options = std::make_shared<Options>();
  app->add_option("--model", options->model, "one of " + zoo_names())->capture_default_str();
  add_batch(*app, options->batch);
  add_placement(*app, options->placement);
  app->add_option("--steps", options->steps, "steps to time (as many as take two seconds)")
      ->check(CLI::PositiveNumber);
  app->add_option("--optimizer", options->optimizer, "sgd, adam, … (what suits the model)");
  app->add_option("--learning-rate", options->learning_rate, "rate (what suits the optimizer)")
      ->check(CLI::NonNegativeNumber);
  app->add_option("--seed", options->seed, "of weights and samples")->capture_default_str();
  app->add_flag("--ops", options->ops, "show the time of every kind of op");
  app->add_option("--trace", options->trace, "write the last steps as a trace for Perfetto");
  app->add_option("--json", options->json, "write the result to this file (-: here)");
  app->callback([options] { run(*options); });
}

}  // namespace lockstep::cli

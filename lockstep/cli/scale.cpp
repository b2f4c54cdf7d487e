// lockstep scale: what a training step would take on other numbers of replicas, over other networks
// and on other devices. It measures one replica here, or takes what a run has recorded, and
// simulates the rest.
#include <fmt/core.h>

#include <algorithm>
#include <filesystem>
#include <map>

#include "lockstep/base/error.h"
#include "lockstep/cli/command.h"
#include "lockstep/cli/explanation_json.h"
#include "lockstep/cli/format.h"
#include "lockstep/cli/number.h"
#include "lockstep/cli/replica_list.h"
#include "lockstep/cli/run_profile_file.h"
#include "lockstep/cli/scale_source.h"
#include "lockstep/cli/zoo.h"
#include "lockstep/explain/memory_choice.h"
#include "lockstep/explain/predict.h"
#include "lockstep/explain/scaling_curve.h"
#include "lockstep/explain/what_if.h"

namespace lockstep::cli {
namespace {

struct ScaleOptions {
  ScaleSourceOptions source;
  std::string replicas = "1,2,4,8";
  std::string network;
  std::string within;
  std::string topology;
  std::string save;
  std::string json;
};

// The links between replicas, and what is to be said about them.
struct Links {
  Link within;
  Link between;
  std::string remark;
};

// What GPUs of a host are usually connected with.
const char* usual_within(const std::string& hardware) {
  const DevicePeak* const device = find_hardware(hardware);
  const std::string name = device == nullptr ? "" : device->name;
  static const std::map<std::string, const char*> links = {
      {"p100", "nvlink1"}, {"v100", "nvlink2"}, {"a100", "nvlink3"},
      {"h100", "nvlink4"}, {"h200", "nvlink4"}, {"b200", "nvlink5"}};
  const auto found = links.find(name);
  return found == links.end() ? "pcie4" : found->second;
}

Links links_for(const ScaleOptions& options, const ScaleSource& source, int most) {
  const bool cpu = source.step.device != "cuda";
  Links links;
  links.within = parse_link(!options.within.empty() ? options.within
                            : cpu                   ? "pcie5"
                                                    : usual_within(source.step.hardware));
  const char* const usual = cpu ? "10Gbit" : "100Gbit";
  links.between = parse_link(options.network.empty() ? usual : options.network);
  const bool several = most > source.per_host;
  if (several && options.network.empty()) {
    links.remark = fmt::format(
        "the network between hosts is not known: {} is assumed; give "
        "--network",
        usual);
  }
  // A bus such as NVLink that is given as the network is what connects all of them.
  if (!options.network.empty() && options.within.empty() && !links.between.shared_by_host) {
    links.within = links.between;
  }
  return links;
}

Scenario scenario_for(const ScaleSource& source, const Links& links, double samples, int replicas) {
  return {.replicas = replicas,
          .per_host = source.per_host,
          .samples = samples,
          .within = links.within,
          .between = links.between};
}

// A global batch is divided: the more replicas, the smaller their pieces, and one replica has all
// of it. Otherwise every replica has a batch of its own.
std::vector<SimulatedStep> predict_all(const ScaleOptions& options, const ScaleSource& source,
                                       const Links& links, const std::vector<int>& counts) {
  const auto batch = static_cast<double>(source.step.batch);
  const bool divided = options.source.batch.global > 0;
  std::vector<SimulatedStep> results;
  for (const int replicas : counts) {
    const double samples = divided ? batch / replicas : batch;
    require(samples >= 1, "--global-batch {}: {} replicas need at least a sample each",
            options.source.batch.global, replicas);
    SimulatedStep result = predict(source.step, scenario_for(source, links, samples, replicas));
    if (divided) {
      const double one_s = predict(source.step, scenario_for(source, links, batch, 1)).step_s;
      result.efficiency = one_s / result.step_s / replicas;
    }
    results.push_back(std::move(result));
  }
  return results;
}

Json as_json(const SimulatedStep& result, const ScaleSource& source) {
  const double one = result.efficiency * result.replicas;
  Json json = {{"replicas", result.replicas},
               {"batch_per_replica", result.samples},
               {"step_ms", result.step_s * 1e3},
               {"samples_per_s", result.samples_per_s},
               {"efficiency", result.efficiency},
               {"peak_bytes", static_cast<std::int64_t>(result.memory_bytes)},
               {"speed_up", one},
               {"p99_ms", result.p99_s * 1e3},
               {"hosts", (result.replicas + source.per_host - 1) / source.per_host},
               {"compute_ms", result.compute_s * 1e3},
               {"communication_ms", result.communication_s * 1e3},
               {"exposed_ms", result.exposed_s * 1e3},
               {"contention_ms", result.contention_s * 1e3},
               {"sent_bytes", static_cast<std::int64_t>(result.sent_bytes)},
               {"synchronisation_ms", result.synchronisation_s * 1e3},
               {"host_ms", result.host_s * 1e3}};
  json["buckets"] = Json::array();
  for (const SimulatedCollective& each : result.collectives) {
    json["buckets"].push_back({{"collective", each.op},
                               {"bytes", each.bytes},
                               {"ms", each.seconds * 1e3},
                               {"exposed_ms", each.exposed * 1e3},
                               {"exposed_latency_ms", each.exposed_latency * 1e3}});
  }
  return json;
}

Json options_json(const MemoryOptions& options) {
  const MemoryFlags flags = memory_flags(options);
  return {{"accumulate", options.accumulate}, {"recompute", flags.recompute},
          {"shard", options.shard},           {"gather_budget", flags.gather_budget},
          {"offload", flags.offload},         {"gradient_dtype", flags.gradient_dtype}};
}

std::string ms_text(double seconds) {
  const double ms = seconds * 1e3;
  return fmt::format("{:.{}f}", ms, ms < 10 ? 3 : ms < 100 ? 2 : 1);
}

void print_table(const std::vector<SimulatedStep>& results) {
  fmt::print("{:>8} {:>10} {:>10} {:>12} {:>9} {:>10} {:>10} {:>10} {:>10} {:>10}\n", "replicas",
             "step ms", "p99 ms", "samples/s", "speed-up", "efficiency", "compute", "exposed",
             "waiting", "memory");
  for (const SimulatedStep& each : results) {
    fmt::print("{:>8} {:>10} {:>10} {:>12} {:>8.1f}x {:>9.1f}% {:>10} {:>10} {:>10} {:>10}\n",
               each.replicas, ms_text(each.step_s), ms_text(each.p99_s),
               count_text(static_cast<std::int64_t>(each.samples_per_s)),
               each.efficiency * each.replicas, 100 * each.efficiency, ms_text(each.compute_s),
               ms_text(each.exposed_s), ms_text(each.synchronisation_s),
               bytes_text(each.memory_bytes));
  }
}

void print_remarks(const ScaleOptions& options, const ScaleSource& source, const Links& links,
                   const std::vector<SimulatedStep>& results) {
  const int most = std::ranges::max(results, {}, &SimulatedStep::replicas).replicas;
  const int hosts = (most + source.per_host - 1) / source.per_host;
  if (most > 1) {
    const bool cpu = source.step.device != "cuda";
    fmt::print("{} replica{} on each host{}", source.per_host, source.per_host == 1 ? "" : "s",
               source.per_host == 1 ? ""
               : cpu                ? ", in shared memory"
                                    : ", over " + links.within.name);
    if (hosts > 1) {
      fmt::print("; between hosts {} ({:.3g} GB/s, {:.3g} µs)", links.between.name,
                 links.between.bytes_per_s * 1e-9, links.between.latency_s * 1e6);
    }
    fmt::print("\n");
  }
  if (!links.remark.empty()) fmt::print("note: {}\n", links.remark);
  const DevicePeak* const device =
      source.step.device == "cuda" ? find_hardware(source.step.hardware) : nullptr;
  const SimulatedStep& largest = std::ranges::max(results, {}, &SimulatedStep::memory_bytes);
  if (device != nullptr && largest.memory_bytes > device->memory_bytes) {
    fmt::print(
        "note: one of {} replica{} needs {}, and {} has {}: use a smaller batch, --accumulate, "
        "--recompute or --shard\n",
        largest.replicas, largest.replicas == 1 ? "" : "s", bytes_text(largest.memory_bytes),
        device->title, bytes_text(device->memory_bytes));
  }
  if (!options.save.empty()) fmt::print("wrote the measured step to {}\n", options.save);
}

// How much sooner a loss is reached, if this is about a run that measured its noise scale.
std::optional<LossOutlook> outlook_of(const ScaleOptions& options,
                                      const std::vector<SimulatedStep>& results) {
  const std::filesystem::path run = options.source.run;
  std::error_code error;
  if (options.source.run.empty() || !std::filesystem::exists(run / kProfileFile, error)) {
    return std::nullopt;
  }
  const RunProfile profile = read_run_profile(run);
  std::vector<ScalePoint> points;
  for (const SimulatedStep& each : results) {
    points.push_back({.devices = each.replicas,
                      .batch = each.samples * each.replicas,
                      .step_seconds = each.step_s});
  }
  return loss_outlook(profile.learning, static_cast<double>(profile.global_batch), points);
}

void run(ScaleOptions options) {
  check_target("--json", options.json);
  check_target("--save", options.save);
  const BatchFlags& batch = options.source.batch;
  require(batch.global == 0 || batch.per_replica == 0,
          "--global-batch {} --batch-per-replica {}: give one; a global batch is divided over the "
          "replicas",
          batch.global, batch.per_replica);
  const std::vector<int> counts = parse_replica_list("--replicas", options.replicas);
  const int most = *std::ranges::max_element(counts);
  if (!options.topology.empty()) {
    const Topology topology = parse_topology(options.topology);
    require(topology.hosts == 0 || std::int64_t{topology.per_host} * topology.hosts >= most,
            "--topology {}: that is room for {} replicas, and --replicas asks for {}",
            options.topology, std::int64_t{topology.per_host} * topology.hosts, most);
    options.source.topology = topology;
  }
  for (const std::string* link : {&options.network, &options.within}) {
    if (!link->empty()) parse_link(*link);  // before anything is measured
  }
  options.source.counts = counts;
  options.source.most = most;
  const ScaleSource source = scale_source(options.source);
  const Links links = links_for(options, source, most);
  const std::vector<SimulatedStep> results = predict_all(options, source, links, counts);
  if (!options.save.empty()) write_target("--save", options.save, to_json(source.step));

  const std::optional<LossOutlook> outlook = outlook_of(options, results);

  const std::string title = source.step.model.empty() ? "step" : source.step.model;
  if (!is_standard_output(options.json)) {
    const bool plain = source.step.options == MemoryOptions();
    fmt::print("{}, {}, {} samples {}{}; {}\n", title, source.step.precision, source.step.batch,
               options.source.batch.global > 0 ? "on all replicas" : "per replica",
               plain ? "" : ", " + words_of(source.step.options), source.basis);
    print_table(results);
    print_remarks(options, source, links, results);
    if (outlook) fmt::print("\n{}", text_of(*outlook));
  }
  Json json = {{"model", source.step.model},
               {"batch_per_replica", source.step.batch},
               {"precision", source.step.precision},
               {"options", options_json(source.step.options)},
               {"device", source.step.device},
               {"hardware", source.step.hardware},
               {"basis", source.basis},
               {"measured", source.measured},
               {"replicas_per_host", source.per_host},
               {"network",
                {{"name", links.between.name},
                 {"latency_s", links.between.latency_s},
                 {"bytes_per_s", links.between.bytes_per_s},
                 {"assumed", !links.remark.empty()}}}};
  json["results"] = Json::array();
  for (const SimulatedStep& each : results) json["results"].push_back(as_json(each, source));
  if (outlook) json["time_to_loss"] = outlook_json(*outlook);
  write_json(json, options.json);
}

}  // namespace

void add_scale(Program& program) {
  Command app = program.add_command(
      "scale", "Predicts the speed on other numbers of replicas, networks and devices.");
  auto options = std::make_shared<ScaleOptions>();
  ScaleSourceOptions& source = options->source;
  app.add_option("run", source.run,
                 "a run's folder (runs/last), or a measured step (--save wrote it)");
  app.add_option("--model", source.model, "instead of a run, before there is one: " + zoo_names());
  app.add_option("--replicas", options->replicas,
                 "numbers of replicas; 1,2,4,…,4096 doubles up to the last")
      .capture_default_str();
  app.add_option("--network", options->network,
                 "between hosts: 100Gbit, ib-ndr, nvlink4, …, or figures such as 1Gbit,2ms");
  app.add_option("--within", options->within, "between GPUs of a host: nvlink4, pcie5, …");
  app.add_option("--topology", options->topology,
                 "replicas per host, and hosts: 8x4 (as many as this machine has devices)");
  app.add_option("--device", source.device,
                 "cpu, cuda, or a GPU that is not here: " + known_device_names());
  add_batch(app, source.batch);
  app.add_option("--precision", source.precision,
                 "float32, mixed_float16, mixed_bfloat16 (the run's)");
  app.add_option("--optimizer", source.optimizer, "sgd, adam, … (the run's)");
  add_memory(app, source.memory);
  app.add_option("--cores", source.cores, "how many of the machine's cores to use (all)")
      .check(whole_number(1, kMostCores));
  app.add_option("--seconds", source.seconds, "about how long to measure")
      .capture_default_str()
      .check(number(0.01, 3600));
  app.add_option("--save", options->save, "write the measured step to this file");
  app.add_option("--json", options->json, "write the result to this file (-: standard output)");
  app.footer(
      "Of a run, what is not given of --precision, --optimizer, --accumulate, --recompute, "
      "--shard, "
      "--gather-budget, --offload and --gradient-dtype is as the run had it; the step is measured "
      "again where it is not. Memory is that of the plan for each number of replicas.");
  app.callback([options, app] {
    options->source.given = app.given();
    run(*options);
  });
}

}  // namespace lockstep::cli

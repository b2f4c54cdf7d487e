#include "lockstep/cli/bench_explain.h"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>

#include "lockstep/explain/advise.h"
#include "lockstep/explain/attribute.h"
#include "lockstep/train/run_profiler.h"

namespace lockstep::cli {
namespace {

using PartsJson = nlohmann::json;

constexpr std::array kBenchParts = {&Attribution::compute,    &Attribution::communication,
                                    &Attribution::input,      &Attribution::wait,
                                    &Attribution::host,       &Attribution::start,
                                    &Attribution::validation, &Attribution::checkpoint};

PartsJson replicas_json(const std::vector<BenchedReplica>& replicas) {
  PartsJson json = PartsJson::array();
  for (const BenchedReplica& each : replicas) {
    PartsJson parts = PartsJson::array();
    for (const auto part : kBenchParts) parts.push_back(each.parts.*part);
    json.push_back({each.device, each.worker, std::move(parts)});
  }
  return json;
}

void divide_exposed(RunProfile& profile, std::vector<CollectiveProfile> collectives) {
  double exposed = 0;  // per step, on the mean replica
  for (const ReplicaProfile& replica : profile.by_replica) {
    exposed += replica.time.communication / profile.replicas / static_cast<double>(profile.steps);
  }
  double all = 0;
  for (CollectiveProfile& each : collectives) {
    each.seconds =
        profile.link.latency_s + profile.link.s_per_byte * static_cast<double>(each.bytes);
    all += each.seconds;
  }
  if (all <= 0) return;
  for (CollectiveProfile& each : collectives) each.exposed_s = exposed * each.seconds / all;
  profile.collectives = std::move(collectives);
}

}  // namespace

std::vector<BenchedReplica> of_all_workers(World& world, const std::vector<BenchedReplica>& mine) {
  if (world.workers() == 1) return mine;
  std::vector<BenchedReplica> all;
  for (const std::string& theirs : world.exchange(replicas_json(mine).dump())) {
    for (const PartsJson& json : PartsJson::parse(theirs)) {
      BenchedReplica& each = all.emplace_back();
      each.device = json.at(0).get<std::string>();
      each.worker = json.at(1).get<int>();
      for (std::size_t i = 0; i < kBenchParts.size(); ++i) {
        each.parts.*kBenchParts[i] = json.at(2).at(i).get<double>();
      }
    }
  }
  return all;
}

std::vector<CollectiveProfile> collectives_of(const Plan& plan) {
  std::vector<CollectiveProfile> all;
  for (const MeasuredInstruction& each : instructions_of(plan)) {
    if (each.collective.empty()) continue;
    all.push_back({.name = each.collective + " " + each.name, .bytes = each.wire_bytes});
  }
  return all;
}

Explanation explain_bench(const BenchedReplicas& benched, const MeasuredStep& alone) {
  RunProfile profile;
  profile.replicas = static_cast<int>(benched.by_replica.size());
  profile.workers = benched.workers;
  profile.transport = benched.transport;
  profile.global_batch = benched.batch * profile.replicas;
  profile.steps = std::max<std::int64_t>(1, benched.steps);
  profile.samples = profile.steps * profile.global_batch;
  profile.seconds = benched.seconds;
  profile.step_s = benched.step_ms * 1e-3;
  StepWindow window{.first = 0, .steps = profile.steps, .step_s = profile.step_s};
  const double all = benched.seconds;
  const auto steps = static_cast<double>(profile.steps);
  for (const BenchedReplica& each : benched.by_replica) {
    const Attribution& part = each.parts;
    profile.by_replica.push_back({.device = each.device,
                                  .worker = each.worker,
                                  .samples = profile.steps * benched.batch,
                                  .time = seconds_of(part, all)});
    window.compute_s.push_back(part.compute * all / steps);
    window.input_s.push_back(part.input * all / steps);
    window.wait_s.push_back(part.wait * all / steps);
    window.samples.push_back(static_cast<double>(benched.batch));
  }
  profile.windows.push_back(std::move(window));
  if (benched.link) profile.link = link_fit(*benched.link, is_over_a_network(profile));
  if (benched.link) divide_exposed(profile, benched.collectives);
  if (profile.replicas > 1) {
    const SimulatedStep expected = simulate(alone, scenario_of(profile, alone));
    profile.predicted = Predicted{.step_ms = expected.step_s * 1e3,
                                  .low_ms = 0.9 * expected.step_s * 1e3,
                                  .high_ms = std::max(1.1 * expected.step_s, expected.p99_s) * 1e3};
  }
  return explain(profile, &alone);
}

}  // namespace lockstep::cli

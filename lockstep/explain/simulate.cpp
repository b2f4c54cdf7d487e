#include "lockstep/explain/simulate.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <numeric>

#include "lockstep/base/error.h"
#include "lockstep/explain/replay.h"

namespace lockstep {
namespace {

bool is_cpu(const MeasuredStep& step) {
  return step.device != "cuda";
}

double samples_of(const MeasuredStep& step, const Scenario& scenario) {
  return scenario.samples > 0 ? scenario.samples : static_cast<double>(step.batch);
}

int hosts_of(const Scenario& scenario) {
  return (scenario.replicas + scenario.per_host - 1) / scenario.per_host;
}

int on_one_host(const Scenario& scenario) {
  return std::min(scenario.replicas, scenario.per_host);
}

void check(const MeasuredStep& step, const Scenario& scenario) {
  require(!step.instructions.empty() && step.batch > 0,
          "[simulate] the measured step has {} instructions for {} samples",
          step.instructions.size(), step.batch);
  require(scenario.replicas >= 1 && scenario.per_host >= 1,
          "[simulate] {} replicas, {} on each host: both must be positive", scenario.replicas,
          scenario.per_host);
  require(scenario.straggler >= 1 && scenario.slowed_by_communication >= 0,
          "[simulate] a straggler that is {} times slower, kernels slowed by {}: the first must be "
          "at least 1 and the second not negative",
          scenario.straggler, scenario.slowed_by_communication);
  const auto needs = [&](const Link& link, const char* where) {
    require(link.bytes_per_s > 0 && link.latency_s >= 0,
            "[simulate] {} replicas, {} on each host, need a link {}", scenario.replicas,
            scenario.per_host, where);
  };
  if (hosts_of(scenario) > 1) needs(scenario.between, "between hosts");
  const bool by_thread = is_cpu(step) && !step.host_collectives.empty();
  if (on_one_host(scenario) > 1 && !by_thread) needs(scenario.within, "within a host");
}

// Between the measured numbers of ranks, on a straight line; beyond them, in proportion to the
// slope of the last two, or as the last one. Where only all-reduce was measured, half of it: that
// is a reduce-scatter and an all-gather.
HostCollective host_collective(const MeasuredStep& step, std::string_view op, int ranks) {
  std::vector<HostCollective> all;
  std::ranges::copy_if(step.host_collectives, std::back_inserter(all),
                       [&](const HostCollective& each) { return each.op == op; });
  if (all.empty()) {
    all = step.host_collectives;
    const double part = collective_op(op) == CollectiveOp::AllReduce ? 1 : 0.5;
    for (HostCollective& each : all) each.seconds_per_byte *= part;
  }
  HostCollective found = all.front();
  for (std::size_t i = 0; i + 1 < all.size(); ++i) {
    const HostCollective& low = all[i];
    const HostCollective& high = all[i + 1];
    if (ranks <= low.ranks) break;
    const double part = static_cast<double>(ranks - low.ranks) / (high.ranks - low.ranks);
    found.seconds = std::lerp(low.seconds, high.seconds, part);
    found.seconds_per_byte = std::lerp(low.seconds_per_byte, high.seconds_per_byte, part);
    if (ranks <= high.ranks) break;
  }
  found.seconds = std::max(0.0, found.seconds);
  found.seconds_per_byte = std::max(0.0, found.seconds_per_byte);
  return found;
}

double quantile_of(const std::vector<double>& sorted, double quantile) {
  const double place = quantile * static_cast<double>(sorted.size() - 1);
  const auto low = static_cast<std::size_t>(place);
  const std::size_t high = std::min(low + 1, sorted.size() - 1);
  return std::lerp(sorted[low], sorted[high], place - static_cast<double>(low));
}

// The inverse of quantile_of.
double probability_of(const std::vector<double>& sorted, double value) {
  if (value <= sorted.front()) return value < sorted.front() ? 0 : 1e-12;
  if (value >= sorted.back()) return 1;
  const auto above = std::ranges::upper_bound(sorted, value);
  const auto high = static_cast<std::size_t>(above - sorted.begin());
  const double gap = sorted[high] - sorted[high - 1];
  const double part = gap > 0 ? (value - sorted[high - 1]) / gap : 1;
  return (static_cast<double>(high - 1) + part) / static_cast<double>(sorted.size() - 1);
}

// The stretches in which the compute stream, or the computing thread, has nothing to do.
struct Stretch {
  double begin;
  double end;
};
std::vector<Stretch> idle_stretches(const Replay& replay, bool on_thread) {
  std::vector<Stretch> idle;
  double busy_until = 0;
  double end = 0;
  for (const TimelineEvent& event : replay.events) {
    if (event.lane == Lane::Host) continue;
    end = std::max(end, event.end);
    const bool computes =
        event.lane == Lane::Compute || (on_thread && event.lane == Lane::Communication);
    if (!computes) continue;
    if (event.begin > busy_until) idle.push_back({busy_until, event.begin});
    busy_until = std::max(busy_until, event.end);
  }
  if (end > busy_until) idle.push_back({busy_until, end});
  return idle;
}

double overlap(const TimelineEvent& event, const std::vector<Stretch>& stretches) {
  double seconds = 0;
  for (const Stretch& each : stretches) {
    seconds += std::max(0.0, std::min(event.end, each.end) - std::max(event.begin, each.begin));
  }
  return seconds;
}

void account_for(const MeasuredStep& step, const ReplayCosts& costs, const Replay& replay,
                 SimulatedStep& result) {
  const std::vector<Stretch> idle = idle_stretches(replay, costs.on_thread);
  for (const TimelineEvent& event : replay.events) {
    const double seconds = event.end - event.begin;
    if (event.lane == Lane::Host) {
      result.host_s += seconds;
      continue;
    }
    const auto i = static_cast<std::size_t>(event.instruction);
    const MeasuredInstruction& instruction = step.instructions[i];
    if (instruction.collective.empty()) {
      (event.lane == Lane::Compute ? result.compute_s : result.communication_s) += seconds;
      continue;
    }
    const CollectiveSeconds& cost = costs.collective[i];
    const bool by_thread = cost.by_thread || event.lane == Lane::Compute;
    const double exposed = by_thread ? seconds : overlap(event, idle);
    result.communication_s += seconds;
    result.exposed_s += exposed;
    const double phases = collective_op(instruction.collective) == CollectiveOp::AllReduce ? 2 : 1;
    result.sent_bytes += phases * static_cast<double>(instruction.wire_bytes) *
                         (result.replicas - 1) / result.replicas;
    result.collectives.push_back(
        {.instruction = event.instruction,
         .op = instruction.collective,
         .bytes = static_cast<double>(instruction.wire_bytes),
         .seconds = seconds,
         .exposed = exposed,
         .exposed_latency = cost.total > 0 ? exposed * cost.latency / cost.total : 0});
  }
}

std::vector<int> critical_path(const std::vector<TimelineEvent>& events) {
  std::vector<int> path;
  int last = -1;
  for (int e = 0; e < static_cast<int>(events.size()); ++e) {
    if (last < 0 ||
        events[static_cast<std::size_t>(e)].end >= events[static_cast<std::size_t>(last)].end) {
      last = e;
    }
  }
  for (; last >= 0; last = events[static_cast<std::size_t>(last)].cause) path.push_back(last);
  std::ranges::reverse(path);
  return path;
}

// Sorted by their beginnings, causes and path renumbered.
void put_in_order(SimulatedStep& result) {
  std::vector<int> order(result.timeline.size());
  std::iota(order.begin(), order.end(), 0);
  std::ranges::stable_sort(
      order, {}, [&](int e) { return result.timeline[static_cast<std::size_t>(e)].begin; });
  std::vector<int> place(order.size());
  std::vector<TimelineEvent> sorted;
  for (std::size_t i = 0; i < order.size(); ++i) {
    place[static_cast<std::size_t>(order[i])] = static_cast<int>(i);
    sorted.push_back(result.timeline[static_cast<std::size_t>(order[i])]);
  }
  for (TimelineEvent& event : sorted) {
    if (event.cause >= 0) event.cause = place[static_cast<std::size_t>(event.cause)];
  }
  for (int& event : result.critical_path) event = place[static_cast<std::size_t>(event)];
  result.timeline = std::move(sorted);
}

}  // namespace

double contention_of(const MeasuredStep& step, int replicas) {
  SideBySide low{.copies = 1, .slowdown = 1};
  for (const SideBySide& high : step.side_by_side) {
    if (high.copies >= replicas) {
      if (high.copies == low.copies) return high.slowdown;
      return std::lerp(low.slowdown, high.slowdown,
                       static_cast<double>(replicas - low.copies) / (high.copies - low.copies));
    }
    low = high;
  }
  return low.slowdown;
}

CollectiveSeconds collective_seconds(const MeasuredStep& step, const MeasuredInstruction& of,
                                     const Scenario& scenario) {
  if (scenario.replicas == 1) return {.total = of.seconds.at(samples_of(step, scenario))};
  const auto bytes = static_cast<double>(of.wire_bytes);
  const bool within_host = hosts_of(scenario) == 1;
  if (is_cpu(step) && within_host && !step.host_collectives.empty()) {
    const HostCollective cost = host_collective(step, of.collective, scenario.replicas);
    return {.total = cost.seconds + bytes * cost.seconds_per_byte,
            .latency = cost.seconds,
            .by_thread = true};
  }
  RankPlaces places{.ranks = scenario.replicas,
                    .per_host = scenario.per_host,
                    .within = scenario.within,
                    .between = scenario.between};
  // On CPUs the ranks of a host add up in its memory before they talk to other hosts.
  if (is_cpu(step) && !step.host_collectives.empty() && on_one_host(scenario) > 1) {
    const HostCollective cost = host_collective(step, of.collective, on_one_host(scenario));
    places.within = {.name = "memory",
                     .latency_s = cost.seconds,
                     .bytes_per_s = 1 / std::max(cost.seconds_per_byte, 1e-15),
                     .shared_by_host = false};
    places.add_s_per_byte = cost.seconds_per_byte / on_one_host(scenario);
  }
  const CollectiveAlgorithm algorithm =
      is_cpu(step) ? CollectiveAlgorithm::Direct : scenario.algorithm;
  const CollectiveOp op = collective_op(of.collective);
  return {.total = collective_seconds(algorithm, op, bytes, places),
          .latency = collective_latency(algorithm, op, bytes, places)};
}

double slowest_of(const std::vector<double>& jitter, int replicas, double quantile,
                  double straggler) {
  if (jitter.empty()) return straggler;
  // P(slowest <= x) = P(x)^(n - 1) P(x / straggler), which rises with x.
  const auto probability = [&](double x) {
    return std::pow(probability_of(jitter, x), replicas - 1) *
           probability_of(jitter, x / straggler);
  };
  if (replicas == 1) return straggler * quantile_of(jitter, quantile);
  double low = jitter.front();
  double high = jitter.back() * straggler;
  for (int i = 0; i < 60; ++i) {
    const double middle = (low + high) / 2;
    (probability(middle) < quantile ? low : high) = middle;
  }
  return high;
}

ReplayCosts replay_costs(const MeasuredStep& step, const Scenario& scenario) {
  const double samples = samples_of(step, scenario);
  const double contention = contention_of(step, on_one_host(scenario));
  const int hosts = hosts_of(scenario);
  ReplayCosts costs;
  costs.on_thread = is_cpu(step);
  for (const MeasuredInstruction& each : step.instructions) {
    const bool communicates = !each.collective.empty();
    const double alone_s = instruction_seconds(step, each, samples, scenario.replicas);
    costs.compute.push_back(communicates ? 0 : alone_s * contention);
    costs.collective.push_back(communicates ? collective_seconds(step, each, scenario)
                                            : CollectiveSeconds());
    const double slowed = scenario.slowed_by_communication;
    double share = slowed / (1 + slowed);
    if (costs.on_thread && communicates && costs.collective.back().total > 0) {
      // Sent and received, once per phase.
      const double phases = each.collective == "all_reduce" ? 2 : 1;
      const double moved = 2 * phases * static_cast<double>(each.wire_bytes) * (hosts - 1) / hosts;
      share = std::min(0.9, moved * step.wire_s_per_byte / costs.collective.back().total);
    }
    costs.share.push_back(scenario.replicas > 1 ? share : 0);
  }
  costs.host = step.host_seconds.at(samples);
  if (scenario.replicas > 1) costs.host += step.meet_seconds;
  // At the end of a step, workers tell one another how it went.
  if (costs.on_thread && hosts > 1) {
    costs.host += direct_seconds(CollectiveOp::AllGather, hosts, 64.0 * hosts, scenario.between);
  }
  return costs;
}

SimulatedStep simulate(const MeasuredStep& step, const Scenario& scenario) {
  check(step, scenario);
  const ReplayCosts costs = replay_costs(step, scenario);
  const auto at = [&](double factor) { return replay(step, costs, factor); };
  const double factor = slowest_of(step.jitter, scenario.replicas, 0.5, scenario.straggler);
  Replay median = at(factor);

  SimulatedStep result;
  result.replicas = scenario.replicas;
  result.samples = samples_of(step, scenario);
  result.step_s = median.end;
  result.p99_s = at(slowest_of(step.jitter, scenario.replicas, 0.99, scenario.straggler)).end;
  result.synchronisation_s = std::max(0.0, median.end - at(1).end);
  result.samples_per_s = scenario.replicas * result.samples / result.step_s;
  result.memory_bytes = memory_bytes(step, result.samples, scenario.replicas);
  account_for(step, costs, median, result);
  const double contention = contention_of(step, on_one_host(scenario));
  result.contention_s = compute_seconds(step, result.samples, scenario.replicas) * (contention - 1);
  result.critical_path = critical_path(median.events);
  result.timeline = std::move(median.events);
  put_in_order(result);
  if (scenario.replicas > 1) {
    Scenario alone = scenario;
    alone.replicas = 1;
    alone.straggler = 1;
    const ReplayCosts one = replay_costs(step, alone);
    const double one_s = replay(step, one, slowest_of(step.jitter, 1, 0.5)).end;
    result.efficiency = one_s / result.step_s;
  }
  return result;
}

double simulate_all_seconds(const MeasuredStep& step, const Scenario& scenario,
                            const std::vector<double>& factors) {
  check(step, scenario);
  const ReplayCosts costs = replay_costs(step, scenario);
  std::vector<double> arrivals(step.instructions.size(), 0);
  for (std::size_t i = 0; i < step.instructions.size(); ++i) {
    if (step.instructions[i].collective.empty()) continue;
    double last = 0;
    for (const double factor : factors) {
      for (const TimelineEvent& event : replay(step, costs, factor, arrivals).events) {
        if (event.instruction == static_cast<int>(i)) last = std::max(last, event.begin);
      }
    }
    arrivals[i] = last;
  }
  double end = 0;
  for (const double factor : factors) {
    end = std::max(end, replay(step, costs, factor, arrivals).end);
  }
  return end;
}

}  // namespace lockstep

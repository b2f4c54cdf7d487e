#include "bench/prediction/wait_worker.h"

#include <fmt/format.h>
#include <time.h>

#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>

#include "bench/prediction/table.h"
#include "lockstep/cluster/join.h"
#include "lockstep/cluster/resolvers.h"
#include "lockstep/comm/exchange.h"
#include "lockstep/comm/worker_links.h"
#include "lockstep/profile/recorder.h"

namespace lockstep {
namespace {

void wait_for(double seconds) {
  timespec wait{.tv_sec = static_cast<time_t>(seconds),
                .tv_nsec = static_cast<long>(
                    (seconds - static_cast<double>(static_cast<time_t>(seconds))) * 1e9)};
  clock_nanosleep(CLOCK_MONOTONIC, 0, &wait, nullptr);
}

double seconds_after(std::int64_t begin) {
  return static_cast<double>(now_ns() - begin) * 1e-9;
}

}  // namespace

MeasuredStep measure_wait_step(const WaitStep& step) {
  std::vector<double> times;
  for (int i = 0; i < 100; ++i) {
    const std::int64_t begin = now_ns();
    wait_for(step.layer_s);
    times.push_back(seconds_after(begin));
  }
  MeasuredStep measured;
  measured.model = "wait";
  measured.device = "cpu";
  measured.hardware = "a clock";
  measured.precision = "float32";
  measured.batch = 1;
  for (int layer = 0; layer < step.layers; ++layer) {
    const int at = static_cast<int>(measured.instructions.size());
    MeasuredInstruction wait{.name = "wait", .op = "wait", .seconds = {.fixed = middle(times)}};
    if (at > 0) wait.after = {at - 2};
    measured.instructions.push_back(std::move(wait));
    measured.instructions.push_back({.name = "all_reduce",
                                     .op = "all_reduce",
                                     .stream = kCommunicationStream,
                                     .after = {at},
                                     .collective = "all_reduce",
                                     .wire_bytes = step.layer_bytes,
                                     .carries = {{.bytes = step.layer_bytes, .after = at}}});
  }
  return measured;
}

void run_wait_worker(const WaitStep& step, int steps, const std::string& json) {
  const ClusterSpec spec = *default_resolver()->resolve();
  const std::shared_ptr<Membership> members = join(spec, {.secret = job_secret()});
  const std::unique_ptr<WorkerLinks> links = make_worker_links(members, {});
  std::vector<std::string> names;
  for (int w = 0; w < links->workers(); ++w) names.push_back(fmt::format("worker {}", w));
  const WorkerGroupOptions options{
      .names = names,
      .ranks_of_worker = std::vector<int>(static_cast<std::size_t>(links->workers()), 1)};
  const std::unique_ptr<Group> group = links->make_group(options);
  const std::unique_ptr<Group> control = links->make_group(options);
  Communicator& comm = group->rank(links->worker());
  std::vector<std::vector<float>> memory;
  std::vector<std::unique_ptr<Collective>> sums;
  for (int layer = 0; layer < step.layers; ++layer) {
    memory.emplace_back(static_cast<std::size_t>(step.layer_bytes / 4));
    sums.push_back(comm.all_reduce(std::as_writable_bytes(std::span(memory.back())), DType::F32));
  }
  std::vector<double> times;
  for (int s = 0; s < steps + 1; ++s) {
    const std::int64_t begin = now_ns();
    for (const auto& sum : sums) {
      wait_for(step.layer_s);
      sum->start();
    }
    for (const auto& sum : sums) sum->finish();
    lockstep::exchange(control->rank(links->worker()), "done");
    if (s > 0) times.push_back(seconds_after(begin) * 1e3);
  }
  if (links->worker() != 0) return;
  const nlohmann::json result = {
      {"results", {{{"replicas", links->workers()}, {"step_ms", middle(times)}}}}};
  std::ofstream(json) << result.dump() << "\n";
}

}  // namespace lockstep

// Causes in runs of the program: `lockstep train` and `lockstep explain`.
#include <fmt/format.h>

#include <optional>

#include "bench/causes/cases.h"
#include "bench/causes/thief.h"
#include "bench/prediction/job.h"
#include "lockstep/device/cpu/cpu_device.h"

namespace lockstep {
namespace {

ExplainedTime read_explained(const nlohmann::json& json) {
  ExplainedTime run{.seconds = json.at("seconds").get<double>()};
  for (const nlohmann::json& lost : json.at("lost")) {
    for (int i = 0; i <= static_cast<int>(Cause::Failures); ++i) {
      const auto cause = static_cast<Cause>(i);
      if (lost.at("cause") == name_of(cause)) run.lost[cause] += lost.at("seconds").get<double>();
    }
  }
  return run;
}

Words joined(Words words, const Words& more) {
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

// Pieces so small that a step is mostly what does not shrink with them. What that costs is measured
// on one core: a piece takes longer than half of twice as many samples.
void tiny_batches(CauseTable& table, const Jobs& jobs, int rounds) {
  for (const auto& [model, batch, steps] : {std::tuple{"mlp", 8, 4000}, {"lenet", 1, 1200}}) {
    std::vector<double> costs;
    std::vector<ExplainedTime> runs;
    for (int round = 0; round < rounds; ++round) {
      const auto one_ms = [&](int samples) {
        return step_ms(jobs.run({"bench", "--model", model, "--replicas", "1", "--cores", "1",
                                 "--batch-per-replica", std::to_string(samples)}),
                       1);
      };
      const double cost = (one_ms(batch) - one_ms(2 * batch) / 2) * 1e-3 * steps;
      const std::string folder = jobs.file(fmt::format("tiny-{}-{}", model, round));
      jobs.run({"train", "--model", model, "--data", "synthetic", "--replicas", "2", "--epochs",
                "1", "--batch-per-replica", std::to_string(batch), "--steps", std::to_string(steps),
                "--run-dir", folder});
      runs.push_back(read_explained(jobs.run({"explain", folder})));
      costs.push_back(cost);
    }
    table.row(fmt::format("tiny batches ({}, 2 x {})", model, batch), Cause::SmallPieces, costs,
              runs);
  }
}

// A run that is as fast as it can be gets no advice.
void clean_run(CauseTable& table, const Jobs& jobs) {
  const std::string folder = jobs.file("clean");
  jobs.run({"train", "--model", "lenet", "--data", "synthetic", "--replicas", "2", "--epochs", "1",
            "--batch-per-replica", "128", "--steps", "300", "--run-dir", folder});
  const nlohmann::json json = jobs.run({"explain", folder});
  std::string advice;
  for (const nlohmann::json& each : json.at("advice")) {
    advice += fmt::format("{}{} ({})", advice.empty() ? "" : "; ",
                          each.at("change").get<std::string>(), each.at("gain").get<std::string>());
  }
  const ExplainedTime run = read_explained(json);
  table.advice(
      fmt::format("a clean run's advice (lenet, {:.2f}x)", json.at("speed_up").get<double>()),
      advice);
}

class LinkRuns {
 public:
  static constexpr int kPacket = 65000;  // bytes

  explicit LinkRuns(const Jobs& jobs) : jobs_(jobs), hosts_(2, kPacket) {
    for (int h = 0; h < hosts_.count(); ++h) addresses_.push_back(hosts_.address(h) + ":5000");
  }

  struct Causes {
    bool shaped = false;
    bool slow_worker = false;
    bool checkpoints = false;
  };

  ExplainedTime run(const Causes& causes) {
    const std::string folder = jobs_.file(fmt::format("link-{}", count_++));
    for (int h = 0; h < hosts_.count(); ++h) {
      hosts_.network(h).shell(causes.shaped
                                  ? "tc qdisc replace dev eth0 root tbf rate 200mbit burst 68k "
                                    "latency 400ms"
                                  : "tc qdisc del dev eth0 root 2>/dev/null || true");
    }
    std::optional<Thief> thief;
    if (causes.slow_worker) thief.emplace(available_cores()[1], 0.5);
    Words words = {"train",     "--model",    "lenet",        "--data",
                   "synthetic", "--strategy", "multi-worker", "--batch-per-replica",
                   "64",        "--steps",    "150",          "--epochs",
                   "1",         "--run-dir",  folder};
    if (causes.checkpoints) words = joined(words, {"--checkpoint-every", "1"});
    jobs_.run_on_hosts(hosts_, addresses_, words);
    return read_explained(jobs_.run({"explain", folder, "--no-measure"}));
  }

 private:
  const Jobs& jobs_;
  Hosts hosts_;
  Words addresses_;
  int count_ = 0;
};

}  // namespace

void program_cases(CauseTable& table, int rounds) {
  const Jobs jobs;
  clean_run(table, jobs);
  tiny_batches(table, jobs, rounds);
}

void link_cases(CauseTable& table, int rounds) {
  const std::string missing = Hosts::missing();
  if (!missing.empty()) {
    table.missing("shaped link", missing);
    return;
  }
  const Jobs jobs;
  LinkRuns runs(jobs);
  const struct {
    const char* name;
    LinkRuns::Causes causes;
    std::vector<Cause> expected;
  } cases[] = {
      {"shaped link", {.shaped = true}, {Cause::Latency, Cause::Bandwidth}},
      {"slow worker", {.slow_worker = true}, {Cause::Imbalance}},
      {"shaped link, slow worker",
       {.shaped = true, .slow_worker = true},
       {Cause::Latency, Cause::Bandwidth, Cause::Imbalance}},
      {"shaped link, checkpoints",
       {.shaped = true, .checkpoints = true},
       {Cause::Latency, Cause::Bandwidth, Cause::Checkpoint}},
  };
  runs.run({});
  for (const auto& each : cases) {
    std::vector<CauseTurn> turns;
    for (int round = 0; round < rounds; ++round) {
      turns.push_back({.without = runs.run({}), .with = runs.run(each.causes)});
    }
    table.row(each.name, each.expected, turns);
  }
}

}  // namespace lockstep

// Predicted step times against measured ones; each row is the median of alternating runs.
//
//   predict local       one and two replicas in a process, for several models and batches
//   predict batch       one replica: other batches, from one measurement
//   predict buckets     two replicas in a process: gradients in larger and smaller buckets
//   predict precision   16-bit precision: two replicas
//   predict links       two workers over links of 0.1 and 1 Gbit/s with 0, 2 and 10 ms delay
//   predict many        8, 16 and 32 workers whose computation is a wait, over slow links
//   predict advice [ROUNDS]   what `explain` advises, done: the predicted gain against the measured
//   one predict published FILE   published speed-ups; FILE: lockstep scale --model resnet50 …
//   --save
//
// Links are between network namespaces, which need root; see tests/hosts.
#include <fmt/core.h>
#include <sched.h>

#include <cstdlib>
#include <exception>
#include <fstream>
#include <iterator>

#include "bench/prediction/advice.h"
#include "bench/prediction/job.h"
#include "bench/prediction/published.h"
#include "bench/prediction/table.h"
#include "bench/prediction/wait_worker.h"
#include "hosts/far_network.h"
#include "lockstep/cli/step_run.h"
#include "lockstep/device/cpu/cpu_device.h"
#include "lockstep/explain/predict.h"
#include "lockstep/explain/what_if.h"

namespace lockstep {
namespace {

using namespace std::chrono_literals;

constexpr int kRuns = 5;

MeasuredStep read_step(const std::string& file) {
  std::ifstream stream(file);
  const std::string text((std::istreambuf_iterator<char>(stream)), {});
  return measured_step_from_json(text, file);
}

struct Case {
  std::string model;
  std::string batch;
};
const std::vector<Case> kCases = {
    {"mlp", "32"}, {"mlp", "256"}, {"lenet", "16"}, {"lenet", "64"}, {"resnet18", "2"}};

void local() {
  const Jobs jobs;
  PredictionTable table;
  for (const auto& [model, batch] : kCases) {
    const Words flags = {"--model", model, "--batch-per-replica", batch, "--replicas", "1,2"};
    Words scale = {"scale", "--topology", "2", "--seconds", "3"};
    Words bench = {"bench"};
    scale.insert(scale.end(), flags.begin(), flags.end());
    bench.insert(bench.end(), flags.begin(), flags.end());
    std::vector<double> predicted[2], measured[2], disturbed[2];
    for (int run = 0; run < kRuns; ++run) {
      const nlohmann::json p = jobs.run(scale);
      const nlohmann::json m = jobs.run(bench);
      for (const int replicas : {1, 2}) {
        predicted[replicas - 1].push_back(step_ms(p, replicas));
        measured[replicas - 1].push_back(step_ms(m, replicas));
        disturbed[replicas - 1].push_back(disturbance(m, replicas));
      }
    }
    for (const int replicas : {1, 2}) {
      table.row(fmt::format("{}, batch {}, {} replica{}", model, batch, replicas,
                            replicas == 1 ? "" : "s"),
                predicted[replicas - 1], measured[replicas - 1], disturbed[replicas - 1]);
    }
  }
}

void batch() {
  const Jobs jobs;
  PredictionTable table;
  const std::vector<std::string> others = {"16", "32", "128", "256"};
  for (const char* model : {"mlp", "lenet"}) {
    std::vector<std::vector<double>> predicted(others.size()), measured(others.size());
    for (int run = 0; run < kRuns; ++run) {
      jobs.run({"scale", "--model", model, "--batch-per-replica", "64", "--replicas", "1",
                "--topology", "1", "--cores", "1", "--save", jobs.file("step.json")});
      for (std::size_t i = 0; i < others.size(); ++i) {
        predicted[i].push_back(
            step_ms(jobs.run({"scale", jobs.file("step.json"), "--batch-per-replica", others[i],
                              "--replicas", "1"}),
                    1));
        measured[i].push_back(step_ms(jobs.run({"bench", "--model", model, "--batch-per-replica",
                                                others[i], "--replicas", "1", "--cores", "1"}),
                                      1));
      }
    }
    for (std::size_t i = 0; i < others.size(); ++i) {
      table.row(fmt::format("{}, batch {} from 64, 1 replica", model, others[i]), predicted[i],
                measured[i]);
    }
  }
}

// Milliseconds of a step with buckets of this size, the median.
double bucket_step_ms(const std::string& model, std::size_t bytes) {
  constexpr double kSeconds = 1.5;
  const MirroredStrategy strategy(
      {.devices = {"cpu:0", "cpu:1"}, .buckets = {.first_bytes = bytes, .bytes = bytes}});
  cli::StepRun step(strategy, {.model = model, .batch = 64});
  std::vector<double> times;
  const std::int64_t begin = now_ns();
  while (static_cast<double>(now_ns() - begin) * 1e-9 < kSeconds) {
    const std::int64_t before = now_ns();
    step.run();
    times.push_back(static_cast<double>(now_ns() - before) * 1e-6);
  }
  return middle(times);
}

void buckets() {
  const Jobs jobs;
  PredictionTable table;
  const std::vector<std::size_t> sizes = {std::size_t{16} << 10, std::size_t{128} << 10,
                                          std::size_t{1} << 20};
  for (const char* model : {"mlp", "lenet"}) {
    std::vector<std::vector<double>> predicted(sizes.size()), measured(sizes.size());
    for (int run = 0; run < kRuns; ++run) {
      const std::string file = jobs.file("step.json");
      jobs.run({"scale", "--model", model, "--batch-per-replica", "64", "--topology", "2",
                "--replicas", "1,2", "--save", file});
      for (std::size_t i = 0; i < sizes.size(); ++i) {
        const BucketSizes cut{.first_bytes = sizes[i], .bytes = sizes[i]};
        predicted[i].push_back(
            simulate(with_buckets(read_step(file), cut), {.replicas = 2, .per_host = 2}).step_s *
            1e3);
        measured[i].push_back(bucket_step_ms(model, sizes[i]));
      }
    }
    for (std::size_t i = 0; i < sizes.size(); ++i) {
      table.row(fmt::format("{}, batch 64, 2 replicas, buckets of {} KiB", model, sizes[i] >> 10),
                predicted[i], measured[i]);
    }
  }
}

void precision() {
  const Jobs jobs;
  PredictionTable table;
  for (const char* model : {"lenet", "mlp"}) {
    const Words flags = {"--model",    model,         "--batch-per-replica",
                         "64",         "--precision", "mixed_bfloat16",
                         "--replicas", "1,2"};
    Words scale = {"scale", "--topology", "2"};
    Words bench = {"bench"};
    scale.insert(scale.end(), flags.begin(), flags.end());
    bench.insert(bench.end(), flags.begin(), flags.end());
    std::vector<double> predicted, measured;
    for (int run = 0; run < kRuns; ++run) {
      predicted.push_back(step_ms(jobs.run(scale), 2));
      measured.push_back(step_ms(jobs.run(bench), 2));
    }
    table.row(fmt::format("{}, mixed_bfloat16, 2 replicas", model), predicted, measured);
  }
}

// The forwarder's thread stays off the workers' cores, the first two.
void keep_off(int workers) {
  const std::vector<int> cores = available_cores();
  if (std::ssize(cores) <= workers) return;
  cpu_set_t rest;
  CPU_ZERO(&rest);
  for (auto core = cores.begin() + workers; core != cores.end(); ++core) CPU_SET(*core, &rest);
  sched_setaffinity(0, sizeof(rest), &rest);
}

void links() {
  const Jobs jobs;
  PredictionTable table;
  keep_off(2);
  for (const char* rate : {"100mbit", "1gbit"}) {
    for (const auto delay : {0ms, 2ms, 10ms}) {
      const Hosts hosts(2);
      const FarNetwork far(hosts, {.delay = delay});
      // The bucket of tokens is small: what it lets through at once is faster than the link.
      for (int h = 0; h < hosts.count(); ++h) {
        hosts.network(h).shell(
            fmt::format("ip link set far0 mtu 9000; "
                        "tc qdisc replace dev far0 root tbf rate {} burst 20k latency 200ms",
                        rate));
      }
      const Words addresses = {far.address(0) + ":5000", far.address(1) + ":5000"};
      const std::string network = measured_network(jobs, hosts, addresses);
      const Words flags = {"--model", "lenet", "--batch-per-replica", "64"};
      Words scale = {"scale",      "--topology", "1",         "--cores", "1",
                     "--replicas", "2",          "--network", network};
      Words bench = {"bench", "--strategy", "multi-worker", "--steps", "24"};
      scale.insert(scale.end(), flags.begin(), flags.end());
      bench.insert(bench.end(), flags.begin(), flags.end());
      std::vector<double> predicted, measured;
      for (int run = 0; run < kRuns; ++run) {
        predicted.push_back(step_ms(jobs.run(scale), 2));
        measured.push_back(step_ms(jobs.run_on_hosts(hosts, addresses, bench), 2));
      }
      table.row(fmt::format("lenet, batch 64, 2 workers, {} {} ({})", rate, delay.count(), network),
                predicted, measured);
    }
  }
}

void many(const std::string& self) {
  const Jobs jobs;
  PredictionTable table;
  for (const int workers : {8, 16, 32}) {
    Hosts hosts(workers);
    Words addresses;
    for (int h = 0; h < workers; ++h) {
      hosts.limit(h, "20mbit");
      addresses.push_back(hosts.address(h) + ":5000");
    }
    const Link link = parse_link(measured_network(jobs, hosts, {addresses[0], addresses[1]}));
    const WaitStep step;
    std::vector<double> predicted, measured;
    for (int run = 0; run < kRuns; ++run) {
      const SimulatedStep result =
          simulate(measure_wait_step(step), {.replicas = workers, .per_host = 1, .between = link});
      predicted.push_back(result.step_s * 1e3);
      measured.push_back(step_ms(jobs.run_on_hosts(hosts, addresses, {"worker"}, self), workers));
    }
    table.row(fmt::format("a wait of {} x {} ms, {} workers, 20 Mbit/s", step.layers,
                          step.layer_s * 1e3, workers),
              predicted, measured);
  }
}

int main_of(int count, char** words) {
  const std::string mode = count > 1 ? words[1] : "";
  if (mode == "local") {
    local();
  } else if (mode == "batch") {
    batch();
  } else if (mode == "buckets") {
    buckets();
  } else if (mode == "precision") {
    precision();
  } else if (mode == "links") {
    links();
  } else if (mode == "advice") {
    follow_advice(count > 2 ? std::max(1, std::atoi(words[2])) : kRuns);
  } else if (mode == "many") {
    many(std::filesystem::canonical("/proc/self/exe").string());
  } else if (mode == "worker" && count == 4) {
    run_wait_worker({}, 4, words[3]);
  } else if (mode == "published" && count == 3) {
    published(read_step(words[2]));
  } else {
    fmt::print(stderr,
               "predict local | batch | buckets | precision | links | many | advice [ROUNDS] | "
               "published FILE\n");
    return 2;
  }
  return 0;
}

}  // namespace
}  // namespace lockstep

int main(int count, char** words) {
  try {
    return lockstep::main_of(count, words);
  } catch (const std::exception& error) {
    fmt::print(stderr, "predict: {}\n", error.what());
    return 1;
  }
}

#include "bench/prediction/job.h"

#include <fmt/format.h>

#include <algorithm>
#include <fstream>
#include <stdexcept>

#include "lockstep/device/cpu/cpu_device.h"

namespace lockstep {
namespace {

using namespace std::chrono_literals;

constexpr std::chrono::seconds kLongest = 600s;

// The program beside this one.
std::string program_path() {
  return (std::filesystem::canonical("/proc/self/exe").parent_path() / "lockstep").string();
}

nlohmann::json read(const std::filesystem::path& file) {
  std::ifstream stream(file);
  return nlohmann::json::parse(stream);
}

void expect_success(Process& process, const std::string& what) {
  const std::optional<int> code = process.await_end(kLongest);
  if (code == 0) return;
  throw std::runtime_error(fmt::format(
      "{}: {}\n{}", what, code ? fmt::format("exit code {}", *code) : "hangs", process.text()));
}

Words with_json(Words words, const std::string& file) {
  words.insert(words.end(), {"--json", file});
  return words;
}

}  // namespace

Jobs::Jobs() : cores_(available_cores()) {
  std::ofstream(folder_ / "secret") << "of a benchmark\n";
}

nlohmann::json Jobs::run(const Words& words) const {
  const std::string file = (folder_ / "result.json").string();
  Words command = {program_path()};
  for (const std::string& word : with_json(words, file)) command.push_back(word);
  Process process(
      {.command = command, .environment = {{"HOME", folder_.path()}}, .folder = folder_.path()});
  expect_success(process, fmt::format("lockstep {}", fmt::join(words, " ")));
  return read(file);
}

nlohmann::json Jobs::run_on_hosts(const Hosts& hosts, const Words& addresses, const Words& words,
                                  const std::string& program) const {
  std::vector<std::unique_ptr<Process>> workers;
  for (int w = 0; w < std::ssize(addresses); ++w) {
    const nlohmann::json config = {{"cluster", {{"worker", addresses}}},
                                   {"task", {{"type", "worker"}, {"index", w}}}};
    const auto home = folder_ / fmt::format("worker-{}", w);
    std::filesystem::create_directories(home);
    const int core = cores_[static_cast<std::size_t>(w) % cores_.size()];
    Words command = {"taskset", "-c", std::to_string(core),
                     program.empty() ? program_path() : program};
    for (const std::string& word : with_json(words, (home / "result.json").string())) {
      command.push_back(word);
    }
    workers.push_back(
        hosts.start(w, {.command = command,
                        .environment = {{"HOME", home.string()},
                                        {"TF_CONFIG", config.dump()},
                                        {"OMP_WAIT_POLICY", "passive"},
                                        {"LOCKSTEP_SECRET_FILE", (folder_ / "secret").string()}},
                        .folder = home.string()}));
  }
  for (const auto& worker : workers)
    expect_success(*worker, fmt::format("{}", fmt::join(words, " ")));
  return read(folder_ / "worker-0" / "result.json");
}

double step_ms(const nlohmann::json& result, int replicas) {
  for (const nlohmann::json& each : result.at("results")) {
    if (each.at("replicas") == replicas) return each.at("step_ms").get<double>();
  }
  throw std::runtime_error(fmt::format("no result for {} replicas", replicas));
}

double disturbance(const nlohmann::json& result, int replicas) {
  double most = 0;
  for (const nlohmann::json& each : result.at("results")) {
    if (each.at("replicas") != replicas || !each.contains("run_queue_delay")) continue;
    for (const nlohmann::json& share : each.at("run_queue_delay")) {
      most = std::max(most, share.get<double>());
    }
  }
  return most;
}

std::string measured_network(const Jobs& jobs, const Hosts& hosts, const Words& addresses) {
  const nlohmann::json json = jobs.run_on_hosts(hosts, addresses, {"devices", "--cluster"});
  const nlohmann::json& link = json.at("links").at(0);
  // Collectives send and receive at the same time.
  const double rate =
      std::min(link.at("bytes_per_s").get<double>(), link.at("both_bytes_per_s").get<double>() / 2);
  return fmt::format("{:.9f}GB/s,{:.3f}us", rate * 1e-9, link.at("latency_s").get<double>() * 1e6);
}

}  // namespace lockstep

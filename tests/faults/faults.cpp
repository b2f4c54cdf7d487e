#include "faults/faults.h"

#include <fmt/format.h>

#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <random>
#include <thread>

#include "sanitized.h"

namespace lockstep::faults {
namespace {

using Clock = std::chrono::steady_clock;
using nlohmann::json;

// A job that takes longer hangs.
constexpr std::chrono::seconds kGuard(60);
constexpr const char* kFaketime = "/usr/lib/x86_64-linux-gnu/faketime/libfaketimeMT.so.1";
constexpr int kSteps = 30;
constexpr int kSamples = 54;

std::string contents_of(const std::filesystem::path& file) {
  std::ifstream stream(file);
  return {std::istreambuf_iterator<char>(stream), {}};
}

// Of the workers that have ended well.
std::vector<std::string> results_in(const std::filesystem::path& folder, int workers) {
  std::vector<std::string> results;
  for (int w = 0; w < workers; ++w) {
    std::string text = contents_of(folder / fmt::format("result-{}.json", w));
    if (!text.empty()) results.push_back(std::move(text));
  }
  return results;
}

double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

// Whether the workers of a job have all ended, at the latest after the guard.
bool all_ended(const std::filesystem::path& folder, int workers) {
  const Clock::time_point begin = Clock::now();
  for (int w = 0; w < workers; ++w) {
    const std::string pid = contents_of(folder / fmt::format("pid-{}", w));
    while (!pid.empty() && kill(std::stoi(pid), 0) == 0) {
      if (Clock::now() - begin > kGuard) return false;
      std::this_thread::yield();
    }
  }
  return true;
}

// What a job came to: the last weights and the losses.
std::string essence(const std::string& result) {
  const json read = json::parse(result);
  return read.at("weights").dump() + " " + read.at("losses").dump();
}

bool disturbs(const Case& what) {
  if (what.kind == Kind::Launcher) return !what.etcd;
  return what.kind != Kind::Pause && what.kind != Kind::Clock;
}

bool stops(const Case& what) {
  return what.policy == "stop" && disturbs(what);
}

}  // namespace

std::string name_of(Kind kind) {
  switch (kind) {
    case Kind::Kill:
      return "kill";
    case Kind::Stop:
      return "stop";
    case Kind::Pause:
      return "pause";
    case Kind::Error:
      return "error";
    case Kind::Launcher:
      return "launcher";
    case Kind::Clock:
      return "clock";
    case Kind::Disk:
      return "disk";
  }
  return "";
}

std::string Case::text() const {
  return fmt::format("{} of worker {} of {} after step {} + {:.2f}, policy {}{}", name_of(kind),
                     worker, workers, step, delay, policy, etcd ? ", etcd" : "");
}

bool has_etcd() {
  return access("/usr/bin/etcd", X_OK) == 0;
}

bool has_faketime() {
#ifdef LOCKSTEP_SANITIZED
  return false;  // both want to be loaded first
#else
  return access(kFaketime, R_OK) == 0;
#endif
}

Case case_of(std::uint64_t seed, bool with_etcd) {
  std::mt19937_64 random(seed);
  const auto pick = [&](int count) {
    return static_cast<int>(random() % static_cast<unsigned>(count));
  };
  Case what;
  what.kind = kKinds[pick(7)];
  // What kills matters most.
  if (pick(3) == 0) what.kind = Kind::Kill;
  const char* const policies[] = {"restart", "restart", "shrink", "shrink", "stop"};
  what.policy = policies[pick(5)];
  what.workers = 2 + pick(2);
  what.worker = pick(what.workers);
  what.step = 1 + pick(kSteps - 2);
  what.delay = static_cast<double>(pick(1000)) / 500;
  what.etcd = pick(3) == 0 && with_etcd;
  // A launcher that does not serve the members sees processes end, and nothing else.
  if (what.etcd && (what.kind == Kind::Stop || what.kind == Kind::Error)) what.kind = Kind::Kill;
  if (what.kind == Kind::Clock && !has_faketime()) what.kind = Kind::Pause;
  if (what.kind == Kind::Disk) {
    what.worker = 0;                           // who writes
    what.step = 5 + what.step % (kSteps - 8);  // after the first checkpoint, before the last
  }
  return what;
}

std::string expected(const Case& what) {
  if (what.kind == Kind::Launcher && !what.etcd) return "all workers end";
  if (!disturbs(what)) return "nothing: the weights of an undisturbed run";
  if (what.kind == Kind::Disk) return "all workers end; the checkpoint before is whole";
  if (stops(what)) return "the job ends with an error that names the worker";
  return what.policy == "restart"
             ? "goes on, with the weights of an undisturbed run"
             : "goes on, with the weights of a run on one worker less from the same state";
}

Jobs::Result Jobs::launch(const Case* what, int workers, const std::string& resume,
                          const std::filesystem::path& folder) {
  std::filesystem::create_directories(folder);
  std::map<std::string, std::string> environment = {{"OMP_WAIT_POLICY", "passive"}};
  for (const char* name : {"ASAN_OPTIONS", "LSAN_OPTIONS", "UBSAN_OPTIONS", "TSAN_OPTIONS"}) {
    if (const char* value = std::getenv(name)) environment.insert({name, value});
  }
  if (what != nullptr) {
    environment["FAULT"] =
        fmt::format("{} {} {} {}", what->worker, name_of(what->kind), what->step, what->delay);
  }
  if (what != nullptr && what->kind == Kind::Clock) {
    const std::string clock = (folder / "clock").string();
    std::ofstream(clock) << "+0\n";
    environment.insert({{"LD_PRELOAD", kFaketime},
                        {"FAKETIME_TIMESTAMP_FILE", clock},
                        {"FAKETIME_NO_CACHE", "1"},
                        {"FAKETIME_DONT_FAKE_MONOTONIC", "1"}});
  }
  const Clock::time_point begin = Clock::now();
  std::vector<std::string> command = {LOCKSTEP_BINARY_DIR "/bin/lockstep", "launch"};
  const auto add = [&](std::initializer_list<std::string> words) {
    command.insert(command.end(), words);
  };
  add({"--workers", std::to_string(workers)});
  add({"--on-failure", what != nullptr ? what->policy : "stop", "--grace", "20s"});
  add({"--heartbeat-timeout", "500ms"});
  if (what != nullptr && what->etcd) {
    add({"--rendezvous", fmt::format("etcd://{}/{}", etcd(), folder.filename().string())});
  }
  add({"--", LOCKSTEP_BINARY_DIR "/bin/faults_worker", folder.string(), resume});
  Process job({.command = command, .environment = environment, .folder = folder.string()});
  Result result{.code = job.await_end(kGuard).value_or(-1), .text = job.text()};
  result.seconds = seconds_since(begin);
  result.results = results_in(folder, workers);
  return result;
}

std::string Jobs::etcd() {
  for (int port = 23790 + getpid() % 20000; etcd_ == nullptr; port += 2) {
    const std::string client = fmt::format("http://127.0.0.1:{}", port);
    const std::string peer = fmt::format("http://127.0.0.1:{}", port + 1);
    auto started = std::make_unique<Process>(ProcessOptions{
        .command = {"/usr/bin/etcd", "--data-dir", (folder_ / "etcd").string(), "--unsafe-no-fsync",
                    "--listen-client-urls", client, "--advertise-client-urls", client,
                    "--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer,
                    "--initial-cluster", "default=" + peer},
        .environment = {},
        .folder = folder_.path()});
    if (!started->await_text("ready to serve client requests", kGuard)) continue;
    etcd_ = std::move(started);
    etcd_address_ = client.substr(7);
  }
  return etcd_address_;
}

std::string Jobs::undisturbed(int workers) {
  std::string& known = known_[std::to_string(workers)];
  if (!known.empty()) return known;
  const std::filesystem::path folder = folder_ / fmt::format("undisturbed-{}", workers);
  const Result result = launch(nullptr, workers, "", folder);
  known = result.code == 0 && !result.results.empty() ? essence(result.results.front())
                                                      : "no undisturbed run: " + result.text;
  return known;
}

std::string Jobs::from_step(int workers, int left, std::int64_t step) {
  std::string& known = known_[fmt::format("{} {} {}", workers, left, step)];
  if (!known.empty()) return known;
  undisturbed(workers);  // it leaves the checkpoints
  const std::filesystem::path from =
      folder_ / fmt::format("undisturbed-{}", workers) / fmt::format("at-{}.safetensors", step);
  const Result result = launch(nullptr, left, step > 0 ? from.string() : "",
                               folder_ / fmt::format("from-{}-{}-{}", workers, left, step));
  known = result.code == 0 && !result.results.empty() ? essence(result.results.front())
                                                      : "no run from there: " + result.text;
  return known;
}

// All workers have ended with an error, nothing half-written is left, and the newest checkpoint
// leads to the weights of an undisturbed run.
Outcome Jobs::after_full_disk(const Case& what, const Result& result,
                              const std::filesystem::path& folder, Outcome outcome) {
  int newest = 0;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    const std::string name = entry.path().filename().string();
    if (name.find(".tmp") != std::string::npos) outcome.wrong = name + " is left over";
    if (name.starts_with("at-")) newest = std::max(newest, std::stoi(name.substr(3)));
  }
  if (result.code == 0 || !result.results.empty()) outcome.wrong = "the job did not end";
  if (result.text.find("at-") == std::string::npos) outcome.wrong = "the file was not named";
  const std::filesystem::path file = folder / fmt::format("at-{}.safetensors", newest);
  const Result rest = launch(nullptr, what.workers, file.string(), folder / "rest");
  const std::string reference = undisturbed(what.workers);
  const std::string mine = rest.results.empty() ? rest.text : essence(rest.results.front());
  if (mine.substr(0, mine.find(' ')) != reference.substr(0, reference.find(' '))) {
    outcome.wrong = fmt::format("from {}: {} is not {}", file.string(), mine, reference);
  }
  if (!outcome.wrong.empty()) outcome.wrong += "; the job printed:\n" + result.text;
  return outcome;
}

Outcome Jobs::run_with_newcomer() {
  const std::filesystem::path folder = folder_ / "newcomer";
  std::filesystem::create_directories(folder);
  const std::string port = std::to_string(30000 + getpid() % 20000);
  std::vector<std::unique_ptr<Process>> workers;
  for (int w = 0; w < 3; ++w) {
    workers.push_back(std::make_unique<Process>(
        ProcessOptions{.command = {LOCKSTEP_BINARY_DIR "/bin/faults_worker", folder.string()},
                       .environment = {{"RANK", std::to_string(w)},
                                       {"WORLD_SIZE", w < 2 ? "2" : "3"},
                                       {"MASTER_ADDR", "127.0.0.1"},
                                       {"MASTER_PORT", port},
                                       {"LOCKSTEP_ON_FAILURE", "shrink"},
                                       {"OMP_WAIT_POLICY", "passive"},
                                       {"FAULT", "0 newcomer 10 0"}},
                       .folder = folder.string()}));
    // The third one comes when the others train.
    const Clock::time_point begin = Clock::now();
    while (w == 1 && !std::filesystem::exists(folder / "fault") && Clock::now() - begin < kGuard) {
      std::this_thread::yield();
    }
  }
  Outcome outcome;
  for (int w = 0; w < 3; ++w) {
    const int code = workers[static_cast<std::size_t>(w)]->await_end(kGuard).value_or(-1);
    const std::string text = contents_of(folder / fmt::format("result-{}.json", w));
    if (code != 0 || text.empty()) {
      outcome.wrong = fmt::format("worker {} ended with {}: {}", w, code,
                                  workers[static_cast<std::size_t>(w)]->text());
      return outcome;
    }
    const json read = json::parse(text);
    if (read.at("workers") != 3) outcome.wrong = "the third worker takes no part";
    for (const double once : read.at("visited_once")) {
      if (once != kSamples) outcome.wrong = fmt::format("{} samples were visited once", once);
    }
    const std::string reference = from_step(2, 3, 12);  // the first copy after step 10
    const std::string mine = essence(text);
    if (mine.substr(0, mine.find(' ')) != reference.substr(0, reference.find(' '))) {
      outcome.wrong = fmt::format("{} is not {}", mine, reference);
    }
  }
  return outcome;
}

Outcome Jobs::run(const Case& what) {
  const std::filesystem::path folder = folder_ / fmt::format("job-{}", jobs_++);
  Result result = launch(&what, what.workers, "", folder);
  Outcome outcome{.seconds = result.seconds};
  const auto wrong = [&](const std::string& how) {
    outcome.wrong = fmt::format("{}; the launcher ended with {} and printed:\n{}", how, result.code,
                                result.text);
    return outcome;
  };
  if (!std::filesystem::exists(folder / "fault")) return wrong("there was no fault");
  if (!all_ended(folder, what.workers)) return wrong("a worker is left over");
  if (what.kind == Kind::Launcher && !what.etcd) {
    if (result.code != 128 + SIGKILL) return wrong("the launcher was not killed");
    return result.results.empty() ? outcome : wrong("a worker outlived the launcher");
  }
  if (what.kind == Kind::Disk) return after_full_disk(what, result, folder, outcome);
  if (stops(what)) {
    const std::string name = fmt::format("worker {}", what.worker);
    if (result.code == 0) return wrong("the job did not end with an error");
    if (result.text.find(name) == std::string::npos) return wrong("the worker was not named");
    return outcome;
  }
  if (what.kind == Kind::Launcher) {
    result.results = results_in(folder, what.workers);  // they have ended since
    result.code = 0;
  }
  if (result.code != 0) return wrong("the job did not go on");
  const int left = what.workers - (what.policy == "shrink" && disturbs(what) ? 1 : 0);
  if (std::ssize(result.results) != left) {
    return wrong(fmt::format("{} workers ended well, not {}", result.results.size(), left));
  }
  std::string reference = undisturbed(what.workers);
  int newcomers = 0;
  for (const std::string& text : result.results) {
    const json read = json::parse(text);
    const json& recoveries = read.at("recoveries");
    const bool newcomer = recoveries.empty() && what.policy == "restart";
    newcomers += newcomer ? 1 : 0;
    if (!disturbs(what) && !recoveries.empty()) return wrong("slow was taken for dead");
    if (!recoveries.empty()) {
      outcome.seconds_lost = recoveries[0].at("seconds");
      if (what.policy == "shrink") {
        reference = from_step(what.workers, left, recoveries[0].at("step"));
      }
    } else if (disturbs(what) && !newcomer) {
      return wrong("nobody noticed");
    }
    for (const double once : read.at("visited_once")) {
      if (once != kSamples)
        return wrong(fmt::format("{} of {} samples were visited once", once, kSamples));
    }
    // A newcomer has not seen the epochs before.
    const std::string mine = essence(text);
    const bool same =
        newcomer ? mine.substr(0, mine.find(' ')) == reference.substr(0, reference.find(' '))
                 : mine == reference;
    if (what.policy == "shrink" && disturbs(what)) {
      // The run that it is compared with has no losses of epochs before its first step.
      if (mine.substr(0, mine.find(' ')) != reference.substr(0, reference.find(' '))) {
        return wrong(fmt::format("{} is not {}", mine, reference));
      }
    } else if (!same) {
      return wrong(fmt::format("{} is not {}", mine, reference));
    }
  }
  // All others have gone on from a copy.
  if (what.policy == "restart" && disturbs(what) && newcomers != 1) {
    return wrong(fmt::format("{} workers have not seen the failure, not 1", newcomers));
  }
  return outcome;
}

}  // namespace lockstep::faults

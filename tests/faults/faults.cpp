#include "faults/faults.h"

#include <fmt/format.h>
#include <unistd.h>

#include <chrono>
#include <cmath>
#include <csignal>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <thread>

#include "faults/job_program.h"
#include "lockstep/tensor/safetensors.h"

namespace lockstep::faults {
namespace {

using Clock = std::chrono::steady_clock;
using nlohmann::json;

// A job that takes longer hangs.
constexpr std::chrono::seconds kGuard(60);

std::string contents_of(const std::filesystem::path& file) {
  std::ifstream stream(file);
  return {std::istreambuf_iterator<char>(stream), {}};
}

bool await_file(const std::filesystem::path& file) {
  const Clock::time_point begin = Clock::now();
  while (!std::filesystem::exists(file)) {
    if (Clock::now() - begin > kGuard) return false;
    std::this_thread::yield();
  }
  return true;
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

// The first checkpoint in the folder that is not whole, and why.
std::string damaged_checkpoint(const std::filesystem::path& folder) {
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    const std::string name = entry.path().filename().string();
    if (!name.starts_with("at-") || name.find(".tmp") != std::string::npos) continue;
    try {
      load_safetensors(entry.path());
    } catch (const std::exception& error) {
      return error.what();
    }
  }
  return {};
}

// What a job came to: the last weights and the losses.
std::string essence(const std::string& result) {
  const json read = json::parse(result);
  return read.at("weights").dump() + " " + read.at("losses").dump();
}

std::string weights_in(const std::string& essence) {
  return essence.substr(0, essence.find(' '));
}

double last_loss_in(const std::string& essence) {
  return json::parse(essence.substr(essence.find(' ') + 1)).back().get<double>();
}

}  // namespace

Jobs::Place Jobs::place_for(const Case& what, const std::filesystem::path& folder) const {
  std::filesystem::create_directories(folder);
  Place place{.folder = folder, .hosts = {}, .etcd = {}};
  if (!what.on_hosts()) return place;
  // One for every worker, and one for the launcher and the etcd.
  place.hosts = std::make_unique<Hosts>(what.workers + 1);
  if (what.etcd) {
    place.etcd = std::make_unique<EtcdMembers>(1, folder / "etcd", place.hosts.get(), what.workers);
  }
  // In place of ssh.
  std::ofstream enter(folder / "enter");
  enter << "case $1 in\n";
  for (int w = 0; w < what.workers; ++w) {
    enter << fmt::format("host-{}) net={};;\n", w, place.hosts->network(w).path());
  }
  enter << "esac\nexec nsenter --net=$net sh -c \"$2\"\n";
  return place;
}

std::vector<std::string> Jobs::command_of(const Case& what, const Place& place,
                                          const std::map<std::string, std::string>& environment) {
  std::vector<std::string> command = {LOCKSTEP_BINARY_DIR "/bin/lockstep", "launch"};
  const auto add = [&](std::initializer_list<std::string> words) {
    command.insert(command.end(), words);
  };
  // What nothing happens to must not be taken for dead, however busy the machine.
  const bool with_fault = environment.contains("FAULT");
  add({"--workers", std::to_string(what.workers), "--on-failure", what.policy, "--grace", "20s",
       "--heartbeat-timeout", with_fault ? "500ms" : "60s"});
  if (what.etcd) {
    const int members = what.kind == Kind::EtcdMember ? 3 : 1;
    EtcdMembers& etcd_there = place.etcd ? *place.etcd : etcd(members);
    add({"--rendezvous",
         fmt::format("etcd://{}/{}", etcd_there.addresses(), place.folder.filename().string())});
  }
  if (place.hosts) {
    std::string hosts;
    for (int w = 0; w < what.workers; ++w) hosts += fmt::format("{}host-{}", w == 0 ? "" : ",", w);
    add({"--hosts", hosts, "--ssh", "sh " + (place.folder / "enter").string(), "--bind",
         place.hosts->address(what.workers)});
    for (const auto& [name, value] : environment) add({"--env", name + "=" + value});
  }
  add({"--", LOCKSTEP_BINARY_DIR "/bin/faults_worker", place.folder.string()});
  return command;
}

Jobs::Result Jobs::launch(const Case& what, const std::string& resume,
                          const std::filesystem::path& folder, bool with_fault) {
  const Place place = place_for(what, folder);
  std::map<std::string, std::string> environment = {{"OMP_WAIT_POLICY", "passive"}};
  for (const char* name : {"ASAN_OPTIONS", "LSAN_OPTIONS", "UBSAN_OPTIONS", "TSAN_OPTIONS"}) {
    if (const char* value = std::getenv(name)) environment.insert({name, value});
  }
  environment["PROGRAM"] = what.program;
  if (with_fault) {
    environment["FAULT"] =
        fmt::format("{} {} {} {}", what.worker, name_of(what.kind), what.step, what.delay);
  }
  if (with_fault && what.kind == Kind::Clock) {
    const std::string clock = (folder / "clock").string();
    std::ofstream(clock) << "+0\n";
    environment.insert({{"LD_PRELOAD", kFaketime},
                        {"FAKETIME_TIMESTAMP_FILE", clock},
                        {"FAKETIME_NO_CACHE", "1"},
                        {"FAKETIME_DONT_FAKE_MONOTONIC", "1"}});
  }
  const Clock::time_point begin = Clock::now();
  std::vector<std::string> command = command_of(what, place, environment);
  command.push_back(resume);
  const ProcessOptions options{
      .command = command, .environment = environment, .folder = folder.string()};
  const std::unique_ptr<Process> job =
      place.hosts ? place.hosts->start(what.workers, options) : std::make_unique<Process>(options);
  if (with_fault) act(what, place, *job);
  Result result{.code = job->await_end(kGuard).value_or(-1), .text = job->text()};
  result.seconds = seconds_since(begin);
  result.results = results_in(folder, what.workers);
  if (what.kind == Kind::EtcdMember) etcd(3).revive();
  return result;
}

void Jobs::act(const Case& what, const Place& place, Process& job) {
  if (what.kind != Kind::EtcdMember && !place.hosts) return;
  if (!await_file(place.folder / "fault")) return;
  const int other = what.etcd ? (what.worker + 1) % what.workers : what.workers;
  const int from = what.inward ? other : what.worker;
  const int to = what.inward ? what.worker : other;
  if (what.kind == Kind::EtcdMember) etcd(3).kill(what.step % 3);
  if (what.kind == Kind::Cut) place.hosts->cut(what.worker);
  if (what.kind == Kind::CutOneWay) place.hosts->cut_one_way(from, to);
  std::ofstream(place.folder / "acted") << "\n";
  // Who is started again there needs the link.
  if (!place.hosts || what.policy != "restart") return;
  job.await_text("it is started again", kGuard);
  if (what.kind == Kind::Cut) place.hosts->heal(what.worker);
  if (what.kind == Kind::CutOneWay) place.hosts->heal_one_way(from, to);
}

EtcdMembers& Jobs::etcd(int members) {
  std::unique_ptr<EtcdMembers>& found = etcd_[members];
  if (found == nullptr) {
    found = std::make_unique<EtcdMembers>(members, folder_ / fmt::format("etcd-{}", members));
  }
  return *found;
}

std::string Jobs::undisturbed(int workers, const std::string& program) {
  std::string& known = known_[fmt::format("{} {}", workers, program)];
  if (!known.empty()) return known;
  const std::filesystem::path folder = folder_ / fmt::format("undisturbed-{}{}", workers, program);
  const Case what{.policy = "stop", .workers = workers, .program = program};
  const Result result = launch(what, "", folder, /*with_fault=*/false);
  known = result.code == 0 && !result.results.empty() ? essence(result.results.front())
                                                      : "no undisturbed run: " + result.text;
  return known;
}

std::string Jobs::from_step(int workers, int left, std::int64_t step) {
  std::string& known = known_[fmt::format("{} {} {}", workers, left, step)];
  if (!known.empty()) return known;
  undisturbed(workers, "");  // it leaves the checkpoints
  const std::filesystem::path from =
      folder_ / fmt::format("undisturbed-{}", workers) / fmt::format("at-{}.safetensors", step);
  const Case what{.policy = "stop", .workers = left};
  const Result result = launch(what, step > 0 ? from.string() : "",
                               folder_ / fmt::format("from-{}-{}-{}", workers, left, step),
                               /*with_fault=*/false);
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
  const Case rest_of_it{.policy = "stop", .workers = what.workers};
  const Result rest = launch(rest_of_it, file.string(), folder / "rest", /*with_fault=*/false);
  const std::string reference = undisturbed(what.workers, "");
  const std::string mine = rest.results.empty() ? rest.text : essence(rest.results.front());
  if (weights_in(mine) != weights_in(reference)) {
    outcome.wrong = fmt::format("from {}: {} is not {}", file.string(), mine, reference);
  }
  if (!outcome.wrong.empty()) outcome.wrong += "; the job printed:\n" + result.text;
  return outcome;
}

Outcome Jobs::run_with_newcomer(bool with_etcd) {
  const std::filesystem::path folder = folder_ / "newcomer";
  std::filesystem::create_directories(folder);
  const std::string port = std::to_string(30000 + getpid() % 20000);
  std::vector<std::unique_ptr<Process>> workers;
  for (int w = 0; w < 3; ++w) {
    std::map<std::string, std::string> environment = {{"LOCKSTEP_ON_FAILURE", "shrink"},
                                                      {"OMP_WAIT_POLICY", "passive"},
                                                      {"FAULT", "0 newcomer 10 0"}};
    if (with_etcd) {
      environment["LOCKSTEP_WORKER"] = std::to_string(w);
      environment["LOCKSTEP_WORKERS"] = w < 2 ? "2" : "3";
      environment["LOCKSTEP_CONTROL"] = fmt::format("etcd://{}/newcomer", etcd(1).addresses());
    } else {
      environment["RANK"] = std::to_string(w);
      environment["WORLD_SIZE"] = w < 2 ? "2" : "3";
      environment["MASTER_ADDR"] = "127.0.0.1";
      environment["MASTER_PORT"] = port;
    }
    workers.push_back(std::make_unique<Process>(
        ProcessOptions{.command = {LOCKSTEP_BINARY_DIR "/bin/faults_worker", folder.string()},
                       .environment = environment,
                       .folder = folder.string()}));
    if (w == 1) await_file(folder / "fault");  // the third one comes when the others train
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
    if (weights_in(essence(text)) != weights_in(reference)) {
      outcome.wrong = fmt::format("{} is not {}", essence(text), reference);
    }
  }
  return outcome;
}

// What a job must come to depends on its program: with pieces by speed, sums are rounded otherwise;
// where fewer workers have files of their own, their batches are other ones.
std::string Jobs::compare(const Case& what, const Result& result, Outcome& outcome) {
  const bool shrinks = what.policy == "shrink" && what.disturbs();
  std::string reference = undisturbed(what.workers, what.program);
  if (reference.starts_with("no ")) return reference;
  int newcomers = 0;
  for (const std::string& text : result.results) {
    const json read = json::parse(text);
    const json& recoveries = read.at("recoveries");
    const bool newcomer = recoveries.empty() && what.policy == "restart";
    newcomers += newcomer ? 1 : 0;
    if (!what.disturbs() && !recoveries.empty()) return "slow was taken for dead";
    if (!recoveries.empty()) {
      outcome.seconds_lost = recoveries[0].at("seconds");
      if (shrinks && what.program.empty()) {
        reference =
            from_step(what.workers, what.workers - 1, recoveries[0].at("step").get<std::int64_t>());
        if (reference.starts_with("no ")) return reference;
      }
    } else if (what.disturbs() && !newcomer) {
      return "nobody noticed";
    }
    for (const double once : read.at("visited_once")) {
      if (once != kSamples) {
        return fmt::format("{} of {} samples were visited once", once, kSamples);
      }
    }
    const std::string mine = essence(text);
    const double loss = last_loss_in(reference);
    bool same = weights_in(mine) == weights_in(reference);
    if (what.program == "balance") same = std::abs(last_loss_in(mine) - loss) < 1e-3 * (1 + loss);
    if (what.program != "balance" && !what.program.empty() && shrinks) same = true;
    // The run that a smaller job is compared with has no losses of epochs before its first step,
    // and a newcomer has not seen them, unless they were those of another call of fit.
    if (what.program.empty() && !newcomer && !shrinks) same = mine == reference;
    if (!same) return fmt::format("{} is not {}", mine, reference);
    if (what.program == "fits" &&
        read.at("first_losses") != json::parse(result.results.front()).at("first_losses")) {
      return "the workers have other losses of the first call of fit";
    }
  }
  // All others have gone on from a copy.
  if (what.policy == "restart" && what.disturbs() && newcomers != 1) {
    return fmt::format("{} workers have not seen the failure, not 1", newcomers);
  }
  return {};
}

Outcome Jobs::run(const Case& what) {
  std::filesystem::path folder = folder_ / fmt::format("job-{}", jobs_++);
  Result result = launch(what, "", folder);
  // On a busy machine a worker that starts may be silent for half a second, which is a failure of
  // its own before the one that is tried: another try.
  for (int again = 0; again < 2 && !std::filesystem::exists(folder / "fault") &&
                      result.text.find("has been silent for 0.5 s") != std::string::npos;
       ++again) {
    folder = folder_ / fmt::format("job-{}", jobs_++);
    result = launch(what, "", folder);
  }
  Outcome outcome{.seconds = result.seconds};
  const auto wrong = [&](const std::string& how) {
    outcome.wrong = fmt::format("{}; the launcher ended with {} and printed:\n{}", how, result.code,
                                result.text);
    return outcome;
  };
  if (!std::filesystem::exists(folder / "fault")) return wrong("there was no fault");
  if (!all_ended(folder, what.workers)) return wrong("a worker is left over");
  if (const std::string why = damaged_checkpoint(folder); !why.empty()) return wrong(why);
  if (what.kind == Kind::Launcher && !what.etcd) {
    if (result.code != 128 + SIGKILL) return wrong("the launcher was not killed");
    return result.results.empty() ? outcome : wrong("a worker outlived the launcher");
  }
  if (what.kind == Kind::Disk) return after_full_disk(what, result, folder, outcome);
  const bool only_fit = what.program == "evaluate" || what.program == "predict";
  if (what.stops() || only_fit) {
    const std::string name = fmt::format("worker {}", what.worker);
    if (result.code == 0) return wrong("the job did not end with an error");
    if (result.text.find(name) == std::string::npos) return wrong("the worker was not named");
    for (int w = 0; w < what.workers && only_fit; ++w) {
      const std::string error = contents_of(folder / fmt::format("error-{}", w));
      if (w == what.worker || error.find(name) != std::string::npos) continue;
      return wrong(fmt::format("worker {} ended with the error \"{}\"", w, error));
    }
    return outcome;
  }
  if (what.kind == Kind::Launcher) {
    result.results = results_in(folder, what.workers);  // they have ended since
    result.code = 0;
  }
  if (result.code != 0) return wrong("the job did not go on");
  const int left = what.workers - (what.policy == "shrink" && what.disturbs() ? 1 : 0);
  if (std::ssize(result.results) != left) {
    return wrong(fmt::format("{} workers ended well, not {}", result.results.size(), left));
  }
  const std::string difference = compare(what, result, outcome);
  return difference.empty() ? outcome : wrong(difference);
}

}  // namespace lockstep::faults

// The program on several hosts, and its losses compared with those of one worker.
#pragma once

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "hosts/far_network.h"
#include "hosts/hosts.h"
#include "lockstep/cluster/control/control_server.h"
#include "temporary_folder.h"

namespace lockstep {

using Variables = std::map<std::string, std::string>;
using Words = std::vector<std::string>;
using Workers = std::vector<std::unique_ptr<Process>>;

// So long may anything take before a test counts as hanging.
inline constexpr std::chrono::seconds kGuard(100);

// TF_CONFIG of a worker, whose addresses these are.
inline std::string tf_config(const Words& addresses, int worker) {
  const nlohmann::json config = {{"cluster", {{"worker", addresses}}},
                                 {"task", {{"type", "worker"}, {"index", worker}}}};
  return config.dump();
}

class OverHosts : public ::testing::Test {
 protected:
  void SetUp() override {
    if (control_version().empty()) GTEST_SKIP() << "this build has no gRPC";
    static const std::string missing = Hosts::missing();
    if (!missing.empty()) GTEST_SKIP() << missing;
    std::ofstream(folder_ / "secret") << "a secret of this test\n";
  }

  // `lockstep train` as a worker. Each has a folder of its own, as if the disk were its host's.
  ProcessOptions train(int worker, Variables variables, const Words& words) const {
    const std::filesystem::path home = folder_ / fmt::format("worker-{}", worker);
    std::filesystem::create_directories(home);
    variables.insert({"HOME", home.string()});
    variables.insert({"OMP_WAIT_POLICY", "passive"});
    for (const char* name : {"ASAN_OPTIONS", "LSAN_OPTIONS", "UBSAN_OPTIONS", "TSAN_OPTIONS"}) {
      if (const char* value = std::getenv(name)) variables.insert({name, value});
    }
    if (has_secret_) variables.insert({"LOCKSTEP_SECRET_FILE", (folder_ / "secret").string()});
    ProcessOptions options{.command = {LOCKSTEP_BINARY_DIR "/bin/lockstep", "train", "--data",
                                       "synthetic", "--seed", "4"},
                           .environment = std::move(variables),
                           .folder = home.string()};
    options.command.insert(options.command.end(), words.begin(), words.end());
    return options;
  }

  // Workers by TF_CONFIG, the w-th one on host hosts_of[w]; those without a host are not started.
  Workers start_all(const Hosts& hosts, const std::vector<int>& hosts_of, const Words& addresses,
                    Words words) const {
    Workers workers;
    for (int w = 0; w < std::ssize(hosts_of); ++w) {
      workers.push_back(
          start_one(hosts, hosts_of[static_cast<std::size_t>(w)], w, addresses, words));
    }
    return workers;
  }
  std::unique_ptr<Process> start_one(const Hosts& hosts, int host, int worker,
                                     const Words& addresses, Words words) const {
    words.insert(words.end(), {"--strategy", "multi-worker", "--json", "result.json"});
    return hosts.start(host, train(worker, {{"TF_CONFIG", tf_config(addresses, worker)}}, words));
  }

  // All end well, and the losses are those of one worker.
  void expect_losses_of_one(const Workers& workers, const Words& words) {
    for (const auto& worker : workers) {
      EXPECT_EQ(worker->await_end(kGuard), 0) << worker->text();
    }
    EXPECT_NE(workers.front()->text().find(
                  fmt::format("{} workers over {}; worker 0", workers.size(), transport_)),
              std::string::npos)
        << workers.front()->text();
    expect_losses_like_one(words);
  }
  // The losses of the chief are those of one worker.
  void expect_losses_like_one(const Words& words) {
    const std::vector<double> several = losses_of("worker-0");
    const std::vector<double> one = losses_of_one(words);
    ASSERT_EQ(several.size(), one.size());
    for (std::size_t i = 0; i < one.size(); ++i) {
      EXPECT_NEAR(several[i], one[i], 1e-5 * (1 + one[i])) << i;
    }
  }

  TemporaryFolder folder_;
  bool has_secret_ = true;
  std::string transport_ = "Gloo";

 private:
  std::vector<double> losses_of(const std::string& home) const {
    std::ifstream file(folder_ / (home + "/result.json"));
    const nlohmann::json result = nlohmann::json::parse(file, nullptr, false);
    std::vector<double> losses;
    if (!result.contains("epochs")) {
      ADD_FAILURE() << home << ": no result";
      return losses;
    }
    for (const nlohmann::json& epoch : result.at("epochs")) {
      losses.push_back(epoch.at("loss"));
      losses.push_back(epoch.at("val_loss"));
    }
    return losses;
  }

  // Computed once for each command.
  const std::vector<double>& losses_of_one(Words words) {
    static std::map<Words, std::vector<double>> known;
    const auto [place, added] = known.try_emplace(words);
    if (!added) return place->second;
    words.insert(words.end(), {"--json", "result.json"});
    Process alone(train(99, {}, words));
    EXPECT_EQ(alone.await_end(kGuard), 0) << alone.text();
    return place->second = losses_of("worker-99");
  }
};

}  // namespace lockstep

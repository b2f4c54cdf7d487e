// Several workers that train together, started in the ways that users start them, with the program
// itself: by `lockstep launch`, by TF_CONFIG, by plain variables and by mpirun.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "cluster/certificates.h"
#include "lockstep/cluster/control/control_server.h"
#include "sanitized.h"
#include "temporary_folder.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

const std::string kProgram = LOCKSTEP_BINARY_DIR "/bin/lockstep";

struct Ran {
  int code = 0;
  std::string text;  // standard output and standard error
};

// Runs a shell line in a folder.
Ran run_in(const TemporaryFolder& folder, const std::string& line) {
  const std::string whole = "cd '" + folder.path() + "' && { " + line + "; } 2>&1";
  std::FILE* pipe = popen(whole.c_str(), "r");
  Ran ran;
  char part[4096];
  for (std::size_t got = 0; (got = fread(part, 1, sizeof(part), pipe)) > 0;) {
    ran.text.append(part, got);
  }
  const int status = pclose(pipe);
  ran.code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  return ran;
}

Json json_in(const fs::path& file) {
  std::ifstream stream(file);
  return Json::parse(stream, nullptr, false);
}

// A run that takes a moment: six steps an epoch, the last one short.
const std::string kWorkerSteps =
    kProgram + " train --model mlp --data synthetic --global-batch 36 --steps 6 --seed 4";

const std::string kWorkerTrain = kWorkerSteps + " --epochs 2";

std::vector<double> losses_of(const Json& result) {
  std::vector<double> losses;
  for (const Json& epoch : result.at("epochs")) {
    losses.push_back(epoch.at("loss"));
    losses.push_back(epoch.at("val_loss"));
  }
  return losses;
}

class MultiWorker : public ::testing::Test {
 protected:
  void SetUp() override {
    if (control_version().empty()) GTEST_SKIP() << "this build has no gRPC";
  }
  // The losses of one worker with as many replicas.
  std::vector<double> alone() {
    const Ran ran = run_in(folder_, kWorkerTrain + " --json alone.json");
    EXPECT_EQ(ran.code, 0) << ran.text;
    return losses_of(json_in(folder_ / "alone.json"));
  }
  void expect_same(const std::vector<double>& a, const std::vector<double>& b) {
    ASSERT_EQ(a.size(), b.size());
    for (std::size_t i = 0; i < a.size(); ++i) EXPECT_NEAR(a[i], b[i], 1e-5 * (1 + a[i])) << i;
  }
  TemporaryFolder folder_;
};

// Worker 1 of a job has no certificate if its environment does not name one.
TEST_F(MultiWorker, UnderLaunchWorkersShowTheCertificatesThatFlagsName) {
  Certificates certificates;
  const TlsFiles tls = certificates.make("authority", "worker");
  const std::string flags =
      " --tls-cert " + tls.certificate + " --tls-key " + tls.key + " --tls-ca " + tls.authority;
  const Ran ran = run_in(folder_, kProgram + " launch --workers 2" + flags + " -- " + kWorkerTrain +
                                      " --json several.json");
  ASSERT_EQ(ran.code, 0) << ran.text;
  EXPECT_EQ(json_in(folder_ / "several.json").at("replicas"), 2);
  const Ran links = run_in(
      folder_, kProgram + " launch --workers 2" + flags + " -- " + kProgram + " devices --cluster");
  EXPECT_EQ(links.code, 0) << links.text;
  const Ran missing =
      run_in(folder_, kProgram + " launch --workers 2 --tls-cert " + tls.certificate + " -- true");
  EXPECT_EQ(missing.code, 2) << missing.text;
  EXPECT_NE(missing.text.find("--tls-key is missing"), std::string::npos) << missing.text;
  const Ran absent =
      run_in(folder_, kProgram +
                          " launch --workers 2 --tls-cert /no/cert --tls-key /no/key --tls-ca "
                          "/no/ca -- true");
  EXPECT_NE(absent.code, 0) << absent.text;
  EXPECT_NE(absent.text.find("/no/ca"), std::string::npos) << absent.text;
}

TEST_F(MultiWorker, UnderLaunchGivesTheLossesOfOne) {
  const std::vector<double> one = alone();
  for (const std::string how : {"--workers 2", "--workers 3"}) {
    const Ran ran = run_in(
        folder_, kProgram + " launch " + how + " -- " + kWorkerTrain + " --json several.json");
    ASSERT_EQ(ran.code, 0) << ran.text;
    const Json result = json_in(folder_ / "several.json");
    EXPECT_EQ(result.at("strategy"), "multi-worker");
    EXPECT_EQ(result.at("replicas"), how == "--workers 2" ? 2 : 3);
    expect_same(losses_of(result), one);
  }
}

TEST_F(MultiWorker, HaveSeveralReplicasEach) {
  const std::vector<double> one = alone();
  const Ran ran = run_in(folder_, kProgram + " launch --workers 2 -- " + kWorkerTrain +
                                      " --replicas 2 --json several.json");
  ASSERT_EQ(ran.code, 0) << ran.text;
  const Json result = json_in(folder_ / "several.json");
  EXPECT_EQ(result.at("replicas"), 4);
  expect_same(losses_of(result), one);
}

TEST_F(MultiWorker, UnderTfConfigGivesTheLossesOfOne) {
  const std::vector<double> one = alone();
  // A port that was free a moment ago.
  const int port = ControlServer(ControlServerOptions{}).port();
  const auto worker = [&](int index) {
    return "TF_CONFIG='{\"cluster\": {\"worker\": [\"localhost:" + std::to_string(port) +
           "\", \"localhost:1\"]}, \"task\": {\"type\": \"worker\", \"index\": " +
           std::to_string(index) + "}}' " + kWorkerTrain +
           " --strategy multi-worker --json several.json";
  };
  const Ran ran = run_in(folder_, worker(0) + " & " + worker(1) + "; second=$?; wait $!; " +
                                      "test $second = 0 -a $? = 0");
  ASSERT_EQ(ran.code, 0) << ran.text;
  expect_same(losses_of(json_in(folder_ / "several.json")), one);
}

TEST_F(MultiWorker, UnderPlainVariablesGivesTheLossesOfOne) {
  const std::vector<double> one = alone();
  const int port = ControlServer(ControlServerOptions{}).port();
  const std::string common =
      "WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=" + std::to_string(port) + " ";
  const Ran ran = run_in(folder_, common + "RANK=0 " + kWorkerTrain + " --json several.json & " +
                                      common + "RANK=1 " + kWorkerTrain +
                                      "; second=$?; wait $!; test $second = 0 -a $? = 0");
  ASSERT_EQ(ran.code, 0) << ran.text;
  expect_same(losses_of(json_in(folder_ / "several.json")), one);
}

TEST_F(MultiWorker, UnderMpirunGivesTheLossesOfOne) {
  if (run_in(folder_, "command -v mpirun").code != 0) GTEST_SKIP() << "there is no mpirun";
  const std::vector<double> one = alone();
  const Ran ran =
      run_in(folder_, "mpirun --allow-run-as-root --oversubscribe --bind-to none -n 2 " +
                          kWorkerTrain + " --json several.json");
  ASSERT_EQ(ran.code, 0) << ran.text;
  expect_same(losses_of(json_in(folder_ / "several.json")), one);
}

TEST_F(MultiWorker, MeetingAtAnEtcdGivesTheLossesOfOne) {
  if (run_in(folder_, "command -v etcd").code != 0) GTEST_SKIP() << "there is no etcd";
  const std::vector<double> one = alone();
  // Ports that were free a moment ago.
  const auto address = [] {
    return "127.0.0.1:" + std::to_string(ControlServer(ControlServerOptions{}).port());
  };
  const std::string client = address();
  const std::string peer = address();
  const std::string etcd = "etcd --data-dir etcd --listen-client-urls http://" + client +
                           " --advertise-client-urls http://" + client +
                           " --listen-peer-urls http://" + peer +
                           " --initial-advertise-peer-urls http://" + peer +
                           " --initial-cluster default=http://" + peer + " >etcd.log 2>&1 & ";
  const Ran ran = run_in(folder_, etcd + kProgram + " launch --workers 2 --rendezvous etcd://" +
                                      client + "/run -- " + kWorkerTrain +
                                      " --json several.json; code=$?; kill %1; exit $code");
  ASSERT_EQ(ran.code, 0) << ran.text;
  expect_same(losses_of(json_in(folder_ / "several.json")), one);
}

// Many more than there are cores: whoever waits leaves them to the others.
TEST_F(MultiWorker, SixtyFourGiveTheLossesOfOne) {
#ifdef LOCKSTEP_SANITIZED
  GTEST_SKIP() << "so many sanitized processes need more memory than a small machine has";
#endif
  const std::string train =
      kProgram + " train --model mlp --data synthetic --global-batch 128 --steps 20 --epochs 1";
  const Ran one = run_in(folder_, train + " --json one.json");
  ASSERT_EQ(one.code, 0) << one.text;
  const Ran many = run_in(
      folder_, kProgram + " launch --workers 64 -- " + train + " --json many.json --run-dir many");
  ASSERT_EQ(many.code, 0) << many.text;
  EXPECT_EQ(json_in(folder_ / "many.json").at("replicas"), 64);
  expect_same(losses_of(json_in(folder_ / "many.json")), losses_of(json_in(folder_ / "one.json")));
}

// The chief's run is like one worker's: one folder, one record, one checkpoint.
TEST_F(MultiWorker, WriteOneRunThatOneWorkerGoesOnWith) {
  const Ran whole = run_in(folder_, kWorkerSteps + " --epochs 4 --json whole.json");
  ASSERT_EQ(whole.code, 0) << whole.text;
  const Ran ran =
      run_in(folder_, kProgram + " launch --workers 2 -- " + kWorkerTrain + " --run-dir several");
  ASSERT_EQ(ran.code, 0) << ran.text;
  const Ran rest = run_in(folder_, kProgram +
                                       " train --resume several --strategy one-device "
                                       "--epochs 4 --json rest.json");
  ASSERT_EQ(rest.code, 0) << rest.text;
  std::vector<double> expected = losses_of(json_in(folder_ / "whole.json"));
  expected.erase(expected.begin(), expected.begin() + 4);
  expect_same(losses_of(json_in(folder_ / "rest.json")), expected);
}

TEST_F(MultiWorker, WritePartsOfACheckpointThatOneWorkerGoesOnWith) {
  const Ran ran = run_in(folder_, kProgram + " launch --workers 2 -- " + kWorkerTrain +
                                      " --run-dir run --checkpoint-writers all");
  ASSERT_EQ(ran.code, 0) << ran.text;
  int parts = 0;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder_ / "run")) {
    parts += entry.path().string().find("-of-2") != std::string::npos ? 1 : 0;
  }
  EXPECT_EQ(parts, 2);
  const Ran more = run_in(folder_, kProgram + " train --resume run --epochs 3 --json more.json");
  ASSERT_EQ(more.code, 0) << more.text;
  EXPECT_EQ(json_in(folder_ / "more.json").at("epochs").size(), 1U);
}

TEST_F(MultiWorker, AKilledWorkerIsNamedAndEndsTheJob) {
  const Ran ran =
      run_in(folder_,
             kProgram + " launch --workers 3 --log-dir logs -- sh -c '" +
                 "if [ $LOCKSTEP_WORKER = 1 ]; then " + kProgram +
                 " train --model lenet --data synthetic --epochs 500 --strategy multi-worker & "
                 "train=$!; " +
                 "tail -F logs/worker-0.log 2>/dev/null | grep -q -m1 epoch; " +
                 "kill -9 $train; wait $train; else exec " + kProgram +
                 " train --model lenet --data synthetic --epochs 500 --strategy multi-worker; fi'");
  EXPECT_EQ(ran.code, 128 + 9) << ran.text;
  EXPECT_NE(ran.text.find("worker 1"), std::string::npos) << ran.text;
  const std::string log = [&] {
    std::ifstream file(folder_ / "logs/worker-2.log");
    return std::string(std::istreambuf_iterator<char>(file), {});
  }();
  EXPECT_NE(log.find("worker 1"), std::string::npos) << log << "\n" << ran.text;
}

// A signal at one worker stops all after the same step; the run goes on as if nothing had happened.
TEST_F(MultiWorker, ASignalAtOneStopsAllAfterTheSameStepAndTheRunGoesOn) {
  const std::string train = kProgram +
                            " train --model mlp --data synthetic --global-batch 36 --epochs 40 "
                            "--seed 4 --strategy multi-worker --run-dir stopped";
  const Ran ran = run_in(
      folder_, kProgram + " launch --workers 2 --log-dir logs -- sh -c '" +
                   "if [ $LOCKSTEP_WORKER = 1 ]; then " + train +
                   " & train=$!; tail -F logs/worker-0.log 2>/dev/null | grep -q -m1 epoch; " +
                   "kill -USR1 $train; wait $train; else exec " + train + "; fi'");
  EXPECT_EQ(ran.code, 128 + SIGUSR1) << ran.text;
  ASSERT_TRUE(fs::exists(folder_ / "stopped/checkpoint.safetensors")) << ran.text;
  const Ran rest = run_in(folder_, kProgram + " launch --workers 2 -- " + kProgram +
                                       " train --resume stopped --json rest.json");
  ASSERT_EQ(rest.code, 0) << rest.text;
  const Ran whole = run_in(folder_, kProgram + " launch --workers 2 -- " + kProgram +
                                        " train --model mlp --data synthetic --global-batch 36 "
                                        "--epochs 40 --seed 4 --json whole.json");
  ASSERT_EQ(whole.code, 0) << whole.text;
  EXPECT_EQ(json_in(folder_ / "rest.json").at("epochs").back().at("loss"),
            json_in(folder_ / "whole.json").at("epochs").back().at("loss"));
}

}  // namespace
}  // namespace lockstep

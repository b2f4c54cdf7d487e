// Jobs on several hosts that go on after a failure: Gloo's connections are made anew, and the
// losses are those of one worker.
#include <signal.h>

#include "hosts/training.h"

namespace lockstep {
namespace {

class GoingOn : public OverHosts {
 protected:
  static Words run(const std::string& policy) {
    return {"--model",      "mlp", "--global-batch",      "36", "--steps",      "6",
            "--epochs",     "8",   "--heartbeat-timeout", "2",  "--copy-every", "4",
            "--on-failure", policy};
  }
  Workers start(const Hosts& hosts, const Words& words) {
    for (int w = 0; w < 3; ++w) addresses_.push_back(hosts.address(w) + ":5000");
    Workers workers = start_all(hosts, {0, 1, 2}, addresses_, words);
    EXPECT_TRUE(workers.front()->await_text(" 3/8", kGuard)) << workers.front()->text();
    return workers;
  }
  // Those that are left end well, with the losses of one worker.
  void expect_losses(Workers workers, int lost, const Words& words, int left) {
    workers.erase(workers.begin() + lost);
    for (const auto& worker : workers) {
      EXPECT_EQ(worker->await_end(kGuard), 0) << worker->text();
    }
    EXPECT_NE(workers.front()->text().find(fmt::format("= {} replicas", left)), std::string::npos)
        << workers.front()->text();
    expect_losses_like_one(words);
  }

  Words addresses_;
};

TEST_F(GoingOn, WithoutAKilledWorker) {
  Hosts hosts(3);
  const Words words = run("shrink");
  Workers workers = start(hosts, words);
  workers[2]->kill(SIGKILL);
  expect_losses(std::move(workers), 2, words, 2);
}

// Of two halves of a network, the one with the control plane goes on; the other one ends.
TEST_F(GoingOn, OnTheSideOfTheChiefIfAHostIsCutOff) {
  Hosts hosts(3);
  const Words words = run("shrink");
  Workers workers = start(hosts, words);
  hosts.cut(1);
  EXPECT_EQ(workers[1]->await_end(kGuard), 1) << workers[1]->text();
  expect_losses(std::move(workers), 1, words, 2);
}

TEST_F(GoingOn, WithAKilledWorkerThatIsStartedAgain) {
  Hosts hosts(3);
  const Words words = run("restart");
  Workers workers = start(hosts, words);
  workers[1]->kill(SIGKILL);
  EXPECT_EQ(workers[1]->await_end(kGuard), 128 + SIGKILL);
  workers.push_back(start_one(hosts, 1, 1, addresses_, words));
  expect_losses(std::move(workers), 1, words, 3);
}

}  // namespace
}  // namespace lockstep

// A worker that is killed, or whose host is cut off: all others end and name it, and nobody hangs.
#include <signal.h>

#include "hosts/training.h"

namespace lockstep {
namespace {

class Faults : public OverHosts {
 protected:
  // Workers on hosts of their own that train until something happens; returns when they do.
  Workers training(const Hosts& hosts, int workers, const std::string& heartbeat_timeout,
                   const Words& more = {}) {
    std::vector<int> hosts_of;
    Words addresses;
    for (int w = 0; w < workers; ++w) {
      hosts_of.push_back(w);
      addresses.push_back(hosts.address(w) + ":5000");
    }
    Words words = {"--model",
                   "mlp",
                   "--global-batch",
                   "36",
                   "--steps",
                   "6",
                   "--epochs",
                   "100000",
                   "--heartbeat-timeout",
                   heartbeat_timeout};
    words.insert(words.end(), more.begin(), more.end());
    Workers started = start_all(hosts, hosts_of, addresses, words);
    EXPECT_TRUE(started.front()->await_text("epoch", kGuard)) << started.front()->text();
    return started;
  }
  // The last line that it writes is the error.
  static void expect_error_naming(Process& process, const std::string& name) {
    EXPECT_EQ(process.await_end(kGuard), 1) << process.text();
    const std::string text = process.text();
    const std::size_t error = text.rfind("lockstep: ");
    ASSERT_NE(error, std::string::npos) << text;
    EXPECT_NE(text.find(name, error), std::string::npos) << text.substr(error);
  }
};

// TCP sends again what was lost while a link was away for a moment.
TEST_F(Faults, ALinkThatComesBackSoonChangesNoLoss) {
  Hosts hosts(2);
  const Words run = {"--model", "mlp", "--global-batch", "36", "--steps", "6", "--epochs", "20"};
  const Workers workers =
      start_all(hosts, {0, 1}, {hosts.address(0) + ":5000", hosts.address(1) + ":5000"}, run);
  for (const char* when : {" 2/20", " 4/20", " 6/20"}) {
    ASSERT_TRUE(workers[0]->await_text(when, kGuard)) << workers[0]->text();
    hosts.cut(1);
    hosts.heal(1);
  }
  expect_losses_of_one(workers, run);
}

TEST_F(Faults, AKilledWorkerIsNamedByAllOthers) {
  Hosts hosts(3);
  const Workers workers = training(hosts, 3, "60");  // the end of a process is noticed at once
  workers[1]->kill(SIGKILL);
  expect_error_naming(*workers[0], "worker 1");
  expect_error_naming(*workers[2], "worker 1");
}

TEST_F(Faults, AKilledWorkerIsNamedByItsNeighbourAndByOtherHosts) {
  Hosts hosts(2);
  const Words addresses = {hosts.address(0) + ":5000", hosts.address(0) + ":5001",
                           hosts.address(1) + ":5000", hosts.address(1) + ":5001"};
  const Workers workers = start_all(hosts, {0, 0, 1, 1}, addresses,
                                    {"--model", "mlp", "--global-batch", "36", "--steps", "6",
                                     "--epochs", "100000", "--heartbeat-timeout", "60"});
  EXPECT_TRUE(workers.front()->await_text("epoch", kGuard)) << workers.front()->text();
  workers[3]->kill(SIGKILL);
  for (const int w : {0, 1, 2})
    expect_error_naming(*workers[static_cast<std::size_t>(w)], "worker 3");
}

TEST_F(Faults, AKilledChiefIsNamedByAllOthers) {
  Hosts hosts(3);
  const Workers workers = training(hosts, 3, "60");
  workers[0]->kill(SIGKILL);
  expect_error_naming(*workers[1], "worker 0");
  expect_error_naming(*workers[2], "worker 0");
}

TEST_F(Faults, AHostThatIsCutOffIsNamedAndItsWorkerEndsToo) {
  Hosts hosts(3);
  const Workers workers = training(hosts, 3, "2");
  hosts.cut(1);
  expect_error_naming(*workers[0], "worker 1");
  expect_error_naming(*workers[2], "worker 1");
  expect_error_naming(*workers[1], "worker 0");
}

TEST_F(Faults, AChiefThatIsCutOffIsNamedByAllOthers) {
  Hosts hosts(3);
  const Workers workers = training(hosts, 3, "2");
  hosts.cut(0);
  expect_error_naming(*workers[0], "has been silent");
  expect_error_naming(*workers[1], "worker 0");
  expect_error_naming(*workers[2], "worker 0");
}

TEST_F(Faults, AWorkerThatIsHeardButHearsNothingEndsEverybody) {
  Hosts hosts(2);
  const Workers workers = training(hosts, 2, "2");
  hosts.cut_one_way(0, 1);
  expect_error_naming(*workers[0], "worker 1");
  expect_error_naming(*workers[1], "worker 0");
}

TEST_F(Faults, AWorkerThatHearsButIsNotHeardEndsEverybody) {
  Hosts hosts(2);
  const Workers workers = training(hosts, 2, "2");
  hosts.cut_one_way(1, 0);
  expect_error_naming(*workers[0], "worker 1");
  expect_error_naming(*workers[1], "worker 1");
}

// Both still reach the chief.
TEST_F(Faults, ALinkThatIsCutBetweenTwoWorkersIsNamed) {
  Hosts hosts(3);
  const Workers workers = training(hosts, 3, "60", {"--progress-timeout", "2"});
  hosts.cut_one_way(1, 2);
  hosts.cut_one_way(2, 1);
  for (const auto& worker : workers) {
    expect_error_naming(*worker, "waits for worker 2");
    expect_error_naming(*worker, "waits for worker 1");
    expect_error_naming(*worker, "between 10.77.0.2 and 10.77.0.3");
  }
}

// The message goes only one way.
TEST_F(Faults, ALinkThatIsCutInOneDirectionBetweenTwoWorkersIsNamed) {
  Hosts hosts(3);
  const Workers workers = training(hosts, 3, "60", {"--progress-timeout", "2"});
  hosts.cut_one_way(2, 1);
  for (const auto& worker : workers) expect_error_naming(*worker, "waits for worker 2");
}

}  // namespace
}  // namespace lockstep

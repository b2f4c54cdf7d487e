// What happens to a membership in etcd when workers, etcd itself or the network between them fail.
#include <spawn.h>

#include "cluster/etcd.h"

namespace lockstep {
namespace {

constexpr const char* kChildVariable = "LOCKSTEP_ETCD_CHILD";
constexpr int kStoppedItself = 7;

// Worker 0 in a process of its own; its options are in the variable: the lease in seconds, the
// heartbeats in milliseconds, the endpoint. Ends when it is told to, or when it stops itself.
[[noreturn]] void be_chief(const std::string& what) {
  try {
    std::istringstream words(what);
    int lease = 0;
    int heartbeat = 0;
    std::string endpoint;
    words >> lease >> heartbeat >> endpoint;
    EtcdOptions options = etcd_options({endpoint}, 0, 3);
    options.lease_timeout = seconds(lease);
    options.heartbeat_timeout = milliseconds(heartbeat);
    options.identity = "the chief";
    EtcdMembership member(options);
    Failures failures;
    member.on_failure([&](const Failure& failure) { failures.put(failure); });
    member.store().set("chief", "is up");
    const Failure failure = failures.wait();
    // Nobody ever loads this.
    bool written = false;
    try {
      written = member.commit("checkpoint", "from the grave");
    } catch (const CommError&) {
      // The connection went with the lease; the test looks at what is committed.
    }
    std::_Exit(failure.rank == 0 && !written ? kStoppedItself : 1);
  } catch (const std::exception&) {
    std::_Exit(2);
  }
}

// Workers 1 and 2 in this process, the chief in another one.
class EtcdProcess : public EtcdTest {
 protected:
  void SetUp() override {
    if (const char* what = std::getenv(kChildVariable)) be_chief(what);
    EtcdTest::SetUp();
  }
  void TearDown() override {
    if (pid > 0) end(SIGKILL);
  }
  void start(seconds lease, milliseconds heartbeat) {
    spawn_chief(lease, heartbeat);
    on_threads(2, [&](int i) {
      EtcdOptions options = etcd_options(endpoints(), i + 1, 3);
      options.heartbeat_timeout = heartbeat;
      members[i] = std::make_unique<EtcdMembership>(options);
      members[i]->on_failure([this, i](const Failure& failure) { failures[i].put(failure); });
    });
    members[0]->store().get("chief", kHang);
  }
  void spawn_chief(seconds lease, milliseconds heartbeat) {
    std::string filter = "--gtest_filter=" + job_of_test();
    std::string program = "cluster_test";
    unsetenv("GTEST_TOTAL_SHARDS");
    unsetenv("GTEST_SHARD_INDEX");
    const std::string what = std::to_string(lease.count()) + " " +
                             std::to_string(heartbeat.count()) + " " + endpoints()[0];
    setenv(kChildVariable, what.c_str(), 1);
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_addopen(&actions, 1, "/dev/null", O_WRONLY, 0);
    char* const arguments[] = {program.data(), filter.data(), nullptr};
    EXPECT_EQ(posix_spawn(&pid, "/proc/self/exe", &actions, nullptr, arguments, environ), 0);
    posix_spawn_file_actions_destroy(&actions);
    unsetenv(kChildVariable);
  }
  int end(int number) {
    int status = 0;
    if (number != 0) kill(pid, number);
    waitpid(pid, &status, 0);
    pid = -1;
    return status;
  }
  void expect_failure(std::initializer_list<const char*> parts) {
    for (Failures& each : failures) {
      const Failure failure = each.wait();
      EXPECT_EQ(failure.rank, 0);
      EXPECT_EQ(failure.kind, FailureKind::Comm);
      expect_contains(failure.message, parts);
      EXPECT_EQ(failure.message, failures[0].wait().message);
    }
  }

  pid_t pid = -1;
  std::unique_ptr<EtcdMembership> members[2];
  Failures failures[2];
};

TEST_F(EtcdProcess, AKilledChiefIsNamedAtOnceAndTheOthersGoOn) {
  // Far less time than until its lease or its silence would tell.
  start(kHang * 10, milliseconds(kHang) * 10);
  end(SIGKILL);
  expect_failure({"worker 0 (the chief) has ended"});
  on_threads(2, [&](int i) { members[i]->rejoin({1, 2}, kHang); });
  EXPECT_EQ(members[0]->worker(), 0);
  EXPECT_TRUE(members[0]->commit("checkpoint", "by the new chief"));
}

TEST_F(EtcdProcess, AStoppedWorkerIsNamedSilentByItsNeighbours) {
  start(kHang, seconds(1));
  kill(pid, SIGSTOP);
  expect_failure({"worker 0 (the chief) has been silent for"});
}

TEST_F(EtcdProcess, AChiefThatWakesUpAfterItsLeaseStopsItselfAndWritesNothing) {
  start(seconds(2), milliseconds(kHang) * 10);
  EXPECT_TRUE(members[0]->commit("checkpoint", "step 10"));
  kill(pid, SIGSTOP);
  expect_failure({"worker 0 (the chief) has lost its lease"});
  on_threads(2, [&](int i) { members[i]->rejoin({1, 2}, kHang); });
  kill(pid, SIGCONT);
  const int status = end(0);
  ASSERT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), kStoppedItself);
  EXPECT_EQ(members[1]->committed("checkpoint"), "step 10");
}

TEST_F(EtcdProcess, AWorkerThatIsCutOffStopsItselfBeforeItsLeaseEnds) {
  Forwarder forwarder(endpoints()[0]);
  const EtcdKeys keys(job_of_test());
  std::unique_ptr<EtcdMembership> cut_off;
  Mailbox<bool> had_key;
  on_threads(3, [&](int i) {
    EtcdOptions options = etcd_options(endpoints(), i, 3);
    if (i == 0) {
      options.endpoints = {forwarder.address()};
      options.lease_timeout = seconds(4);
      cut_off = std::make_unique<EtcdMembership>(options);
    } else {
      members[i - 1] = std::make_unique<EtcdMembership>(options);
      members[i - 1]->on_failure(
          [this, i](const Failure& failure) { failures[i - 1].put(failure); });
    }
  });
  Failures own;
  cut_off->on_failure([&](const Failure& failure) {
    had_key.put(servers->has(keys.member(1, 0)));
    own.put(failure);
  });
  forwarder.freeze();
  const Failure failure = own.wait();
  EXPECT_EQ(failure.rank, 0);
  expect_contains(failure.message,
                  {"worker 0", "stops itself", "could not renew its lease of 4 s"});
  EXPECT_TRUE(had_key.wait()) << "the lease had ended at etcd before the worker stopped";
  EXPECT_FALSE(cut_off->commit("checkpoint", "from the other side"));
  expect_contains(error_of<CommError>([&] { cut_off->store().set("a", "b"); }),
                  {"no member any more"});
  // The side that has etcd hears of it, and goes on without it.
  expect_failure({"worker 0 (host:pid 0) has lost its lease"});
  on_threads(2, [&](int i) { members[i]->rejoin({1, 2}, kHang); });
  EXPECT_TRUE(members[0]->commit("checkpoint", "from this side"));
}

TEST(EtcdCluster, AMemberOfThreeMayDieAndWithoutAMajorityAllWorkersStopThemselves) {
  if (!etcd_program()) GTEST_SKIP() << "etcd is not installed (Debian: etcd-server)";
  EtcdServers servers(3);
  EtcdWorkers workers(servers.endpoints(), 3,
                      [](EtcdOptions& options) { options.lease_timeout = seconds(5); });
  // The one that all workers use, whether it leads or not.
  servers.kill_one(0);
  on_threads(3, [&](int i) {
    workers[i].store().set("key " + std::to_string(i), "value");
    EXPECT_EQ(workers[i].store().get("key " + std::to_string((i + 1) % 3), kHang), "value");
    EXPECT_TRUE(workers[i].still_current());
  });
  for (int i = 0; i < 3; ++i) EXPECT_EQ(workers.failures(i).size(), 0u);
  servers.kill_one(1);
  for (int i = 0; i < 3; ++i) {
    const Failure failure = workers.failures(i).wait();
    EXPECT_EQ(failure.rank, i);
    expect_contains(failure.message, {"stops itself", "could not renew its lease"});
  }
}

}  // namespace
}  // namespace lockstep

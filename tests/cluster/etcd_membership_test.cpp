// Membership over a real etcd, with workers as threads.
#include "cluster/etcd.h"

namespace lockstep {
namespace {

using Etcd = EtcdTest;

TEST_F(Etcd, AllWorkersJoinAndHearTheMembers) {
  EtcdWorkers workers(endpoints(), 3);
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(workers[i].worker(), i);
    EXPECT_EQ(workers[i].workers(), 3);
    EXPECT_EQ(workers[i].generation(), 1u);
    EXPECT_EQ(workers[i].address(), "127.0.0.1");
    EXPECT_EQ(workers[i].members().at(2).identity, "host:pid 2");
    EXPECT_EQ(workers[i].members().at(2).address, "127.0.0.1");
    EXPECT_TRUE(workers[i].still_current());
  }
}

TEST_F(Etcd, AnyWorkersGetTheNumbersThatAreLeft) {
  EtcdWorkers workers(endpoints(), 4, [](EtcdOptions& options) {
    if (options.worker != 2) options.worker = -1;
  });
  std::vector<int> seen(4);
  for (int i = 0; i < 4; ++i) ++seen.at(static_cast<std::size_t>(workers[i].worker()));
  EXPECT_EQ(seen, std::vector<int>(4, 1));
  EXPECT_EQ(workers[2].worker(), 2);
}

TEST_F(Etcd, AWorkerWithANumberGetsItFromOneThatCanBeAny) {
  std::unique_ptr<EtcdMembership> any;
  std::thread first(
      [&] { any = std::make_unique<EtcdMembership>(etcd_options(endpoints(), -1, 2)); });
  while (!servers->has(EtcdKeys(job_of_test()).member(1, 0))) std::this_thread::yield();
  EtcdMembership zero(etcd_options(endpoints(), 0, 2));
  first.join();
  EXPECT_EQ(zero.worker(), 0);
  EXPECT_EQ(any->worker(), 1);
}

TEST_F(Etcd, AGetWaitsUntilTheKeyIsSetAndReadsTheNewestValue) {
  EtcdWorkers workers(endpoints(), 2);
  expect_contains(error_of<CommError>([&] { workers[0].store().get("late", milliseconds(50)); }),
                  {"key \"late\"", "nobody has set it"});
  std::string value;
  std::thread waits([&] { value = workers[0].store().get("late", kHang); });
  workers[1].store().set("late", std::string("a\0b", 3));
  waits.join();
  EXPECT_EQ(value, std::string("a\0b", 3));
  workers[1].store().set("late", "newer");
  EXPECT_EQ(workers[0].store().get("late", kHang), "newer");
}

TEST_F(Etcd, AGetThatWaitsEndsWithTheJobsFailure) {
  EtcdWorkers workers(endpoints(), 2);
  std::string error;
  std::thread waits(
      [&] { error = error_of<CommError>([&] { workers[0].store().get("never", kHang); }); });
  workers[1].report_failure({.rank = 1, .kind = FailureKind::Data, .message = "a bad record"});
  waits.join();
  expect_contains(error, {"key \"never\"", "a bad record"});
}

TEST_F(Etcd, TheKeysOfAnotherJobAreNotSeen) {
  EtcdWorkers workers(endpoints(), 1);
  EtcdWorkers others(endpoints(), 1, [](EtcdOptions& options) { options.job += "2"; });
  others[0].store().set("key", "theirs");
  EXPECT_TRUE(others[0].commit("key", "theirs"));
  error_of<CommError>([&] { workers[0].store().get("key", milliseconds(50)); });
  EXPECT_FALSE(workers[0].committed("key"));
}

TEST_F(Etcd, WritesOfOthersToTheSameEtcdDelayNothing) {
  std::atomic<bool> stop = false;
  std::thread stranger([&] {
    while (!stop) {
      etcdserverpb::TxnRequest request;
      *request.add_success() = put_key("of another program", "value");
      servers->client().transact(request, EtcdServers::soon());
    }
  });
  for (std::uint64_t run = 1; run <= 9; ++run) {
    EtcdWorkers workers(endpoints(), 3);
    EXPECT_EQ(workers[0].generation(), run);
    on_threads(3, [&](int i) { workers[i].rejoin({2, 1, 0}, kHang); });
    EXPECT_EQ(workers[0].worker(), 2);
    EXPECT_EQ(workers[0].generation(), ++run);
  }
  stop = true;
  stranger.join();
}

TEST_F(Etcd, AllHearTheSameFirstFailure) {
  EtcdWorkers workers(endpoints(), 3);
  on_threads(3, [&](int i) {
    workers[i].report_failure(
        {.rank = i, .kind = FailureKind::Data, .message = "cause " + std::to_string(i)});
  });
  const Failure first = workers.failures(0).wait();
  EXPECT_EQ(first.kind, FailureKind::Data);
  EXPECT_EQ(first.message, "cause " + std::to_string(first.rank));
  for (int i = 1; i < 3; ++i) {
    EXPECT_EQ(workers.failures(i).wait().message, first.message);
    EXPECT_EQ(workers.failures(i).wait().rank, first.rank);
  }
}

TEST_F(Etcd, AFailureIsReportedEvenIfTheWorkerEndsAtOnce) {
  EtcdWorkers workers(endpoints(), 2);
  workers[1].report_failure({.rank = 1, .kind = FailureKind::Usage, .message = "a wrong shape"});
  workers.destroy(1);
  const Failure failure = workers.failures(0).wait();
  EXPECT_EQ(failure.message, "a wrong shape");
  EXPECT_EQ(failure.kind, FailureKind::Usage);
}

TEST_F(Etcd, AWorkerThatLeavesHasNotFailed) {
  EtcdWorkers workers(endpoints(), 3);
  workers.destroy(1);
  const EtcdKeys keys(job_of_test());
  EXPECT_FALSE(servers->has(keys.member(1, 1)));
  // All that etcd says after the departure comes in order: the first failure is this one.
  workers[2].report_failure({.rank = 2, .kind = FailureKind::Data, .message = "another cause"});
  EXPECT_EQ(workers.failures(0).wait().message, "another cause");
}

TEST_F(Etcd, AWorkerTwiceIsRefused) {
  EtcdWorkers workers(endpoints(), 2,
                      [](EtcdOptions& options) { options.lease_timeout = seconds(2); });
  EtcdOptions options = etcd_options(endpoints(), 1, 2);
  options.identity = "a second one";
  options.lease_timeout = seconds(2);
  expect_contains(error_of<UsageError>([&] { EtcdMembership twice(options); }),
                  {"worker 1 of job", "is twice", "host:pid 1"});
  EXPECT_TRUE(workers[1].still_current());
}

TEST_F(Etcd, WorkersThatExpectAnotherNumberAreRefused) {
  EtcdOptions options = etcd_options(endpoints(), 0, 2);
  std::string error;
  std::thread other([&] {
    EtcdOptions three = etcd_options(endpoints(), 1, 3);
    // Until worker 0 has taken its place.
    while (!servers->has(EtcdKeys(three.job).member(1, 0))) std::this_thread::yield();
    error = error_of<UsageError>([&] { EtcdMembership member(three); });
    EtcdMembership right(etcd_options(endpoints(), 1, 2));
  });
  { EtcdMembership member(options); }
  other.join();
  expect_contains(error, {"expects 3 workers", "expect 2"});
}

TEST_F(Etcd, WhoIsMissingIsNamed) {
  EtcdOptions options = etcd_options(endpoints(), 1, 3);
  options.join_timeout = milliseconds(500);
  expect_contains(error_of<CommError>([&] { EtcdMembership member(options); }),
                  {"worker 0, worker 2 are missing", "generation 1"});
  // And it has taken its key with it.
  EXPECT_FALSE(servers->has(EtcdKeys(options.job).member(1, 1)));
}

TEST_F(Etcd, NoEtcdIsAnErrorWithTheAddress) {
  int port = 0;
  close(listen_on_loopback(0, &port));
  const std::string nobody = "127.0.0.1:" + std::to_string(port);
  EtcdOptions options = etcd_options({nobody}, 0, 1);
  options.join_timeout = milliseconds(200);
  expect_contains(error_of<CommError>([&] { EtcdMembership member(options); }), {nobody.c_str()});
}

TEST_F(Etcd, ANewerGenerationRefusesWhatTheOldChiefWrites) {
  EtcdWorkers workers(endpoints(), 3);
  EXPECT_TRUE(workers[0].commit("checkpoint", "step 10"));
  on_threads(2, [&](int i) { workers[i + 1].rejoin({1, 2}, kHang); });
  EXPECT_EQ(workers[1].worker(), 0);
  EXPECT_EQ(workers[2].worker(), 1);
  EXPECT_EQ(workers[2].workers(), 2);
  EXPECT_EQ(workers[2].generation(), 2u);
  EXPECT_EQ(workers[2].members().at(0).identity, "host:pid 1");
  // The old chief has its lease, but is no member any more.
  EXPECT_FALSE(workers[0].commit("checkpoint", "step 9"));
  EXPECT_FALSE(workers[0].still_current());
  expect_contains(error_of<CommError>([&] { workers[0].store().set("a", "b"); }),
                  {"generation 1 is over"});
  expect_contains(workers.failures(0).wait().message, {"generation 1", "is over"});
  expect_contains(error_of<CommError>([&] { workers[0].rejoin(kHang); }),
                  {"worker 0", "generation 2"});
  EXPECT_EQ(workers[1].committed("checkpoint"), "step 10");
  EXPECT_TRUE(workers[1].commit("checkpoint", "step 11"));
  EXPECT_EQ(workers[2].committed("checkpoint"), "step 11");
}

TEST_F(Etcd, ANewcomerTakesAPlaceInTheNextGeneration) {
  EtcdWorkers workers(endpoints(), 2);
  workers[0].store().set("old", "value");
  workers[1].report_failure({.rank = 1, .kind = FailureKind::Comm, .message = "worker 1 gives up"});
  workers.failures(0).wait();
  workers.destroy(1);
  std::unique_ptr<EtcdMembership> newcomer;
  on_threads(2, [&](int i) {
    if (i == 0) return workers[0].rejoin({0, -1}, kHang);
    newcomer = std::make_unique<EtcdMembership>(etcd_options(endpoints(), 1, 2));
  });
  EXPECT_EQ(newcomer->generation(), 2u);
  EXPECT_EQ(newcomer->worker(), 1);
  newcomer->store().set("new", "value");
  EXPECT_EQ(workers[0].store().get("new", kHang), "value");
  error_of<CommError>([&] { workers[0].store().get("old", milliseconds(50)); });
  // Failures of this generation reach it, too.
  newcomer->report_failure({.rank = 1, .kind = FailureKind::Data, .message = "the second"});
  EXPECT_EQ(workers.failures(0).nth(1).message, "the second");
}

TEST_F(Etcd, OfSeveralProposalsOneCountsAndOneThatDoesNotFormCanBeReplaced) {
  EtcdWorkers workers(endpoints(), 3);
  EXPECT_TRUE(workers[0].propose({0, 1, 2}));
  EXPECT_FALSE(workers[1].propose({1, 0}));
  // Worker 2 does not come.
  on_threads(2, [&](int i) {
    expect_contains(error_of<CommError>([&] { workers[i].rejoin(milliseconds(500)); }),
                    {"generation 2", "worker 2 is missing"});
  });
  EXPECT_TRUE(workers[0].propose({0, 1}));
  on_threads(2, [&](int i) { workers[i].rejoin(kHang); });
  EXPECT_EQ(workers[0].generation(), 3u);
  EXPECT_EQ(workers[1].workers(), 2);
}

TEST_F(Etcd, TheNextRunOfAJobHasANewGenerationAndTheOldCommits) {
  {
    EtcdWorkers workers(endpoints(), 2);
    workers[0].store().set("key", "value");
    EXPECT_TRUE(workers[0].commit("checkpoint", "step 10"));
  }
  EXPECT_FALSE(servers->has(EtcdKeys(job_of_test()).store(1, "key")));
  EtcdWorkers workers(endpoints(), 3);
  EXPECT_EQ(workers[2].generation(), 2u);
  EXPECT_EQ(workers[2].committed("checkpoint"), "step 10");
}

}  // namespace
}  // namespace lockstep

// What happens when workers die, do not come, disagree, leave, or give up.
#include <signal.h>

#include <atomic>
#include <cstdio>
#include <memory>

#include "comm/ranks.h"
#include "lockstep/base/random.h"

namespace lockstep {
namespace {

using namespace std::chrono_literals;

bool mentions(const std::string& message, const std::string& part) {
  return message.find(part) != std::string::npos;
}

void all_reduce_once(Communicator& comm, Bytes& data, DType dtype = DType::F32) {
  const auto sum = comm.all_reduce(data, dtype);
  sum->start();
  sum->finish();
}

// Runs body(communicator) for the ranks of this worker; returns the message of the first CommError.
std::string error_of(Group& group, const std::function<void(Communicator&)>& body) {
  for (const std::string& error : run_ranks(group, body)) {
    if (!error.empty()) return error;
  }
  return "";
}

// All-reduces that every worker can check. When it returns, all workers are done with them.
void expect_sums(Group& group) {
  expect_no_errors(run_ranks(group, [&](Communicator& comm) {
    Bytes data(40'000);
    for (std::size_t i = 0; i < 10'000; ++i) store<std::int32_t>(data, i, 1 << comm.rank());
    for (int round = 0; round < 3; ++round) all_reduce_once(comm, data, DType::I32);
    std::int32_t expected = (1 << comm.size()) - 1;
    for (int round = 0; round < 2; ++round) expected *= comm.size();
    for (std::size_t i = 0; i < 10'000; ++i) ASSERT_EQ(load<std::int32_t>(data, i), expected);
  }));
  group.reset();
}

// Returns when all processes have made their groups: one that dies then leaves nobody in the middle
// of that.
void await_all(Store& store, const SharedHost& host) {
  const auto key = [](int process) { return "ready" + std::to_string(process); };
  store.set(key(host.process()), "");
  for (int other = 0; other < host.processes(); ++other) store.get(key(other), 2min);
}

class RemoteFailure : public testing::Test {
 protected:
  void SetUp() override {
    if (!has_gloo()) GTEST_SKIP() << "this build has no Gloo (libgloo-dev)";
  }
};

TEST_F(RemoteFailure, AWorkerThatIsKilledInACollectiveIsNamed) {
  const std::vector<int> ranks = {1, 2, 1};
  const auto statuses = run_processes_with_store({.processes = 3}, [&](SharedHost& host,
                                                                       Store& store) {
    RemoteGroup group(remote_group_of(ranks, gloo_wires(gloo_options(store, host.process(), 3))));
    expect_sums(group);
    const std::string error = error_of(group, [&](Communicator& comm) {
      Bytes data(10'000'000);
      const auto sum = comm.all_reduce(data, DType::F32);
      sum->start();
      if (comm.rank() == 2) raise(SIGKILL);
      sum->finish();
    });
    EXPECT_TRUE(mentions(error, "worker 1 has ended or cannot be reached")) << error;
    EXPECT_TRUE(mentions(error, "and with it cpu:1, cpu:2")) << error;
    const std::optional<Failure> failure = group.failure();
    ASSERT_TRUE(failure.has_value());
    EXPECT_EQ(failure->rank, 1);
    EXPECT_EQ(failure->kind, FailureKind::Comm);
    EXPECT_EQ(failure->message, error);
  });
  EXPECT_EQ(statuses[0], 0);
  EXPECT_TRUE(WIFSIGNALED(statuses[1]) && WTERMSIG(statuses[1]) == SIGKILL) << statuses[1];
  EXPECT_EQ(statuses[2], 0);
}

// Worker 0 waits for worker 1, which is busy, and hears of worker 2 all the same.
TEST_F(RemoteFailure, AWorkerThatDiesIsNamedWhileAnotherIsAwaited) {
  const auto statuses =
      run_processes_with_store({.processes = 3}, [&](SharedHost& host, Store& store) {
        RemoteGroup group(
            remote_group_of({1, 1, 1}, gloo_wires(gloo_options(store, host.process(), 3))));
        expect_sums(group);
        await_all(store, host);
        if (host.process() == 2) raise(SIGKILL);
        if (host.process() == 1) {
          store.get("heard", 2min);
        } else {
          const std::string error = error_of(group, [&](Communicator& comm) {
            Bytes data(400);
            all_reduce_once(comm, data);
          });
          EXPECT_TRUE(mentions(error, "worker 2 has ended")) << error;
          store.set("heard", "");
        }
      });
  EXPECT_EQ(statuses[0], 0);
  EXPECT_EQ(statuses[1], 0);
}

TEST_F(RemoteFailure, AWorkerThatNeverComesIsNamedAfterTheTimeout) {
  LocalStore store;
  GlooOptions options = gloo_options(store, 0, 2);
  options.timeout = 200ms;
  try {
    RemoteGroup group(remote_group_of({1, 1}, gloo_wires(options)));
    ADD_FAILURE() << "a group was made without worker 1";
  } catch (const CommError& error) {
    // The time is the one that was waited: at least the timeout, and longer on a busy machine.
    int milliseconds = 0;
    EXPECT_EQ(std::sscanf(error.what(), "[gloo] worker 0 has waited %d ms", &milliseconds), 1)
        << error.what();
    EXPECT_GE(milliseconds, 200);
    EXPECT_TRUE(mentions(error.what(), " ms for worker 1 to connect")) << error.what();
  }
}

TEST_F(RemoteFailure, RanksThatDoNotStartACollectiveAreNamedAfterTheTimeout) {
  LocalStore done;
  run_gloo_workers(
      {1, 2},
      [&](Group& group, int worker) {
        if (worker == 1) {
          done.get("done", 2min);
          return;
        }
        const std::string error = error_of(group, [&](Communicator& comm) {
          Bytes data(400);
          all_reduce_once(comm, data);
        });
        EXPECT_TRUE(mentions(error, "cpu:0 waited 300 ms in all_reduce of 100 f32")) << error;
        EXPECT_TRUE(mentions(error, "not started by cpu:1, cpu:2")) << error;
        done.set("done", "");
      },
      300ms);
}

TEST_F(RemoteFailure, ReachesTheOtherWorkersWithItsKindAndTextAndAResetEndsIt) {
  run_gloo_workers({2, 1, 1}, [](Group& group, int) {
    for (int round = 0; round < 3; ++round) {
      expect_sums(group);
      const std::string error = error_of(group, [&](Communicator& comm) {
        Bytes data(3'000'000);
        try {
          if (comm.rank() == 2) throw DataError("train.csv: record 17: no number");
        } catch (...) {
          group.abort(failure_of(2, std::current_exception()));
        }
        all_reduce_once(comm, data);
      });
      EXPECT_EQ(error, "train.csv: record 17: no number");
      const std::optional<Failure> failure = group.failure();
      ASSERT_TRUE(failure.has_value());
      EXPECT_EQ(failure->rank, 2);
      EXPECT_EQ(failure->kind, FailureKind::Data);
      EXPECT_THROW(throw_failure(*failure), DataError);
      group.reset();
      EXPECT_FALSE(group.failure().has_value());
    }
    expect_sums(group);
  });
}

TEST_F(RemoteFailure, InTheMiddleOfAnyCollectiveReachesAllAndTheGroupGoesOn) {
  run_gloo_workers({1, 2, 1}, [](Group& group, int) {
    for (std::uint64_t round = 0; round < 6; ++round) {
      const std::string error = error_of(group, [&](Communicator& comm) {
        RandomSequence random(round, 0);  // the same on all ranks
        const int fails = static_cast<int>(random.below(4));
        const std::uint64_t when = random.below(10);
        for (std::uint64_t i = 0;; ++i) {
          Bytes data(random.below(2) == 0 ? 4000 : 4'000'000);
          std::unique_ptr<Collective> collective;
          switch (random.below(3)) {
            case 0:
              collective = comm.all_reduce(data, DType::F32);
              break;
            case 1:
              collective = comm.all_gather(data, DType::F32);
              break;
            default:
              collective = comm.broadcast(data, static_cast<int>(random.below(4)));
          }
          collective->start();
          if (i == when && comm.rank() == fails) {
            group.abort({.rank = fails, .kind = FailureKind::Other, .message = "enough"});
          }
          collective->finish();
        }
      });
      EXPECT_EQ(error, "enough");
      group.reset();
      expect_sums(group);
    }
  });
}

TEST_F(RemoteFailure, OfAnIdleWorkerIsHeardByOneThatWaitsForAnother) {
  LocalStore heard;
  run_gloo_workers({1, 1, 1}, [&](Group& group, int worker) {
    if (worker == 1) {
      heard.get("heard", 2min);  // busy
    } else if (worker == 2) {
      group.abort({.rank = 2, .kind = FailureKind::Usage, .message = "worker 2 gives up"});
    } else {
      EXPECT_EQ(error_of(group,
                         [](Communicator& comm) {
                           Bytes data(400);
                           all_reduce_once(comm, data);
                         }),
                "worker 2 gives up");
      heard.set("heard", "");
    }
  });
}

TEST_F(RemoteFailure, AResetThatAWorkerDoesNotTakePartInNamesIt) {
  LocalStore store;
  LocalStore done;
  run_workers(2, [&](int worker) {
    GlooOptions gloo = gloo_options(store, worker, 2);
    gloo.timeout = 1s;
    RemoteGroup group(remote_group_of({1, 1}, gloo_wires(gloo)));
    if (worker == 1) {
      done.get("done", 2min);
      return;
    }
    try {
      group.reset();
      ADD_FAILURE() << "reset without worker 1";
    } catch (const CommError& error) {
      EXPECT_TRUE(mentions(error.what(), "for worker 1")) << error.what();
    }
    EXPECT_TRUE(group.failure().has_value());
    done.set("done", "");
  });
}

TEST_F(RemoteFailure, RanksThatDisagreeNameBothCollectives) {
  struct Case {
    std::size_t bytes[2];
    bool broadcasts;  // rank 1
    std::string names[2];
  };
  const Case cases[] = {
      {{800, 4'000'000}, false, {"all_reduce of 200 f32", "all_reduce of 1000000 f32"}},
      {{4'000'000, 3'999'996}, false, {"all_reduce of 1000000 f32", "all_reduce of 999999 f32"}},
      {{400, 400}, true, {"all_reduce of 100 f32", "broadcast of 400 bytes from cpu:0"}},
      {{4'000'000, 4'000'000},
       true,
       {"all_reduce of 1000000 f32", "broadcast of 4000000 bytes from cpu:0"}}};
  run_gloo_workers({1, 1}, [&](Group& group, int) {
    for (const Case& one : cases) {
      const std::string error = error_of(group, [&](Communicator& comm) {
        Bytes data(one.bytes[comm.rank()]);
        const bool broadcasts = comm.rank() == 1 && one.broadcasts;
        const auto collective =
            broadcasts ? comm.broadcast(data, 0) : comm.all_reduce(data, DType::F32);
        collective->start();
        collective->finish();
      });
      EXPECT_TRUE(mentions(error, "collective 0: cpu:0 runs " + one.names[0])) << error;
      EXPECT_TRUE(mentions(error, "cpu:1 runs " + one.names[1])) << error;
      group.reset();
    }
    expect_sums(group);
  });
}

TEST_F(RemoteFailure, RanksOfOneWorkerThatDisagreeNameBothCollectives) {
  run_gloo_workers({2, 1}, [&](Group& group, int) {
    const std::string error = error_of(group, [&](Communicator& comm) {
      Bytes data(comm.rank() == 1 ? 400 : 800);
      all_reduce_once(comm, data);
    });
    EXPECT_TRUE(mentions(error, "cpu:0 runs all_reduce of 200 f32")) << error;
    EXPECT_TRUE(mentions(error, "cpu:1 runs all_reduce of 100 f32")) << error;
  });
}

TEST_F(RemoteFailure, WorkersThatMakeDifferentGroupsAreNamed) {
  LocalStore store;
  run_workers(2, [&](int worker) {
    RemoteGroupOptions options =
        remote_group_of({1, 1}, gloo_wires(gloo_options(store, worker, 2)));
    if (worker == 1) options.names[1] = "cuda:0";
    try {
      RemoteGroup group(options);
      ADD_FAILURE() << "different groups were made";
    } catch (const UsageError& error) {
      EXPECT_TRUE(mentions(error.what(), "make different groups")) << error.what();
    }
  });
}

TEST_F(RemoteFailure, AWorkerThatLeavesIsNamedToThoseThatGoOn) {
  run_gloo_workers({1, 2}, [](Group& group, int worker) {
    expect_sums(group);
    if (worker == 1) return;
    const std::string error = error_of(group, [](Communicator& comm) {
      Bytes data(400);
      all_reduce_once(comm, data);
    });
    EXPECT_TRUE(mentions(error, "worker 1 has left the group, and with it cpu:1, cpu:2")) << error;
  });
}

TEST_F(RemoteFailure, OverMpiReachesTheOthersAndAResetEndsIt) {
  run_mpi_workers({1, 2}, [](Group& group, int) {
    for (int round = 0; round < 2; ++round) {
      expect_sums(group);
      const std::string error = error_of(group, [&](Communicator& comm) {
        Bytes data(round == 0 ? 400 : 3'000'000);
        if (comm.rank() == 2) {
          group.abort({.rank = 2, .kind = FailureKind::Data, .message = "no number"});
        }
        all_reduce_once(comm, data);
      });
      EXPECT_EQ(error, "no number");
      group.reset();
    }
    const std::string error = error_of(group, [](Communicator& comm) {
      Bytes data(comm.rank() == 0 ? 800'000 : 4'000'000);
      all_reduce_once(comm, data);
    });
    EXPECT_TRUE(mentions(error, "cpu:0 runs all_reduce of 200000 f32")) << error;
    group.reset();
    expect_sums(group);
  });
}

TEST_F(RemoteFailure, WorkersMeetOverIpv6) {
  LocalStore store;
  std::atomic<bool> without = false;
  run_workers(2, [&](int worker) {
    GlooOptions gloo = gloo_options(store, worker, 2);
    gloo.address = "::1";
    gloo.timeout = 20s;
    try {
      RemoteGroup group(remote_group_of({1, 1}, gloo_wires(gloo)));
      expect_sums(group);
    } catch (const CommError&) {
      without = true;  // nothing to meet over
    }
  });
  if (without) GTEST_SKIP() << "this machine has no IPv6";
}

TEST(RemoteGroups, AWorkerHasItsOwnRanksAndNoOthers) {
  if (!has_gloo()) GTEST_SKIP() << "this build has no Gloo (libgloo-dev)";
  run_gloo_workers({2, 0, 1}, [](Group& group, int worker) {
    EXPECT_EQ(group.size(), 3);
    const std::vector<std::vector<int>> expected = {{0, 1}, {}, {2}};
    const std::span<const int> local = group.local();
    EXPECT_EQ(std::vector<int>(local.begin(), local.end()),
              expected[static_cast<std::size_t>(worker)]);
    EXPECT_THROW(group.rank(worker == 2 ? 0 : 2), UsageError);
    EXPECT_THROW(group.rank(3), UsageError);
    EXPECT_THROW(group.rank(-1), UsageError);
    for (const int rank : local) EXPECT_EQ(group.rank(rank).rank(), rank);
    expect_sums(group);
    expect_sums(group);
  });
}

TEST(RemoteGroups, WhatCannotBeIsRefused) {
  if (!has_gloo()) GTEST_SKIP() << "this build has no Gloo (libgloo-dev)";
  LocalStore store;
  const GlooOptions gloo = gloo_options(store, 0, 1);
  const auto wires = gloo_wires(gloo);
  EXPECT_THROW(RemoteGroup(remote_group_of({1, 1}, wires)), UsageError);
  EXPECT_THROW(RemoteGroup(remote_group_of({0}, wires)), UsageError);
  EXPECT_THROW(RemoteGroup(remote_group_of({-1}, wires)), UsageError);
  EXPECT_THROW(RemoteGroup(remote_group_of({1}, nullptr)), UsageError);
  RemoteGroupOptions options = remote_group_of({1}, wires);
  options.timeout = 0ms;
  EXPECT_THROW(RemoteGroup{options}, UsageError);
  for (const auto& change :
       {+[](GlooOptions& o) { o.store = nullptr; }, +[](GlooOptions& o) { o.worker = 1; },
        +[](GlooOptions& o) { o.address = ""; }, +[](GlooOptions& o) { o.interface = "lo"; },
        +[](GlooOptions& o) { o.timeout = 0ms; }}) {
    GlooOptions wrong = gloo;
    change(wrong);
    EXPECT_THROW(gloo_wires(wrong), UsageError);
  }
}

}  // namespace
}  // namespace lockstep

// What happens when ranks in other processes die, do not come, disagree, or give up.
#include <signal.h>
#include <sys/stat.h>

#include <atomic>
#include <memory>

#include "comm/ranks.h"

namespace lockstep {
namespace {

using namespace std::chrono_literals;

bool says(const std::string& message, const std::string& part) {
  return message.find(part) != std::string::npos;
}

void all_reduce_once(Communicator& comm, Bytes& data, DType dtype = DType::F32) {
  const auto sum = comm.all_reduce(data, dtype);
  sum->start();
  sum->finish();
}

// Runs body(communicator) for the ranks of this process; returns the message of the first
// CommError.
std::string error_of(Group& group, const std::function<void(Communicator&)>& body) {
  for (const std::string& error : run_ranks(group, body)) {
    if (!error.empty()) return error;
  }
  return "";
}

// All-reduces that every process can check. When it returns, all processes are done with them.
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

TEST(SharedFailure, AProcessThatIsKilledInACollectiveIsNamed) {
  const auto statuses = run_processes({.processes = 3}, [](SharedHost& host) {
    const auto group = host.make_group(shared_group_of({1, 2, 1}));
    expect_sums(*group);
    const std::string error = error_of(*group, [&](Communicator& comm) {
      Bytes data(10'000'000);
      const auto sum = comm.all_reduce(data, DType::F32);
      sum->start();
      if (comm.rank() == 2) raise(SIGKILL);
      sum->finish();
    });
    EXPECT_TRUE(says(error, "process 1 (pid ")) << error;
    EXPECT_TRUE(says(error, "has ended, and with it cpu:1, cpu:2")) << error;
    const std::optional<Failure> failure = group->failure();
    ASSERT_TRUE(failure.has_value());
    EXPECT_EQ(failure->rank, 1);
    EXPECT_EQ(failure->kind, FailureKind::Comm);
    EXPECT_EQ(failure->message, error);
    try {
      group->reset();
      ADD_FAILURE() << "reset without process 1";
    } catch (const CommError& missing) {
      EXPECT_TRUE(says(missing.what(), "process 1 (pid ")) << missing.what();
    }
  });
  EXPECT_EQ(statuses[0], 0);
  EXPECT_TRUE(WIFSIGNALED(statuses[1]) && WTERMSIG(statuses[1]) == SIGKILL) << statuses[1];
  EXPECT_EQ(statuses[2], 0);
}

TEST(SharedFailure, AProcessThatDiesBeforeTheGroupIsMadeIsNamed) {
  run_processes({.processes = 2}, [](SharedHost& host) {
    if (host.process() == 0) raise(SIGKILL);
    try {
      host.make_group(shared_group_of({1, 1}));
      ADD_FAILURE() << "a group was made without process 0";
    } catch (const CommError& error) {
      // It may have died before it could announce itself.
      EXPECT_TRUE(says(error.what(), "process 0")) << error.what();
    }
  });
}

TEST(SharedFailure, AProcessThatNeverComesIsNamedAfterTheTimeout) {
  run_processes({.processes = 2, .absent = 1, .timeout = 300ms}, [](SharedHost& host) {
    try {
      host.make_group(shared_group_of({1, 1}));
      ADD_FAILURE() << "a group was made without process 1";
    } catch (const CommError& error) {
      EXPECT_TRUE(says(error.what(), "after 300 ms still missing: process 1")) << error.what();
    }
  });
}

TEST(SharedFailure, RanksThatDoNotStartACollectiveAreNamedAfterTheTimeout) {
  const auto statuses = run_processes({.processes = 2}, [](SharedHost& host) {
    SharedGroupOptions options = shared_group_of({1, 2});
    const auto patient = host.make_group(options);
    options.timeout = 200ms;
    const auto group = host.make_group(options);
    if (host.process() == 0) {
      const std::string error = error_of(*group, [&](Communicator& comm) {
        Bytes data(400);
        all_reduce_once(comm, data);
      });
      EXPECT_TRUE(says(error, "cpu:0 waited 200 ms in all_reduce of 100 f32")) << error;
      EXPECT_TRUE(says(error, "not started by cpu:1, cpu:2")) << error;
    }
    expect_sums(*patient);  // the others stay until this one has given up on them
    EXPECT_TRUE(group->failure().has_value());
  });
  for (const int status : statuses) EXPECT_EQ(status, 0);
}

TEST(SharedFailure, AFailureReachesTheOtherProcessesWithItsKindAndTextAndAResetEndsIt) {
  const auto statuses = run_processes({.processes = 3}, [](SharedHost& host) {
    const auto group = host.make_group(shared_group_of({2, 1, 1}));
    for (int round = 0; round < 5; ++round) {
      expect_sums(*group);
      const std::string error = error_of(*group, [&](Communicator& comm) {
        Bytes data(3'000'000);
        try {
          if (comm.rank() == 2) throw DataError("train.csv: record 17: no number");
        } catch (...) {
          group->abort(failure_of(2, std::current_exception()));
        }
        all_reduce_once(comm, data);
      });
      EXPECT_EQ(error, "train.csv: record 17: no number");
      const std::optional<Failure> failure = group->failure();
      ASSERT_TRUE(failure.has_value());
      EXPECT_EQ(failure->rank, 2);
      EXPECT_EQ(failure->kind, FailureKind::Data);
      EXPECT_THROW(throw_failure(*failure), DataError);
      group->reset();
      EXPECT_FALSE(group->failure().has_value());
    }
    expect_sums(*group);
  });
  for (const int status : statuses) EXPECT_EQ(status, 0);
}

TEST(SharedFailure, AResetThatAProcessDoesNotTakePartInNamesIt) {
  const auto statuses = run_processes({.processes = 2}, [](SharedHost& host) {
    SharedGroupOptions options = shared_group_of({1, 1});
    const auto patient = host.make_group(options);
    options.timeout = 200ms;
    const auto group = host.make_group(options);
    if (host.process() == 0) {
      try {
        group->reset();
        ADD_FAILURE() << "reset without process 1";
      } catch (const CommError& error) {
        EXPECT_TRUE(says(error.what(), "missing: process 1")) << error.what();
      }
    }
    expect_sums(*patient);
  });
  for (const int status : statuses) EXPECT_EQ(status, 0);
}

TEST(SharedFailure, RanksThatDisagreeNameBothCollectives) {
  const auto statuses = run_processes({.processes = 2}, [](SharedHost& host) {
    const auto group = host.make_group(shared_group_of({1, 1}));
    expect_sums(*group);
    const std::string error = error_of(*group, [](Communicator& comm) {
      Bytes data(comm.rank() == 0 ? 800 : 4'000'000);
      all_reduce_once(comm, data);
    });
    EXPECT_TRUE(says(error, "collective 0: cpu:0 runs all_reduce of 200 f32")) << error;
    EXPECT_TRUE(says(error, "cpu:1 runs all_reduce of 1000000 f32")) << error;
  });
  for (const int status : statuses) EXPECT_EQ(status, 0);
}

TEST(SharedFailure, ProcessesThatAskForDifferentGroupsAreNamed) {
  const auto statuses = run_processes({.processes = 2}, [](SharedHost& host) {
    SharedGroupOptions options = shared_group_of({1, 1});
    if (host.process() == 1) options.names[1] = "cuda:0";
    try {
      host.make_group(options);
      ADD_FAILURE() << "different groups were made";
    } catch (const UsageError& error) {
      EXPECT_TRUE(says(error.what(), "process 0 (pid ")) << error.what();
      EXPECT_TRUE(says(error.what(), "process 1 (pid ")) << error.what();
    }
  });
  for (const int status : statuses) EXPECT_EQ(status, 0);
}

TEST(SharedGroups, AProcessHasItsOwnRanksAndNoOthers) {
  const auto statuses = run_processes({.processes = 3}, [](SharedHost& host) {
    const auto group = host.make_group(shared_group_of({2, 0, 1}));
    EXPECT_EQ(group->size(), 3);
    const std::vector<std::vector<int>> expected = {{0, 1}, {}, {2}};
    const std::span<const int> local = group->local();
    EXPECT_EQ(std::vector<int>(local.begin(), local.end()),
              expected[static_cast<std::size_t>(host.process())]);
    EXPECT_THROW(group->rank(host.process() == 2 ? 0 : 2), UsageError);
    EXPECT_THROW(group->rank(3), UsageError);
    EXPECT_THROW(group->rank(-1), UsageError);
    for (const int rank : local) EXPECT_EQ(group->rank(rank).rank(), rank);
    expect_sums(*group);
    expect_sums(*group);
  });
  for (const int status : statuses) EXPECT_EQ(status, 0);
}

TEST(SharedGroups, GroupsComeAndGoAndOutliveTheHost) {
  const int fd = SharedHost::create(1);
  auto host = std::make_unique<SharedHost>(fd, 0, 1, 1min);
  const auto kilobytes = [&] {
    struct stat status = {};
    EXPECT_EQ(fstat(fd, &status), 0);
    return status.st_blocks / 2;
  };
  const auto before = kilobytes();
  for (int i = 0; i < 10; ++i) {
    const auto group = host->make_group(shared_group_of({2}));
    EXPECT_GT(kilobytes(), before);
    expect_sums(*group);
  }
  EXPECT_EQ(kilobytes(), before) << "the memory of a group goes with it";
  const auto last = host->make_group(shared_group_of({2}));
  host.reset();
  expect_sums(*last);
}

TEST(SharedGroups, WhatCannotBeIsRefused) {
  EXPECT_THROW(SharedHost::create(0), UsageError);
  EXPECT_THROW(SharedHost(-1, 2, 2, 1s), UsageError);
  EXPECT_THROW(SharedHost(SharedHost::create(2), 0, 3, 1s), UsageError);
  const int fd = SharedHost::create(1);
  SharedHost host(fd, 0, 1, 1s);
  EXPECT_THROW(SharedHost(dup(fd), 0, 1, 1s), UsageError) << "a process comes once";
  EXPECT_THROW(host.make_group(shared_group_of({1, 1})), UsageError);
  EXPECT_THROW(host.make_group(shared_group_of({0})), UsageError);
  EXPECT_THROW(host.make_group(shared_group_of({-1})), UsageError);
  SharedGroupOptions options = shared_group_of({1});
  options.timeout = 0ms;
  EXPECT_THROW(host.make_group(options), UsageError);
}

}  // namespace
}  // namespace lockstep

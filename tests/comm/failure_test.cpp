// What happens when ranks do not come, disagree, or give up.
#include <atomic>
#include <memory>

#include "comm/ranks.h"
#include "lockstep/comm/local/rendezvous.h"

namespace lockstep {
namespace {

bool says(const std::string& message, const std::string& part) {
  return message.find(part) != std::string::npos;
}

TEST(CommFailure, RanksThatDisagreeNameBothCollectives) {
  struct Case {
    std::function<std::unique_ptr<Collective>(Communicator&, std::span<std::byte>)> odd;
    std::string what;
  };
  const std::vector<Case> cases = {
      {[](auto& comm, auto data) { return comm.all_reduce(data.first(400), DType::F32); },
       "all_reduce of 100 f32"},
      {[](auto& comm, auto data) { return comm.all_reduce(data, DType::I32); },
       "all_reduce of 200 i32"},
      {[](auto& comm, auto data) { return comm.reduce_scatter(data, DType::F32); },
       "reduce_scatter of 200 f32"},
      {[](auto& comm, auto data) { return comm.broadcast(data, 2); },
       "broadcast of 800 bytes from cpu:2"},
  };
  for (const Case& one : cases) {
    LocalGroup group(group_of(3));
    std::vector<Bytes> data(3, Bytes(800));
    const std::vector<std::string> errors = run_ranks(group, [&](Communicator& comm) {
      Bytes& mine = data[static_cast<std::size_t>(comm.rank())];
      const auto collective =
          comm.rank() == 1 ? one.odd(comm, mine) : comm.all_reduce(mine, DType::F32);
      collective->start();
      collective->finish();
    });
    for (const std::string& error : errors) {
      EXPECT_TRUE(says(error, "cpu:0 runs all_reduce of 200 f32")) << error;
      EXPECT_TRUE(says(error, "cpu:1 runs " + one.what)) << error;
    }
    EXPECT_TRUE(group.failure().has_value());
  }
}

TEST(CommFailure, BroadcastsFromDifferentRootsDisagree) {
  LocalGroup group(group_of(2));
  std::vector<Bytes> data(2, Bytes(8));
  const auto errors = run_ranks(group, [&](Communicator& comm) {
    const auto collective =
        comm.broadcast(data[static_cast<std::size_t>(comm.rank())], comm.rank());
    collective->start();
    collective->finish();
  });
  for (const std::string& error : errors) {
    EXPECT_TRUE(says(error, "from cpu:0") && says(error, "from cpu:1")) << error;
  }
}

TEST(CommFailure, ATimeoutNamesTheRanksThatHaveNotCome) {
  LocalGroupOptions options = group_of(4);
  options.timeout = std::chrono::milliseconds(50);
  LocalGroup group(options);
  std::vector<Bytes> data(4, Bytes(40));
  const auto errors = run_ranks(group, [&](Communicator& comm) {
    if (comm.rank() == 1 || comm.rank() == 3) return;
    const auto sum = comm.all_reduce(data[static_cast<std::size_t>(comm.rank())], DType::F32);
    sum->start();
    EXPECT_FALSE(sum->poll());
    if (comm.rank() == 0) sum->await_ranks();
    sum->finish();
  });
  for (const int rank : {0, 2}) {
    const std::string& error = errors[static_cast<std::size_t>(rank)];
    EXPECT_TRUE(says(error, "50 ms in all_reduce of 10 f32")) << error;
    EXPECT_TRUE(says(error, "not started by cpu:1, cpu:3")) << error;
  }
  EXPECT_TRUE(group.failure().has_value());
}

TEST(CommFailure, ATimeoutNamesARankThatStartedAndDidNotGoOn) {
  LocalGroupOptions options = group_of(2);
  options.timeout = std::chrono::milliseconds(50);
  LocalGroup group(options);
  std::vector<Bytes> data(2, Bytes(4));
  const auto idle = group.rank(1).all_reduce(data[1], DType::F32);
  const auto active = group.rank(0).all_reduce(data[0], DType::F32);
  idle->start();
  active->start();
  active->await_ranks();
  try {
    active->finish();
    ADD_FAILURE() << "finished without cpu:1";
  } catch (const CommError& error) {
    EXPECT_TRUE(says(error.what(), "not finished by cpu:1")) << error.what();
  }
  EXPECT_THROW(idle->finish(), CommError);
}

TEST(CommFailure, AnAbortWakesThoseWhoWaitAndStaysUntilReset) {
  LocalGroup group(group_of(3));
  std::vector<Bytes> data(3, Bytes(4));
  std::vector<std::unique_ptr<Collective>> sums;
  for (int rank = 0; rank < 3; ++rank) {
    store<std::int32_t>(data[static_cast<std::size_t>(rank)], 0, 1 << rank);
    sums.push_back(group.rank(rank).all_reduce(data[static_cast<std::size_t>(rank)], DType::I32));
  }
  const auto errors = run_ranks(group, [&](Communicator& comm) {
    if (comm.rank() == 1) return comm.abort({.rank = 1, .message = "replica cpu:1: out of paper"});
    Collective& sum = *sums[static_cast<std::size_t>(comm.rank())];
    sum.start();
    sum.finish();
  });
  EXPECT_EQ(errors[0], "replica cpu:1: out of paper");
  EXPECT_EQ(errors[2], "replica cpu:1: out of paper");

  group.abort({.rank = 0, .message = "something later"});
  const auto again = run_ranks(group, [&](Communicator& comm) {
    Collective& sum = *sums[static_cast<std::size_t>(comm.rank())];
    EXPECT_THROW(sum.poll(), CommError);
    EXPECT_THROW(sum.await_ranks(), CommError);
    EXPECT_THROW(sum.finish(), CommError);
    comm.all_reduce(data[static_cast<std::size_t>(comm.rank())], DType::I32)->start();
  });
  for (const std::string& error : again) EXPECT_EQ(error, "replica cpu:1: out of paper");

  group.reset();
  EXPECT_FALSE(group.failure().has_value());
  expect_no_errors(run_ranks(group, [&](Communicator& comm) {
    Collective& sum = *sums[static_cast<std::size_t>(comm.rank())];
    sum.start();
    sum.finish();
  }));
  for (const Bytes& rank : data) EXPECT_EQ(load<std::int32_t>(rank, 0), 7);
}

// A rank that got the error may free its memory at once, whatever the others are doing:
// ThreadSanitizer and AddressSanitizer report it if that does not hold.
TEST(CommFailure, AfterTheErrorNobodyTouchesTheRanksMemory) {
  for (std::uint64_t round = 0; round < 200; ++round) {
    LocalGroup group(group_of(3));
    std::atomic<int> started = 0;
    const auto errors = run_ranks(group, [&](Communicator& comm) {
      auto data = std::make_unique<Bytes>(40'000);
      const auto sum = comm.all_reduce(*data, DType::F32);
      for (std::uint64_t i = 0; i < 1 + round % 5; ++i) {
        sum->start();
        if (comm.rank() == static_cast<int>(round % 3) && i == round % 5) {
          ++started;
          comm.abort({.rank = comm.rank(), .message = "stop"});
        }
        sum->finish();
      }
    });
    EXPECT_EQ(started, 1);
    EXPECT_EQ(errors[round % 3], "stop");
  }
}

TEST(CommFailure, MoreCollectivesThanThereAreSlotsAreABug) {
  LocalGroup group(group_of(2));
  Bytes data(4);
  std::vector<std::unique_ptr<Collective>> sums;
  for (std::uint64_t i = 0; i <= Rendezvous::kSlots; ++i) {
    sums.push_back(group.rank(0).all_reduce(data, DType::F32));
  }
  for (std::uint64_t i = 0; i < Rendezvous::kSlots; ++i) sums[i]->start();
  EXPECT_THROW(sums.back()->start(), InternalError);
}

TEST(CommFailure, StartingACollectiveTwiceIsABug) {
  LocalGroup group(group_of(2));
  Bytes data(4);
  const auto sum = group.rank(0).all_reduce(data, DType::F32);
  sum->start();
  EXPECT_THROW(sum->start(), InternalError);
}

TEST(CommFailure, WhatCannotBeIsRefusedWhenItIsMade) {
  LocalGroup group(group_of(2));
  Communicator& comm = group.rank(1);
  alignas(8) std::byte data[16];
  EXPECT_THROW(comm.all_reduce(data, DType::Bool), UsageError);
  EXPECT_THROW(comm.reduce_scatter(data, DType::U8), UsageError);
  EXPECT_THROW(comm.all_reduce(std::span(data).first(7), DType::F32), UsageError);
  EXPECT_THROW(comm.all_gather(std::span(data).first(7), DType::F32), UsageError);
  EXPECT_THROW(comm.all_reduce(std::span(data).subspan(2, 8), DType::F32), UsageError);
  EXPECT_THROW(comm.broadcast(data, 2), UsageError);
  EXPECT_THROW(comm.broadcast(data, -1), UsageError);
}

}  // namespace
}  // namespace lockstep

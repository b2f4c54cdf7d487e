// What the collectives compute, over lengths and types, and with several in flight: the same cases
// for ranks that are threads, in processes, and in workers over Gloo and MPI, every bit as the
// contract says.
#include <algorithm>
#include <deque>
#include <memory>

#include "comm/ranks.h"
#include "lockstep/base/random.h"
#include "lockstep/comm/exchange.h"
#include "lockstep/comm/local/rendezvous.h"

namespace lockstep {
namespace {

constexpr std::size_t kLengths[] = {0, 1, 2, 3, 5, 7, 16, 17, 63, 64, 65, 129, 1000, 4099, 65537};

void run_once(Collective& collective) {
  collective.start();
  collective.finish();
}

std::vector<Bytes> random_ranks(DType dtype, int ranks, std::size_t count, std::uint64_t seed) {
  std::vector<Bytes> data;
  for (int rank = 0; rank < ranks; ++rank) {
    data.push_back(random_elements(dtype, count, seed, static_cast<std::uint64_t>(rank)));
  }
  return data;
}

Bytes& of(std::vector<Bytes>& data, const Communicator& comm) {
  return data[static_cast<std::size_t>(comm.rank())];
}

// Calls body(group) in every process, with the number of ranks.
class CollectivesOf : public testing::TestWithParam<Placement> {
 protected:
  void in_group(const std::function<void(Group& group, int ranks)>& body) {
    with_group(GetParam(), [&](Group& group) { body(group, group.size()); });
  }
};

class LargeCollectivesOf : public testing::TestWithParam<Placement> {};

// The data of every rank of this process.
void expect_of_all(Group& group, const std::vector<Bytes>& data, const Bytes& expected,
                   const std::string& what) {
  for (const int rank : group.local()) {
    ASSERT_TRUE(data[static_cast<std::size_t>(rank)] == expected) << what << ", rank " << rank;
  }
}

std::string text(std::size_t count, DType dtype) {
  return std::to_string(count) + " " + std::string(name_of(dtype));
}

TEST_P(CollectivesOf, AllReduceAddsInTheOrderOfTheRanks) {
  in_group([](Group& group, int ranks) {
    for (const DType dtype : kSummable) {
      for (const std::size_t count : kLengths) {
        std::vector<Bytes> data = random_ranks(dtype, ranks, count, count);
        const Bytes expected = sum_over_ranks(dtype, data, GetParam().ranks_of_worker);
        expect_no_errors(run_ranks(
            group, [&](Communicator& comm) { run_once(*comm.all_reduce(of(data, comm), dtype)); }));
        expect_of_all(group, data, expected, text(count, dtype));
      }
    }
  });
}

TEST_P(CollectivesOf, ReduceScatterAndAllGatherMakeAnAllReduce) {
  in_group([](Group& group, int ranks) {
    for (const DType dtype : kSummable) {
      for (const std::size_t count : kLengths) {
        std::vector<Bytes> data = random_ranks(dtype, ranks, count, count + 1);
        const Bytes expected = sum_over_ranks(dtype, data, GetParam().ranks_of_worker);
        expect_no_errors(run_ranks(group, [&](Communicator& comm) {
          Bytes& mine = of(data, comm);
          run_once(*comm.reduce_scatter(mine, dtype));
          const std::size_t bytes = size_of(dtype);
          const Slice own = slice_of(count, bytes, comm.rank(), comm.size());
          const auto begin = static_cast<std::ptrdiff_t>(own.begin * bytes);
          const auto end = static_cast<std::ptrdiff_t>(own.end * bytes);
          EXPECT_TRUE(
              std::equal(mine.begin() + begin, mine.begin() + end, expected.begin() + begin));
          // The rest is undefined.
          std::fill(mine.begin(), mine.begin() + begin, std::byte{0xEE});
          std::fill(mine.begin() + end, mine.end(), std::byte{0xEE});
          run_once(*comm.all_gather(mine, dtype));
        }));
        expect_of_all(group, data, expected, text(count, dtype));
      }
    }
  });
}

TEST_P(CollectivesOf, BroadcastGivesAllWhatTheRootHas) {
  in_group([](Group& group, int ranks) {
    for (int root = 0; root < ranks; ++root) {
      for (const std::size_t bytes : kLengths) {
        std::vector<Bytes> data = random_ranks(DType::U8, ranks, bytes, 3);
        const Bytes expected = data[static_cast<std::size_t>(root)];
        expect_no_errors(run_ranks(
            group, [&](Communicator& comm) { run_once(*comm.broadcast(of(data, comm), root)); }));
        expect_of_all(group, data, expected, text(bytes, DType::U8));
      }
    }
  });
}

TEST_P(CollectivesOf, SlicesOfEveryTypeAreGathered) {
  in_group([](Group& group, int ranks) {
    for (const DType dtype : {DType::U8, DType::Bool, DType::F16, DType::F64}) {
      constexpr std::size_t kCount = 1001;
      std::vector<Bytes> data = random_ranks(dtype, ranks, kCount, 4);
      Bytes expected(kCount * size_of(dtype));
      for (int rank = 0; rank < ranks; ++rank) {
        const Slice own = slice_of(kCount, size_of(dtype), rank, ranks);
        const auto begin = static_cast<std::ptrdiff_t>(own.begin * size_of(dtype));
        const auto end = static_cast<std::ptrdiff_t>(own.end * size_of(dtype));
        const Bytes& from = data[static_cast<std::size_t>(rank)];
        std::copy(from.begin() + begin, from.begin() + end, expected.begin() + begin);
      }
      expect_no_errors(run_ranks(
          group, [&](Communicator& comm) { run_once(*comm.all_gather(of(data, comm), dtype)); }));
      expect_of_all(group, data, expected, text(kCount, dtype));
    }
  });
}

// One bucket: its data on every rank and what it must become.
struct Bucket {
  DType dtype = DType::F32;
  int root = -1;  // of a broadcast; -1: an all-reduce
  std::vector<Bytes> data;
  Bytes expected;
};

Bucket random_bucket(RandomSequence& random, int ranks, const std::vector<int>& ranks_of_worker) {
  Bucket bucket;
  bucket.dtype = kSummable[random.below(std::size(kSummable))];
  const std::size_t count = kLengths[random.below(std::size(kLengths) - 1)];
  bucket.data = random_ranks(bucket.dtype, ranks, count, random.next());
  if (random.below(4) == 0) {
    bucket.root = static_cast<int>(random.below(static_cast<std::uint64_t>(ranks)));
    bucket.expected = bucket.data[static_cast<std::size_t>(bucket.root)];
  } else {
    bucket.expected = sum_over_ranks(bucket.dtype, bucket.data, ranks_of_worker);
  }
  return bucket;
}

// Every rank starts the same buckets in the same order, and in between polls, waits and finishes as
// its own random numbers say.
TEST_P(CollectivesOf, AnyInterleavingGivesTheSameSums) {
  in_group([](Group& group, int ranks) {
    constexpr std::size_t kRounds = 1000;
    constexpr std::size_t kMostInFlight = 12;
    RandomSequence random(7, static_cast<std::uint64_t>(ranks));
    std::vector<Bucket> buckets;
    for (std::size_t i = 0; i < kRounds; ++i)
      buckets.push_back(random_bucket(random, ranks, GetParam().ranks_of_worker));
    expect_no_errors(run_ranks(group, [&](Communicator& comm) {
      RandomSequence choice(8, static_cast<std::uint64_t>(comm.rank()));
      std::deque<std::unique_ptr<Collective>> in_flight;
      for (std::size_t next = 0; next < kRounds || !in_flight.empty();) {
        const std::uint64_t what = choice.below(8);
        if (next < kRounds && in_flight.size() < kMostInFlight && (what < 4 || in_flight.empty())) {
          Bucket& bucket = buckets[next++];
          in_flight.push_back(bucket.root < 0 ? comm.all_reduce(of(bucket.data, comm), bucket.dtype)
                                              : comm.broadcast(of(bucket.data, comm), bucket.root));
          in_flight.back()->start();
        } else if (what == 4) {
          in_flight[choice.below(in_flight.size())]->await_ranks();
        } else if (what == 5) {
          in_flight.front()->finish();
          in_flight.pop_front();
        } else if (in_flight.front()->poll()) {
          in_flight.pop_front();
        }
      }
    }));
    for (std::size_t i = 0; i < kRounds; ++i) {
      expect_of_all(group, buckets[i].data, buckets[i].expected, std::to_string(i));
    }
  });
}

TEST_P(CollectivesOf, AsManyAsThereMayBeAreInFlight) {
  in_group([](Group& group, int ranks) {
    constexpr std::size_t kCount = 101;
    std::vector<std::vector<Bytes>> data;
    std::vector<Bytes> expected;
    for (std::uint64_t i = 0; i < Rendezvous::kSlots; ++i) {
      data.push_back(random_ranks(DType::F32, ranks, kCount, i));
      expected.push_back(sum_over_ranks(DType::F32, data.back(), GetParam().ranks_of_worker));
    }
    expect_no_errors(run_ranks(group, [&](Communicator& comm) {
      ASSERT_LE(comm.max_in_flight(), std::ssize(data));
      std::vector<std::unique_ptr<Collective>> sums;
      for (auto& one : data) sums.push_back(comm.all_reduce(of(one, comm), DType::F32));
      for (const auto& sum : sums) sum->start();
      sums.back()->await_ranks();
      for (const auto& sum : sums) sum->finish();
    }));
    for (std::size_t i = 0; i < data.size(); ++i) {
      expect_of_all(group, data[i], expected[i], std::to_string(i));
    }
  });
}

// Cheap random numbers whose sum depends on the order of addition.
std::vector<Bytes> many_floats(int ranks, std::size_t count) {
  std::vector<Bytes> data(static_cast<std::size_t>(ranks), Bytes(count * sizeof(float)));
  std::uint32_t state = 1;
  for (Bytes& rank : data) {
    for (std::size_t i = 0; i < count; ++i) {
      state = state * 1664525u + 1013904223u;
      store(rank, i, static_cast<float>(state) * 1e-9F);
    }
  }
  return data;
}

// More than the staging buffers of processes hold.
TEST_P(LargeCollectivesOf, AreAddedUpCopiedAndScattered) {
  with_group(GetParam(), [](Group& group) {
    constexpr std::size_t kCount = 2'200'017;
    std::vector<Bytes> first = many_floats(group.size(), kCount);
    std::vector<Bytes> second = first;
    std::vector<Bytes> copies = first;
    const Bytes sums = sum_over_ranks(DType::F32, first, GetParam().ranks_of_worker);
    const Bytes expected_copies = copies.back();
    expect_no_errors(run_ranks(group, [&](Communicator& comm) {
      std::vector<std::unique_ptr<Collective>> all;
      all.push_back(comm.all_reduce(of(first, comm), DType::F32));
      all.push_back(comm.broadcast(of(copies, comm), comm.size() - 1));
      all.push_back(comm.reduce_scatter(of(second, comm), DType::F32));
      for (const auto& collective : all) collective->start();
      for (const auto& collective : all) collective->finish();
      run_once(*comm.all_gather(of(second, comm), DType::F32));
    }));
    expect_of_all(group, first, sums, "all-reduce");
    expect_of_all(group, second, sums, "reduce-scatter and all-gather");
    expect_of_all(group, copies, expected_copies, "broadcast");
  });
}

TEST_P(CollectivesOf, ACollectiveRunsRoundAfterRound) {
  in_group([](Group& group, int ranks) {
    std::vector<Bytes> data(static_cast<std::size_t>(ranks), Bytes(sizeof(std::uint64_t) * 100));
    expect_no_errors(run_ranks(group, [&](Communicator& comm) {
      Bytes& mine = of(data, comm);
      const auto sum = comm.all_reduce(mine, DType::I64);
      for (std::uint64_t round = 0; round < 300; ++round) {
        for (std::size_t i = 0; i < 100; ++i) {
          store<std::uint64_t>(mine, i, round + i * static_cast<std::uint64_t>(comm.rank()));
        }
        run_once(*sum);
        const auto count = static_cast<std::uint64_t>(comm.size());
        for (std::size_t i = 0; i < 100; ++i) {
          ASSERT_EQ(load<std::uint64_t>(mine, i), count * round + i * (count * (count - 1) / 2));
        }
      }
    }));
  });
}

TEST_P(CollectivesOf, EveryRankGetsWhatAllGaveInAnExchange) {
  in_group([](Group& group, int ranks) {
    const auto given = [](int rank, std::size_t bytes) {
      return std::string(bytes * static_cast<std::size_t>(rank), static_cast<char>('a' + rank));
    };
    expect_no_errors(run_ranks(group, [&](Communicator& comm) {
      for (const std::size_t bytes : {0u, 1u, 63u, 100'000u}) {
        const std::vector<std::string> all = lockstep::exchange(comm, given(comm.rank(), bytes));
        ASSERT_EQ(std::ssize(all), ranks);
        for (int rank = 0; rank < ranks; ++rank) {
          EXPECT_EQ(all[static_cast<std::size_t>(rank)], given(rank, bytes));
        }
      }
    }));
  });
}

TEST_P(CollectivesOf, SumsArePromisedInTheOrderOfTheRanks) {
  in_group([](Group& group, int) {
    for (const int rank : group.local()) {
      EXPECT_EQ(group.rank(rank).sum_order(), SumOrder::RankOrder);
    }
  });
}

// Up to eight ranks are added in loops of their own.
INSTANTIATE_TEST_SUITE_P(, CollectivesOf,
                         testing::Values(threads(1), threads(2), threads(3), threads(4), threads(5),
                                         threads(6), threads(7), threads(8), threads(9),
                                         threads(11), processes({1}), processes({2}),
                                         processes({1, 1}), processes({2, 2}), processes({1, 1, 1}),
                                         processes({1, 1, 1, 1}), processes({3, 1}), over_gloo({1}),
                                         over_gloo({2}), over_gloo({1, 1}), over_gloo({2, 2}),
                                         over_gloo({1, 1, 1}), over_gloo({1, 2, 0, 1}),
                                         over_gloo({1, 1, 1, 1, 1}), processes_over_gloo({2, 1}),
                                         over_mpi({1, 1}), over_mpi({1, 2, 2})),
                         [](const auto& info) { return name_of(info.param); });

INSTANTIATE_TEST_SUITE_P(, LargeCollectivesOf,
                         testing::Values(threads(2), processes({1, 1}), processes({2, 2}),
                                         processes({1, 1, 1}), over_gloo({1, 1}), over_gloo({2, 2}),
                                         over_gloo({1, 1, 1}), processes_over_gloo({1, 1}),
                                         over_mpi({1, 1}), over_mpi({2, 1, 1})),
                         [](const auto& info) { return name_of(info.param); });

TEST(Collectives, TheNumberOfThreadsDoesNotChangeABit) {
#ifdef __SANITIZE_THREAD__
  GTEST_SKIP() << "OpenMP's threads are not known to ThreadSanitizer";
#endif
  constexpr std::size_t kCount = 1'000'003;
  for (const int ranks : {2, 3, 9}) {
    for (const DType dtype : {DType::F32, DType::BF16}) {
      const std::vector<Bytes> original = random_ranks(dtype, ranks, kCount, 5);
      const Bytes expected = sum_over_ranks(dtype, original);
      for (const int threads : {1, 3}) {
        LocalGroup group(group_of(ranks));
        std::vector<Bytes> data = original;
        expect_no_errors(run_ranks(
            group,
            [&](Communicator& comm) {
              run_once(*comm.all_reduce(of(data, comm), dtype));
              run_once(*comm.broadcast(of(data, comm), ranks - 1));
              run_once(*comm.all_gather(of(data, comm), dtype));
            },
            threads));
        for (const Bytes& rank : data) ASSERT_EQ(rank, expected) << ranks << " ranks";
      }
    }
  }
}

TEST(Collectives, ARankMayWaitForALaterRoundWhileOthersFinishAnEarlierOne) {
  LocalGroup group(group_of(2));
  std::vector<Bytes> data(4, Bytes(4));
  expect_no_errors(run_ranks(group, [&](Communicator& comm) {
    const auto at = static_cast<std::size_t>(2 * comm.rank());
    const auto first = comm.all_reduce(data[at], DType::I32);
    const auto second = comm.all_reduce(data[at + 1], DType::I32);
    first->start();
    if (comm.rank() == 0) {
      second->start();
      second->await_ranks();
    } else {
      first->finish();
      second->start();
    }
    second->finish();
    EXPECT_TRUE(first->poll());
    first->finish();
  }));
}

TEST(Collectives, AGroupHasItsRanksAndNoOthers) {
  LocalGroup group(group_of(3));
  EXPECT_EQ(group.size(), 3);
  EXPECT_EQ(group.rank(2).rank(), 2);
  EXPECT_EQ(group.rank(2).size(), 3);
  EXPECT_THROW(group.rank(3), UsageError);
  EXPECT_THROW(group.rank(-1), UsageError);
  EXPECT_THROW(LocalGroup(LocalGroupOptions{}), UsageError);
  LocalGroupOptions options = group_of(1);
  options.timeout = std::chrono::milliseconds(0);
  EXPECT_THROW(LocalGroup{options}, UsageError);
}

}  // namespace
}  // namespace lockstep

// What the collectives compute, over ranks, lengths and types, and with several under way.
#include <algorithm>
#include <deque>
#include <memory>

#include "comm/ranks.h"
#include "lockstep/base/random.h"

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

class CollectivesOf : public testing::TestWithParam<int> {};

TEST_P(CollectivesOf, AllReduceAddsInTheOrderOfTheRanks) {
  for (const DType dtype : kSummable) {
    for (const std::size_t count : kLengths) {
      LocalGroup group(group_of(GetParam()));
      std::vector<Bytes> data = random_ranks(dtype, GetParam(), count, count);
      const Bytes expected = sum_over_ranks(dtype, data);
      expect_no_errors(run_ranks(
          group, [&](Communicator& comm) { run_once(*comm.all_reduce(of(data, comm), dtype)); }));
      for (const Bytes& rank : data) {
        ASSERT_EQ(rank, expected) << count << " " << name_of(dtype);
      }
    }
  }
}

TEST_P(CollectivesOf, ReduceScatterAndAllGatherMakeAnAllReduce) {
  for (const DType dtype : kSummable) {
    for (const std::size_t count : kLengths) {
      LocalGroup group(group_of(GetParam()));
      std::vector<Bytes> data = random_ranks(dtype, GetParam(), count, count + 1);
      const Bytes expected = sum_over_ranks(dtype, data);
      expect_no_errors(run_ranks(group, [&](Communicator& comm) {
        Bytes& mine = of(data, comm);
        run_once(*comm.reduce_scatter(mine, dtype));
        const std::size_t bytes = size_of(dtype);
        const Share share = share_of(count, bytes, comm.rank(), comm.size());
        const auto begin = static_cast<std::ptrdiff_t>(share.begin * bytes);
        const auto end = static_cast<std::ptrdiff_t>(share.end * bytes);
        EXPECT_TRUE(std::equal(mine.begin() + begin, mine.begin() + end, expected.begin() + begin));
        // What is not its own is not needed any more.
        std::fill(mine.begin(), mine.begin() + begin, std::byte{0xEE});
        std::fill(mine.begin() + end, mine.end(), std::byte{0xEE});
        run_once(*comm.all_gather(mine, dtype));
      }));
      for (const Bytes& rank : data) {
        ASSERT_EQ(rank, expected) << count << " " << name_of(dtype);
      }
    }
  }
}

TEST_P(CollectivesOf, BroadcastGivesAllWhatTheRootHas) {
  for (int root = 0; root < GetParam(); ++root) {
    for (const std::size_t bytes : kLengths) {
      LocalGroup group(group_of(GetParam()));
      std::vector<Bytes> data = random_ranks(DType::U8, GetParam(), bytes, 3);
      const Bytes expected = data[static_cast<std::size_t>(root)];
      expect_no_errors(run_ranks(
          group, [&](Communicator& comm) { run_once(*comm.broadcast(of(data, comm), root)); }));
      for (const Bytes& rank : data) ASSERT_EQ(rank, expected) << bytes << " from " << root;
    }
  }
}

TEST_P(CollectivesOf, SharesOfEveryTypeAreGathered) {
  for (const DType dtype : {DType::U8, DType::Bool, DType::F16, DType::F64}) {
    LocalGroup group(group_of(GetParam()));
    constexpr std::size_t kCount = 1001;
    std::vector<Bytes> data = random_ranks(dtype, GetParam(), kCount, 4);
    Bytes expected(kCount * size_of(dtype));
    for (int rank = 0; rank < GetParam(); ++rank) {
      const Share share = share_of(kCount, size_of(dtype), rank, GetParam());
      const auto begin = static_cast<std::ptrdiff_t>(share.begin * size_of(dtype));
      const auto end = static_cast<std::ptrdiff_t>(share.end * size_of(dtype));
      const Bytes& from = data[static_cast<std::size_t>(rank)];
      std::copy(from.begin() + begin, from.begin() + end, expected.begin() + begin);
    }
    expect_no_errors(run_ranks(
        group, [&](Communicator& comm) { run_once(*comm.all_gather(of(data, comm), dtype)); }));
    for (const Bytes& rank : data) ASSERT_EQ(rank, expected) << name_of(dtype);
  }
}

// One bucket: its data on every rank and what it must become.
struct Bucket {
  DType dtype = DType::F32;
  int root = -1;  // a broadcast's, or -1: an all-reduce
  std::vector<Bytes> data;
  Bytes expected;
};

Bucket random_bucket(RandomSequence& random, int ranks) {
  Bucket bucket;
  bucket.dtype = kSummable[random.below(std::size(kSummable))];
  const std::size_t count = kLengths[random.below(std::size(kLengths) - 1)];
  bucket.data = random_ranks(bucket.dtype, ranks, count, random.next());
  if (random.below(4) == 0) {
    bucket.root = static_cast<int>(random.below(static_cast<std::uint64_t>(ranks)));
    bucket.expected = bucket.data[static_cast<std::size_t>(bucket.root)];
  } else {
    bucket.expected = sum_over_ranks(bucket.dtype, bucket.data);
  }
  return bucket;
}

// Every rank starts the same buckets in the same order, and in between advances, waits and finishes
// as its own random numbers say.
TEST_P(CollectivesOf, AnyInterleavingGivesTheSameSums) {
  constexpr std::size_t kRounds = 1000;
  constexpr std::size_t kMostUnderWay = 12;
  RandomSequence random(7, static_cast<std::uint64_t>(GetParam()));
  std::vector<Bucket> buckets;
  for (std::size_t i = 0; i < kRounds; ++i) buckets.push_back(random_bucket(random, GetParam()));
  LocalGroup group(group_of(GetParam()));
  expect_no_errors(run_ranks(group, [&](Communicator& comm) {
    RandomSequence choice(8, static_cast<std::uint64_t>(comm.rank()));
    std::deque<std::unique_ptr<Collective>> under_way;
    for (std::size_t next = 0; next < kRounds || !under_way.empty();) {
      const std::uint64_t what = choice.below(8);
      if (next < kRounds && under_way.size() < kMostUnderWay && (what < 4 || under_way.empty())) {
        Bucket& bucket = buckets[next++];
        under_way.push_back(bucket.root < 0 ? comm.all_reduce(of(bucket.data, comm), bucket.dtype)
                                            : comm.broadcast(of(bucket.data, comm), bucket.root));
        under_way.back()->start();
      } else if (what == 4) {
        under_way[choice.below(under_way.size())]->await_ranks();
      } else if (what == 5) {
        under_way.front()->finish();
        under_way.pop_front();
      } else if (under_way.front()->advance()) {
        under_way.pop_front();
      }
    }
  }));
  for (std::size_t i = 0; i < kRounds; ++i) {
    for (const Bytes& rank : buckets[i].data) ASSERT_EQ(rank, buckets[i].expected) << i;
  }
}

TEST_P(CollectivesOf, ACollectiveRunsRoundAfterRound) {
  LocalGroup group(group_of(GetParam()));
  std::vector<Bytes> data(static_cast<std::size_t>(GetParam()), Bytes(sizeof(std::uint64_t) * 100));
  expect_no_errors(run_ranks(group, [&](Communicator& comm) {
    Bytes& mine = of(data, comm);
    const auto sum = comm.all_reduce(mine, DType::I64);
    for (std::uint64_t round = 0; round < 300; ++round) {
      for (std::size_t i = 0; i < 100; ++i) {
        store<std::uint64_t>(mine, i, round + i * static_cast<std::uint64_t>(comm.rank()));
      }
      run_once(*sum);
      const auto ranks = static_cast<std::uint64_t>(comm.size());
      for (std::size_t i = 0; i < 100; ++i) {
        ASSERT_EQ(load<std::uint64_t>(mine, i), ranks * round + i * (ranks * (ranks - 1) / 2));
      }
    }
  }));
}

// Up to eight are added in loops of their own.
INSTANTIATE_TEST_SUITE_P(Ranks, CollectivesOf, testing::Values(1, 2, 3, 4, 5, 6, 7, 8, 9, 11));

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
    EXPECT_TRUE(first->advance());
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

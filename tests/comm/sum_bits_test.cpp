// The bits of sums for many arrangements of ranks in workers: the same over every transport, and
// those of the contract.
#include <numeric>

#include "comm/ranks.h"

namespace lockstep {
namespace {

constexpr std::size_t kCounts[] = {1003, 20'011};  // in one mail, and in parts

std::vector<std::vector<int>> arrangements() {
  std::vector<std::vector<int>> all;
  for (std::size_t workers = 1; workers <= 4; ++workers) {
    for (const int ranks : {1, 2}) all.emplace_back(workers, ranks);
  }
  all.push_back({3, 1, 2});
  for (const std::size_t workers : {5u, 17u, 20u}) all.emplace_back(workers, 1);
  return all;
}

std::string text_of(const std::vector<int>& ranks_of_worker) {
  std::string text;
  for (const int ranks : ranks_of_worker) text += std::to_string(ranks) + " ";
  return text + "ranks";
}

std::vector<Bytes> data_of(DType dtype, std::size_t count, int ranks) {
  std::vector<Bytes> data;
  for (int rank = 0; rank < ranks; ++rank) {
    data.push_back(random_elements(dtype, count, 11, static_cast<std::uint64_t>(rank)));
  }
  return data;
}

// What the ranks give, and what they must get.
struct Sums {
  explicit Sums(const std::vector<int>& ranks_of_worker) : ranks_of_worker(ranks_of_worker) {
    const int ranks = std::accumulate(ranks_of_worker.begin(), ranks_of_worker.end(), 0);
    for (const DType dtype : {DType::F32, DType::BF16}) {
      for (const std::size_t count : kCounts) {
        dtypes.push_back(dtype);
        given.push_back(data_of(dtype, count, ranks));
        expected.push_back(sum_over_ranks(dtype, given.back(), ranks_of_worker));
      }
    }
  }

  // All-reduces in the ranks of this worker's group.
  void expect(Group& group) const {
    expect_no_errors(run_ranks(group, [&](Communicator& comm) {
      for (std::size_t i = 0; i < given.size(); ++i) {
        Bytes mine = given[i][static_cast<std::size_t>(comm.rank())];
        const auto sum = comm.all_reduce(mine, dtypes[i]);
        sum->start();
        sum->finish();
        EXPECT_TRUE(mine == expected[i]) << text_of(ranks_of_worker) << ", case " << i;
      }
    }));
  }

  std::vector<int> ranks_of_worker;
  std::vector<DType> dtypes;
  std::vector<std::vector<Bytes>> given;
  std::vector<Bytes> expected;
};

TEST(SumBits, AreTheSameOverSharedMemoryAndGloo) {
  for (const std::vector<int>& ranks : arrangements()) {
    const Sums sums(ranks);
    const auto workers = static_cast<int>(ranks.size());
    const int fd = SharedHost::create(workers);
    std::vector<int> fds = {fd};
    for (int worker = 1; worker < workers; ++worker) fds.push_back(dup(fd));
    run_workers(workers, [&](int worker) {
      SharedHost host(fds[static_cast<std::size_t>(worker)], worker, workers,
                      std::chrono::minutes(2));
      const auto group = host.make_group(shared_group_of(ranks));
      sums.expect(*group);
    });
    if (!has_gloo()) continue;
    run_gloo_workers(ranks, [&](Group& group, int) { sums.expect(group); });
  }
}

TEST(SumBits, AreTheSameOverMpi) {
  const Sums sums({2, 1, 2, 1});
  run_mpi_workers(sums.ranks_of_worker, [&](Group& group, int) { sums.expect(group); });
}

TEST(SumBits, OfTwentyWorkersAreTheSameOverMpi) {
  const Sums sums(std::vector<int>(20, 1));
  run_mpi_workers(sums.ranks_of_worker, [&](Group& group, int) { sums.expect(group); });
}

TEST(SumBits, OfOneWorkerAreThoseOfThreads) {
  for (const int ranks : {2, 9, 20}) {
    const Sums sums({ranks});
    LocalGroup local(group_of(ranks));
    sums.expect(local);
    SharedHost host(SharedHost::create(1), 0, 1, std::chrono::minutes(2));
    sums.expect(*host.make_group(shared_group_of({ranks})));
    if (has_gloo()) {
      run_gloo_workers({ranks}, [&](Group& group, int) { sums.expect(group); });
    }
  }
}

// Otherwise the tests above would show little.
TEST(SumBits, DependOnTheRanksOfEachWorkerAndOnTheTree) {
  const std::vector<Bytes> data = data_of(DType::F32, 1003, 20);
  const Bytes flat = sum_over_ranks(DType::F32, data);
  EXPECT_NE(sum_over_ranks(DType::F32, data, std::vector<int>(10, 2)), flat);
  EXPECT_NE(sum_over_ranks(DType::F32, data, std::vector<int>(20, 1)), flat);
  const std::vector<Bytes> few(data.begin(), data.begin() + 16);
  EXPECT_EQ(sum_over_ranks(DType::F32, few, std::vector<int>(16, 1)),
            sum_over_ranks(DType::F32, few));
}

}  // namespace
}  // namespace lockstep

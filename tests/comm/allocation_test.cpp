// Running a collective calls no allocator.
#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <new>

#include "comm/ranks.h"

namespace {

thread_local bool counting = false;
std::atomic<int> allocations = 0;

}  // namespace

// The other forms of operator new, except aligned ones, call this one. Not inline, or GCC would
// report malloc and free as a mismatch of new and delete.
[[gnu::noinline]] void* operator new(std::size_t bytes) {
  if (counting) ++allocations;
  if (void* memory = std::malloc(bytes > 0 ? bytes : 1)) return memory;
  throw std::bad_alloc();
}

[[gnu::noinline]] void operator delete(void* memory) noexcept {
  std::free(memory);
}

[[gnu::noinline]] void operator delete(void* memory, std::size_t) noexcept {
  std::free(memory);
}

namespace lockstep {
namespace {

void run_and_count(Group& group) {
  const int ranks = group.size();
  std::vector<Bytes> data(static_cast<std::size_t>(ranks), Bytes(4000));
  expect_no_errors(run_ranks(group, [&](Communicator& comm) {
    Bytes& mine = data[static_cast<std::size_t>(comm.rank())];
    std::vector<std::unique_ptr<Collective>> all;
    all.push_back(comm.all_reduce(mine, DType::F32));
    all.push_back(comm.reduce_scatter(mine, DType::BF16));
    all.push_back(comm.all_gather(mine, DType::F64));
    all.push_back(comm.broadcast(mine, 0));
    counting = true;
    for (int round = 0; round < 100; ++round) {
      for (const auto& collective : all) {
        collective->start();
        collective->poll();
        collective->await_ranks();
        collective->finish();
      }
    }
    counting = false;
  }));
}

TEST(CommAllocation, RunningCollectivesCallsNoAllocator) {
  for (const int ranks : {1, 2, 4}) {
    LocalGroup local(group_of(ranks));
    run_and_count(local);
    SharedHost host(SharedHost::create(1), 0, 1, std::chrono::minutes(1));
    run_and_count(*host.make_group(shared_group_of({ranks})));
    if (has_gloo()) {
      run_gloo_workers({ranks, 1}, [](Group& group, int) { run_and_count(group); });
    }
  }
  EXPECT_EQ(allocations, 0);
  counting = true;
  int* volatile memory = new int(1);  // volatile, so that the compiler keeps it
  delete memory;
  counting = false;
  EXPECT_EQ(allocations, 1) << "the count itself does not work";
}

}  // namespace
}  // namespace lockstep

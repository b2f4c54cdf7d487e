// Collectives between replicas that share a GPU, and over NCCL.
#include <sys/wait.h>
#include <unistd.h>

#include <barrier>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <thread>

#include "gpu/gpu.h"
#include "lockstep/base/half.h"
#include "lockstep/base/random.h"
#include "lockstep/comm/cuda/gpu_group.h"
#include "lockstep/comm/cuda/nccl_group.h"
#include "lockstep/exec/executor.h"
#include "lockstep/graph/ops/collective.h"
#include "lockstep/tensor/tensor.h"
#include "temporary_folder.h"

namespace lockstep {
namespace {

struct Ranks {
  explicit Ranks(int count, std::chrono::milliseconds timeout = std::chrono::seconds(20))
      : prepared(count) {
    for (int r = 0; r < count; ++r) {
      devices.push_back(make_cuda_device("cuda:0/" + std::to_string(r)));
      pointers.push_back(devices.back().get());
    }
    group = make_gpu_group(pointers, timeout);
  }
  // Runs body(rank) on one thread per rank; returns the messages of CommErrors.
  std::vector<std::string> run(const std::function<void(int)>& body) {
    std::vector<std::string> errors(devices.size());
    std::vector<std::thread> threads;
    for (int r = 0; r < static_cast<int>(devices.size()); ++r) {
      threads.emplace_back([&, r] {
        devices[static_cast<std::size_t>(r)]->make_current();
        try {
          body(r);
        } catch (const CommError& error) {
          errors[static_cast<std::size_t>(r)] = error.what();
          prepared.arrive_and_drop();
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    return errors;
  }
  // Runs a collective once all ranks are ready to: under compute-sanitizer, allocations and copies
  // wait for everything that runs, including a rank that waits for this one.
  void run_together(Collective& collective) {
    prepared.arrive_and_wait();
    collective.start();
    collective.finish();
  }
  Device& device(int r) { return *devices[static_cast<std::size_t>(r)]; }

  std::vector<std::unique_ptr<Device>> devices;
  std::vector<Device*> pointers;
  std::unique_ptr<Group> group;
  std::barrier<> prepared;
};

std::vector<float> numbers(std::size_t count, int rank) {
  RandomSequence random(11, static_cast<std::uint64_t>(rank));
  std::vector<float> values(count);
  for (float& value : values) value = random.normal();
  return values;
}

std::span<std::byte> bytes_of(Buffer& buffer, std::size_t bytes) {
  return {buffer.data(), bytes};
}

std::vector<float> read(Device& device, const Buffer& buffer, std::size_t count) {
  std::vector<float> values(count);
  device.copy(reinterpret_cast<std::byte*>(values.data()), buffer.data(), count * sizeof(float));
  return values;
}

class SharedGpu : public ::testing::TestWithParam<int> {};

TEST_P(SharedGpu, AllReduceAddsInRankOrderEveryTime) {
  LOCKSTEP_NEEDS_GPU();
  const int ranks = GetParam();
  Ranks all(ranks);
  for (const std::size_t count :
       {std::size_t{1}, std::size_t{7}, std::size_t{1000}, std::size_t{300'001}}) {
    std::vector<float> expected = numbers(count, 0);
    for (int r = 1; r < ranks; ++r) {
      const std::vector<float> more = numbers(count, r);
      for (std::size_t i = 0; i < count; ++i) expected[i] += more[i];
    }
    std::vector<std::vector<float>> results(static_cast<std::size_t>(ranks));
    const auto errors = all.run([&](int r) {
      const auto memory = all.device(r).allocate(count * sizeof(float));
      const auto sum = all.group->rank(r).all_reduce(bytes_of(*memory, count * 4), DType::F32);
      for (int round = 0; round < 3; ++round) {
        const std::vector<float> mine = numbers(count, r);
        all.device(r).copy(memory->data(), reinterpret_cast<const std::byte*>(mine.data()),
                           count * 4);
        all.run_together(*sum);
      }
      results[static_cast<std::size_t>(r)] = read(all.device(r), *memory, count);
    });
    for (const std::string& error : errors) EXPECT_EQ(error, "");
    for (const auto& result : results) ASSERT_EQ(result, expected) << count;
  }
}

// Sums of small whole numbers, which every type holds, over data that begins `shift(rank)` elements
// after the beginning of a buffer: all at once, and slice by slice.
template <class T>
void expect_exact_sums(Ranks& all, DType dtype, const std::function<std::size_t(int)>& shift) {
  const int ranks = static_cast<int>(all.devices.size());
  for (const std::size_t count : {std::size_t{5}, std::size_t{1000}, std::size_t{70'003}}) {
    std::vector<T> expected(count);
    for (std::size_t i = 0; i < count; ++i) {
      double sum = 0;
      for (int r = 0; r < ranks; ++r) sum += static_cast<double>((i + 3) % 7) + r;
      expected[i] = T(static_cast<float>(sum));
    }
    const auto errors = all.run([&](int r) {
      Device& device = all.device(r);
      Communicator& comm = all.group->rank(r);
      const auto memory = device.allocate((count + shift(r)) * sizeof(T));
      const std::span<std::byte> data(memory->data() + shift(r) * sizeof(T), count * sizeof(T));
      std::vector<T> mine(count);
      for (std::size_t i = 0; i < count; ++i)
        mine[i] = T(static_cast<float>((i + 3) % 7) + static_cast<float>(r));
      const auto run = [&](std::vector<std::unique_ptr<Collective>> rounds) {
        device.copy(data.data(), reinterpret_cast<const std::byte*>(mine.data()), data.size());
        for (const auto& round : rounds) all.run_together(*round);
        std::vector<T> result(count);
        device.copy(reinterpret_cast<std::byte*>(result.data()), data.data(), data.size());
        return std::memcmp(result.data(), expected.data(), data.size()) == 0;
      };
      std::vector<std::unique_ptr<Collective>> rounds;
      rounds.push_back(comm.all_reduce(data, dtype));
      EXPECT_TRUE(run(std::move(rounds))) << name_of(dtype) << " " << count;
      rounds.clear();
      rounds.push_back(comm.reduce_scatter(data, dtype));
      rounds.push_back(comm.all_gather(data, dtype));
      EXPECT_TRUE(run(std::move(rounds))) << name_of(dtype) << " " << count << ", by slices";
    });
    for (const std::string& error : errors) EXPECT_EQ(error, "");
  }
}

TEST_P(SharedGpu, AllReduceTakesEveryTypeAtAnyOffset) {
  LOCKSTEP_NEEDS_GPU();
  Ranks all(GetParam());
  using Shift = std::function<std::size_t(int)>;
  const Shift shifts[] = {[](int) { return 0; }, [](int r) { return static_cast<std::size_t>(r); }};
  for (const Shift& shift : shifts) {
    expect_exact_sums<float>(all, DType::F32, shift);
    expect_exact_sums<double>(all, DType::F64, shift);
    expect_exact_sums<Half>(all, DType::F16, shift);
    expect_exact_sums<BFloat16>(all, DType::BF16, shift);
    expect_exact_sums<std::int32_t>(all, DType::I32, shift);
    expect_exact_sums<std::int64_t>(all, DType::I64, shift);
  }
}

TEST_P(SharedGpu, BroadcastGivesAllRanksTheRootsData) {
  LOCKSTEP_NEEDS_GPU();
  const int ranks = GetParam();
  Ranks all(ranks);
  const std::size_t count = 1003;
  const int root = ranks - 1;
  std::vector<std::vector<float>> results(static_cast<std::size_t>(ranks));
  const auto errors = all.run([&](int r) {
    const auto memory = all.device(r).allocate(count * sizeof(float));
    const std::vector<float> mine = numbers(count, r);
    all.device(r).copy(memory->data(), reinterpret_cast<const std::byte*>(mine.data()), count * 4);
    const auto broadcast = all.group->rank(r).broadcast(bytes_of(*memory, count * 4), root);
    all.run_together(*broadcast);
    results[static_cast<std::size_t>(r)] = read(all.device(r), *memory, count);
  });
  for (const std::string& error : errors) EXPECT_EQ(error, "");
  for (const auto& result : results) ASSERT_EQ(result, numbers(count, root));
}

INSTANTIATE_TEST_SUITE_P(, SharedGpu, ::testing::Values(2, 3, 4));

TEST(SharedGpuFailures, AMissingRankIsNamedAfterTheTimeoutAndTheGroupCanGoOn) {
  LOCKSTEP_NEEDS_GPU();
  Ranks all(2, std::chrono::milliseconds(200));
  const auto memory = all.device(0).allocate(400);
  const auto other = all.device(1).allocate(400);
  const auto alone = all.run([&](int r) {
    if (r == 1) return;
    const auto sum = all.group->rank(0).all_reduce(bytes_of(*memory, 400), DType::F32);
    sum->start();
    sum->finish();
  });
  EXPECT_NE(alone[0].find("cuda:0/1"), std::string::npos) << alone[0];
  ASSERT_TRUE(all.group->failure().has_value());
  EXPECT_EQ(all.group->failure()->rank, 1);
  EXPECT_EQ(all.group->failure()->kind, FailureKind::Comm);
  all.group->reset();
  EXPECT_FALSE(all.group->failure().has_value());
  const auto together = all.run([&](int r) {
    const auto sum =
        all.group->rank(r).all_reduce(bytes_of(r == 0 ? *memory : *other, 400), DType::F32);
    sum->start();
    sum->finish();
  });
  for (const std::string& error : together) EXPECT_EQ(error, "");
}

TEST(SharedGpuFailures, RanksThatDisagreeAreAnError) {
  LOCKSTEP_NEEDS_GPU();
  Ranks all(2, std::chrono::seconds(5));
  const auto errors = all.run([&](int r) {
    const auto memory = all.device(r).allocate(800);
    const std::size_t bytes = r == 0 ? 400u : 800u;
    const auto sum = all.group->rank(r).all_reduce(bytes_of(*memory, bytes), DType::F32);
    sum->start();
    sum->finish();
  });
  EXPECT_NE(errors[0] + errors[1], "");
}

// Joins as one of two ranks, which are processes that share a GPU.
std::unique_ptr<Communicator> join_nccl(int rank, Device& device,
                                        const std::filesystem::path& folder,
                                        std::chrono::milliseconds timeout) {
  std::string id;
  const std::filesystem::path shared = folder / "id";
  if (rank == 0) {
    id = make_nccl_id();
    std::ofstream(folder / "writing", std::ios::binary) << id;
    std::filesystem::rename(folder / "writing", shared);
  } else {
    while (!std::filesystem::exists(shared)) std::this_thread::yield();
    std::ifstream file(shared, std::ios::binary);
    id.assign(std::istreambuf_iterator<char>(file), {});
  }
  return make_nccl_rank(device, {.id = id, .rank = rank, .size = 2, .timeout = timeout});
}

// All-reduces; returns 0 if the result is right.
int add_over_nccl(int rank, const std::filesystem::path& folder) {
  const auto device = make_cuda_device("cuda:0");
  const auto comm = join_nccl(rank, *device, folder, std::chrono::seconds(60));
  const std::size_t count = 100'003;
  const auto memory = device->allocate(count * sizeof(float));
  const std::vector<float> mine = numbers(count, rank);
  const std::vector<float> theirs = numbers(count, 1 - rank);
  device->copy(memory->data(), reinterpret_cast<const std::byte*>(mine.data()), count * 4);
  const auto sum = comm->all_reduce(bytes_of(*memory, count * 4), DType::F32);
  sum->start();
  sum->finish();
  const std::vector<float> result = read(*device, *memory, count);
  for (std::size_t i = 0; i < count; ++i) {
    if (result[i] != mine[i] + theirs[i]) return 1;
  }
  return 0;
}

// Scatters sums of whole numbers and gathers them again, in slices that are equally long and in
// others; gives 0 where all are right.
int scatter_and_gather_over_nccl(int rank, const std::filesystem::path& folder) {
  const auto device = make_cuda_device("cuda:0");
  const auto comm = join_nccl(rank, *device, folder, std::chrono::seconds(60));
  for (const std::size_t count : {1u, 3u, 40u, 64u, 1001u, 100'003u}) {
    const auto memory = device->allocate(count * sizeof(float));
    const auto expected = [](std::size_t i) { return 2 * static_cast<float>(i % 97) + 1; };
    std::vector<float> values(count);
    for (std::size_t i = 0; i < count; ++i) values[i] = static_cast<float>(i % 97 + (rank == 1));
    device->copy(memory->data(), reinterpret_cast<const std::byte*>(values.data()), count * 4);
    const auto scatter = comm->reduce_scatter(bytes_of(*memory, count * 4), DType::F32);
    scatter->start();
    scatter->finish();
    values = read(*device, *memory, count);
    const Slice own = slice_of(count, sizeof(float), rank, 2);
    for (std::size_t i = 0; i < count; ++i) {
      const bool mine = i >= own.begin && i < own.end;
      if (mine && values[i] != expected(i)) return 1;
      if (!mine) values[i] = -1;  // not needed any more
    }
    device->copy(memory->data(), reinterpret_cast<const std::byte*>(values.data()), count * 4);
    const auto gather = comm->all_gather(bytes_of(*memory, count * 4), DType::F32);
    gather->start();
    gather->finish();
    values = read(*device, *memory, count);
    for (std::size_t i = 0; i < count; ++i) {
      if (values[i] != expected(i)) return 1;
    }
  }
  return comm->sum_order() == SumOrder::Repeatable ? 0 : 1;
}

// Both ranks run a recorded step that adds; then only the first runs it again. Gives 0 where that
// ends with an error that names the rank.
int miss_a_step_over_nccl(int rank, const std::filesystem::path& folder) {
  const auto device = make_cuda_device("cuda:0");
  const auto comm = join_nccl(rank, *device, folder, std::chrono::seconds(6));
  Graph graph;
  graph.output("sum", all_reduce(graph.input("x", {DType::F32, Shape{1000}})));
  const KernelLibrary kernels = make_cuda_kernels(*device, {.allow_tf32 = false});
  State state(*device, 1);
  Executor executor(make_plan(std::move(graph), kernels), kernels, state,
                    {.compute_comm = comm.get()});
  Tensor x = executor.input("x");
  for (float& value : x.values<float>()) value = static_cast<float>(rank + 1);
  executor.run();
  executor.wait();
  const Tensor sum = executor.output("sum").clone();
  for (const float value : sum.values<float>()) {
    if (value != 3.0F) return 1;
  }
  const std::filesystem::path over = folder / "over";
  if (rank == 1) {
    while (!std::filesystem::exists(over)) std::this_thread::yield();
    return 0;
  }
  int result = 3;
  try {
    executor.run();
    executor.wait();
  } catch (const CommError& error) {
    const std::string what = error.what();
    result = what.find("rank 0") != std::string::npos ? 0 : 4;
  }
  std::ofstream(over) << "over";
  return result;
}

// NCCL lets two ranks share a GPU if each claims to be on another host. Each is a separate process,
// forked before this one has touched the GPU: these tests must run alone in their program, which
// the name of their suite requests.
void expect_of_two_processes(int (*body)(int rank, const std::filesystem::path& folder)) {
  const TemporaryFolder folder;
  std::vector<pid_t> children;
  {
    const pid_t probe = fork();
    if (probe == 0) _exit(find_gpus().gpus.empty() ? 1 : 0);
    int status = 0;
    waitpid(probe, &status, 0);
    if (WEXITSTATUS(status) != 0) GTEST_SKIP() << "this process sees no GPU";
  }
  for (int rank = 0; rank < 2; ++rank) {
    const pid_t child = fork();
    if (child == 0) {
      setenv("NCCL_HOSTID", ("host" + std::to_string(rank)).c_str(), 1);
      setenv("NCCL_SOCKET_IFNAME", "lo", 1);
      int result = 2;
      try {
        result = body(rank, folder.path());
      } catch (const std::exception& error) {
        fprintf(stderr, "rank %d: %s\n", rank, error.what());
      }
      _exit(result);
    }
    children.push_back(child);
  }
  for (const pid_t child : children) {
    int status = 0;
    waitpid(child, &status, 0);
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
  }
}

TEST(NcclAlone, TwoProcessesAllReduceLikeTheRanksOfOne) {
  expect_of_two_processes(add_over_nccl);
}

TEST(NcclAlone, SlicesOfAnyLengthAreScatteredAndGathered) {
  expect_of_two_processes(scatter_and_gather_over_nccl);
}

TEST(NcclAlone, AStepThatARankIsMissingInEndsAfterTheTimeout) {
  expect_of_two_processes(miss_a_step_over_nccl);
}

}  // namespace
}  // namespace lockstep

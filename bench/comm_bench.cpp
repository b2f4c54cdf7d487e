// All-reduce between threads of one process and between processes, beside plain copies that move as
// many bytes as threads must.
//   comm_bench [--ranks N]
// Ranks are pinned to cores. Of every rank's buffer each rank reads and writes its slice, so an
// all-reduce of B bytes moves 2 * ranks * B between threads; the copies are memcpy by as many
// threads, B bytes each. Processes bring their data to shared memory and take the sums from there,
// which moves about three times as much. All run by turns, each after every rank's writing of its
// own buffer, as a backward pass does; each time is from when all are ready until all have ended,
// and the medians are shown.
#include <fmt/core.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <memory>
#include <new>
#include <string>
#include <thread>
#include <vector>

#include "lockstep/comm/local/event_count.h"
#include "lockstep/comm/local/local_group.h"
#include "lockstep/comm/shared/shared_host.h"
#include "lockstep/device/cpu/cpu_device.h"
#include "lockstep/profile/recorder.h"

namespace lockstep {
namespace {

constexpr std::int64_t kTimeNs = 1'500'000'000;  // for each size
constexpr int kMostTurns = 5000;
constexpr int kLeastTurns = 15;

// A meeting of ranks that costs next to nothing where each has its core; in memory that processes
// which are forked share.
class BenchMeeting {
 public:
  BenchMeeting(int size, bool own_cores) : size_(size), spins_(own_cores ? 10'000 : 0) {}
  void meet() {
    const int turn = turn_.load();
    if (++here_ == size_) {
      here_ = 0;
      ++turn_;
      return;
    }
    for (int i = 0; turn_.load() == turn; ++i) {
      i < spins_ ? pause_core() : std::this_thread::yield();
    }
  }

 private:
  int size_;
  int spins_;
  std::atomic<int> here_ = 0;
  std::atomic<int> turn_ = 0;

 public:
  std::atomic<bool> more = true;  // whether there is another turn
};

void pin(int rank, const std::vector<int>& cores) {
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(cores[static_cast<std::size_t>(rank) % cores.size()], &set);
  pthread_setaffinity_np(pthread_self(), sizeof(set), &set);
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

// Microseconds of one all-reduce and of one set of copies.
struct Times {
  double all_reduce = 0;
  double copies = 0;
};

class Bench {
 public:
  Bench(Group& group, BenchMeeting& meeting, std::size_t bytes)
      : group_(group), cores_(available_cores()), bytes_(bytes), meeting_(meeting) {}

  // Runs the ranks of this process; rank 0's times.
  Times run() {
    std::vector<std::thread> threads;
    Times times;
    for (const int rank : group_.local()) {
      threads.emplace_back([this, rank, &times] {
        const Times measured = take_part(rank);
        if (rank == 0) times = measured;
      });
    }
    for (std::thread& thread : threads) thread.join();
    return times;
  }

 private:
  Times take_part(int rank) {
    pin(rank, cores_);
    CpuDevice device(rank, {0});  // one core, so one OpenMP thread
    device.make_current();
    const auto data = device.allocate(bytes_);
    const auto copy = device.allocate(bytes_);
    const auto all_reduce = group_.rank(rank).all_reduce({data->data(), bytes_}, DType::F32);
    const auto reduce = [&] {
      all_reduce->start();
      all_reduce->finish();
    };
    const auto move = [&] {
      std::memcpy(copy->data(), data->data(), bytes_);
      asm volatile("" ::: "memory");  // every copy is made
    };
    std::vector<double> reduces;
    std::vector<double> moves;
    const std::int64_t begin = now_ns();
    for (int turn = 0; goes_on(rank, turn, begin); ++turn) {
      reduces.push_back(time(*data, turn, reduce));
      moves.push_back(time(*data, turn, move));
    }
    return {median(reduces), median(moves)};
  }

  // Rank 0 says for all whether there is another turn.
  bool goes_on(int rank, int turn, std::int64_t begin) {
    if (rank == 0) {
      const bool enough = turn >= kMostTurns || now_ns() - begin > kTimeNs;
      meeting_.more = turn < kLeastTurns || !enough;
    }
    meeting_.meet();
    return meeting_.more;
  }

  // Microseconds, from when all are ready until all have ended.
  template <class Work>
  double time(Buffer& data, int turn, const Work& work) {
    std::memset(data.data(), turn % 2, bytes_);
    meeting_.meet();
    const std::int64_t begin = now_ns();
    work();
    meeting_.meet();
    return static_cast<double>(now_ns() - begin) * 1e-3;
  }

  Group& group_;
  std::vector<int> cores_;
  std::size_t bytes_;
  BenchMeeting& meeting_;
};

constexpr std::size_t kBytes[] = {4'000, 64'000, 1'000'000, 10'000'000, 100'000'000};

std::vector<std::string> names_of(int ranks) {
  std::vector<std::string> names;
  for (int rank = 0; rank < ranks; ++rank) names.push_back(fmt::format("cpu:{}", rank));
  return names;
}

bool have_own_cores(int ranks) {
  return static_cast<std::size_t>(ranks) <= available_cores().size();
}

std::vector<Times> run_threads(int ranks) {
  LocalGroup group({.names = names_of(ranks)});
  BenchMeeting meeting(ranks, have_own_cores(ranks));
  std::vector<Times> times;
  for (const std::size_t bytes : kBytes) times.push_back(Bench(group, meeting, bytes).run());
  return times;
}

// Each rank is a process; this one is the first.
std::vector<Times> run_processes(int ranks) {
  void* const memory = mmap(nullptr, sizeof(BenchMeeting), PROT_READ | PROT_WRITE,
                            MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  auto& meeting = *new (memory) BenchMeeting(ranks, have_own_cores(ranks));
  const int fd = SharedHost::create(ranks);
  int process = 0;
  for (int other = 1; other < ranks && process == 0; ++other) {
    if (fork() == 0) process = other;
  }
  SharedHost host(fd, process, ranks, std::chrono::minutes(1));
  const auto group =
      host.make_group({.names = names_of(ranks),
                       .ranks_of_process = std::vector<int>(static_cast<std::size_t>(ranks), 1)});
  std::vector<Times> times;
  for (const std::size_t bytes : kBytes) times.push_back(Bench(*group, meeting, bytes).run());
  if (process > 0) _exit(0);
  while (wait(nullptr) > 0) {
  }
  return times;
}

void run(int ranks) {
  fmt::print("{} ranks on {} cores\n", ranks, available_cores().size());
  const std::vector<Times> processes = run_processes(ranks);
  const std::vector<Times> threads = run_threads(ranks);
  fmt::print("{:>10} {:>12} {:>8} {:>12} {:>8} {:>12} {:>8}\n", "f32 bytes", "threads µs", "GB/s",
             "copies µs", "GB/s", "processes µs", "threads'");
  for (std::size_t i = 0; i < std::size(kBytes); ++i) {
    const double moved = 2e-3 * ranks * static_cast<double>(kBytes[i]);
    fmt::print("{:>10} {:>12.2f} {:>8.2f} {:>12.2f} {:>8.2f} {:>12.2f} {:>7.1f}x\n", kBytes[i],
               threads[i].all_reduce, moved / threads[i].all_reduce, threads[i].copies,
               moved / threads[i].copies, processes[i].all_reduce,
               processes[i].all_reduce / threads[i].all_reduce);
  }
}

}  // namespace
}  // namespace lockstep

int main(int argc, char** argv) {
  const bool given = argc == 3 && std::string(argv[1]) == "--ranks";
  const int ranks = given ? std::atoi(argv[2]) : argc == 1 ? 2 : 0;
  if (ranks < 1) {
    fmt::print("comm_bench [--ranks N]\n");
    return 2;
  }
  lockstep::run(ranks);
}

// All-reduce between threads of one process, beside plain copies that move as many bytes.
//   comm_bench [--ranks N]
// Ranks are pinned to cores. Of every rank's buffer each rank reads and writes its share, so an
// all-reduce of B bytes moves 2 * ranks * B; the copies are memcpy by as many threads, B bytes
// each. Both run by turns, each behind every rank's writing of its own buffer, as a backward pass
// does; each time is from when all are ready until all have ended, and the medians are shown.
#include <fmt/core.h>
#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "lockstep/comm/local/event_count.h"
#include "lockstep/comm/local/local_group.h"
#include "lockstep/device/cpu/cpu_device.h"
#include "lockstep/profile/recorder.h"

namespace lockstep {
namespace {

constexpr std::int64_t kTimeNs = 1'500'000'000;  // for each size
constexpr int kMostTurns = 5000;
constexpr int kLeastTurns = 15;

// A meeting of threads that costs next to nothing where each has its core.
class Meeting {
 public:
  Meeting(int size, bool own_cores) : size_(size), spins_(own_cores ? 10'000 : 0) {}
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
  Bench(LocalGroup& group, const std::vector<int>& cores, std::size_t bytes)
      : group_(group),
        cores_(cores),
        bytes_(bytes),
        meeting_(group.size(), static_cast<std::size_t>(group.size()) <= cores.size()) {}

  Times run() {
    std::vector<std::thread> threads;
    Times times;
    for (int rank = 0; rank < group_.size(); ++rank) {
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
    device.enter();
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
      more_ = turn < kLeastTurns || !enough;
    }
    meeting_.meet();
    return more_;
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

  LocalGroup& group_;
  std::vector<int> cores_;
  std::size_t bytes_;
  Meeting meeting_;
  bool more_ = true;
};

void run(int ranks) {
  LocalGroupOptions options;
  for (int rank = 0; rank < ranks; ++rank) options.names.push_back(fmt::format("cpu:{}", rank));
  LocalGroup group(options);
  fmt::print("{} ranks on {} cores\n", ranks, available_cores().size());
  fmt::print("{:>10} {:>16} {:>10} {:>14} {:>10} {:>7}\n", "f32 bytes", "all-reduce µs", "GB/s",
             "copies µs", "GB/s", "ratio");
  for (const std::size_t bytes : {4'000u, 64'000u, 1'000'000u, 10'000'000u, 100'000'000u}) {
    const Times times = Bench(group, available_cores(), bytes).run();
    const double moved = 2e-3 * ranks * static_cast<double>(bytes);
    fmt::print("{:>10} {:>16.2f} {:>10.2f} {:>14.2f} {:>10.2f} {:>6.0f}%\n", bytes,
               times.all_reduce, moved / times.all_reduce, times.copies, moved / times.copies,
               100 * times.copies / times.all_reduce);
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

// All-reduce of f32 between the processes of an MPI job on one host: ours over shared memory, over
// Gloo and over MPI, beside the all-reduces of Gloo and MPI themselves.
//   mpirun -n 2 --bind-to none wire_bench
// All run by turns, each from when all processes are ready until all have ended; the medians are
// shown, and how many times as fast shared memory is as the better of Gloo's and MPI's, and ours
// over Gloo as Gloo's.
#include <fcntl.h>
#include <fmt/core.h>
#include <gloo/allreduce.h>
#include <gloo/math.h>
#include <gloo/rendezvous/context.h>
#include <gloo/rendezvous/file_store.h>
#include <gloo/transport/tcp/device.h>
#define OMPI_SKIP_MPICXX 1
#include <mpi.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "lockstep/comm/gloo/gloo_wire.h"
#include "lockstep/comm/mpi/mpi_wire.h"
#include "lockstep/comm/remote/remote_group.h"
#include "lockstep/comm/shared/shared_host.h"
#include "lockstep/profile/recorder.h"

namespace lockstep {
namespace {

constexpr std::size_t kBytes[] = {4'000, 64'000, 1'000'000, 10'000'000, 100'000'000};
constexpr std::int64_t kTimeNs = 4'000'000'000;  // for each size
constexpr int kMostTurns = 2000;
constexpr int kLeastTurns = 7;

class FileStore final : public Store {
 public:
  explicit FileStore(const std::string& folder) : store_(folder) {}
  void set(const std::string& key, std::string_view value) override {
    store_.set(key, {value.begin(), value.end()});
  }
  std::string get(const std::string& key, std::chrono::milliseconds timeout) override {
    store_.wait({key}, timeout);
    const std::vector<char> value = store_.get(key);
    return {value.begin(), value.end()};
  }

 private:
  gloo::rendezvous::FileStore store_;
};

double median(std::vector<double> values) {
  std::ranges::sort(values);
  return values[values.size() / 2];
}

// The first process creates the memory, and the others open it by its descriptor there.
int shared_file(const MpiPlace& place) {
  std::array<int, 2> where = {};
  if (place.worker == 0) where = {getpid(), SharedHost::create(place.workers)};
  MPI_Bcast(where.data(), 2, MPI_INT, 0, MPI_COMM_WORLD);
  if (place.worker == 0) return where[1];
  return open(fmt::format("/proc/{}/fd/{}", where[0], where[1]).c_str(), O_RDWR | O_CLOEXEC);
}

// A folder that all processes know.
std::string shared_folder(const MpiPlace& place) {
  int pid = getpid();
  MPI_Bcast(&pid, 1, MPI_INT, 0, MPI_COMM_WORLD);
  const auto folder = std::filesystem::temp_directory_path() / fmt::format("wire_bench_{}", pid);
  if (place.worker == 0) std::filesystem::create_directories(folder / "gloo");
  MPI_Barrier(MPI_COMM_WORLD);
  return folder;
}

class WireBench {
 public:
  WireBench()
      : place_(mpi_place()),
        folder_(shared_folder(place_)),
        store_(folder_),
        host_(shared_file(place_), place_.worker, place_.workers, std::chrono::minutes(1)),
        context_(std::make_shared<gloo::rendezvous::Context>(place_.worker, place_.workers)) {
    std::vector<std::string> names;
    for (int rank = 0; rank < place_.workers; ++rank) names.push_back(fmt::format("cpu:{}", rank));
    const std::vector<int> one_each(names.size(), 1);
    groups_.push_back(host_.make_group({.names = names, .ranks_of_process = one_each}));
    for (const MakeWire& make_wire : {gloo_wires({.store = &store_,
                                     .worker = place_.worker,
                                     .workers = place_.workers,
                                     .address = "127.0.0.1"}),
                                      mpi_wires()}) {
      groups_.push_back(std::make_unique<RemoteGroup>(
          RemoteGroupOptions{.names = names, .ranks_of_worker = one_each, .make_wire = make_wire}));
    }
    gloo::rendezvous::FileStore store(folder_ + "/gloo");
    auto device = gloo::transport::tcp::CreateDevice("127.0.0.1");
    context_->connectFullMesh(store, device);
  }
  ~WireBench() {
    MPI_Barrier(MPI_COMM_WORLD);
    if (place_.worker == 0) std::filesystem::remove_all(folder_);
  }
  WireBench(const WireBench&) = delete;
  WireBench& operator=(const WireBench&) = delete;

  void run() {
    print(fmt::format("{} processes\n{:>10} {:>11} {:>11} {:>11} {:>11} {:>11} {:>9} {:>9}\n",
                      place_.workers, "f32 bytes", "shared µs", "over Gloo", "over MPI", "Gloo's",
                      "MPI's", "shared", "over Gloo"));
    for (const std::size_t bytes : kBytes) run(bytes);
  }

 private:
  void print(const std::string& text) const {
    if (place_.worker == 0) fmt::print("{}", text);
    std::fflush(stdout);
  }

  void run(std::size_t bytes) {
    std::vector<float> data(bytes / sizeof(float));
    std::vector<std::unique_ptr<Collective>> sums;
    std::vector<std::function<void()>> ways;
    for (const auto& group : groups_) {
      sums.push_back(group->rank(place_.worker)
                         .all_reduce(std::as_writable_bytes(std::span(data)), DType::F32));
      ways.push_back([&sum = *sums.back()] {
        sum.start();
        sum.finish();
      });
    }
    ways.push_back([&] {
      gloo::AllreduceOptions options(context_);
      options.setOutput(data.data(), data.size());
      options.setReduceFunction(
          static_cast<void (*)(void*, const void*, const void*, std::size_t)>(&gloo::sum<float>));
      gloo::allreduce(options);
    });
    ways.push_back([&] {
      MPI_Allreduce(MPI_IN_PLACE, data.data(), static_cast<int>(data.size()), MPI_FLOAT, MPI_SUM,
                    MPI_COMM_WORLD);
    });
    std::vector<std::vector<double>> times(ways.size());
    const std::int64_t begin = now_ns();
    for (int turn = 0; goes_on(turn, begin); ++turn) {
      for (std::size_t way = 0; way < ways.size(); ++way) {
        times[way].push_back(time(data, ways[way]));
      }
    }
    std::vector<double> medians;
    for (const auto& one : times) medians.push_back(median(one));
    print(fmt::format(
        "{:>10} {:>11.1f} {:>11.1f} {:>11.1f} {:>11.1f} {:>11.1f} {:>8.2f}x {:>8.2f}x\n", bytes,
        medians[0], medians[1], medians[2], medians[3], medians[4],
        std::min(medians[3], medians[4]) / medians[0], medians[3] / medians[1]));
  }

  bool goes_on(int turn, std::int64_t begin) const {
    int more = turn < kLeastTurns || (turn < kMostTurns && now_ns() - begin < kTimeNs);
    MPI_Bcast(&more, 1, MPI_INT, 0, MPI_COMM_WORLD);
    return more != 0;
  }

  static double time(std::vector<float>& data, const std::function<void()>& work) {
    std::ranges::fill(data, 1.0F);
    MPI_Barrier(MPI_COMM_WORLD);
    const std::int64_t begin = now_ns();
    work();
    MPI_Barrier(MPI_COMM_WORLD);
    return static_cast<double>(now_ns() - begin) * 1e-3;
  }

  MpiPlace place_;
  std::string folder_;
  FileStore store_;
  SharedHost host_;
  std::vector<std::unique_ptr<Group>> groups_;
  std::shared_ptr<gloo::rendezvous::Context> context_;
};

}  // namespace
}  // namespace lockstep

int main() {
  lockstep::WireBench().run();
}

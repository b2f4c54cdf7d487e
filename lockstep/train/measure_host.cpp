#include "lockstep/train/measure_host.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <ctime>
#include <fstream>
#include <numeric>
#include <thread>

#include "lockstep/base/error.h"
#include "lockstep/device/cpu/cpu_device.h"
#include "lockstep/device/cuda/cuda_device.h"
#include "lockstep/profile/recorder.h"
#include "lockstep/tensor/tensor.h"

namespace lockstep {
namespace {

// The lower quartile: what it takes where nothing disturbs. If something else takes a core, the
// other ranks wait for milliseconds; that is how steps vary, not what they cost.
double undisturbed(std::vector<double> values) {
  if (values.empty()) return 0;
  const auto at = values.begin() + std::ssize(values) / 4;
  std::ranges::nth_element(values, at);
  return *at;
}

double seconds_since(std::int64_t begin_ns) {
  return static_cast<double>(now_ns() - begin_ns) * 1e-9;
}

// A line with no negative part through points that are weighted alike relative to their height.
HostCollective line_through(int ranks, const std::vector<std::int64_t>& bytes,
                            const std::vector<double>& seconds) {
  const auto small = std::ranges::min_element(bytes) - bytes.begin();
  HostCollective line{.ranks = ranks, .seconds = seconds[static_cast<std::size_t>(small)]};
  double slope = 0;
  double weight = 0;
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    const auto more = static_cast<double>(bytes[i] - bytes[static_cast<std::size_t>(small)]);
    if (more <= 0) continue;
    slope += std::max(0.0, seconds[i] - line.seconds);
    weight += more;
  }
  line.seconds_per_byte = weight > 0 ? slope / weight : 0;
  line.seconds =
      std::max(0.0, line.seconds - line.seconds_per_byte *
                                       static_cast<double>(bytes[static_cast<std::size_t>(small)]));
  return line;
}

std::unique_ptr<Collective> make_collective(Communicator& comm, std::string_view op,
                                            std::span<std::byte> data, DType dtype) {
  if (op == "reduce_scatter") return comm.reduce_scatter(data, dtype);
  if (op == "all_gather") return comm.all_gather(data, dtype);
  return comm.all_reduce(data, dtype);
}

double thread_cpu_seconds() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
}

class Descriptor {
 public:
  explicit Descriptor(int fd) : fd_(fd) {}
  ~Descriptor() {
    if (fd_ >= 0) close(fd_);
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  int get() const { return fd_; }

 private:
  int fd_;
};

// "unknown" if the system does not tell.
std::string processor_name() {
  std::ifstream info("/proc/cpuinfo");
  for (std::string line; std::getline(info, line);) {
    if (line.starts_with("model name")) return line.substr(line.find(':') + 2);
  }
  return "unknown";
}

}  // namespace

HostCollective measure_host_collective(World& world, std::string_view op, DType dtype,
                                       const std::vector<std::int64_t>& bytes, double seconds) {
  ensure(world.size() > 1 && world.workers() == 1 && !bytes.empty(),
         "[measure] {} ranks of {} workers", world.size(), world.workers());
  constexpr int kFewestRounds = 4;
  constexpr int kMostRounds = 200;
  const std::int64_t all = std::accumulate(bytes.begin(), bytes.end(), std::int64_t{0});
  std::vector<Tensor> memory;
  for (int local = 0; local < world.local_size(); ++local) {
    memory.emplace_back(DType::F32, Shape{all / 4 + 16 * std::ssize(bytes)}, world.device(local));
  }
  std::vector<std::vector<double>> times(bytes.size());
  // The rounds are counted by all alike: agreed on from the time of the first ones.
  const auto run = [&](int rounds) {
    const std::int64_t begin = now_ns();
    world.run([&](int local) {
      Communicator& comm = *world.communicator(local, kCommunicationStream);
      std::byte* data = memory[static_cast<std::size_t>(local)].raw();
      std::vector<std::unique_ptr<Collective>> sums;
      for (const std::int64_t each : bytes) {
        const auto size = static_cast<std::size_t>(each / 4 * 4);
        sums.push_back(make_collective(comm, op, {data, size}, dtype));
        data += (size + 63) / 64 * 64;
      }
      for (int round = 0; round < rounds; ++round) {
        for (std::size_t i = 0; i < sums.size(); ++i) {
          sums[i]->start();
          sums[i]->await_ranks();
          const std::int64_t together = now_ns();
          sums[i]->finish();
          if (local == 0) times[i].push_back(seconds_since(together));
        }
      }
    });
    return seconds_since(begin);
  };
  const double first = std::max(run(kFewestRounds) / kFewestRounds, 1e-7);
  for (std::vector<double>& each : times) each.clear();
  run(std::clamp(static_cast<int>(seconds / first), kFewestRounds, kMostRounds));
  std::vector<double> costs;
  for (const std::vector<double>& each : times) costs.push_back(undisturbed(each));
  HostCollective line = line_through(world.size(), bytes, costs);
  line.op = op;
  return line;
}

double measure_meeting(World& world) {
  constexpr std::size_t kTimes = 200;
  std::vector<double> times;
  for (std::size_t i = 0; i < kTimes; ++i) {
    const std::int64_t begin = now_ns();
    world.run([](int) {});
    times.push_back(seconds_since(begin));
  }
  return undisturbed(std::move(times));
}

double measure_wire_cost() {
  constexpr std::size_t kBlock = std::size_t{1} << 20;
  constexpr int kBlocks = 16;
  const Descriptor listener(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof(address);
  auto* const name = reinterpret_cast<sockaddr*>(&address);
  if (listener.get() < 0 || bind(listener.get(), name, length) != 0 ||
      listen(listener.get(), 1) != 0 || getsockname(listener.get(), name, &length) != 0) {
    return 0;
  }
  const Descriptor sender(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (sender.get() < 0 || connect(sender.get(), name, length) != 0) return 0;
  const Descriptor receiver(accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
  if (receiver.get() < 0) return 0;
  double sent_s = 0;
  bool sent = true;
  std::jthread thread([&] {
    const std::vector<char> block(kBlock, 1);
    const double begin = thread_cpu_seconds();
    for (int i = 0; i < kBlocks && sent; ++i) {
      for (std::size_t done = 0; done < kBlock;) {
        const ssize_t wrote = send(sender.get(), block.data() + done, kBlock - done, MSG_NOSIGNAL);
        if (wrote <= 0) {
          sent = false;
          break;
        }
        done += static_cast<std::size_t>(wrote);
      }
    }
    sent_s = thread_cpu_seconds() - begin;
    shutdown(sender.get(), SHUT_WR);
  });
  std::vector<char> block(kBlock);
  std::size_t received = 0;
  const double begin = thread_cpu_seconds();
  for (ssize_t got; (got = recv(receiver.get(), block.data(), kBlock, 0)) > 0;) {
    received += static_cast<std::size_t>(got);
  }
  const double received_s = thread_cpu_seconds() - begin;
  thread.join();
  if (!sent || received == 0) return 0;
  // The mean of one sent and one received.
  return (sent_s + received_s) / (2 * static_cast<double>(received));
}

std::string hardware_of(const Device& device) {
  if (names_cuda(device.name())) return gpu_of(device).model;
  const auto* const cpu = dynamic_cast<const CpuDevice*>(&device);
  const std::size_t cores = cpu != nullptr ? cpu->cores().size() : available_cores().size();
  return fmt::format("{}, {} core{}", processor_name(), cores, cores == 1 ? "" : "s");
}

}  // namespace lockstep

#include "lockstep/device/cpu/cpu_device.h"

#include <omp.h>
#include <sched.h>
#include <sys/mman.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <string>

#include "lockstep/base/error.h"
#include "lockstep/device/cpu/memory.h"
#include "lockstep/device/memory_error.h"

namespace lockstep {
namespace {

constexpr std::size_t kAlignment = 64;
constexpr std::size_t kHugePage = std::size_t{2} << 20;
// Allocations from these sizes on use huge pages: transient memory, of which there may be a lot,
// and persistent memory.
constexpr std::size_t kLarge = 4 * kHugePage;
constexpr std::size_t kLargePersistent = kHugePage / 8;
// Allocations from this size on first check how much memory is available.
constexpr std::size_t kCheckAvailable = std::size_t{64} << 20;

class CpuStream final : public Stream {
 public:
  void synchronize() override {}
  void wait_for(Stream&) override {}
  void wait_for(Event&) override {}
  void copy(std::byte* to, const std::byte* from, std::size_t bytes) override {
    if (bytes > 0) std::memcpy(to, from, bytes);
  }
  void stamp(std::int64_t* to) override {
    const auto now = std::chrono::steady_clock::now().time_since_epoch();
    *to = std::chrono::duration_cast<std::chrono::nanoseconds>(now).count();
  }
  std::unique_ptr<Recording> record(const std::function<void()>&) override { return nullptr; }
};

// Work has run by the time it is issued, so every event is reached.
class CpuEvent final : public Event {
 public:
  void record(Stream&) override { when_ = std::chrono::steady_clock::now(); }
  bool reached() override { return true; }
  void wait() override {}
  double ms_since(const Event& earlier) override {
    const auto& before = static_cast<const CpuEvent&>(earlier);
    return std::chrono::duration<double, std::milli>(when_ - before.when_).count();
  }

 private:
  std::chrono::steady_clock::time_point when_ = {};
};

std::size_t rounded_up(std::size_t bytes, std::size_t unit) {
  return (std::max<std::size_t>(bytes, 1) + unit - 1) / unit * unit;
}

}  // namespace

CpuDevice::CpuDevice(int index, std::vector<int> cores)
    : name_(fmt::format("cpu:{}", index)), cores_(std::move(cores)) {
  require(!cores_.empty(), "[device] {}: a CPU device needs at least one core", name_);
}

std::unique_ptr<Stream> CpuDevice::make_stream() {
  return std::make_unique<CpuStream>();
}

std::unique_ptr<Event> CpuDevice::make_event(bool /*timed*/) {
  return std::make_unique<CpuEvent>();
}

void CpuDevice::make_current() {
  omp_set_num_threads(static_cast<int>(cores_.size()));
}

void CpuDevice::pin_thread() {
  make_current();
  cpu_set_t set;
  CPU_ZERO(&set);
  for (int core : cores_) CPU_SET(core, &set);
  // If the system refuses (a container whose cores changed), the thread runs where it may.
  static_cast<void>(sched_setaffinity(0, sizeof(set), &set));
}

void CpuDevice::copy(std::byte* to, const std::byte* from, std::size_t bytes) {
  if (bytes > 0) std::memcpy(to, from, bytes);
}

std::byte* CpuDevice::allocate_bytes(std::size_t bytes) {
  return zeroed(bytes, bytes >= kLarge);
}

std::byte* CpuDevice::allocate_persistent_bytes(std::size_t bytes) {
  return zeroed(bytes, bytes >= kLargePersistent);
}

std::byte* CpuDevice::zeroed(std::size_t bytes, bool in_huge_pages) const {
  // Linux overcommits: it grants more memory than it has and kills the process that uses it.
  if (bytes >= kCheckAvailable) {
    const std::size_t left = available_memory();
    if (bytes > left) {
      fail<MemoryError>(
          "[device] {}: {} MiB of memory were requested, but only {} MiB are left; use a smaller "
          "batch",
          name_, bytes >> 20, left >> 20);
    }
  }
  const std::size_t unit = in_huge_pages ? kHugePage : kAlignment;
  const std::size_t whole = rounded_up(bytes, unit);
  void* data = std::aligned_alloc(unit, whole);
  if (data == nullptr) {
    const bool small = bytes < std::size_t{1} << 20;
    fail<MemoryError>(
        "[device] {}: {} {} of memory were requested but are not available; use a smaller batch",
        name_, bytes >> (small ? 10 : 20), small ? "KiB" : "MiB");
  }
  // With small pages, each random row of a large table would cost a TLB miss, and pages could
  // collide in a few sets of a cache. This is a hint, which the system may ignore.
  if (in_huge_pages) ::madvise(data, whole, MADV_HUGEPAGE);
  std::memset(data, 0, whole);
  return static_cast<std::byte*>(data);
}

void CpuDevice::free_bytes(std::byte* data, std::size_t) {
  std::free(data);
}

std::vector<int> available_cores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  std::vector<int> cores;
  if (sched_getaffinity(0, sizeof(set), &set) == 0) {
    for (int core = 0; core < CPU_SETSIZE; ++core) {
      if (CPU_ISSET(core, &set)) cores.push_back(core);
    }
  }
  if (cores.empty()) cores.push_back(0);
  return cores;
}

std::vector<std::unique_ptr<CpuDevice>> make_cpu_devices(int count) {
  return make_cpu_devices(count, available_cores());
}

std::vector<std::unique_ptr<CpuDevice>> make_cpu_devices(int count, const std::vector<int>& cores) {
  require(count > 0, "[device] {} CPU devices were requested; request at least one", count);
  const auto total = static_cast<std::int64_t>(cores.size());
  std::vector<std::unique_ptr<CpuDevice>> devices;
  for (std::int64_t i = 0; i < count; ++i) {
    const std::int64_t begin = total * i / count;
    const std::int64_t end = std::max(begin + 1, total * (i + 1) / count);
    devices.push_back(std::make_unique<CpuDevice>(
        static_cast<int>(i), std::vector<int>(cores.begin() + begin, cores.begin() + end)));
  }
  return devices;
}

Device& host() {
  static CpuDevice device(0, available_cores());
  return device;
}

}  // namespace lockstep

#include "lockstep/train/replicas.h"

#include <algorithm>
#include <charconv>
#include <limits>
#include <new>
#include <set>

#include "lockstep/base/error.h"
#include "lockstep/comm/cuda/gpu_group.h"
#include "lockstep/comm/local/local_group.h"
#include "lockstep/device/cpu/affinity.h"
#include "lockstep/device/cpu/cpu_device.h"
#include "lockstep/device/cuda/cuda_device.h"
#include "lockstep/device/memory_error.h"
#include "lockstep/plan/plan.h"
#include "lockstep/profile/recorder.h"
#include "lockstep/tensor/tensor.h"

namespace lockstep {
namespace {

constexpr std::int64_t kMostLookNs = 200'000;

// All gradients in one bucket. Replicas of one device take its time from one another: a sum beside
// other work wins nothing, and those that meet once in a step need not keep pace within it.
constexpr std::size_t kAll = std::numeric_limits<std::size_t>::max();

// The number of a logical CPU device; UsageError, with what there is, for any other name.
int cpu_index(const std::string& name) {
  int index = -1;
  constexpr std::string_view kPrefix = "cpu:";
  if (name.starts_with(kPrefix)) {
    const char* end = name.data() + name.size();
    const auto [stop, error] = std::from_chars(name.data() + kPrefix.size(), end, index);
    if (error != std::errc() || stop != end) index = -1;
  }
  require(index >= 0 && index < 1024,
          "[strategy] there is no device {}: name logical CPU devices, cpu:0, cpu:1, …, or GPUs, "
          "cuda:0, …",
          name);
  return index;
}

// Waits until a number is another one: looks at it for a while, since a thread that sleeps is slow
// to wake, then sleeps.
template <class T>
T await_change(const std::atomic<T>& number, T seen, std::int64_t look_ns) {
  const std::int64_t begin = now_ns();
  for (int look = 1;; ++look) {
    const T now = number;
    if (now != seen) return now;
    __builtin_ia32_pause();
    if (look % 64 == 0 && now_ns() - begin > look_ns) break;
  }
  number.wait(seen);
  return number;
}

}  // namespace

int logical_cpus_for(const std::vector<std::string>& devices) {
  int count = 0;
  for (const std::string& name : devices) {
    if (!names_cuda(name)) count = std::max(count, cpu_index(name) + 1);
  }
  return count;
}

Replicas::Replicas(const ReplicaOptions& options)
    : kept_(true), cuda_(options.cuda), buckets_(options.buckets) {
  const std::vector<std::string> names =
      options.devices.empty() ? std::vector<std::string>{"cpu:0"} : options.devices;
  require(std::set(names.begin(), names.end()).size() == names.size(),
          "[strategy] a device is named twice in {}", fmt::join(names, ", "));
  if (std::ranges::any_of(names, names_cuda)) {
    add_gpus(names);
  } else {
    add_cpus(names, options.logical_cpus > 0 ? options.logical_cpus : logical_cpus_for(names));
  }
  for (const auto& device : owned_) devices_.push_back(device.get());
  errors_.resize(devices_.size());
  times_.resize(devices_.size());
  kernels_.resize(devices_.size());
  if (size() > 1) add_groups(options);
  if (kept_) start_threads();
}

void Replicas::add_cpus(const std::vector<std::string>& names, int count) {
  for (const std::string& name : names) {
    require(cpu_index(name) < count,
            "[strategy] there is no device {}: the cores are split into {} logical devices", name,
            count);
  }
  std::vector<std::unique_ptr<CpuDevice>> all = make_cpu_devices(count);
  // A device of several cores has threads of OpenMP's that belong to the thread that runs it.
  caller_runs_first_ = all[static_cast<std::size_t>(cpu_index(names.front()))]->cores().size() == 1;
  for (const std::string& name : names) {
    owned_.push_back(std::move(all[static_cast<std::size_t>(cpu_index(name))]));
  }
}

void Replicas::add_gpus(const std::vector<std::string>& names) {
  require(std::ranges::all_of(names, names_cuda),
          "[strategy] {}: replicas are on CPUs or on GPUs, not on both", fmt::join(names, ", "));
  for (const std::string& name : names) owned_.push_back(make_cuda_device(name));
  kept_ = names.size() > 1;
}

void Replicas::add_groups(const ReplicaOptions& options) {
  std::vector<Device*> gpus;
  if (device(0).kind() == DeviceKind::Cuda) gpus = devices_;
  while (std::ssize(groups_) <= kCommunicationStream) {
    if (gpus.empty()) {
      groups_.push_back(std::make_unique<LocalGroup>(
          LocalGroupOptions{.names = names(), .timeout = options.timeout}));
    } else {
      groups_.push_back(make_gpu_group(gpus, options.timeout));
    }
  }
}

void Replicas::start_threads() {
  try {
    for (int r = caller_runs_first_ ? 1 : 0; r < size(); ++r) {
      threads_.emplace_back([this, r] { serve(r); });
    }
  } catch (...) {
    end_threads();
    throw;
  }
}

Replicas::Replicas(Device* device) {
  if (device == nullptr) {
    owned_.push_back(std::move(make_cpu_devices(1).front()));
    device = owned_.front().get();
  }
  devices_ = {device};
  errors_.resize(1);
  times_.resize(1);
  kernels_.resize(1);
}

std::shared_ptr<Replicas> default_replicas() {
  if (find_gpus().gpus.empty()) return std::make_shared<Replicas>(nullptr);
  return std::make_shared<Replicas>(ReplicaOptions{.devices = {"cuda:0"}});
}

Replicas::~Replicas() {
  end_threads();
}

void Replicas::end_threads() {
  closing_ = true;
  ++round_;
  round_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

std::vector<std::string> Replicas::names() const {
  std::vector<std::string> names;
  for (const Device* device : devices_) names.push_back(device->name());
  return names;
}

Device* Replicas::batch_memory() const {
  Device& first = device(0);
  return first.shares_host_memory() ? nullptr : &first.allocate_host(0)->device();
}

const KernelLibrary& Replicas::kernels(int replica) {
  if (device(replica).kind() == DeviceKind::Cpu) return cpu_kernels();
  const std::lock_guard lock(kernels_mutex_);
  std::unique_ptr<KernelLibrary>& library = kernels_[static_cast<std::size_t>(replica)];
  if (library == nullptr) {
    library = std::make_unique<KernelLibrary>(make_cuda_kernels(device(replica), cuda_));
  }
  return *library;
}

Communicator* Replicas::communicator(int replica, int stream) const {
  return groups_.empty() ? nullptr : &groups_[static_cast<std::size_t>(stream)]->rank(replica);
}

const BucketSizes& Replicas::buckets() {
  std::call_once(buckets_known_, [this] {
    if (size() == 1 || (buckets_.bytes > 0 && buckets_.first_bytes > 0)) return;
    if (communicator(0, kCommunicationStream)->on_one_device()) {
      if (buckets_.first_bytes == 0) buckets_.first_bytes = kAll;
      if (buckets_.bytes == 0) buckets_.bytes = kAll;
    } else {
      measure_link();
    }
  });
  return buckets_;
}

// A small and a large sum over the replicas, each the fastest of some: their difference is the
// bandwidth, what is left is the latency.
void Replicas::measure_link() {
  constexpr std::size_t kSmall = 64;
  constexpr std::size_t kLarge = std::size_t{1} << 20;
  constexpr int kRounds = 5;
  std::vector<Tensor> memory;
  for (int r = 0; r < size(); ++r) {
    memory.emplace_back(DType::F32, Shape{kLarge / sizeof(float)}, device(r));
  }
  double seconds[2] = {1e9, 1e9};
  run([&](int r) {
    Communicator& comm = *communicator(r, kCommunicationStream);
    std::byte* const data = memory[static_cast<std::size_t>(r)].raw();
    const auto small = comm.all_reduce({data, kSmall}, DType::F32);
    const auto large = comm.all_reduce({data, kLarge}, DType::F32);
    Collective* const both[2] = {small.get(), large.get()};
    for (int round = 0; round < kRounds; ++round) {
      for (int which = 0; which < 2; ++which) {
        const std::int64_t begin = now_ns();
        both[which]->start();
        both[which]->finish();
        const double took = static_cast<double>(now_ns() - begin) * 1e-9;
        if (r == 0) seconds[which] = std::min(seconds[which], took);
      }
    }
  });
  const double latency = std::max(seconds[0], 1e-7);
  const double transfer = std::max(seconds[1] - seconds[0], 1e-7);
  buckets_ = choose_bucket_sizes(
      buckets_, {.latency_s = latency, .bytes_per_s = static_cast<double>(kLarge) / transfer});
}

void Replicas::run_job(Job job, std::span<Track* const> tracks) {
  const std::lock_guard lock(one_at_a_time_);
  asked_ns_ = now_ns();
  job_ = job;
  if (!threaded()) {
    devices_.front()->enter();
    times_[0].begin_ns = asked_ns_;
    job_.call(job_.f, 0);
    times_[0].end_ns = now_ns();
    return;
  }
  if (!threads_.empty()) {
    running_ = static_cast<std::int32_t>(threads_.size());
    ++round_;
    round_.notify_all();
  }
  if (caller_runs_first_) {
    const KeepAffinity affinity;
    device(0).settle();
    call(0);
  }
  for (std::int32_t left = running_; left != 0;) left = await_change(running_, left, kMostLookNs);
  account(tracks);
  const int failed = first_failed_.exchange(-1);
  if (failed < 0) return;
  for (const auto& group : groups_) group->reset();
  rethrow(failed);
}

void Replicas::account(std::span<Track* const> tracks) const {
  std::int64_t last = 0;
  for (const ReplicaTimes& times : times_) last = std::max(last, times.end_ns);
  const std::int64_t now = now_ns();
  for (std::size_t r = 0; r < tracks.size(); ++r) {
    tracks[r]->add("wake", SpanKind::Host, asked_ns_, times_[r].begin_ns);
    tracks[r]->add("wait for the others", SpanKind::Wait, times_[r].end_ns, last);
    tracks[r]->add("join", SpanKind::Host, last, now);
  }
}

void Replicas::serve(int replica) {
  device(replica).settle();
  const ReplicaTimes& last = times_[static_cast<std::size_t>(replica)];
  for (std::uint32_t seen = 0;;) {
    // In proportion to a job, so that idle replicas do not keep others from the core.
    const std::int64_t look = std::min((last.end_ns - last.begin_ns) / 4, kMostLookNs);
    seen = await_change(round_, seen, look);
    if (closing_) return;
    call(replica);
    if (--running_ == 0) running_.notify_one();
  }
}

void Replicas::call(int replica) noexcept {
  const auto r = static_cast<std::size_t>(replica);
  times_[r].begin_ns = now_ns();
  try {
    job_.call(job_.f, replica);
  } catch (...) {
    errors_[r] = std::current_exception();
    int nobody = -1;
    if (first_failed_.compare_exchange_strong(nobody, replica)) {
      for (const auto& group : groups_) {
        group->rank(replica).abort(device(replica).name() + " stopped");
      }
    }
  }
  times_[r].end_ns = now_ns();
}

void Replicas::rethrow(int replica) {
  const std::exception_ptr error = errors_[static_cast<std::size_t>(replica)];
  std::ranges::fill(errors_, nullptr);
  if (size() == 1) std::rethrow_exception(error);
  const auto named = [&](const std::exception& what) {
    return fmt::format("[replica {} on {}] {}", replica, device(replica).name(), what.what());
  };
  try {
    std::rethrow_exception(error);
  } catch (const MemoryError& what) {
    throw MemoryError(named(what));
  } catch (const UsageError& what) {
    throw UsageError(named(what));
  } catch (const DataError& what) {
    throw DataError(named(what));
  } catch (const CommError& what) {
    throw CommError(named(what));
  } catch (const InternalError& what) {
    throw InternalError(named(what));
  } catch (const std::bad_alloc&) {
    throw;
  } catch (const std::exception& what) {
    throw Error(named(what));
  }
}

}  // namespace lockstep

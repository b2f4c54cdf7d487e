#include "lockstep/comm/cuda/shared_gpu_group.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <atomic>
#include <numeric>
#include <string>
#include <thread>
#include <type_traits>

#include "lockstep/base/error.h"
#include "lockstep/comm/cuda/first_failure.h"
#include "lockstep/device/cuda/runtime.h"

namespace lockstep {
namespace {

enum class What : int { AllReduce, ReduceScatter, AllGather, Broadcast };

constexpr int kThreads = 256;
constexpr int kMostBlocks = 528;

// The GPU's clock, in nanoseconds.
__device__ std::uint64_t gpu_clock() {
  std::uint64_t now;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
  return now;
}

// Sets this rank's flags for all ranks, waits for theirs and clears each; false, with the missing
// rank, if one did not come in time or the group was aborted. A flag is set by one rank and cleared
// by one other, and is set again only in a later part of a round, which cannot begin before the
// flag was cleared.
__device__ bool meet(std::uint32_t* flags, const GpuMeeting& meeting, int rank, int* missing) {
  __threadfence();
  for (int to = 0; to < meeting.size; ++to) atomicExch(&flags[rank * meeting.size + to], 1u);
  const std::uint64_t begin = gpu_clock();
  for (int from = 0; from < meeting.size; ++from) {
    std::uint32_t* const flag = &flags[from * meeting.size + rank];
    for (int look = 0; atomicAdd(flag, 0u) == 0; ++look) {
      __nanosleep(100);
      if (look % 64 != 63) continue;
      const bool aborted = *static_cast<const volatile std::int32_t*>(meeting.aborted) != 0;
      if (aborted || gpu_clock() - begin > meeting.timeout_ns) {
        *missing = aborted ? -1 : from;
        return false;
      }
    }
    atomicExch(flag, 0u);
  }
  __threadfence();
  return true;
}

__device__ bool failed(const GpuMeeting& meeting, int rank) {
  return static_cast<const volatile GpuFault*>(meeting.faults)[rank].kind != GpuFault::None ||
         *static_cast<const volatile std::int32_t*>(meeting.aborted) != 0;
}

__device__ void report(const GpuMeeting& meeting, int rank, GpuFault::Kind kind, int other) {
  if (other < 0) return;  // aborted: the host knows why
  meeting.faults[rank].other = other;
  __threadfence_system();
  meeting.faults[rank].kind = kind;
}

// The first launch of a round: publishes what this rank brings, and waits for the others.
__global__ void begin_round(GpuMeeting meeting, int rank, GpuBrought mine) {
  meeting.met[rank] = 0;
  if (failed(meeting, rank)) return;
  meeting.brought[rank] = mine;
  int missing = 0;
  if (!meet(meeting.ready, meeting, rank, &missing)) {
    report(meeting, rank, GpuFault::TimedOut, missing);
    return;
  }
  for (int other = 0; other < meeting.size; ++other) {
    const volatile GpuBrought& theirs = meeting.brought[other];
    if (theirs.bytes != mine.bytes || theirs.what != mine.what) {
      report(meeting, rank, GpuFault::Disagreed, other);
      return;
    }
  }
  meeting.met[rank] = 1;
}

// The last launch of a round: waits until no rank touches another's memory any more.
__global__ void end_round(GpuMeeting meeting, int rank) {
  if (meeting.met[rank] == 0) return;
  int missing = 0;
  if (!meet(meeting.done, meeting, rank, &missing)) {
    report(meeting, rank, GpuFault::TimedOut, missing);
  }
}

__device__ double widened(double x) {
  return x;
}
__device__ float widened(float x) {
  return x;
}
__device__ float widened(__half x) {
  return __half2float(x);
}
__device__ float widened(__nv_bfloat16 x) {
  return __bfloat162float(x);
}
__device__ std::int32_t widened(std::int32_t x) {
  return x;
}
__device__ std::int64_t widened(std::int64_t x) {
  return x;
}
__device__ void narrow(double x, double* y) {
  *y = x;
}
__device__ void narrow(float x, float* y) {
  *y = x;
}
__device__ void narrow(float x, __half* y) {
  *y = __float2half_rn(x);
}
__device__ void narrow(float x, __nv_bfloat16* y) {
  *y = __float2bfloat16_rn(x);
}
__device__ void narrow(std::int32_t x, std::int32_t* y) {
  *y = x;
}
__device__ void narrow(std::int64_t x, std::int64_t* y) {
  *y = x;
}

// Calls `at` for the elements [begin, end) of every rank's data, with the number of elements to
// process: as many as a thread can load at once if all ranks' data allow it, else one.
template <class T, class F>
__device__ void for_each_place(const GpuMeeting& meeting, std::uint64_t begin, std::uint64_t end,
                               const F& at) {
  constexpr int kMany = 16 / sizeof(T);
  const std::uint64_t thread = std::uint64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  const std::uint64_t threads = std::uint64_t{gridDim.x} * blockDim.x;
  bool aligned = true;
  for (int r = 0; r < meeting.size; ++r) {
    const T* const first = reinterpret_cast<const T*>(meeting.brought[r].data) + begin;
    aligned = aligned && reinterpret_cast<std::uintptr_t>(first) % 16 == 0;
  }
  const std::uint64_t middle = aligned ? end - (end - begin) % kMany : begin;
  for (std::uint64_t i = begin + thread * kMany; i < middle; i += threads * kMany) {
    at(i, std::integral_constant<int, kMany>());
  }
  for (std::uint64_t i = middle + thread; i < end; i += threads) {
    at(i, std::integral_constant<int, 1>());
  }
}

template <class T, int count>
struct alignas(sizeof(T) * count) Some {
  T at[count];
};

template <class T, int count>
__device__ Some<T, count>& some(std::byte* data, std::uint64_t i) {
  return *reinterpret_cast<Some<T, count>*>(reinterpret_cast<T*>(data) + i);
}

// A rank's slice of a sum: the elements [begin, end) of all ranks, added in the order of the ranks,
// written to all of them or, with `scatter`, to this one only.
template <class T>
__global__ void sum_slice(GpuMeeting meeting, int rank, std::uint64_t begin, std::uint64_t end,
                          bool scatter) {
  if (meeting.met[rank] == 0) return;
  for_each_place<T>(meeting, begin, end, [&](std::uint64_t i, auto elements) {
    constexpr int kCount = decltype(elements)::value;
    decltype(widened(T())) sum[kCount];
    for (int r = 0; r < meeting.size; ++r) {
      const Some<T, kCount> theirs = some<T, kCount>(meeting.brought[r].data, i);
      for (int e = 0; e < kCount; ++e) {
        sum[e] = r == 0 ? widened(theirs.at[e]) : sum[e] + widened(theirs.at[e]);
      }
    }
    Some<T, kCount> result;
    for (int e = 0; e < kCount; ++e) narrow(sum[e], &result.at[e]);
    for (int r = 0; r < meeting.size; ++r) {
      if (!scatter || r == rank) some<T, kCount>(meeting.brought[r].data, i) = result;
    }
  });
}

// A rank's slice of a copy: the bytes [begin, end) of `from`, copied to all others.
__global__ void copy_slice(GpuMeeting meeting, int rank, int from, std::uint64_t begin,
                           std::uint64_t end) {
  if (meeting.met[rank] == 0) return;
  for_each_place<std::uint8_t>(meeting, begin, end, [&](std::uint64_t i, auto bytes) {
    constexpr int kCount = decltype(bytes)::value;
    const auto value = some<std::uint8_t, kCount>(meeting.brought[from].data, i);
    for (int r = 0; r < meeting.size; ++r) {
      if (r != from) some<std::uint8_t, kCount>(meeting.brought[r].data, i) = value;
    }
  });
}

class SharedGpuGroup;

// CUDA loads a kernel at its first launch, and may first wait for everything that runs. If that
// included a rank that waits for this one, both would wait forever.
template <class... Kernels>
void load(Kernels... kernels) {
  cudaFuncAttributes attributes = {};
  (check_cuda(cudaFuncGetAttributes(&attributes, kernels), "loading the collectives"), ...);
}
void load_kernels() {
  load(begin_round, end_round, copy_slice, sum_slice<float>, sum_slice<double>, sum_slice<__half>,
       sum_slice<__nv_bfloat16>, sum_slice<std::int32_t>, sum_slice<std::int64_t>);
}

class SharedGpuCollective final : public Collective {
 public:
  SharedGpuCollective(SharedGpuGroup& group, int rank, What what, std::span<std::byte> data,
                      DType dtype, int root);

  void start() override;
  bool poll() override;
  void await_ranks() override {}
  void finish() override;
  void issue(Stream& stream) override;

 private:
  void launch_slice(cudaStream_t stream, unsigned blocks);

  SharedGpuGroup& group_;
  int rank_;
  What what_;
  std::span<std::byte> data_;
  DType dtype_;
  int root_;
  Slice slice_;  // in elements, or bytes for a broadcast
};

class SharedGpuRank final : public Communicator {
 public:
  SharedGpuRank(SharedGpuGroup& group, int rank) : group_(group), rank_(rank) {}

  int rank() const override { return rank_; }
  int size() const override;
  int max_in_flight() const override { return 1 << 20; }
  std::unique_ptr<Collective> all_reduce(std::span<std::byte> data, DType dtype) override {
    return make(What::AllReduce, data, dtype, 0);
  }
  std::unique_ptr<Collective> reduce_scatter(std::span<std::byte> data, DType dtype) override {
    return make(What::ReduceScatter, data, dtype, 0);
  }
  std::unique_ptr<Collective> all_gather(std::span<std::byte> data, DType dtype) override {
    return make(What::AllGather, data, dtype, 0);
  }
  std::unique_ptr<Collective> broadcast(std::span<std::byte> data, int root) override {
    require(root >= 0 && root < size(),
            "[comm] there is no rank {} to broadcast from: there are {}", root, size());
    return make(What::Broadcast, data, DType::U8, root);
  }
  SumOrder sum_order() const override { return SumOrder::RankOrder; }
  void abort(const Failure& failure) override;
  void check() override;
  bool on_one_device() const override { return true; }

 private:
  std::unique_ptr<Collective> make(What what, std::span<std::byte> data, DType dtype, int root) {
    return std::make_unique<SharedGpuCollective>(group_, rank_, what, data, dtype, root);
  }

  SharedGpuGroup& group_;
  int rank_;
};

class SharedGpuGroup final : public Group {
 public:
  SharedGpuGroup(const std::vector<Device*>& devices, std::chrono::milliseconds timeout)
      : devices_(devices) {
    require(std::ssize(devices) <= GpuMeeting::kMostRanks,
            "[comm] at most {} replicas share a GPU, not {}", GpuMeeting::kMostRanks,
            devices.size());
    Device& device = *devices.front();
    device.make_current();
    load_kernels();
    meeting_.size = static_cast<int>(devices.size());
    const std::size_t flags = devices.size() * devices.size() * sizeof(std::uint32_t);
    ready_ = device.allocate(flags);
    done_ = device.allocate(flags);
    brought_ = device.allocate(devices.size() * sizeof(GpuBrought));
    met_ = device.allocate(devices.size() * sizeof(std::int32_t));
    meeting_.met = reinterpret_cast<std::int32_t*>(met_->data());
    faults_ = device.allocate_host(devices.size() * sizeof(GpuFault));
    aborted_ = device.allocate_host(sizeof(std::int32_t));
    meeting_.ready = reinterpret_cast<std::uint32_t*>(ready_->data());
    meeting_.done = reinterpret_cast<std::uint32_t*>(done_->data());
    meeting_.brought = reinterpret_cast<GpuBrought*>(brought_->data());
    meeting_.faults = reinterpret_cast<GpuFault*>(faults_->data());
    meeting_.aborted = reinterpret_cast<const std::int32_t*>(aborted_->data());
    meeting_.timeout_ns = static_cast<std::uint64_t>(timeout.count()) * 1'000'000u;
    for (int r = 0; r < meeting_.size; ++r) {
      ranks_.push_back(std::make_unique<SharedGpuRank>(*this, r));
    }
    local_.resize(devices.size());
    std::iota(local_.begin(), local_.end(), 0);
  }

  int size() const override { return meeting_.size; }
  std::span<const int> local() const override { return local_; }
  Communicator& rank(int rank) override {
    require(rank >= 0 && rank < size(), "[comm] rank {} of a group with ranks 0 to {}", rank,
            size() - 1);
    return *ranks_[static_cast<std::size_t>(rank)];
  }
  void abort(const Failure& failure) override {
    failure_.set(failure);
    flag() = 1;
  }
  std::optional<Failure> failure() const override { return failure_.get(); }

  void reset() override {
    devices_.front()->make_current();
    static_cast<void>(cudaDeviceSynchronize());  // if it failed, the copies below fail too
    const std::vector<std::byte> zeros(ready_->bytes());
    devices_.front()->copy(ready_->data(), zeros.data(), zeros.size());
    devices_.front()->copy(done_->data(), zeros.data(), zeros.size());
    for (int r = 0; r < meeting_.size; ++r) meeting_.faults[r] = {};
    failure_.clear();
    flag() = 0;
  }

  void check(int rank) {
    if (failure_.failed()) {
      fail<CommError>("[comm] {}: the group was aborted: {}", name(rank),
                      failure_.get().value_or(Failure{}).message);
    }
    const volatile GpuFault& fault = meeting_.faults[rank];
    if (fault.kind == GpuFault::None) return;
    const std::string what =
        fault.kind == GpuFault::TimedOut
            ? fmt::format("{} waited {} ms for {}, which did not come", name(rank),
                          meeting_.timeout_ns / 1'000'000, name(fault.other))
            : fmt::format("{} and {} do not mean the same collective", name(rank),
                          name(fault.other));
    this->abort({.rank = fault.other, .kind = FailureKind::Comm, .message = what});
    fail<CommError>("[comm] {}", what);
  }

  const GpuMeeting& meeting() const { return meeting_; }
  // For collectives that are started by start(), not issued to a stream.
  Stream& stream(int rank) { return device(rank).stream(1); }
  const std::string& name(int rank) const {
    return devices_[static_cast<std::size_t>(rank)]->name();
  }
  Device& device(int rank) { return *devices_[static_cast<std::size_t>(rank)]; }

 private:
  // Read by the GPU: a plain word in host memory.
  volatile std::int32_t& flag() {
    return *reinterpret_cast<volatile std::int32_t*>(aborted_->data());
  }

  std::vector<Device*> devices_;
  GpuMeeting meeting_;
  std::shared_ptr<Buffer> ready_, done_, brought_, met_, faults_, aborted_;
  std::vector<int> local_;
  std::vector<std::unique_ptr<SharedGpuRank>> ranks_;
  FirstFailure failure_;
};

int SharedGpuRank::size() const {
  return group_.meeting().size;
}
void SharedGpuRank::abort(const Failure& failure) {
  group_.abort(failure);
}
void SharedGpuRank::check() {
  group_.check(rank_);
}

SharedGpuCollective::SharedGpuCollective(SharedGpuGroup& group, int rank, What what,
                                         std::span<std::byte> data, DType dtype, int root)
    : group_(group), rank_(rank), what_(what), data_(data), dtype_(dtype), root_(root) {
  const std::size_t size = size_of(dtype);
  slice_ = slice_of(data.size() / size, size, rank, group.meeting().size);
}

void SharedGpuCollective::start() {
  group_.device(rank_).make_current();
  issue(group_.stream(rank_));
}

bool SharedGpuCollective::poll() {
  group_.check(rank_);
  const cudaError_t status = cudaStreamQuery(cuda_stream(group_.stream(rank_)));
  if (status == cudaErrorNotReady) return false;
  check_cuda(status, "running a collective");
  group_.check(rank_);
  return true;
}

void SharedGpuCollective::finish() {
  while (!poll()) std::this_thread::yield();
}

void SharedGpuCollective::issue(Stream& target) {
  const cudaStream_t stream = cuda_stream(target);
  const int what = static_cast<int>(what_) * 256 + static_cast<int>(dtype_) + root_ * 65536;
  begin_round<<<1, 1, 0, stream>>>(group_.meeting(), rank_,
                                   {.data = data_.data(), .bytes = data_.size(), .what = what});
  const std::size_t elements = slice_.end - slice_.begin;
  if (elements > 0) {
    const std::size_t blocks = (elements + kThreads - 1) / kThreads;
    launch_slice(stream, static_cast<unsigned>(blocks < kMostBlocks ? blocks : kMostBlocks));
  }
  end_round<<<1, 1, 0, stream>>>(group_.meeting(), rank_);
  check_cuda(cudaGetLastError(), "launching a collective");
}

void SharedGpuCollective::launch_slice(cudaStream_t stream, unsigned blocks) {
  const GpuMeeting& meeting = group_.meeting();
  const std::size_t size = size_of(dtype_);
  if (what_ == What::AllGather || what_ == What::Broadcast) {
    const int from = what_ == What::Broadcast ? root_ : rank_;
    copy_slice<<<blocks, kThreads, 0, stream>>>(meeting, rank_, from, slice_.begin * size,
                                                slice_.end * size);
    return;
  }
  const bool scatter = what_ == What::ReduceScatter;
  const auto sum = [&](auto zero) {
    sum_slice<decltype(zero)>
        <<<blocks, kThreads, 0, stream>>>(meeting, rank_, slice_.begin, slice_.end, scatter);
  };
  switch (dtype_) {
    case DType::F32:
      return sum(float{});
    case DType::F64:
      return sum(double{});
    case DType::F16:
      return sum(__half{});
    case DType::BF16:
      return sum(__nv_bfloat16{});
    case DType::I32:
      return sum(std::int32_t{});
    case DType::I64:
      return sum(std::int64_t{});
    default:
      fail<UsageError>("[comm] {} cannot be added up over replicas", name_of(dtype_));
  }
}

}  // namespace

std::unique_ptr<Group> make_shared_gpu_group(const std::vector<Device*>& devices,
                                             std::chrono::milliseconds timeout) {
  return std::make_unique<SharedGpuGroup>(devices, timeout);
}

}  // namespace lockstep

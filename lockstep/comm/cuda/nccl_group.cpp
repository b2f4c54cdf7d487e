#include "lockstep/comm/cuda/nccl_group.h"

#include <nccl.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <numeric>
#include <thread>

#include "lockstep/base/error.h"
#include "lockstep/comm/cuda/first_failure.h"
#include "lockstep/device/cuda/dynamic_library.h"
#include "lockstep/device/cuda/runtime.h"

namespace lockstep {
namespace {

using Clock = std::chrono::steady_clock;

// NCCL's functions.
struct Nccl {
  Nccl() : library("libnccl.so.2", "install NCCL 2.28 or later") {
    library.find(GetUniqueId, "ncclGetUniqueId");
    library.find(CommInitRankConfig, "ncclCommInitRankConfig");
    library.find(CommGetAsyncError, "ncclCommGetAsyncError");
    library.find(CommAbort, "ncclCommAbort");
    library.find(GetErrorString, "ncclGetErrorString");
    library.find(AllReduce, "ncclAllReduce");
    library.find(ReduceScatter, "ncclReduceScatter");
    library.find(AllGather, "ncclAllGather");
    library.find(Broadcast, "ncclBroadcast");
    library.find(Reduce, "ncclReduce");
    library.find(GroupStart, "ncclGroupStart");
    library.find(GroupEnd, "ncclGroupEnd");
  }
  DynamicLibrary library;
  decltype(&::ncclGetUniqueId) GetUniqueId = nullptr;
  decltype(&::ncclCommInitRankConfig) CommInitRankConfig = nullptr;
  decltype(&::ncclCommGetAsyncError) CommGetAsyncError = nullptr;
  decltype(&::ncclCommAbort) CommAbort = nullptr;
  decltype(&::ncclGetErrorString) GetErrorString = nullptr;
  decltype(&::ncclAllReduce) AllReduce = nullptr;
  decltype(&::ncclReduceScatter) ReduceScatter = nullptr;
  decltype(&::ncclAllGather) AllGather = nullptr;
  decltype(&::ncclBroadcast) Broadcast = nullptr;
  decltype(&::ncclReduce) Reduce = nullptr;
  decltype(&::ncclGroupStart) GroupStart = nullptr;
  decltype(&::ncclGroupEnd) GroupEnd = nullptr;
};

const Nccl& nccl() {
  static const Nccl functions;
  return functions;
}

ncclDataType_t nccl_type(DType dtype) {
  switch (dtype) {
    case DType::F32:
      return ncclFloat32;
    case DType::F64:
      return ncclFloat64;
    case DType::F16:
      return ncclFloat16;
    case DType::BF16:
      return ncclBfloat16;
    case DType::I32:
      return ncclInt32;
    case DType::I64:
      return ncclInt64;
    case DType::U8:
    case DType::Bool:
      return ncclUint8;
  }
  fail<InternalError>("[comm] a dtype that NCCL does not know");
}

class NcclRank;

enum class What { AllReduce, ReduceScatter, AllGather, Broadcast };

class NcclCollective final : public Collective {
 public:
  NcclCollective(NcclRank& rank, What what, std::span<std::byte> data, DType dtype, int root);
  void start() override;
  bool poll() override;
  void await_ranks() override {}
  void finish() override {
    while (!poll()) std::this_thread::yield();
  }
  void issue(Stream& stream) override;

 private:
  ncclResult_t call(cudaStream_t stream) const;
  ncclResult_t call_by_slices(cudaStream_t stream) const;
  std::byte* at(Slice slice) const { return data_.data() + slice.begin * size_of(dtype_); }

  NcclRank& rank_;
  What what_;
  std::span<std::byte> data_;
  DType dtype_;
  int root_;
  std::vector<Slice> slices_;  // of all ranks
  bool even_ = true;           // whether they are equally long
  Clock::time_point started_ = {};
};

class NcclRank final : public Communicator {
 public:
  // `failure`: of all ranks of the group that are in this process.
  NcclRank(Device& device, const NcclRankOptions& options, std::shared_ptr<FirstFailure> failure)
      : device_(device),
        rank_(options.rank),
        size_(options.size),
        timeout_(options.timeout),
        id_(options.id),
        failure_(std::move(failure)) {
    ncclUniqueId id = {};
    require(id_.size() == sizeof(id), "[comm] this is no id of NCCL's: it has {} bytes, not {}",
            id_.size(), sizeof(id));
    device_.make_current();
    stream_ = device_.make_stream();
    begin();
    await_ready();
  }
  // Connects to the others again, under another id. Steps that were recorded with the old
  // communicator can no longer be used.
  void renew(const std::string& id) {
    end();
    id_ = id;
    ++generation_;
    begin();
    await_ready();
  }
  // Call after all steps that were recorded with it are gone.
  ~NcclRank() override {
    end();
    for (std::thread& ending : endings_) ending.join();
  }
  NcclRank(const NcclRank&) = delete;
  NcclRank& operator=(const NcclRank&) = delete;

  // Starts connecting to the others; await_ready finishes it.
  void begin() {
    ncclUniqueId id = {};
    std::memcpy(&id, id_.data(), sizeof(id));
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    device_.make_current();
    expect(nccl().CommInitRankConfig(&comm_, size_, id, rank_, &config), "coming together");
  }
  void await_ready() {
    const Clock::time_point end = Clock::now() + timeout_;
    for (;;) {
      ncclResult_t state = ncclSuccess;
      expect(nccl().CommGetAsyncError(comm_, &state), "coming together");
      if (state == ncclSuccess) return;
      expect(state, "coming together");
      if (Clock::now() > end) {
        this->end();
        fail<CommError>("[comm] rank {} of {} ({}) waited {} ms for the other ranks to come", rank_,
                        size_, device_.name(), timeout_.count());
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  }
  // Called by the rank's own thread, or while the rank is in no call: nobody else knows whether
  // NCCL is busy for it. Whatever waits on the GPU ends at once. NCCL itself ends only when nothing
  // recorded refers to the communicator any more, which would take too long to wait for here.
  void end() {
    if (comm_ == nullptr) return;
    endings_.emplace_back([this, comm = std::exchange(comm_, nullptr)] {
      device_.make_current();
      nccl().CommAbort(comm);
    });
  }

  int rank() const override { return rank_; }
  int size() const override { return size_; }
  int max_in_flight() const override { return 1 << 20; }
  SumOrder sum_order() const override { return SumOrder::Repeatable; }
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
    return make(What::Broadcast, data, DType::U8, root);
  }

  // Called by the rank's own thread. This also ends a collective that waits on the GPU; those of
  // the other ranks of this process end when they check.
  void abort(const Failure& failure) override {
    failure_->set(failure);
    end();
  }

  void check() override {
    if (failure_->failed()) {
      end();
      fail<CommError>("[comm] rank {} ({}): the group was aborted: {}", rank_, device_.name(),
                      failure_->get().value_or(Failure{}).message);
    }
    ncclResult_t state = ncclSuccess;
    expect(nccl().CommGetAsyncError(comm_, &state), "a collective");
    expect(state, "a collective");
  }

  // CommError, naming the rank, if NCCL reports an error.
  void expect(ncclResult_t status, const char* what) const {
    if (status == ncclSuccess || status == ncclInProgress) return;
    fail<CommError>("[comm] rank {} of {} ({}): {}: {}", rank_, size_, device_.name(), what,
                    nccl().GetErrorString(status));
  }

  std::chrono::milliseconds timeout() const override { return timeout_; }
  std::uint64_t generation() const override { return generation_; }

  ncclComm_t comm() const { return comm_; }
  Stream& stream() { return *stream_; }
  Device& device() { return device_; }

 private:
  std::unique_ptr<Collective> make(What what, std::span<std::byte> data, DType dtype, int root) {
    return std::make_unique<NcclCollective>(*this, what, data, dtype, root);
  }

  Device& device_;
  int rank_;
  int size_;
  std::chrono::milliseconds timeout_;
  std::string id_;
  std::shared_ptr<FirstFailure> failure_;
  ncclComm_t comm_ = nullptr;
  std::vector<std::thread> endings_;  // of communicators that were given up
  std::unique_ptr<Stream> stream_;    // of collectives started by start()
  std::atomic<std::uint64_t> generation_ = 0;
};

NcclCollective::NcclCollective(NcclRank& rank, What what, std::span<std::byte> data, DType dtype,
                               int root)
    : rank_(rank), what_(what), data_(data), dtype_(dtype), root_(root) {
  const std::size_t element = size_of(dtype);
  for (int r = 0; r < rank.size(); ++r) {
    slices_.push_back(slice_of(data.size() / element, element, r, rank.size()));
  }
  const auto length = [](Slice slice) { return slice.end - slice.begin; };
  even_ = std::ranges::adjacent_find(slices_, std::ranges::not_equal_to(), length) == slices_.end();
}

void NcclCollective::start() {
  rank_.device().make_current();
  started_ = Clock::now();
  issue(rank_.stream());
}

bool NcclCollective::poll() {
  rank_.check();
  const cudaError_t status = cudaStreamQuery(cuda_stream(rank_.stream()));
  if (status == cudaErrorNotReady) {
    if (Clock::now() - started_ > rank_.timeout()) {
      rank_.abort({.rank = rank_.rank(),
                   .kind = FailureKind::Comm,
                   .message = fmt::format("a collective did not end within {} ms",
                                          rank_.timeout().count())});
      rank_.check();
    }
    return false;
  }
  check_cuda(status, "running a collective");
  return true;
}

void NcclCollective::issue(Stream& target) {
  rank_.check();
  const cudaStream_t stream = cuda_stream(target);
  const bool sliced = what_ == What::ReduceScatter || what_ == What::AllGather;
  rank_.expect(sliced && !even_ ? call_by_slices(stream) : call(stream), "issuing a collective");
  // A non-blocking communicator says later whether it accepted the call.
  ncclResult_t state = ncclInProgress;
  while (state == ncclInProgress) {
    rank_.expect(nccl().CommGetAsyncError(rank_.comm(), &state), "issuing a collective");
  }
  rank_.expect(state, "issuing a collective");
}

ncclResult_t NcclCollective::call(cudaStream_t stream) const {
  const Nccl& functions = nccl();
  const std::size_t count = data_.size() / size_of(dtype_);
  const Slice own = slices_[static_cast<std::size_t>(rank_.rank())];
  const ncclDataType_t type = nccl_type(dtype_);
  switch (what_) {
    case What::AllReduce:
      return functions.AllReduce(data_.data(), data_.data(), count, type, ncclSum, rank_.comm(),
                                 stream);
    case What::ReduceScatter:
      return functions.ReduceScatter(data_.data(), at(own), own.end - own.begin, type, ncclSum,
                                     rank_.comm(), stream);
    case What::AllGather:
      return functions.AllGather(at(own), data_.data(), own.end - own.begin, type, rank_.comm(),
                                 stream);
    case What::Broadcast:
      return functions.Broadcast(data_.data(), data_.data(), count, type, root_, rank_.comm(),
                                 stream);
  }
  return ncclInternalError;
}

// NCCL scatters and gathers only equal slices. Uneven ones are a reduce or a broadcast per rank,
// which NCCL runs together.
ncclResult_t NcclCollective::call_by_slices(cudaStream_t stream) const {
  const Nccl& functions = nccl();
  const ncclDataType_t type = nccl_type(dtype_);
  ncclResult_t status = functions.GroupStart();
  for (int r = 0; r < rank_.size() && status == ncclSuccess; ++r) {
    const Slice slice = slices_[static_cast<std::size_t>(r)];
    const std::size_t count = slice.end - slice.begin;
    if (count == 0) continue;
    status =
        what_ == What::ReduceScatter
            ? functions.Reduce(at(slice), at(slice), count, type, ncclSum, r, rank_.comm(), stream)
            : functions.Broadcast(at(slice), at(slice), count, type, r, rank_.comm(), stream);
  }
  const ncclResult_t ended = functions.GroupEnd();
  return status == ncclSuccess ? ended : status;
}

class NcclGroup final : public Group {
 public:
  NcclGroup(const std::vector<Device*>& devices, std::chrono::milliseconds timeout)
      : devices_(devices), timeout_(timeout), local_(devices.size()), ranks_(devices.size()) {
    std::iota(local_.begin(), local_.end(), 0);
    come_together();
  }
  int size() const override { return static_cast<int>(devices_.size()); }
  std::span<const int> local() const override { return local_; }
  Communicator& rank(int rank) override {
    require(rank >= 0 && rank < size(), "[comm] rank {} of a group with ranks 0 to {}", rank,
            size() - 1);
    return *ranks_[static_cast<std::size_t>(rank)];
  }
  void abort(const Failure& failure) override { failure_->set(failure); }
  std::optional<Failure> failure() const override { return failure_->get(); }
  // An aborted NCCL communicator is gone; the ranks, and collectives made from them, get new ones.
  void reset() override {
    come_together();
    failure_->clear();
  }

 private:
  // Each on its own thread.
  void come_together() {
    const std::string id = make_nccl_id();
    std::vector<std::exception_ptr> errors(devices_.size());
    std::vector<std::thread> threads;
    for (std::size_t r = 0; r < devices_.size(); ++r) {
      threads.emplace_back([&, r] {
        try {
          if (ranks_[r] != nullptr) return ranks_[r]->renew(id);
          ranks_[r] =
              std::make_unique<NcclRank>(*devices_[r],
                                         NcclRankOptions{.id = id,
                                                         .rank = static_cast<int>(r),
                                                         .size = static_cast<int>(devices_.size()),
                                                         .timeout = timeout_},
                                         failure_);
        } catch (...) {
          errors[r] = std::current_exception();
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    for (const std::exception_ptr& error : errors) {
      if (error != nullptr) std::rethrow_exception(error);
    }
  }

  std::vector<Device*> devices_;
  std::chrono::milliseconds timeout_;
  std::vector<int> local_;
  std::shared_ptr<FirstFailure> failure_ = std::make_shared<FirstFailure>();
  std::vector<std::unique_ptr<NcclRank>> ranks_;
};

}  // namespace

std::string make_nccl_id() {
  ncclUniqueId id = {};
  const ncclResult_t status = nccl().GetUniqueId(&id);
  if (status != ncclSuccess) {
    fail<CommError>("[comm] NCCL cannot begin a group: {}", nccl().GetErrorString(status));
  }
  return std::string(reinterpret_cast<const char*>(&id), sizeof(id));
}

std::unique_ptr<Communicator> make_nccl_rank(Device& device, const NcclRankOptions& options) {
  return std::make_unique<NcclRank>(device, options, std::make_shared<FirstFailure>());
}

std::unique_ptr<Group> make_nccl_group(const std::vector<Device*>& devices,
                                       std::chrono::milliseconds timeout) {
  return std::make_unique<NcclGroup>(devices, timeout);
}

}  // namespace lockstep

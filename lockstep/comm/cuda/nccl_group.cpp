#include "lockstep/comm/cuda/nccl_group.h"

#include <nccl.h>

#include <atomic>
#include <cstring>
#include <mutex>
#include <thread>

#include "lockstep/base/error.h"
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
  NcclCollective(NcclRank& rank, What what, std::span<std::byte> data, DType dtype, int root)
      : rank_(rank), what_(what), data_(data), dtype_(dtype), root_(root) {}
  void start() override;
  bool advance() override;
  void await_ranks() override {}
  void finish() override {
    while (!advance()) std::this_thread::yield();
  }
  void issue(Stream& stream) override;

 private:
  NcclRank& rank_;
  What what_;
  std::span<std::byte> data_;
  DType dtype_;
  int root_;
  Clock::time_point started_ = {};
};

class NcclRank final : public Communicator {
 public:
  NcclRank(Device& device, const NcclRankOptions& options)
      : device_(device),
        rank_(options.rank),
        size_(options.size),
        timeout_(options.timeout),
        id_(options.id) {
    ncclUniqueId id = {};
    require(id_.size() == sizeof(id), "[comm] this is no id of NCCL's: it has {} bytes, not {}",
            id_.size(), sizeof(id));
    device_.enter();
    stream_ = device_.make_stream();
    begin();
    await_ready();
  }
  // Comes together with the others once more, under another id. What was recorded with the old
  // communicator is of no use any more.
  void renew(const std::string& id) {
    {
      const std::lock_guard lock(mutex_);
      end();
      id_ = id;
      reason_.clear();
      ++generation_;
    }
    begin();
    await_ready();
    aborted_ = false;
  }
  // Behind all steps that were recorded with it.
  ~NcclRank() override {
    end();
    for (std::thread& ending : endings_) ending.join();
  }
  NcclRank(const NcclRank&) = delete;
  NcclRank& operator=(const NcclRank&) = delete;

  // Begins to come together with the others; await_ready ends it.
  void begin() {
    ncclUniqueId id = {};
    std::memcpy(&id, id_.data(), sizeof(id));
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    device_.enter();
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
  // What waits on the GPU ends at once. NCCL itself ends when nothing recorded refers to the
  // communicator any more, and nobody has the time to wait for that here.
  void end() {
    if (comm_ == nullptr) return;
    endings_.emplace_back([this, comm = std::exchange(comm_, nullptr)] {
      device_.enter();
      nccl().CommAbort(comm);
    });
  }

  int rank() const override { return rank_; }
  int size() const override { return size_; }
  int most_under_way() const override { return 1 << 20; }
  std::unique_ptr<Collective> all_reduce(std::span<std::byte> data, DType dtype) override {
    return make(What::AllReduce, data, dtype, 0);
  }
  std::unique_ptr<Collective> reduce_scatter(std::span<std::byte> data, DType dtype) override {
    expect_divisible(data, dtype);
    return make(What::ReduceScatter, data, dtype, 0);
  }
  std::unique_ptr<Collective> all_gather(std::span<std::byte> data, DType dtype) override {
    expect_divisible(data, dtype);
    return make(What::AllGather, data, dtype, 0);
  }
  std::unique_ptr<Collective> broadcast(std::span<std::byte> data, int root) override {
    return make(What::Broadcast, data, DType::U8, root);
  }

  // The GPU's side of a collective that waits ends with this too.
  void abort(const std::string& reason) override {
    const std::lock_guard lock(mutex_);
    if (aborted_.exchange(true)) return;
    reason_ = reason;
    end();
  }

  void check() override {
    if (aborted_) {
      const std::lock_guard lock(mutex_);
      fail<CommError>("[comm] rank {} ({}): the group was aborted: {}", rank_, device_.name(),
                      reason_);
    }
    ncclResult_t state = ncclSuccess;
    expect(nccl().CommGetAsyncError(comm_, &state), "a collective");
    expect(state, "a collective");
  }

  // CommError, naming the rank, where NCCL says that something went wrong.
  void expect(ncclResult_t status, const char* what) const {
    if (status == ncclSuccess || status == ncclInProgress) return;
    fail<CommError>("[comm] rank {} of {} ({}): {}: {}", rank_, size_, device_.name(), what,
                    nccl().GetErrorString(status));
  }

  std::chrono::milliseconds patience() const override { return timeout_; }
  std::uint64_t generation() const override { return generation_; }

  ncclComm_t comm() const { return comm_; }
  Stream& stream() { return *stream_; }
  Device& device() { return device_; }

 private:
  std::unique_ptr<Collective> make(What what, std::span<std::byte> data, DType dtype, int root) {
    return std::make_unique<NcclCollective>(*this, what, data, dtype, root);
  }
  void expect_divisible(std::span<std::byte> data, DType dtype) const {
    require(data.size() / size_of(dtype) % static_cast<std::size_t>(size_) == 0,
            "[comm] {} elements do not divide over {} ranks, as NCCL needs it",
            data.size() / size_of(dtype), size_);
  }

  Device& device_;
  int rank_;
  int size_;
  std::chrono::milliseconds timeout_;
  std::string id_;
  ncclComm_t comm_ = nullptr;
  std::vector<std::thread> endings_;  // of communicators that were given up
  std::unique_ptr<Stream> stream_;    // of collectives that are run on their own
  std::atomic<bool> aborted_ = false;
  std::atomic<std::uint64_t> generation_ = 0;
  std::mutex mutex_;
  std::string reason_;
};

void NcclCollective::start() {
  rank_.device().enter();
  started_ = Clock::now();
  issue(rank_.stream());
}

bool NcclCollective::advance() {
  rank_.check();
  const cudaError_t status = cudaStreamQuery(cuda_stream(rank_.stream()));
  if (status == cudaErrorNotReady) {
    if (Clock::now() - started_ > rank_.patience()) {
      const std::string reason =
          fmt::format("a collective did not end within {} ms", rank_.patience().count());
      rank_.abort(reason);
      rank_.check();
    }
    return false;
  }
  check_cuda(status, "running a collective");
  return true;
}

void NcclCollective::issue(Stream& target) {
  const cudaStream_t stream = cuda_stream(target);
  const Nccl& functions = nccl();
  const std::size_t count = data_.size() / size_of(dtype_);
  const std::size_t share = count / static_cast<std::size_t>(rank_.size());
  std::byte* const own =
      data_.data() + share * static_cast<std::size_t>(rank_.rank()) * size_of(dtype_);
  const ncclDataType_t type = nccl_type(dtype_);
  ncclResult_t status = ncclSuccess;
  switch (what_) {
    case What::AllReduce:
      status = functions.AllReduce(data_.data(), data_.data(), count, type, ncclSum, rank_.comm(),
                                   stream);
      break;
    case What::ReduceScatter:
      status =
          functions.ReduceScatter(data_.data(), own, share, type, ncclSum, rank_.comm(), stream);
      break;
    case What::AllGather:
      status = functions.AllGather(own, data_.data(), share, type, rank_.comm(), stream);
      break;
    case What::Broadcast:
      status =
          functions.Broadcast(data_.data(), data_.data(), count, type, root_, rank_.comm(), stream);
      break;
  }
  rank_.expect(status, "issuing a collective");
  // A communicator that does not block says later whether it took it.
  ncclResult_t state = ncclInProgress;
  while (state == ncclInProgress) {
    rank_.expect(functions.CommGetAsyncError(rank_.comm(), &state), "issuing a collective");
  }
  rank_.expect(state, "issuing a collective");
}

class NcclGroup final : public Group {
 public:
  NcclGroup(const std::vector<Device*>& devices, std::chrono::milliseconds timeout)
      : devices_(devices), timeout_(timeout), ranks_(devices.size()) {
    come_together();
  }
  Communicator& rank(int rank) override { return *ranks_[static_cast<std::size_t>(rank)]; }
  // An aborted communicator of NCCL's is gone; the ranks, and collectives made of them, get others.
  void reset() override { come_together(); }

 private:
  // Each on a thread of its own.
  void come_together() {
    const std::string id = make_nccl_id();
    std::vector<std::exception_ptr> errors(devices_.size());
    std::vector<std::thread> threads;
    for (std::size_t r = 0; r < devices_.size(); ++r) {
      threads.emplace_back([&, r] {
        try {
          if (ranks_[r] != nullptr) return ranks_[r]->renew(id);
          ranks_[r] = std::make_unique<NcclRank>(
              *devices_[r], NcclRankOptions{.id = id,
                                            .rank = static_cast<int>(r),
                                            .size = static_cast<int>(devices_.size()),
                                            .timeout = timeout_});
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
  return std::make_unique<NcclRank>(device, options);
}

std::unique_ptr<Group> make_nccl_group(const std::vector<Device*>& devices,
                                       std::chrono::milliseconds timeout) {
  return std::make_unique<NcclGroup>(devices, timeout);
}

}  // namespace lockstep

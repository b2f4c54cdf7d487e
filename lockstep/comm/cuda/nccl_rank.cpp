#include "lockstep/comm/cuda/nccl_rank.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/device/cuda/dynamic_library.h"
#include "lockstep/device/cuda/runtime.h"
#include "lockstep/profile/recorder.h"

namespace lockstep {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::int64_t kMillisecond = 1'000'000;  // in nanoseconds
constexpr std::int64_t kLookAtWorkers = kMillisecond;
// Checks that are further apart belong to different waits; a wait is long after so much time.
constexpr std::int64_t kSameWait = 100 * kMillisecond;
constexpr std::int64_t kLongWait = 500 * kMillisecond;

// NCCL's functions.
struct Nccl {
  Nccl() : library("libnccl.so.2", "install NCCL 2.28 or later") {
    library.find(GetUniqueId, "ncclGetUniqueId");
    library.find(CommInitRankConfig, "ncclCommInitRankConfig");
    library.find(CommGetAsyncError, "ncclCommGetAsyncError");
    library.find(CommAbort, "ncclCommAbort");
    library.find(GetErrorString, "ncclGetErrorString");
    library.find(GetLastError, "ncclGetLastError");
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
  decltype(&::ncclGetLastError) GetLastError = nullptr;
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
  ncclResult_t call(ncclComm_t comm, cudaStream_t stream) const;
  ncclResult_t call_by_slices(ncclComm_t comm, cudaStream_t stream) const;
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
  const cudaStream_t stream = cuda_stream(target);
  const bool sliced = what_ == What::ReduceScatter || what_ == What::AllGather;
  rank_.issue([&](ncclComm_t comm) {
    return sliced && !even_ ? call_by_slices(comm, stream) : call(comm, stream);
  });
}

ncclResult_t NcclCollective::call(ncclComm_t comm, cudaStream_t stream) const {
  const Nccl& functions = nccl();
  const std::size_t count = data_.size() / size_of(dtype_);
  const Slice own = slices_[static_cast<std::size_t>(rank_.rank())];
  const ncclDataType_t type = nccl_type(dtype_);
  switch (what_) {
    case What::AllReduce:
      return functions.AllReduce(data_.data(), data_.data(), count, type, ncclSum, comm, stream);
    case What::ReduceScatter:
      return functions.ReduceScatter(data_.data(), at(own), own.end - own.begin, type, ncclSum,
                                     comm, stream);
    case What::AllGather:
      return functions.AllGather(at(own), data_.data(), own.end - own.begin, type, comm, stream);
    case What::Broadcast:
      return functions.Broadcast(data_.data(), data_.data(), count, type, root_, comm, stream);
  }
  return ncclInternalError;
}

// NCCL scatters and gathers only equal slices. Uneven ones are a reduce or a broadcast per rank,
// which NCCL runs together.
ncclResult_t NcclCollective::call_by_slices(ncclComm_t comm, cudaStream_t stream) const {
  const Nccl& functions = nccl();
  const ncclDataType_t type = nccl_type(dtype_);
  ncclResult_t status = functions.GroupStart();
  for (int r = 0; r < rank_.size() && status == ncclSuccess; ++r) {
    const Slice slice = slices_[static_cast<std::size_t>(r)];
    const std::size_t count = slice.end - slice.begin;
    if (count == 0) continue;
    status = what_ == What::ReduceScatter
                 ? functions.Reduce(at(slice), at(slice), count, type, ncclSum, r, comm, stream)
                 : functions.Broadcast(at(slice), at(slice), count, type, r, comm, stream);
  }
  const ncclResult_t ended = functions.GroupEnd();
  return status == ncclSuccess ? ended : status;
}

}  // namespace

std::string make_nccl_id() {
  ncclUniqueId id = {};
  const ncclResult_t status = nccl().GetUniqueId(&id);
  if (status != ncclSuccess) {
    fail<CommError>("[comm] NCCL cannot begin a group: {}", nccl().GetErrorString(status));
  }
  return std::string(reinterpret_cast<const char*>(&id), sizeof(id));
}

NcclRank::NcclRank(Device& device, NcclPlace place) : device_(device), place_(std::move(place)) {
  device_.make_current();
  stream_ = device_.make_stream();
}

NcclRank::~NcclRank() {
  end();
  for (std::thread& ending : endings_) ending.join();
}

void NcclRank::connect(const std::string& text) {
  ncclUniqueId id = {};
  require(text.size() == sizeof(id), "[comm] this is no id of NCCL's: it has {} bytes, not {}",
          text.size(), sizeof(id));
  std::memcpy(&id, text.data(), sizeof(id));
  end();
  ++generation_;
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  device_.make_current();
  {
    const std::lock_guard lock(mutex_);
    expect(nccl().CommInitRankConfig(&comm_, place_.size, id, place_.rank, &config),
           "coming together");
  }
  await_ready("coming together");
}

void NcclRank::await_ready(const char* what) {
  const Clock::time_point end = Clock::now() + place_.timeout;
  for (int look = 1; state(what) == ncclInProgress; ++look) {
    check();
    if (Clock::now() > end) {
      this->abort({.rank = place_.rank,
                   .kind = FailureKind::Comm,
                   .message = fmt::format(
                       "[comm] rank {} of {} ({}) waited {} ms for the other ranks: {}",
                       place_.rank, place_.size, device_.name(), place_.timeout.count(), what)});
      check();
    }
    // What is only issued is accepted within microseconds.
    if (look > 1000) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

// NCCL itself ends only when nothing that was recorded refers to the communicator any more, which
// would take too long to wait for here.
void NcclRank::end() {
  const std::lock_guard lock(mutex_);
  if (comm_ == nullptr) return;
  endings_.emplace_back([this, comm = std::exchange(comm_, nullptr)] {
    device_.make_current();
    nccl().CommAbort(comm);
  });
}

std::unique_ptr<Collective> NcclRank::all_reduce(std::span<std::byte> data, DType dtype) {
  return std::make_unique<NcclCollective>(*this, What::AllReduce, data, dtype, 0);
}
std::unique_ptr<Collective> NcclRank::reduce_scatter(std::span<std::byte> data, DType dtype) {
  return std::make_unique<NcclCollective>(*this, What::ReduceScatter, data, dtype, 0);
}
std::unique_ptr<Collective> NcclRank::all_gather(std::span<std::byte> data, DType dtype) {
  return std::make_unique<NcclCollective>(*this, What::AllGather, data, dtype, 0);
}
std::unique_ptr<Collective> NcclRank::broadcast(std::span<std::byte> data, int root) {
  return std::make_unique<NcclCollective>(*this, What::Broadcast, data, DType::U8, root);
}

void NcclRank::abort(const Failure& failure) {
  place_.failure->set(failure);
  if (place_.workers != nullptr) {
    place_.workers->abort(
        {.rank = place_.worker, .kind = failure.kind, .message = failure.message});
  }
  end();
}

void NcclRank::check() {
  note_wait();
  look_at_workers();
  if (place_.failure->failed()) {
    end();
    fail<CommError>("[comm] rank {} ({}): the group was aborted: {}", place_.rank, device_.name(),
                    place_.failure->get().value_or(Failure{}).message);
  }
  state("a collective");
}

ncclResult_t NcclRank::state(const char* what) {
  const std::lock_guard lock(mutex_);
  if (comm_ == nullptr) return ncclInProgress;  // whoever ended it has said why, or will
  ncclResult_t state = ncclSuccess;
  expect(nccl().CommGetAsyncError(comm_, &state), what);
  expect(state, what);
  return state;
}

void NcclRank::expect(ncclResult_t status, const char* what) const {
  if (status == ncclSuccess || status == ncclInProgress) return;
  const char* const more = nccl().GetLastError(comm_);
  fail<CommError>("[comm] rank {} of {} ({}): {}: {}{}{}", place_.rank, place_.size, device_.name(),
                  what, nccl().GetErrorString(status), more != nullptr && *more != 0 ? ": " : "",
                  more != nullptr ? more : "");
}

void NcclRank::look_at_workers() {
  if (place_.workers == nullptr || now_ns() - looked_ns_ < kLookAtWorkers) return;
  looked_ns_ = now_ns();
  if (const std::optional<Failure> failure = place_.workers->failure()) {
    place_.failure->set(*failure);
  }
}

void NcclRank::note_wait() {
  const std::int64_t now = now_ns();
  if (now - checked_ns_ > kSameWait) checking_since_ns_ = now;
  checked_ns_ = now;
}

bool NcclRank::waiting() const {
  const std::int64_t now = now_ns();
  return now - checked_ns_ < kSameWait && now - checking_since_ns_ > kLongWait;
}

void connect_all(std::span<const std::unique_ptr<NcclRank>> ranks, const std::string& id) {
  std::vector<std::exception_ptr> errors(ranks.size());
  std::vector<std::thread> threads;
  for (std::size_t r = 0; r < ranks.size(); ++r) {
    threads.emplace_back([&, r] {
      try {
        ranks[r]->connect(id);
      } catch (...) {
        errors[r] = std::current_exception();
        // The others need not wait for it.
        ranks[r]->abort(failure_of(ranks[r]->rank(), errors[r]));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const std::exception_ptr& error : errors) {
    if (error != nullptr) std::rethrow_exception(error);
  }
}

}  // namespace lockstep

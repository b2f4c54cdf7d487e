// Ranks of several workers over NCCL. Beside it, a group in host memory with one rank per worker
// carries NCCL's id when they connect, and the failure of one worker to the others: NCCL does not
// tell a rank that waits on the GPU why another one does not come, nor always that it does not.
#include <algorithm>
#include <numeric>

#include "lockstep/base/error.h"
#include "lockstep/comm/cuda/gpu_group.h"
#include "lockstep/comm/cuda/nccl_rank.h"
#include "lockstep/comm/exchange.h"

namespace lockstep {
namespace {

class NcclWorkersGroup final : public Group {
 public:
  NcclWorkersGroup(const std::vector<Device*>& devices, GpuWorkersOptions options)
      : ranks_of_worker_(std::move(options.ranks_of_worker)),
        worker_(options.worker),
        workers_(std::move(options.workers)),
        local_(devices.size()) {
    std::iota(local_.begin(), local_.end(), first_rank(worker_));
    for (std::size_t i = 0; i < devices.size(); ++i) {
      ranks_.push_back(std::make_unique<NcclRank>(*devices[i], NcclPlace{.rank = local_[i],
                                                                         .size = size(),
                                                                         .timeout = options.timeout,
                                                                         .failure = failure_,
                                                                         .workers = workers_.get(),
                                                                         .worker = worker_}));
    }
  }

  int size() const override {
    return std::accumulate(ranks_of_worker_.begin(), ranks_of_worker_.end(), 0);
  }
  std::span<const int> local() const override { return local_; }
  Communicator& rank(int rank) override {
    require(rank >= 0 && rank < size(), "[comm] rank {} of a group with ranks 0 to {}", rank,
            size() - 1);
    const int first = local_.front();
    require(rank >= first && rank <= local_.back(),
            "[comm] rank {} is another worker's; this one, worker {}, has ranks {} to {}", rank,
            worker_, first, local_.back());
    return *ranks_[static_cast<std::size_t>(rank - first)];
  }
  bool waiting() const override {
    return workers_->waiting() ||
           std::ranges::any_of(ranks_, [](const auto& rank) { return rank->waiting(); });
  }

  // Ends what waits on the GPUs at once: nobody may be looking.
  void abort(const Failure& failure) override {
    failure_->set(failure);
    workers_->abort({.rank = worker_, .kind = failure.kind, .message = failure.message});
    for (const auto& rank : ranks_) rank->end();
  }
  std::optional<Failure> failure() const override {
    if (std::optional<Failure> mine = failure_->get()) return mine;
    std::optional<Failure> theirs = workers_->failure();
    if (theirs && theirs->rank >= 0) theirs->rank = first_rank(theirs->rank);
    return theirs;
  }
  // What waits on the GPUs ends here; the rest of it happens when they connect.
  void reset() override {
    connected_ = false;
    for (const auto& rank : ranks_) rank->end();
    failure_->clear();
  }

  bool connected() const override { return connected_; }
  void connect() override {
    workers_->reset();
    failure_->clear();
    try {
      const std::string mine = worker_ == 0 ? make_nccl_id() : std::string();
      const std::string id = lockstep::exchange(workers_->rank(worker_), mine).front();
      connect_all(ranks_, id);
      // None of them uses it before all are connected.
      lockstep::exchange(workers_->rank(worker_), "");
    } catch (...) {
      this->abort(failure_of(local_.front(), std::current_exception()));
      throw;
    }
    connected_ = true;
  }

 private:
  int first_rank(int worker) const {
    return std::accumulate(ranks_of_worker_.begin(), ranks_of_worker_.begin() + worker, 0);
  }

  std::vector<int> ranks_of_worker_;
  int worker_;
  std::unique_ptr<Group> workers_;  // outlives the ranks, which look at it
  std::vector<int> local_;
  std::shared_ptr<FirstFailure> failure_ = std::make_shared<FirstFailure>();
  std::vector<std::unique_ptr<NcclRank>> ranks_;
  bool connected_ = false;
};

}  // namespace

std::unique_ptr<Group> make_gpu_workers_group(const std::vector<Device*>& devices,
                                              GpuWorkersOptions options) {
  return std::make_unique<NcclWorkersGroup>(devices, std::move(options));
}

}  // namespace lockstep

#include "lockstep/comm/cuda/nccl_group.h"

#include <numeric>

#include "lockstep/base/error.h"
#include "lockstep/comm/cuda/nccl_rank.h"

namespace lockstep {
namespace {

class NcclGroup final : public Group {
 public:
  NcclGroup(const std::vector<Device*>& devices, std::chrono::milliseconds timeout)
      : local_(devices.size()) {
    std::iota(local_.begin(), local_.end(), 0);
    for (const int rank : local_) {
      ranks_.push_back(
          std::make_unique<NcclRank>(*devices[static_cast<std::size_t>(rank)],
                                     NcclPlace{.rank = rank,
                                               .size = static_cast<int>(devices.size()),
                                               .timeout = timeout,
                                               .failure = failure_}));
    }
    connect_all(ranks_, make_nccl_id());
  }
  int size() const override { return static_cast<int>(ranks_.size()); }
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
    failure_->clear();
    connect_all(ranks_, make_nccl_id());
  }

 private:
  std::vector<int> local_;
  std::shared_ptr<FirstFailure> failure_ = std::make_shared<FirstFailure>();
  std::vector<std::unique_ptr<NcclRank>> ranks_;
};

}  // namespace

std::unique_ptr<Communicator> make_nccl_rank(Device& device, const NcclRankOptions& options) {
  auto rank =
      std::make_unique<NcclRank>(device, NcclPlace{.rank = options.rank,
                                                   .size = options.size,
                                                   .timeout = options.timeout,
                                                   .failure = std::make_shared<FirstFailure>()});
  rank->connect(options.id);
  return rank;
}

std::unique_ptr<Group> make_nccl_group(const std::vector<Device*>& devices,
                                       std::chrono::milliseconds timeout) {
  return std::make_unique<NcclGroup>(devices, timeout);
}

}  // namespace lockstep

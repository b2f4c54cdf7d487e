// DistributedDataset: batches distributed to the replicas of a strategy, for custom loops.
#pragma once

#include <array>
#include <memory>
#include <optional>

#include "lockstep/data/dataset.h"
#include "lockstep/data/iterator.h"
#include "lockstep/train/model.h"
#include "lockstep/train/per_replica.h"
#include "lockstep/train/strategy.h"

namespace lockstep {

// Distributes the elements of an iterator: each batch split into pieces, or one whole batch per
// replica. They stay where they were assembled, in memory that the devices can copy from directly.
class BatchDistributor {
 public:
  enum class Deal { Pieces, Batches };
  BatchDistributor(const Dataset& batches, Strategy strategy, Deal deal, std::size_t parts,
                   std::uint64_t epoch);
  ~BatchDistributor();

  // The tensors of the next step for the replicas of this worker; nothing after the last. If there
  // are not enough batches for all replicas, the remaining replicas get empty ones. With several
  // workers, all of them call it, and go on until the last one has no batch left.
  std::optional<std::vector<PerReplica>> next();
  Iterator& iterator() { return *iterator_; }

 private:
  void expect_parts(const Element& element) const;
  std::vector<Element> take(int count);

  Strategy strategy_;  // whose devices' memory the iterator uses
  Deal deal_;
  std::size_t parts_;
  std::vector<ElementSpec> spec_;
  std::unique_ptr<Iterator> iterator_;
};

// Batches and the strategy whose replicas get them: the argument of fit.
class DistributedBatches {
 public:
  DistributedBatches(Dataset batches, Strategy strategy, BatchDistributor::Deal deal)
      : batches_(std::move(batches)), strategy_(std::move(strategy)), deal_(deal) {}

  const Strategy& strategy() const { return strategy_; }
  // The samples of a step as one batch: those of all replicas or, where every worker has a data set
  // of its own, of this worker's.
  Dataset step_batches() const;
  bool own_rows_only() const;
  operator ValidationData() const;  // NOLINT: fit validates with them

 protected:
  Dataset batches_;
  Strategy strategy_;
  BatchDistributor::Deal deal_;
};

// A pass over it is an epoch; each begin() starts the next one.
template <std::size_t Parts>
class DistributedDataset : public DistributedBatches {
 public:
  using Element = std::array<PerReplica, Parts>;
  using DistributedBatches::DistributedBatches;

  class iterator {
   public:
    iterator() = default;
    explicit iterator(std::shared_ptr<BatchDistributor> dealer) : dealer_(std::move(dealer)) {
      ++*this;
    }
    Element& operator*() { return element_; }
    iterator& operator++() {
      std::optional<std::vector<PerReplica>> next = dealer_->next();
      if (next) {
        std::move(next->begin(), next->end(), element_.begin());
      } else {
        dealer_ = nullptr;
      }
      return *this;
    }
    bool operator==(const iterator& other) const { return dealer_ == other.dealer_; }
    // The position in the pass, to resume from later with Iterator::save and restore.
    Iterator& position() { return dealer_->iterator(); }

   private:
    std::shared_ptr<BatchDistributor> dealer_;
    Element element_;
  };
  iterator begin() {
    return iterator(
        std::make_shared<BatchDistributor>(batches_, strategy_, deal_, Parts, epoch_++));
  }
  iterator end() { return iterator(); }

 private:
  std::uint64_t epoch_ = 0;
};

template <std::size_t Parts>
DistributedDataset<Parts> Strategy::distribute(const Dataset& batches) const {
  return DistributedDataset<Parts>(batches, *this, BatchDistributor::Deal::Pieces);
}

template <std::size_t Parts>
DistributedDataset<Parts> Strategy::distribute_from_function(
    const std::function<Dataset(const InputContext&)>& f) const {
  return DistributedDataset<Parts>(f(input_context()), *this, BatchDistributor::Deal::Batches);
}

}  // namespace lockstep

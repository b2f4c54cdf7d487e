// DistributedDataset: batches dealt out to the replicas of a strategy, for loops of the user's own.
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

// Deals out the elements of an iterator: whole batches in pieces, or batch after batch. They lie
// where they were assembled, in memory that the replicas' devices copy by themselves.
class Dealer {
 public:
  enum class Deal { Pieces, Batches };
  Dealer(const Dataset& batches, Strategy strategy, Deal deal, std::size_t parts,
         std::uint64_t epoch);
  ~Dealer();

  // The parts of the next batch; none behind the last. Where batches run out in mid-round, the
  // replicas left over get empty ones.
  std::optional<std::vector<PerReplica>> next();
  Iterator& iterator() { return *iterator_; }

 private:
  void expect_parts(const Element& element) const;

  Strategy strategy_;  // whose devices' memory the iterator uses
  Deal deal_;
  std::size_t parts_;
  std::unique_ptr<Iterator> iterator_;
};

// Batches and the strategy over whose replicas they are dealt out: what fit takes of them.
class DistributedBatches {
 public:
  DistributedBatches(Dataset batches, Strategy strategy, Dealer::Deal deal)
      : batches_(std::move(batches)), strategy_(std::move(strategy)), deal_(deal) {}

  const Strategy& strategy() const { return strategy_; }
  // The samples of a step, of all replicas together, as one batch.
  Dataset global_batches() const;
  operator ValidationData() const { return global_batches(); }  // NOLINT: fit validates with them

 protected:
  Dataset batches_;
  Strategy strategy_;
  Dealer::Deal deal_;
};

// A pass over it is an epoch; each begin() begins the next one.
template <std::size_t Parts>
class DistributedDataset : public DistributedBatches {
 public:
  using Element = std::array<PerReplica, Parts>;
  using DistributedBatches::DistributedBatches;

  class iterator {
   public:
    iterator() = default;
    explicit iterator(std::shared_ptr<Dealer> dealer) : dealer_(std::move(dealer)) { ++*this; }
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
    // Where the pass is, to go on from later: Iterator::save and restore.
    Iterator& position() { return dealer_->iterator(); }

   private:
    std::shared_ptr<Dealer> dealer_;
    Element element_;
  };
  iterator begin() {
    return iterator(std::make_shared<Dealer>(batches_, strategy_, deal_, Parts, epoch_++));
  }
  iterator end() { return iterator(); }

 private:
  std::uint64_t epoch_ = 0;
};

template <std::size_t Parts>
DistributedDataset<Parts> Strategy::distribute(const Dataset& batches) const {
  return DistributedDataset<Parts>(batches, *this, Dealer::Deal::Pieces);
}

template <std::size_t Parts>
DistributedDataset<Parts> Strategy::distribute_from_function(
    const std::function<Dataset(const InputContext&)>& f) const {
  const InputContext context{.num_input_pipelines = 1,
                             .input_pipeline_id = 0,
                             .num_replicas_in_sync = num_replicas_in_sync()};
  return DistributedDataset<Parts>(f(context), *this, Dealer::Deal::Batches);
}

}  // namespace lockstep

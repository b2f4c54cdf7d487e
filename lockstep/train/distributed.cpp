#include "lockstep/train/distributed.h"

#include "lockstep/base/error.h"
#include "lockstep/strategy/share.h"
#include "lockstep/train/replicas.h"

namespace lockstep {
namespace {

Replicas& replicas_of(const Strategy& strategy) {
  require(strategy.defined(),
          "[distribute] the strategy is empty: make one, such as MirroredStrategy()");
  return *strategy.impl().replicas;
}

}  // namespace

Dealer::Dealer(const Dataset& batches, Strategy strategy, Deal deal, std::size_t parts,
               std::uint64_t epoch)
    : strategy_(std::move(strategy)),
      deal_(deal),
      parts_(parts),
      iterator_(batches.iterator(
          IteratorOptions{.epoch = epoch, .memory = replicas_of(strategy_).batch_memory()})) {}

Dealer::~Dealer() = default;

void Dealer::expect_parts(const Element& element) const {
  require(element.size() == parts_,
          "[distribute] an element of the data set has {} parts, and {} are asked for: say "
          "distribute<{}>(…)",
          element.size(), parts_, element.size());
  for (const Tensor& part : element) {
    require(part.shape().rank() > 0 && part.shape()[0] == element.front().shape()[0],
            "[distribute] a part of an element has the shape {}, where the first has {}: the data "
            "set must be batched",
            part.shape(), element.front().shape());
  }
}

std::optional<std::vector<PerReplica>> Dealer::next() {
  const int replicas = strategy_.num_replicas_in_sync();
  std::vector<std::vector<Tensor>> dealt(parts_);  // [part][replica]
  std::optional<Element> element = iterator_->next();
  if (!element) return std::nullopt;
  expect_parts(*element);
  if (deal_ == Deal::Pieces) {
    const std::int64_t samples = element->front().shape()[0];
    for (const Piece& piece : split_evenly(samples, replicas)) {
      for (std::size_t p = 0; p < parts_; ++p) {
        dealt[p].push_back((*element)[p].rows(piece.begin, piece.size()));
      }
    }
  } else {
    for (int r = 0; r < replicas; ++r) {
      for (std::size_t p = 0; p < parts_; ++p) {
        // Held, so that the next batch does not take its memory.
        dealt[p].push_back(element ? (*element)[p] : dealt[p].front().rows(0, 0));
      }
      if (element && r + 1 < replicas) element = iterator_->next();
      if (element) expect_parts(*element);
    }
  }
  std::vector<PerReplica> parts;
  for (std::vector<Tensor>& values : dealt) parts.emplace_back(std::move(values));
  return parts;
}

}  // namespace lockstep

#include "lockstep/train/distributed.h"

#include "lockstep/base/error.h"
#include "lockstep/strategy/share.h"
#include "lockstep/train/model_impl.h"
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

Dataset DistributedBatches::global_batches() const {
  const int replicas = strategy_.num_replicas_in_sync();
  if (deal_ == Dealer::Deal::Pieces || replicas == 1) return batches_;
  const Shape first = batches_.element_spec().front().shape;
  require(first.rank() > 0, "[distribute] the data set of a worker must be batched");
  return batches_.unbatch().batch(first[0] * replicas).prefetch();
}

namespace {

void expect_own(const DistributedBatches& given, const Model& model, const char* caller) {
  const Strategy& own = model.impl().options.strategy;
  require(
      own.defined() && given.strategy().defined() && &own.impl() == &given.strategy().impl(),
      "[{}] the data set is distributed by another strategy than the model's: compile the model "
      "with {{.strategy = strategy}}",
      caller);
}

}  // namespace

History Model::fit(const DistributedBatches& batches, const FitOptions& options) {
  expect_own(batches, *this, "fit");
  return fit(batches.global_batches(), options);
}

Logs Model::evaluate(const DistributedBatches& batches, const EvaluateOptions& options) {
  expect_own(batches, *this, "evaluate");
  return evaluate(batches.global_batches(), options);
}

Tensor Model::predict(const DistributedBatches& batches, const PredictOptions& options) {
  expect_own(batches, *this, "predict");
  return predict(batches.global_batches(), options);
}

}  // namespace lockstep

#include "lockstep/train/distributed.h"

#include "lockstep/base/error.h"
#include "lockstep/distribute/pieces.h"
#include "lockstep/runtime/world.h"
#include "lockstep/train/model_impl.h"

namespace lockstep {
namespace {

World& world_of(const Strategy& strategy) {
  require(strategy.defined(),
          "[distribute] the strategy is empty: make one, such as MirroredStrategy()");
  return *impl_of(strategy).world;
}

}  // namespace

BatchDistributor::BatchDistributor(const Dataset& batches, Strategy strategy, Deal deal,
                                   std::size_t parts, std::uint64_t epoch)
    : strategy_(std::move(strategy)),
      deal_(deal),
      parts_(parts),
      iterator_(batches.iterator(
          IteratorOptions{.epoch = epoch, .memory = world_of(strategy_).batch_memory()})) {}

BatchDistributor::~BatchDistributor() = default;

void BatchDistributor::expect_parts(const Element& element) const {
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

std::optional<std::vector<PerReplica>> BatchDistributor::next() {
  World& world = world_of(strategy_);
  const int replicas = world.size();
  std::vector<std::vector<Tensor>> dealt(parts_);  // [part][replica]
  std::optional<Element> element = iterator_->next();
  if (!element) return std::nullopt;
  expect_parts(*element);
  if (deal_ == Deal::Pieces) {
    const std::int64_t samples = element->front().shape()[0];
    const std::vector<Piece> pieces = split_evenly(samples, replicas);
    for (int local = 0; local < world.local_size(); ++local) {
      const Piece& piece = pieces[static_cast<std::size_t>(world.rank(local))];
      for (std::size_t p = 0; p < parts_; ++p) {
        dealt[p].push_back((*element)[p].rows(piece.begin, piece.size()));
      }
    }
  } else {
    for (int r = 0; r < world.local_size(); ++r) {
      for (std::size_t p = 0; p < parts_; ++p) {
        // Keeps the batch alive, so that the next one does not reuse its memory.
        dealt[p].push_back(element ? (*element)[p] : dealt[p].front().rows(0, 0));
      }
      if (element && r + 1 < world.local_size()) element = iterator_->next();
      if (element) expect_parts(*element);
    }
  }
  std::vector<PerReplica> parts;
  for (std::vector<Tensor>& values : dealt) parts.emplace_back(std::move(values));
  return parts;
}

Dataset DistributedBatches::global_batches() const {
  const int replicas = strategy_.num_replicas_in_sync();
  if (deal_ == BatchDistributor::Deal::Pieces || replicas == 1) return batches_;
  const Shape first = batches_.element_spec().front().shape;
  require(first.rank() > 0, "[distribute] the data set of a worker must be batched");
  return batches_.unbatch().batch(first[0] * replicas).prefetch();
}

namespace {

void expect_own(const DistributedBatches& given, const Model& model, const char* caller) {
  const Strategy& own = impl_of(model).options.strategy;
  require(
      own.defined() && given.strategy().defined() && &impl_of(own) == &impl_of(given.strategy()),
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

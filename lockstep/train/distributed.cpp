#include "lockstep/train/distributed.h"

#include "lockstep/base/error.h"
#include "lockstep/distribute/pieces.h"
#include "lockstep/runtime/world.h"
#include "lockstep/train/fit_run.h"

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
      spec_(batches.element_spec()),
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

// The elements of the next step: one that all workers have, or one per local replica.
std::vector<Element> BatchDistributor::take(int count) {
  std::vector<Element> elements;
  while (std::ssize(elements) < count) {
    std::optional<Element> element = iterator_->next();
    if (!element) break;
    expect_parts(*element);
    elements.push_back(std::move(*element));
  }
  return elements;
}

std::optional<std::vector<PerReplica>> BatchDistributor::next() {
  World& world = world_of(strategy_);
  std::vector<Element> elements;
  const StepVotes votes = take_votes(world, [&] {
    elements = take(deal_ == Deal::Pieces ? 1 : world.local_size());
    return StepVote{.has_batch = !elements.empty()};
  });
  if (!votes.any(&StepVote::has_batch)) return std::nullopt;
  std::vector<std::vector<Tensor>> dealt(parts_);  // [part][replica]
  if (deal_ == Deal::Pieces) {
    require(!elements.empty(),
            "[distribute] the data set of this worker ends before that of another one: all must "
            "read the same");
    const std::int64_t samples = elements.front().front().shape()[0];
    const std::vector<Piece> pieces = split_evenly(samples, world.size());
    for (int local = 0; local < world.local_size(); ++local) {
      const Piece& piece = pieces[static_cast<std::size_t>(world.rank(local))];
      for (std::size_t p = 0; p < parts_; ++p) {
        dealt[p].push_back(elements.front()[p].rows(piece.begin, piece.size()));
      }
    }
  } else {
    while (std::ssize(elements) < world.local_size())
      elements.push_back(element_without_rows(spec_));
    for (const Element& element : elements) {
      for (std::size_t p = 0; p < parts_; ++p) dealt[p].push_back(element[p]);
    }
  }
  std::vector<PerReplica> parts;
  for (std::vector<Tensor>& values : dealt) parts.emplace_back(std::move(values));
  return parts;
}

Dataset DistributedBatches::step_batches() const {
  const int replicas = world_of(strategy_).local_size();
  if (deal_ == BatchDistributor::Deal::Pieces || replicas == 1) return batches_;
  const Shape first = batches_.element_spec().front().shape;
  require(first.rank() > 0, "[distribute] the data set of a worker must be batched");
  return batches_.unbatch().batch(first[0] * replicas).prefetch();
}

bool DistributedBatches::own_rows_only() const {
  return deal_ == BatchDistributor::Deal::Batches && world_of(strategy_).workers() > 1;
}

DistributedBatches::operator ValidationData() const {
  require(!own_rows_only(),
          "[fit] validation_data has another data set on every worker: give one that all workers "
          "read, or call evaluate");
  return step_batches();
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
  return fit_model(*this, {batches.step_batches(), batches.own_rows_only()}, options);
}

Logs Model::evaluate(const DistributedBatches& batches, const EvaluateOptions& options) {
  expect_own(batches, *this, "evaluate");
  return evaluate_model(*this, {batches.step_batches(), batches.own_rows_only()}, options);
}

Tensor Model::predict(const DistributedBatches& batches, const PredictOptions& options) {
  expect_own(batches, *this, "predict");
  return predict_model(*this, {batches.step_batches(), batches.own_rows_only()}, options).front();
}

}  // namespace lockstep

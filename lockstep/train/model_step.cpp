#include "lockstep/train/model_step.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>

#include "lockstep/autodiff/gradients.h"
#include "lockstep/base/error.h"
#include "lockstep/graph/ops/collective.h"
#include "lockstep/graph/ops/elementwise.h"
#include "lockstep/graph/ops/random.h"

namespace lockstep {
namespace {

constexpr const char* kLabels = "y";
constexpr const char* kSampleWeight = "sample_weight";
constexpr const char* kLossSum = "loss_sum";
constexpr const char* kWeight = "weight";

std::string input_name(std::size_t i) {
  return fmt::format("x{}", i);
}
std::string output_name(std::size_t i) {
  return fmt::format("output{}", i);
}

// The loss including regularisation.
LossPair full_loss(Graph& graph, const StepRecipe& recipe, Value labels, Value predictions,
                   Value sample_weight) {
  LossPair pair = recipe.loss(labels, predictions, sample_weight);
  Graph::NameScope scope(graph, "regularization");
  for (const Value& loss : recipe.network.losses(graph)) {
    pair.sum = pair.sum + pair.weight * loss;
  }
  return pair;
}

void update_metrics(const StepRecipe& recipe, const LossPair& loss, Value labels, Value predictions,
                    Value sample_weight) {
  recipe.loss_mean->update(loss.sum, loss.weight, {});
  for (const Metric& metric : recipe.metrics) metric->update(labels, predictions, {});
  for (const Metric& metric : recipe.weighted_metrics) {
    metric->update(labels, predictions, sample_weight);
  }
}

void write_update(Graph& graph, const StepRecipe& recipe, const LossPair& loss,
                  std::int64_t global_batch) {
  const std::vector<VariableRef> parameters = recipe.network.trainable_variables();
  require(!parameters.empty(),
          "[fit] the model has no trainable variables: add layers that have some, or make some of "
          "its layers trainable and compile again");
  std::vector<Value> targets;
  for (const VariableRef& parameter : parameters) targets.push_back(graph.variable(parameter));
  const LossPair scaled = recipe.optimizer.scale(loss, global_batch);
  const std::vector<Value> sums = gradients(scaled.sum, targets);
  recipe.optimizer.apply(graph, parameters, sums, scaled.weight);
}

}  // namespace

Graph trace_step(const StepRecipe& recipe, const ModelStep& step) {
  Graph graph;
  std::vector<Value> inputs;
  for (std::size_t i = 0; i < step.inputs.size(); ++i) {
    inputs.push_back(graph.input(input_name(i), step.inputs[i]));
  }
  const bool training = step.mode == StepMode::Train;
  recipe.network.ensure_built(step.inputs);
  const std::vector<Value> outputs =
      recipe.network.call_all(inputs, {.training = training, .seed = recipe.seed});
  if (step.mode == StepMode::Predict) {
    for (std::size_t i = 0; i < outputs.size(); ++i) graph.output(output_name(i), outputs[i]);
    return graph;
  }

  require(outputs.size() == 1,
          "[fit] the model has {} outputs, and a loss is of one: train it with a Function",
          outputs.size());
  const Value labels = graph.input(kLabels, step.labels);
  Value sample_weight;
  if (step.weighted) {
    sample_weight = graph.input(kSampleWeight, {DType::F32, Shape{step.inputs.front().shape[0]}});
  }
  const LossPair loss = full_loss(graph, recipe, labels, outputs[0], sample_weight);
  update_metrics(recipe, loss, labels, full_precision(outputs[0]), sample_weight);
  if (training) write_update(graph, recipe, loss, step.global_batch);
  graph.output(kLossSum, loss.sum);
  graph.output(kWeight, loss.weight);
  return graph;
}

ModelStep Batch::step(StepMode mode) const {
  ModelStep step{.mode = mode, .inputs = {}};
  for (const Tensor& input : inputs) step.inputs.push_back({input.dtype(), input.shape()});
  if (mode == StepMode::Predict) return step;
  step.labels = {labels.dtype(), labels.shape()};
  step.weighted = sample_weight.defined();
  return step;
}

std::int64_t Batch::global_size() const {
  if (rows_of_worker.empty()) return size();
  return std::accumulate(rows_of_worker.begin(), rows_of_worker.end(), std::int64_t{0});
}

std::vector<Piece> split_workers_rows(const World& world, std::span<const std::int64_t> rows) {
  const std::int64_t all = std::accumulate(rows.begin(), rows.end(), std::int64_t{0});
  std::vector<Piece> even = split_evenly(all, world.size());
  std::vector<Piece> own;
  bool same = true;
  std::int64_t begin = 0;
  for (int worker = 0; worker < world.workers(); ++worker) {
    const std::int64_t count = rows[static_cast<std::size_t>(worker)];
    const std::size_t first = own.size();
    for (const Piece& piece : split_evenly(count, world.ranks_of(worker))) {
      own.push_back({begin + piece.begin, begin + piece.end});
    }
    begin += count;
    same = same && even[first].begin == begin - count && even[own.size() - 1].end == begin;
  }
  return same ? even : own;
}

StepRequest request_step(const World& world, const Optimizer& optimizer, ModelStep step,
                         std::span<const Piece> pieces) {
  ensure(std::ssize(pieces) == world.size(), "{} pieces for {} ranks", pieces.size(), world.size());
  if (step.mode == StepMode::Train && !optimizer.loss_scale_variables().empty()) {
    step.global_batch = pieces.back().end;
  }
  StepRequest request{.step = std::move(step),
                      .signatures = {},
                      .pieces = {},
                      .all_pieces = {pieces.begin(), pieces.end()}};
  for (int local = 0; local < world.local_size(); ++local) {
    const Piece& piece = pieces[static_cast<std::size_t>(world.rank(local))];
    StepSignature signature;
    signature.variant =
        fmt::format("{} {}", static_cast<int>(request.step.mode), request.step.global_batch);
    const auto add = [&](std::string name, const ValueType& whole) {
      signature.inputs.push_back(
          {std::move(name), {whole.dtype, whole.shape.with(0, piece.size())}});
    };
    for (std::size_t i = 0; i < request.step.inputs.size(); ++i) {
      add(input_name(i), request.step.inputs[i]);
    }
    if (request.step.mode != StepMode::Predict) add(kLabels, request.step.labels);
    if (request.step.weighted) add(kSampleWeight, {DType::F32, Shape{piece.size()}});
    request.signatures.push_back(std::move(signature));
    request.pieces.push_back(piece);
  }
  return request;
}

namespace {

// The graph of one rank for a request.
Graph trace_rank(const StepRecipe& recipe, const StepRequest& request,
                 const StepSignature& signature) {
  ModelStep step = request.step;
  for (std::size_t i = 0; i < step.inputs.size(); ++i) step.inputs[i] = signature.inputs[i].type;
  if (step.mode != StepMode::Predict) step.labels = signature.inputs[step.inputs.size()].type;
  return trace_step(recipe, step);
}

}  // namespace

CompiledStep& compile_step(StepCache& cache, Session& session, const StepRecipe& recipe,
                           const StepRequest& request, std::optional<bool> missing) {
  const auto trace = [&](const StepSignature& signature) {
    return trace_rank(recipe, request, signature);
  };
  return cache.get(session, {.trace = trace, .precision = recipe.precision, .labels = kLabels},
                   request.signatures, request.pieces, missing);
}

std::vector<Plan> plan_step(Session& session, const StepRecipe& recipe,
                            const StepRequest& request) {
  std::vector<CompileRequest> requests;
  for (int local = 0; local < session.local_size(); ++local) {
    requests.push_back(
        {.rank = local,
         .graph = trace_rank(recipe, request, request.signatures[static_cast<std::size_t>(local)]),
         .precision = recipe.precision});
  }
  return session.plan(std::move(requests));
}

void run_step(CompiledStep& step, Session& session, const Batch& batch) {
  step.run(session, [&](int local, RankStep& rank) {
    const std::int64_t first_row =
        step.pieces[static_cast<std::size_t>(local)].begin - batch.first_row;
    std::size_t place = 0;
    for (const Tensor& input : batch.inputs) rank.feed(place++, input, first_row);
    if (place < rank.signature().inputs.size()) rank.feed(place++, batch.labels, first_row);
    if (place < rank.signature().inputs.size()) rank.feed(place, batch.sample_weight, first_row);
  });
}

void expect_batches(const char* caller, const Shape& input, const Shape& labels) {
  require(input.rank() > 0 && labels.rank() > 0,
          "[{}] elements of the data set are single samples (input {}, labels {}): call .batch(n) "
          "on the data set",
          caller, input, labels);
}

Batch split_element(std::span<const Tensor> element, std::size_t input_count, StepMode mode,
                    const char* caller) {
  const std::size_t given = element.size();
  if (mode == StepMode::Predict) {
    require(given >= input_count && given <= input_count + 2,
            "[{}] the model has {} inputs, but an element of the data set has {} parts", caller,
            input_count, given);
  } else {
    require(given == input_count + 1 || given == input_count + 2,
            "[{}] an element of the data set must have {} parts ({} inputs and labels), or one "
            "more for sample weights; it has {}",
            caller, input_count + 1, input_count, given);
  }
  Batch batch;
  batch.inputs.assign(element.begin(), element.begin() + static_cast<std::ptrdiff_t>(input_count));
  if (mode != StepMode::Predict) {
    batch.labels = element[input_count];
    if (given == input_count + 2) batch.sample_weight = element[input_count + 1];
  }

  expect_batches(caller, batch.inputs.front().shape(),
                 batch.labels.defined() ? batch.labels.shape() : batch.inputs.front().shape());
  const std::int64_t size = batch.size();
  const auto expect_size = [&](const Tensor& tensor, const std::string& what) {
    require(tensor.shape().rank() > 0 && tensor.shape()[0] == size,
            "[{}] input 0 has {} samples, but {} is {}: give both for the same samples, and call "
            ".batch(n) on a data set whose elements are single samples",
            caller, size, what, tensor.shape());
  };
  for (std::size_t i = 1; i < input_count; ++i) {
    expect_size(batch.inputs[i], fmt::format("input {}", i));
  }
  if (batch.labels.defined()) expect_size(batch.labels, "the labels' shape");
  if (batch.sample_weight.defined()) {
    expect_size(batch.sample_weight, "the sample weights' shape");
    require(batch.sample_weight.elements() == size,
            "[{}] sample weights must be ({}), one a sample; they are {}", caller, size,
            batch.sample_weight.shape());
    batch.sample_weight = batch.sample_weight.cast(DType::F32).reshaped({size});
  }
  return batch;
}

}  // namespace lockstep

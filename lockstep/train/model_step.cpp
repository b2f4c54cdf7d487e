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
#include "lockstep/graph/ops/shape.h"
#include "lockstep/graph/ops/state.h"
#include "lockstep/graph/ops/update.h"

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

Gradients gradients_of(Graph& graph, const StepRecipe& recipe, const LossPair& loss,
                       std::int64_t global_batch) {
  Gradients found{.parameters = recipe.network.trainable_variables(), .sums = {}, .weight = {}};
  require(!found.parameters.empty(),
          "[fit] the model has no trainable variables: add layers that have some, or make some of "
          "its layers trainable and compile again");
  std::vector<Value> targets;
  for (const VariableRef& parameter : found.parameters) {
    targets.push_back(graph.variable(parameter));
  }
  const LossPair scaled = recipe.optimizer.scale(loss, global_batch);
  found.sums = gradients(scaled.sum, targets);
  found.weight = scaled.weight;
  return found;
}

// What the outputs kScaledWeightOutput … are.
struct Norms {
  Value scaled_weight;
  Value own;
  Value reduced;
};

std::optional<Norms> write_update(Graph& graph, const StepRecipe& recipe, const LossPair& loss,
                                  const ModelStep& step) {
  const Gradients own = gradients_of(graph, recipe, loss, step.global_batch);
  const std::vector<Value> reduced =
      recipe.optimizer.apply(graph, own.parameters, own.sums, own.weight);
  if (!step.norms) return std::nullopt;
  Graph::NameScope scope(graph, "noise_scale");
  return Norms{.scaled_weight = own.weight,
               .own = gradient_norm(own.sums),
               .reduced = gradient_norm(reduced)};
}

Value rows_between(Value x, std::int64_t begin, std::int64_t count) {
  Ints first(static_cast<std::size_t>(x.shape().rank()), 0);
  Ints size(first.size(), -1);
  first.front() = begin;
  size.front() = count;
  return slice(x, std::move(first), std::move(size));
}

// Without the assignments (moving averages of batch norm), and with the random numbers that samples
// from `second` on, of which the first node is `from`, have in the whole batch.
Graph without_effects(const Graph& graph, std::size_t from, std::int64_t second) {
  Rewriter rewriter(graph);
  ValueId state = -1;
  Value later;
  for (std::size_t n = 0; n < graph.nodes().size(); ++n) {
    const Node& node = graph.nodes()[n];
    if (is_assignment(node)) continue;
    const bool reads_state = state >= 0 && std::ranges::count(node.inputs, state) > 0;
    if (n < from || !reads_state) {
      rewriter.copy(node);
      if (node.op == Op::Input && node.name == kRandomStateInput) state = node.outputs[0];
      continue;
    }
    if (!later.defined()) {
      Tensor offset(DType::I64, {2});
      offset.values<std::int64_t>()[0] = 0;
      offset.values<std::int64_t>()[1] = second;
      later = rewriter.map(state) + rewriter.target().constant(offset);
    }
    std::vector<Value> inputs;
    for (const ValueId id : node.inputs) {
      inputs.push_back(id == state ? later : rewriter.map(id));
    }
    rewriter.copy_as(node, inputs, node.attrs);
  }
  return rewriter.finish();
}

// The gradients of both halves of a batch, one after the other, and their norms.
Graph trace_measure(const StepRecipe& recipe, const ModelStep& step) {
  Graph graph;
  std::vector<Value> whole;
  for (std::size_t i = 0; i < step.inputs.size(); ++i) {
    whole.push_back(graph.input(input_name(i), step.inputs[i]));
  }
  const std::int64_t samples = step.inputs.front().shape[0];
  const Value labels = graph.input(kLabels, step.labels);
  Value weights;
  if (step.weighted) weights = graph.input(kSampleWeight, {DType::F32, Shape{samples}});
  random_state(graph);  // before both, as each of them may be the first to read it
  recipe.network.ensure_built(step.inputs);

  const std::int64_t half = first_half(samples);
  std::size_t second_node = 0;
  std::vector<Gradients> halves;
  for (const auto& [begin, count] : {std::pair(std::int64_t{0}, half), {half, samples - half}}) {
    second_node = graph.nodes().size();
    const Graph::NameScope scope(graph, begin == 0 ? "first_half" : "second_half");
    std::vector<Value> inputs;
    for (const Value& input : whole) inputs.push_back(rows_between(input, begin, count));
    const std::vector<Value> outputs =
        recipe.network.call_all(inputs, {.training = true, .seed = recipe.seed});
    const LossPair loss =
        full_loss(graph, recipe, rows_between(labels, begin, count), outputs[0],
                  weights.defined() ? rows_between(weights, begin, count) : Value());
    halves.push_back(gradients_of(graph, recipe, loss, step.global_batch));
  }
  std::vector<Value> sums;
  for (std::size_t i = 0; i < halves[0].sums.size(); ++i) {
    sums.push_back(halves[0].sums[i] + halves[1].sums[i]);
  }
  graph.output("weight0", halves[0].weight);
  graph.output("weight1", halves[1].weight);
  graph.output("norm0", global_norm(halves[0].sums));
  graph.output("norm1", global_norm(halves[1].sums));
  graph.output("norm", global_norm(sums));
  return without_effects(graph, second_node, half);
}

}  // namespace

Graph trace_step(const StepRecipe& recipe, const ModelStep& step) {
  if (step.mode == StepMode::Measure) return trace_measure(recipe, step);
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
  std::optional<Norms> norms;
  if (training) norms = write_update(graph, recipe, loss, step);
  graph.output(kLossSum, loss.sum);
  graph.output(kWeight, loss.weight);
  if (norms) {
    graph.output("scaled_weight", norms->scaled_weight);
    graph.output("own_norm", norms->own);
    graph.output("reduced_norm", norms->reduced);
  }
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

namespace {

// The number of micro-batches of which at least one rank has rows.
std::int64_t micro_batches_with_rows(std::span<const Piece> pieces, std::int64_t accumulate) {
  std::int64_t most = 1;
  for (const Piece& piece : pieces) {
    if (piece.size() == 0) continue;
    const std::int64_t rows = (piece.size() + accumulate - 1) / accumulate;
    most = std::max(most, (piece.size() + rows - 1) / rows);
  }
  return most;
}

// The rows of each of a piece's micro-batches, as split_evenly divides it.
Piece micro_batch(const Piece& piece, std::int64_t accumulate, std::int64_t number) {
  const std::int64_t rows = (piece.size() + accumulate - 1) / accumulate;
  return {std::min(piece.begin + number * rows, piece.end),
          std::min(piece.begin + (number + 1) * rows, piece.end)};
}

// A signature for other rows.
StepSignature with_rows(StepSignature signature, std::int64_t rows) {
  for (StepInput& input : signature.inputs) input.type.shape = input.type.shape.with(0, rows);
  return signature;
}

// Divides the pieces of a request into micro-batches.
void divide(StepRequest& request, std::int64_t accumulate) {
  const std::int64_t count = micro_batches_with_rows(request.all_pieces, accumulate);
  if (count == 1) return;
  const std::vector<StepSignature> whole = request.signatures;
  std::vector<std::vector<std::int64_t>> sizes;  // of all ranks, by kind: the same on all workers
  for (std::int64_t number = 0; number + 1 < count; ++number) {
    std::vector<std::int64_t> rows;
    for (const Piece& piece : request.all_pieces) {
      rows.push_back(micro_batch(piece, accumulate, number).size());
    }
    MicroBatches& all = request.micro_batches;
    const auto kind = static_cast<std::size_t>(std::ranges::find(sizes, rows) - sizes.begin());
    if (kind == sizes.size()) {
      sizes.push_back(std::move(rows));
      std::vector<StepSignature>& signatures = all.kinds.emplace_back();
      for (std::size_t i = 0; i < whole.size(); ++i) {
        const Piece own = micro_batch(request.pieces[i], accumulate, number);
        signatures.push_back(with_rows(whole[i], own.size()));
        signatures.back().form = MicroForm::Add;
      }
    }
    MicroBatches::Turn& turn = all.turns.emplace_back();
    turn.kind = kind;
    for (const Piece& piece : request.pieces) {
      turn.pieces.push_back(micro_batch(piece, accumulate, number));
    }
  }
  // Steps of other sizes that end in such a micro-batch are other steps.
  for (std::size_t i = 0; i < whole.size(); ++i) {
    const Piece& piece = request.pieces[i];
    StepSignature& last = request.signatures[i];
    last = with_rows(whole[i], piece.end - request.micro_batches.turns.back().pieces[i].end);
    last.form = MicroForm::Last;
    last.variant += fmt::format(" {}/{} of {}", accumulate, count, piece.size());
  }
}

}  // namespace

StepRequest request_step(const World& world, const Optimizer& optimizer, ModelStep step,
                         std::span<const Piece> pieces, std::int64_t accumulate) {
  ensure(std::ssize(pieces) == world.size(), "{} pieces for {} ranks", pieces.size(), world.size());
  const bool gradients = step.mode == StepMode::Train || step.mode == StepMode::Measure;
  if (gradients && !optimizer.loss_scale_variables().empty()) {
    step.global_batch = pieces.back().end;
  }
  StepRequest request{.step = std::move(step),
                      .signatures = {},
                      .pieces = {},
                      .all_pieces = {pieces.begin(), pieces.end()},
                      .micro_batches = {}};
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
  if (request.step.mode == StepMode::Train) divide(request, accumulate);
  return request;
}

StepRequest with_norms(StepRequest request) {
  request.step.norms = true;
  for (StepSignature& signature : request.signatures) signature.variant += " norms";
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
  return cache.get(session,
                   {.trace = trace,
                    .precision = recipe.precision,
                    .memory = recipe.memory,
                    .labels = kLabels,
                    .accumulators = recipe.accumulators},
                   request.signatures, request.pieces, missing, request.micro_batches);
}

StepPlans plan_step(Session& session, const StepRecipe& recipe, const StepRequest& request) {
  std::vector<std::vector<CompileRequest>> steps;
  const auto add = [&](std::span<const StepSignature> signatures) {
    std::vector<CompileRequest>& requests = steps.emplace_back();
    for (int local = 0; local < session.local_size(); ++local) {
      const StepSignature& signature = signatures[static_cast<std::size_t>(local)];
      requests.push_back(
          {.rank = local,
           .graph = trace_rank(recipe, request, signature),
           .precision = recipe.precision,
           .memory = recipe.memory,
           .accumulation = {.form = signature.form, .accumulators = recipe.accumulators}});
    }
  };
  add(request.signatures);
  for (const std::vector<StepSignature>& kind : request.micro_batches.kinds) add(kind);
  std::vector<std::vector<Plan>> all = session.plan_all(std::move(steps));
  StepPlans plans{.step = std::move(all.front()), .kinds = {}, .turns = {}};
  std::move(all.begin() + 1, all.end(), std::back_inserter(plans.kinds));
  for (const MicroBatches::Turn& turn : request.micro_batches.turns) {
    plans.turns.push_back(turn.kind);
  }
  return plans;
}

PlanBytes StepPlans::bytes_on(const Device& device, int local) const {
  const auto i = static_cast<std::size_t>(local);
  // The last micro-batch reads and changes all variables.
  PlanBytes bytes = lockstep::bytes_on(device, step[i]);
  for (const std::vector<Plan>& kind : kinds) {
    const PlanBytes other = lockstep::bytes_on(device, kind[i]);
    bytes.arena = std::max(bytes.arena, other.arena);
    bytes.input_output += other.input_output;
    bytes.constants += other.constants;
  }
  return bytes;
}

std::size_t StepPlans::accumulator_bytes(int local) const {
  const Graph& graph = step[static_cast<std::size_t>(local)].graph;
  std::size_t bytes = 0;
  for (const Node& node : graph.nodes()) {
    if (node.op == Op::Variable && Accumulators::is_one(*node.variable)) {
      bytes += graph.bytes(node.outputs[0]);
    }
  }
  return bytes;
}

void run_step(CompiledStep& step, Session& session, const Batch& batch,
              const CompiledStep::Between& between) {
  const auto feed = [&](int, RankStep& rank, const Piece& rows) {
    const std::int64_t first_row = rows.begin - batch.first_row;
    std::size_t place = 0;
    for (const Tensor& input : batch.inputs) rank.feed(place++, input, first_row);
    if (place < rank.signature().inputs.size()) rank.feed(place++, batch.labels, first_row);
    if (place < rank.signature().inputs.size()) rank.feed(place, batch.sample_weight, first_row);
  };
  step.run(session, feed, between);
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

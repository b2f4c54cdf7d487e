#include "lockstep/train/step.h"

#include <algorithm>
#include <cmath>
#include <cstring>

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

// The loss with the regularisers' share.
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

Tensor find_input(Executor& executor, const std::string& name) {
  return executor.has_input(name) ? executor.input(name) : Tensor();
}

// Whether a graph turns float labels into class numbers, as class_labels does for sparse losses and
// metrics.
bool reads_class_numbers(const Graph& graph) {
  for (const Node& node : graph.nodes()) {
    if (node.op != Op::Cast || graph.type(node.outputs[0]).dtype != DType::I64) continue;
    ValueId source = node.inputs[0];
    for (;;) {
      const Node& from = graph.producer(source);
      if (from.op != Op::Reshape && from.op != Op::Select) break;
      source = from.inputs[from.op == Op::Select ? 1 : 0];
    }
    const auto is_labels = [&](const auto& input) {
      return input.first == kLabels && input.second == source;
    };
    if (std::ranges::any_of(graph.inputs(), is_labels)) return true;
  }
  return false;
}

}  // namespace

Graph trace_step(const StepRecipe& recipe, const StepSignature& signature) {
  Graph graph;
  std::vector<Value> inputs;
  for (std::size_t i = 0; i < signature.inputs.size(); ++i) {
    inputs.push_back(graph.input(input_name(i), signature.inputs[i]));
  }
  const bool training = signature.mode == StepMode::Train;
  recipe.network.ensure_built(signature.inputs);
  const std::vector<Value> outputs =
      recipe.network.call_all(inputs, {.training = training, .seed = recipe.seed});
  if (signature.mode == StepMode::Predict) {
    for (std::size_t i = 0; i < outputs.size(); ++i) graph.output(output_name(i), outputs[i]);
    return graph;
  }

  require(outputs.size() == 1,
          "[fit] the model has {} outputs, and a loss is of one: train it with a Function",
          outputs.size());
  const Value labels = graph.input(kLabels, signature.labels);
  Value sample_weight;
  if (signature.weighted) {
    sample_weight =
        graph.input(kSampleWeight, {DType::F32, Shape{signature.inputs.front().shape[0]}});
  }
  const LossPair loss = full_loss(graph, recipe, labels, outputs[0], sample_weight);
  update_metrics(recipe, loss, labels, full_precision(outputs[0]), sample_weight);
  if (training) write_update(graph, recipe, loss, signature.global_batch);
  graph.output(kLossSum, loss.sum);
  graph.output(kWeight, loss.weight);
  return graph;
}

ReplicaStep::ReplicaStep(StepSignature signature, std::unique_ptr<Executor> executor,
                         bool class_numbers)
    : signature_(std::move(signature)),
      executor_(std::move(executor)),
      class_numbers_(class_numbers) {
  for (std::size_t i = 0; i < signature_.inputs.size(); ++i) {
    inputs_.push_back(find_input(*executor_, input_name(i)));
  }
  labels_ = find_input(*executor_, kLabels);
  sample_weight_ = find_input(*executor_, kSampleWeight);
  random_state_ = find_input(*executor_, kRandomStateInput);
  replica_ = find_input(*executor_, kReplicaInput);
  if (signature_.mode == StepMode::Predict) {
    for (std::size_t i = 0; i < plan().graph.outputs().size(); ++i) {
      outputs_.push_back(executor_->output(output_name(i)));
    }
  } else {
    loss_sum_ = executor_->output(kLossSum);
    weight_ = executor_->output(kWeight);
  }
}

void ReplicaStep::feed(const Batch& batch, const Piece& piece) {
  if (class_numbers_ && is_floating(batch.labels.dtype())) {
    expect_class_numbers(batch.labels.rows(piece.begin, piece.size()), piece.begin);
  }
  for (std::size_t i = 0; i < inputs_.size(); ++i) {
    put(input_name(i).c_str(), inputs_[i], batch.inputs[i], piece);
  }
  put(kLabels, labels_, batch.labels, piece);
  put(kSampleWeight, sample_weight_, batch.sample_weight, piece);
}

// The rows of a piece, from where they lie if the device reads them there, else copied.
void ReplicaStep::put(const char* name, Tensor& input, const Tensor& source, const Piece& piece) {
  if (!input.defined() || input.bytes() == 0) return;
  const std::size_t row = input.bytes() / static_cast<std::size_t>(piece.size());
  const std::size_t first = static_cast<std::size_t>(piece.begin) * row;
  if (executor_->lend(name, source.buffer(), source.offset() + first)) return;
  executor_->await_inputs();
  std::memcpy(input.raw(), source.raw() + first, input.bytes());
}

void ReplicaStep::run(std::int64_t step, std::int64_t first_row, int replica, Inputs inputs) {
  if (random_state_.defined() || replica_.defined()) executor_->await_inputs();
  if (random_state_.defined()) {
    const std::span<std::int64_t> state = random_state_.values<std::int64_t>();
    state[0] = step;
    state[1] = first_row;
  }
  if (replica_.defined()) replica_.values<std::int64_t>()[0] = replica;
  executor_->run(inputs);
}

void Step::run(Session& session, const Batch& batch) {
  const auto on_replica = [&](int r) {
    const auto i = static_cast<std::size_t>(r);
    {
      ScopedSpan span(session.track(r), "copy batch", SpanKind::Input);
      replicas[i]->feed(batch, pieces[i]);
    }
    run_piece(session, r, Inputs::Filled);
  };
  run_together(session, on_replica);
}

void Step::run_again(Session& session) {
  run_together(session, [&](int r) { run_piece(session, r, Inputs::AsBefore); });
}

void Step::run_piece(Session& session, int replica, Inputs inputs) {
  const auto i = static_cast<std::size_t>(replica);
  try {
    replicas[i]->run(session.step, pieces[i].begin, replica, inputs);
    runs[i] = replicas[i]->executor().runs();
  } catch (const DataError& error) {
    if (pieces.size() == 1) throw;
    fail<DataError>("rows {} to {} of the batch: {}", pieces[i].begin, pieces[i].end - 1,
                    error.what());
  }
}

template <class F>
void Step::run_together(Session& session, F&& f) {
  try {
    session.run(f);
  } catch (...) {
    session.mirror_again();
    throw;
  }
}

bool Step::fits(const Batch& batch) const {
  const StepSignature& own = replicas.front()->signature();
  const auto same = [](const ValueType& type, const Tensor& tensor) {
    return type.dtype == tensor.dtype() && type.shape.rank() == tensor.shape().rank() &&
           std::ranges::equal(type.shape.dims().subspan(1), tensor.shape().dims().subspan(1));
  };
  if (pieces.back().end != batch.size() || own.inputs.size() != batch.inputs.size()) return false;
  for (std::size_t i = 0; i < own.inputs.size(); ++i) {
    if (!same(own.inputs[i], batch.inputs[i])) return false;
  }
  if (own.mode == StepMode::Predict) return true;
  return same(own.labels, batch.labels) && own.weighted == batch.sample_weight.defined();
}

void Step::wait() const {
  for (std::size_t i = 0; i < replicas.size(); ++i) replicas[i]->executor().wait(runs[i]);
}

void Step::forget() const noexcept {
  for (std::size_t i = 0; i < replicas.size(); ++i) {
    try {
      replicas[i]->executor().wait(runs[i]);
    } catch (const Error&) {
      // Of a step behind one that failed.
    }
  }
}

double Step::loss_sum() const {
  double sum = 0;
  for (std::size_t i = 0; i < replicas.size(); ++i) sum += replicas[i]->loss_sum(runs[i]);
  return sum;
}

double Step::weight() const {
  double sum = 0;
  for (std::size_t i = 0; i < replicas.size(); ++i) sum += replicas[i]->weight(runs[i]);
  return sum;
}

std::vector<Tensor> Step::outputs() const {
  wait();
  std::vector<Tensor> wholes;
  for (std::size_t o = 0; o < replicas.front()->outputs(runs.front()).size(); ++o) {
    std::vector<Tensor> parts;
    for (std::size_t i = 0; i < replicas.size(); ++i) {
      parts.push_back(replicas[i]->outputs(runs[i])[o]);
    }
    wholes.push_back(parts.size() == 1 ? on_host(parts[0]) : concatenate_rows(parts, "predict"));
  }
  return wholes;
}

std::size_t Step::peak_bytes() const {
  std::size_t most = 0;
  for (const ReplicaStep* step : replicas) most = std::max(most, step->plan().peak_bytes());
  return most;
}

ReplicaStep* StepCache::find(int replica, const StepSignature& signature) {
  const auto found = std::ranges::find_if(steps_, [&](const Made& made) {
    return made.replica == replica && made.step.signature() == signature;
  });
  if (found == steps_.end()) return nullptr;
  steps_.splice(steps_.begin(), steps_, found);
  return &steps_.front().step;
}

Step& StepCache::get(Session& session, const StepRecipe& recipe, const StepSignature& whole,
                     std::span<const Piece> pieces) {
  ensure(std::ssize(pieces) == session.size(), "{} pieces for {} replicas", pieces.size(),
         session.size());
  if (generation_ != session.generation()) clear();
  step_.planned = false;
  step_.pieces.assign(pieces.begin(), pieces.end());
  step_.replicas.assign(pieces.size(), nullptr);
  step_.runs.assign(pieces.size(), 0);
  std::vector<ExecutorOrder> orders;
  std::vector<StepSignature> signatures;
  std::optional<PhaseScope> start;  // while a step is traced and planned
  for (int r = 0; r < session.size(); ++r) {
    const auto i = static_cast<std::size_t>(r);
    StepSignature signature = whole;
    if (whole.mode == StepMode::Train && !recipe.optimizer.loss_scale_variables().empty()) {
      signature.global_batch = whole.inputs.front().shape[0];
    }
    for (ValueType& input : signature.inputs) {
      input.shape = input.shape.with(0, pieces[i].size());
    }
    if (whole.mode != StepMode::Predict) {
      signature.labels.shape = whole.labels.shape.with(0, pieces[i].size());
    }
    step_.replicas[i] = find(r, signature);
    if (step_.replicas[i] != nullptr) continue;
    if (!start) start.emplace(session.phases(), Phase::Start);
    const auto same = std::ranges::find(signatures, signature);
    Graph graph = same == signatures.end()
                      ? trace_step(recipe, signature)
                      : clone(orders[static_cast<std::size_t>(same - signatures.begin())].graph);
    orders.push_back(
        {.replica = r, .graph = std::move(graph), .executor = {}, .precision = recipe.precision});
    signatures.push_back(std::move(signature));
  }
  if (!orders.empty()) {
    step_.planned = true;
    const bool class_numbers = reads_class_numbers(orders.front().graph);
    session.make_executors(orders);
    if (generation_ != session.generation()) clear();
    for (std::size_t i = 0; i < orders.size(); ++i) {
      steps_.push_front(
          {orders[i].replica,
           ReplicaStep(std::move(signatures[i]), std::move(orders[i].executor), class_numbers)});
      step_.replicas[static_cast<std::size_t>(orders[i].replica)] = &steps_.front().step;
    }
    const std::size_t most = kMost * pieces.size();
    while (steps_.size() > most) steps_.pop_back();
  }
  generation_ = session.generation();
  return step_;
}

void expect_class_numbers(const Tensor& labels, std::int64_t first_row) {
  if (!is_floating(labels.dtype())) return;
  constexpr double kLimit = 2147483648.0;
  dispatch(labels.dtype(), [&](auto zero) {
    using T = decltype(zero);
    const std::span<const T> values = labels.values<T>();
    for (std::size_t i = 0; i < values.size(); ++i) {
      const auto label = static_cast<double>(values[i]);
      if (std::trunc(label) == label && std::abs(label) < kLimit) continue;
      const std::int64_t row = static_cast<std::int64_t>(i) * labels.shape()[0] / labels.elements();
      fail<DataError>(
          "[labels] row {} of the batch has the label {}, which names no class: class numbers must "
          "be whole; correct the label, or use a loss for real targets",
          first_row + row, +values[i]);
    }
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

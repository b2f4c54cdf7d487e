#include "lockstep/train/model_impl.h"

#include "lockstep/base/error.h"
#include "lockstep/device/memory_error.h"
#include "lockstep/passes/precision.h"
#include "lockstep/train/memory_proposal.h"
#include "lockstep/train/step_memory.h"

namespace lockstep {

namespace {

// Whether a shape is the shape of a batch without its first axis.
bool is_sample_of(const Shape& shape, const Shape& batch) {
  if (shape.rank() + 1 != batch.rank()) return false;
  for (int axis = 0; axis < shape.rank(); ++axis) {
    if (shape[axis] != batch[axis + 1]) return false;
  }
  return true;
}

}  // namespace

ModelImpl& impl_of(const Model& model) {
  return *model.impl_;
}

bool is_chief(const Model& model) {
  return impl_of(model).session().world().chief();
}

Model model_of(std::shared_ptr<ModelImpl> impl) {
  return Model(std::move(impl));
}

Session& ModelImpl::session() {
  if (current == nullptr) current = new_session();
  return *current;
}

std::shared_ptr<Session> ModelImpl::new_session() const {
  return std::make_shared<Session>(SessionOptions{
      .world = options.strategy.defined() ? impl_of(options.strategy).world : nullptr,
      .device = options.device,
      .kernels = options.kernels,
      .seed = options.seed});
}

void ModelImpl::move_to(std::shared_ptr<Session> session) {
  const std::shared_ptr<Session> before = std::exchange(current, std::move(session));
  steps.clear();
  micro_batch.reset();
  balancer.reset();
  if (before == nullptr || before == current) return;
  if (before->world().newcomer()) return;  // it gets its values from the others
  current->take(*before, network->variables());
  if (!compiled) return;
  current->take(*before, options.optimizer.variables());
  current->take(*before, options.optimizer.loss_scale_variables());
  take_errors(*before);
  current->step = static_cast<std::int64_t>(current->get(options.optimizer.iterations()).item()) +
                  skipped_steps();
}

MemoryOptions memory_options(const CompileOptions& options) {
  MemoryOptions memory{.accumulate = options.accumulate,
                       .recompute = options.recompute,
                       .shard = options.shard,
                       .gather_bytes = options.gather_bytes,
                       .offload = offload_by_name("[compile]", options.offload),
                       .gradients = gradient_type_by_name("[compile]", options.gradient_dtype)};
  expect_valid("[compile]", memory);
  return memory;
}

StepRecipe ModelImpl::recipe() {
  return {.network = *network,
          .loss = options.loss,
          .optimizer = options.optimizer,
          .loss_mean = loss_mean,
          .metrics = options.metrics,
          .weighted_metrics = options.weighted_metrics,
          .seed = options.seed,
          .precision = precision_by_name("compile", options.precision),
          .memory = memory_options(options),
          .accumulators = &accumulators};
}

std::int64_t ModelImpl::skipped_steps() {
  const std::vector<VariableRef> state = options.optimizer.loss_scale_variables();
  return state.empty() ? 0 : static_cast<std::int64_t>(session().get(state[2]).item());
}

std::vector<Piece> ModelImpl::pieces_of(StepMode mode, const Batch& batch) {
  if (!batch.rows_of_worker.empty()) {
    return split_workers_rows(session().world(), batch.rows_of_worker);
  }
  const std::int64_t samples = batch.size();
  const int ranks = session().world().size();
  const bool balanced = mode == StepMode::Train && options.strategy.defined() &&
                        impl_of(options.strategy).balance == Balance::Auto;
  if (!balanced) return split_evenly(samples, ranks);
  if (!balancer) balancer.emplace(ranks);
  return balancer->split(samples);
}

const Plan& ModelImpl::plan_of(ModelStep step) {
  const std::vector<Piece> pieces =
      split_evenly(step.inputs.front().shape[0], session().world().size());
  const std::int64_t accumulate = accumulate_for(step, pieces, "plan");
  return step_for(request_step(session().world(), options.optimizer, std::move(step), pieces,
                               accumulate))
      .plan();
}

StepRequest ModelImpl::request_for(StepMode mode, const Batch& batch, const char* caller) {
  if (mode != StepMode::Predict) expect_compiled(caller);
  ModelStep step = batch.step(mode);
  for (std::size_t i = 0; i < built_for.size() && i < step.inputs.size(); ++i) {
    const Shape& shape = step.inputs[i].shape;
    require(!is_sample_of(shape, built_for[i].shape),
            "[{}] input {} is {}, a single sample: call .batch(n) on the data set, or give the "
            "tensor an axis of samples",
            caller, i, shape);
  }
  build(step.inputs);
  const std::vector<Piece> pieces = pieces_of(mode, batch);
  fit_into_memory(step, pieces);
  const std::int64_t accumulate = accumulate_for(step, pieces, caller);
  return request_step(session().world(), options.optimizer, std::move(step), pieces, accumulate);
}

void ModelImpl::fit_into_memory(const ModelStep& step, std::span<const Piece> pieces) {
  if (step.mode != StepMode::Train || options.fit_memory.empty()) return;
  std::optional<std::size_t> limit;
  if (options.fit_memory != "auto")
    limit = bytes_by_text("[compile] fit_memory", options.fit_memory);
  const MemoryProposal proposal =
      propose_memory(session().shared_world(), recipe(), step, pieces, limit);
  const MemoryCandidate* const best = proposal.choice.best();
  if (best == nullptr) fail<MemoryError>("[fit] {}", sentence_of(proposal));
  options.accumulate = best->options.accumulate;
  options.recompute = best->options.recompute;
  options.shard = best->options.shard;
  options.offload = best->options.offload == Offload::Optimizer ? "optimizer" : "none";
  options.fit_memory.clear();
  session().remark(best->options == memory_options({})
                       ? "the training step fits into memory as it is"
                       : fmt::format("chosen so that the training step fits into memory: {}",
                                     words_of(best->options)));
}

CompiledStep& ModelImpl::step_for(const StepRequest& request, std::optional<bool> missing) {
  try {
    return compile_step(steps, session(), recipe(), request, missing);
  } catch (const MemoryError& error) {
    // With several workers the others may have had room.
    if (request.step.mode != StepMode::Train || session().world().workers() > 1) throw;
    steps.clear();
    const MemoryProposal proposal =
        propose_memory(session().shared_world(), recipe(), request.step, request.all_pieces);
    fail<MemoryError>("{}. {}", error.what(), sentence_of(proposal));
  }
}

std::int64_t ModelImpl::accumulate_for(const ModelStep& step, std::span<const Piece> pieces,
                                       const char* caller) {
  if (step.mode != StepMode::Train) return 1;
  if (options.accumulate > 0) return options.accumulate;
  if (!micro_batch) {
    micro_batch = largest_micro_batch(session(), recipe(), step, pieces, {.caller = caller});
    const std::int64_t count = micro_batches_of(pieces, *micro_batch);
    session().remark(
        count == 1 ? "accumulate auto: the whole batch fits into memory; nothing is accumulated"
                   : fmt::format("accumulate auto: {} micro-batches of {} samples per replica fit "
                                 "into memory",
                                 count, *micro_batch));
  }
  return micro_batches_of(pieces, *micro_batch);
}

void ModelImpl::expect_compiled(const char* caller) const {
  require(compiled,
          "[{}] the model is not compiled: call compile({{.optimizer = ..., .loss = ...}}) first",
          caller);
}

void ModelImpl::build(std::span<const ValueType> inputs) {
  network->ensure_built(inputs);
  if (!built_for.empty()) return;
  own_variables();
  for (const ValueType& input : inputs) {
    built_for.push_back({input.dtype, input.shape.with(0, 1)});
  }
}

void ModelImpl::own_variables() {
  for (const VariableRef& variable : network->variables()) {
    if (variable->owner.expired()) variable->owner = weak_from_this();
  }
}

void ModelImpl::build_if_known() {
  const std::vector<ValueType> inputs = network->input_types();
  if (built_for.empty() && !inputs.empty()) build(inputs);
}

void ModelImpl::expect_built(const char* caller) {
  build_if_known();
  require(network->built(),
          "[{}] the model has no variables yet, since the shape of its input is not known: begin "
          "with an InputLayer, call build(shape), or fit first",
          caller);
}

std::vector<Metric> ModelImpl::metrics() const {
  std::vector<Metric> all = {loss_mean};
  all.insert(all.end(), options.metrics.begin(), options.metrics.end());
  all.insert(all.end(), options.weighted_metrics.begin(), options.weighted_metrics.end());
  return all;
}

std::vector<VariableRef> ModelImpl::metric_variables() const {
  std::vector<VariableRef> all;
  for (const Metric& metric : metrics()) {
    const std::vector<VariableRef> own = metric->variables();
    all.insert(all.end(), own.begin(), own.end());
  }
  return all;
}

void ModelImpl::reset_metrics() {
  for (const VariableRef& variable : metric_variables()) {
    session().set(variable, Tensor(variable->dtype, variable->shape));
  }
}

std::vector<Tensor> ModelImpl::metric_state() {
  std::vector<Tensor> state;
  for (const VariableRef& variable : metric_variables()) state.push_back(session().get(variable));
  return state;
}

void ModelImpl::set_metric_state(std::span<const Tensor> state) {
  std::size_t i = 0;
  for (const VariableRef& variable : metric_variables()) session().set(variable, state[i++]);
}

Logs ModelImpl::read_metrics() {
  Logs logs;
  for (const Metric& metric : metrics()) {
    std::vector<Tensor> state;
    for (const VariableRef& variable : metric->variables()) {
      state.push_back(session().get(variable));
    }
    logs.set(metric->name(), metric->result(state));
  }
  return logs;
}

Tensor weights_of(const Batch& batch, const std::map<std::int64_t, double>& class_weight) {
  if (class_weight.empty()) return batch.sample_weight;
  const std::int64_t size = batch.size();
  const Tensor& labels = batch.labels;
  const std::int64_t columns = size == 0 ? 1 : labels.elements() / size;
  require(columns > 1 || !is_floating(labels.dtype()) || labels.shape().rank() == 2,
          "[fit] class_weight needs labels that name a class; they are {} {}",
          name_of(labels.dtype()), labels.shape());
  if (columns == 1) expect_class_numbers(labels);
  Tensor weights =
      batch.sample_weight.defined() ? batch.sample_weight.clone() : Tensor(DType::F32, Shape{size});
  const bool fresh = !batch.sample_weight.defined();
  dispatch(labels.dtype(), [&](auto zero) {
    using T = decltype(zero);
    const std::span<const T> values = labels.values<T>();
    const std::span<float> target = weights.values<float>();
    for (std::int64_t n = 0; n < size; ++n) {
      // The class: the label itself or, for one-hot labels, the argmax of the row.
      std::int64_t label = 0;
      if (columns == 1) {
        label = static_cast<std::int64_t>(values[static_cast<std::size_t>(n)]);
      } else {
        for (std::int64_t c = 1; c < columns; ++c) {
          if (values[static_cast<std::size_t>(n * columns + c)] >
              values[static_cast<std::size_t>(n * columns + label)]) {
            label = c;
          }
        }
      }
      const auto found = class_weight.find(label);
      const auto weight = found == class_weight.end() ? 1.0f : static_cast<float>(found->second);
      float& slot = target[static_cast<std::size_t>(n)];
      slot = fresh ? weight : slot * weight;
    }
  });
  return weights;
}

Dataset samples_of(const std::vector<Tensor>& x, const Tensor& y, const Tensor& sample_weight,
                   const char* caller) {
  require(!x.empty() && x.front().defined() && x.front().shape().rank() > 0,
          "[{}] there is no input: x must have an axis of samples", caller);
  require(y.defined(), "[{}] there are no labels", caller);
  std::vector<Tensor> parts = x;
  parts.push_back(y);
  if (sample_weight.defined()) parts.push_back(sample_weight);
  const std::int64_t samples = x.front().shape()[0];
  for (const Tensor& part : parts) {
    require(part.shape().rank() > 0 && part.shape()[0] == samples,
            "[{}] x has {} samples, but a tensor of the shape {} is given with it", caller, samples,
            part.shape());
  }
  return Dataset::from_tensor_slices(std::move(parts));
}

}  // namespace lockstep

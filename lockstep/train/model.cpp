#include "lockstep/train/model.h"

#include <set>

#include "lockstep/base/error.h"
#include "lockstep/passes/precision.h"
#include "lockstep/train/model_impl.h"

namespace lockstep {

ValidationData::ValidationData(const Tensor& x, const Tensor& y, std::int64_t batch_size)
    : optional(samples_of({x}, y, {}, "fit").batch(batch_size)) {}

Model::Model(std::vector<Symbol> inputs, std::vector<Symbol> outputs, std::string name)
    : Model(Network::functional(std::move(inputs), std::move(outputs), std::move(name))) {}

Model::Model(const Symbol& input, const Symbol& output, std::string name)
    : Model(std::vector{input}, std::vector{output}, std::move(name)) {}

Model::Model(std::shared_ptr<Network> network) {
  require(network != nullptr, "[model] there is no network to make a model of");
  impl_ = std::make_shared<ModelImpl>(std::move(network));
}

Sequential::Sequential(std::vector<Layer> layers, std::string name)
    : Model(Network::sequential(std::move(layers), std::move(name))) {}

Sequential::Sequential(std::initializer_list<Layer> layers)
    : Sequential(std::vector<Layer>(layers)) {}

void Sequential::add(const Layer& layer) {
  impl_->network->add(layer);
  if (!impl_->network->built()) return;
  impl_->own_variables();
  impl_->steps.clear();
}

void Model::compile(CompileOptions options) {
  require(!impl_->progress, "[compile] fit is running on this model: compile before or behind it");
  require(options.optimizer.defined(), "[compile] there is no optimizer: give one, such as Adam()");
  require(options.loss.defined(),
          "[compile] there is no loss: give one, such as MeanSquaredError()");
  std::set<std::string> names = {"loss"};
  for (const auto* metrics : {&options.metrics, &options.weighted_metrics}) {
    for (const Metric& metric : *metrics) {
      require(names.insert(metric->name()).second,
              "[compile] two metrics are called '{}': name one of them otherwise ({{.name = ...}})",
              metric->name());
    }
  }
  require(!options.strategy.defined() || options.device == nullptr,
          "[compile] both a strategy and a device are given: a strategy has devices of its own");
  // What can overflow: activations and gradients in f16, or gradients on their way to other ranks.
  const std::optional<DType> small = precision_by_name("compile", options.precision);
  const bool overflows = small == DType::F16 || memory_options(options).gradients == DType::F16;
  if (overflows && options.optimizer.loss_scale_variables().empty()) {
    options.optimizer = options.optimizer.with_loss_scale(options.loss_scale);
  }
  impl_->options = std::move(options);
  impl_->compiled = true;
  impl_->loss_mean = LossMean("loss");
  impl_->balancer.reset();
  impl_->micro_batch.reset();
  if (impl_->current != nullptr) impl_->move_to(impl_->new_session());
}

void Model::compile(Optimizer optimizer, Loss loss, std::vector<Metric> metrics) {
  compile(
      {.optimizer = std::move(optimizer), .loss = std::move(loss), .metrics = std::move(metrics)});
}

bool Model::compiled() const {
  return impl_->compiled;
}

void Model::build(Shape sample, DType dtype) {
  std::vector<std::int64_t> dims = {1};
  dims.insert(dims.end(), sample.dims().begin(), sample.dims().end());
  impl_->build(std::vector{ValueType{dtype, Shape(std::move(dims))}});
}

bool Model::built() const {
  impl_->build_if_known();
  return impl_->network->built();
}

Value Model::operator()(Value input, const CallOptions& options) const {
  return (*this)(std::span<const Value>(&input, 1), options);
}

Value Model::operator()(std::span<const Value> inputs, const CallOptions& options) const {
  const Value output = impl_->network->trace(inputs, options);
  impl_->own_variables();
  return output;
}

Symbol Model::operator()(const Symbol& input) const {
  return Layer(impl_->network)(input);
}

Model::operator Layer() const {
  return Layer(impl_->network);
}

const std::shared_ptr<Network>& Model::network() const {
  return impl_->network;
}

std::vector<VariableRef> Model::variables() const {
  impl_->build_if_known();
  return impl_->network->variables();
}

std::vector<VariableRef> Model::trainable_variables() const {
  impl_->build_if_known();
  return impl_->network->trainable_variables();
}

Tensor Model::value(const VariableRef& variable) const {
  return impl_->session().get(variable);
}

void Model::set_value(const VariableRef& variable, const Tensor& value) {
  impl_->session().set(variable, value);
}

std::vector<Tensor> Model::weights() const {
  impl_->expect_built("weights");
  std::vector<Tensor> weights;
  for (const VariableRef& variable : variables()) weights.push_back(value(variable));
  return weights;
}

void Model::set_weights(const std::vector<Tensor>& weights) {
  impl_->expect_built("set_weights");
  const std::vector<VariableRef> targets = variables();
  require(weights.size() == targets.size(),
          "[set_weights] {} tensors are given, but the model has {} variables", weights.size(),
          targets.size());
  for (std::size_t i = 0; i < targets.size(); ++i) {
    require(weights[i].dtype() == targets[i]->dtype && weights[i].shape() == targets[i]->shape,
            "[set_weights] {} is {} {} and cannot take {} {}", targets[i]->name,
            name_of(targets[i]->dtype), targets[i]->shape, name_of(weights[i].dtype()),
            weights[i].shape());
  }
  for (std::size_t i = 0; i < targets.size(); ++i) set_value(targets[i], weights[i]);
}

std::int64_t Model::parameter_count() const {
  std::int64_t count = 0;
  for (const VariableRef& variable : variables()) count += variable->shape.elements();
  return count;
}

std::string Model::summary() const {
  impl_->build_if_known();
  return impl_->network->summary(impl_->built_for);
}

double Model::learning_rate() const {
  impl_->expect_compiled("learning_rate");
  const Optimizer& optimizer = impl_->options.optimizer;
  if (const VariableRef rate = optimizer.learning_rate()) return value(rate).item();
  return optimizer.schedule().at(static_cast<std::int64_t>(value(optimizer.iterations()).item()));
}

std::optional<double> Model::loss_scale() const {
  const std::vector<VariableRef> state = impl_->options.optimizer.loss_scale_variables();
  return state.empty() ? std::nullopt : std::optional(value(state[0]).item());
}

void Model::set_learning_rate(double rate) {
  impl_->expect_compiled("set_learning_rate");
  const Optimizer& optimizer = impl_->options.optimizer;
  const VariableRef variable = optimizer.learning_rate();
  require(variable != nullptr,
          "[set_learning_rate] the optimizer {} takes its rate from the schedule '{}': compile it "
          "with a constant rate to set it by hand",
          optimizer.name(), optimizer.schedule().name());
  set_value(variable, Tensor::scalar(static_cast<float>(rate)));
}

std::int64_t Model::step() const {
  return impl_->session().step;
}

void Model::stop_training() {
  impl_->stopping = true;
}

Logs Model::read_metrics() const {
  return impl_->read_metrics();
}

Logs BatchLogs::running() const {
  return model_.read_metrics();
}

Attribution Model::attribution() const {
  return impl_->attribution ? impl_->attribution() : Attribution();
}

std::optional<NoiseScale> Model::noise_scale() const {
  return impl_->noise_scale ? impl_->noise_scale() : std::nullopt;
}

const Recorder& Model::recorder() const {
  return impl_->session().recorder();
}

std::vector<std::string> Model::remarks() const {
  std::vector<std::string> all = impl_->session().remarks();
  const KernelLibrary* const chosen = impl_->options.kernels;
  const std::vector<std::string> of_kernels =
      (chosen != nullptr ? *chosen : impl_->session().world().kernels(0)).remarks();
  all.insert(all.end(), of_kernels.begin(), of_kernels.end());
  return all;
}

const Plan& Model::training_plan(const std::vector<ValueType>& inputs, const ValueType& labels) {
  impl_->expect_compiled("training_plan");
  return impl_->plan_of({.mode = StepMode::Train, .inputs = inputs, .labels = labels});
}

const Plan& Model::prediction_plan(const std::vector<ValueType>& inputs) {
  return impl_->plan_of({.mode = StepMode::Predict, .inputs = inputs});
}

}  // namespace lockstep

#include "lockstep/train/function.h"

#include <algorithm>

#include "lockstep/autodiff/gradients.h"
#include "lockstep/base/error.h"
#include "lockstep/graph/ops/elementwise.h"
#include "lockstep/graph/ops/random.h"
#include "lockstep/train/model_impl.h"

namespace lockstep {
namespace {

constexpr std::size_t kMostTraced = 8;

std::string argument_name(std::size_t i) {
  return fmt::format("argument{}", i);
}
std::string result_name(std::size_t i) {
  return fmt::format("result{}", i);
}

}  // namespace

Gradients gradients(const LossPair& loss, const std::vector<VariableRef>& parameters) {
  std::vector<Value> targets;
  for (const VariableRef& parameter : parameters) {
    targets.push_back(loss.sum.graph().variable(parameter));
  }
  return {.parameters = parameters, .sums = gradients(loss.sum, targets), .weight = loss.weight};
}

struct Function::Traced {
  std::vector<ValueType> signature;
  std::unique_ptr<Executor> executor;
  bool trains = false;
};

Function::Function(std::vector<Model> models, Body body)
    : models_(std::move(models)), body_(std::move(body)) {
  require(!models_.empty(), "[function] needs the model, or models, whose variables it uses");
  models_.front().impl().session();
  for (const Model& model : models_) {
    require(!model.impl().progress, "[function] fit is running on one of the models");
    if (model.impl().current != models_.front().impl().current) {
      model.impl().move_to(models_.front().impl().current);
    }
  }
}

Function::~Function() = default;
Function::Function(Function&&) noexcept = default;
Function& Function::operator=(Function&&) noexcept = default;

std::vector<Value> Function::results(const LossPair& loss) {
  return {loss.sum / loss.weight};
}

void Function::wrong_count(std::size_t takes, std::size_t given) {
  fail<UsageError>("[function] it takes {} arguments, {} are given", takes, given);
}

Tensor Function::first(std::vector<Tensor> results) {
  require(results.size() <= 1, "[function] it has {} results: call run to get them all",
          results.size());
  return results.empty() ? Tensor() : results.front();
}

Function::Traced& Function::traced(const std::vector<Tensor>& arguments) {
  Session& session = *session_;
  std::vector<ValueType> signature;
  for (const Tensor& argument : arguments) {
    require(argument.defined(), "[function] argument {} is an empty tensor", signature.size());
    signature.push_back({argument.dtype(), argument.shape()});
  }
  if (generation_ != session.generation()) traced_.clear();
  generation_ = session.generation();
  const auto found = std::ranges::find(traced_, signature, &Traced::signature);
  if (found != traced_.end()) {
    traced_.splice(traced_.begin(), traced_, found);
    return traced_.front();
  }

  Graph graph;
  std::vector<Value> values;
  for (std::size_t i = 0; i < signature.size(); ++i) {
    values.push_back(graph.input(argument_name(i), signature[i]));
  }
  const std::vector<Value> results = body_(values);
  for (std::size_t i = 0; i < results.size(); ++i) graph.output(result_name(i), results[i]);
  const bool updates = trains(graph);
  std::unique_ptr<Executor> executor = session.make_executor(std::move(graph));
  if (generation_ != session.generation()) traced_.clear();
  generation_ = session.generation();
  traced_.push_front({std::move(signature), std::move(executor), updates});
  if (traced_.size() > kMostTraced) traced_.pop_back();
  return traced_.front();
}

std::vector<Tensor> Function::run(const std::vector<Tensor>& arguments) {
  const std::shared_ptr<Session>& now = models_.front().impl().current;
  for (const Model& model : models_) {
    require(model.impl().current == now,
            "[function] one of its models was compiled again, or given to another function, since "
            "this function was made: make it anew");
  }
  if (session_ != now) {
    traced_.clear();
    session_ = now;
  }
  Session& session = *session_;
  session.device().enter();
  Traced& step = traced(arguments);
  Executor& executor = *step.executor;
  {
    ScopedSpan span(session.track(), "copy batch", SpanKind::Input);
    for (std::size_t i = 0; i < arguments.size(); ++i) {
      const std::string name = argument_name(i);
      if (executor.has_input(name)) executor.input(name).copy_from(arguments[i]);
    }
    if (executor.has_input(kRandomStateInput)) {
      Tensor state = executor.input(kRandomStateInput);
      state.values<std::int64_t>()[0] = session.step;
      state.values<std::int64_t>()[1] = 0;
    }
  }
  executor.run();
  if (step.trains) ++session.step;
  std::vector<Tensor> results;
  for (std::size_t i = 0; i < executor.plan().graph.outputs().size(); ++i) {
    const Tensor view = executor.output(result_name(i));
    results.emplace_back(view.dtype(), view.shape()).copy_from(view);
  }
  return results;
}

}  // namespace lockstep

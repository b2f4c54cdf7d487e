#include "lockstep/train/function.h"

#include <algorithm>

#include "lockstep/autodiff/gradients.h"
#include "lockstep/base/error.h"
#include "lockstep/graph/ops/collective.h"
#include "lockstep/graph/ops/elementwise.h"
#include "lockstep/graph/ops/random.h"
#include "lockstep/passes/precision.h"
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

// Read from where it lies if the device can, else copied; not at all where nothing depends on it.
void put(Executor& executor, const std::string& name, const Tensor& argument) {
  if (!executor.has_input(name) || argument.bytes() == 0) return;
  if (executor.lend(name, argument.buffer(), argument.offset())) return;
  executor.input(name).copy_from(argument);
}

}  // namespace

Gradients gradients(const LossPair& loss, const std::vector<VariableRef>& parameters) {
  require(!parameters.empty(),
          "[gradients] there are no variables to train: call the model, or build(shape), before "
          "trainable_variables(), and make some of its layers trainable");
  std::vector<Value> targets;
  for (const VariableRef& parameter : parameters) {
    targets.push_back(loss.sum.graph().variable(parameter));
  }
  return {.parameters = parameters, .sums = gradients(loss.sum, targets), .weight = loss.weight};
}

Value ReplicaContext::replica_id() const {
  return lockstep::replica_id(*graph_);
}

Value ReplicaContext::all_reduce(ReduceOp op, Value value) const {
  const Value sum = lockstep::all_reduce(value);
  if (op == ReduceOp::Sum) return sum;
  require(is_floating(value.dtype()), "[all_reduce] the mean of {}: cast it to floats first",
          value.type().str());
  return sum / static_cast<double>(replicas_);
}

// The step of one replica for arguments of these types.
struct Function::Traced {
  int replica = 0;
  std::vector<ValueType> signature;
  std::unique_ptr<Executor> executor;
  bool trains = false;
  bool loss = false;
  std::size_t results = 0;
};

Function::Function(std::vector<Model> models, Body body, const FunctionOptions& options)
    : models_(std::move(models)),
      body_(std::move(body)),
      precision_(precision_by_name("function", options.precision)) {
  require(!models_.empty(), "[function] needs the model, or models, whose variables it uses");
  models_.front().impl().session();
  for (const Model& model : models_) {
    require(!model.impl().progress, "[function] fit is running on one of the models");
    if (model.impl().current != models_.front().impl().current) {
      model.impl().move_to(models_.front().impl().current);
    }
  }
}

Function::Function(const Strategy& strategy, Body body, const FunctionOptions& options)
    : strategy_(strategy),
      body_(std::move(body)),
      precision_(precision_by_name("function", options.precision)) {
  require(strategy.defined(),
          "[function] the strategy is empty: make one, such as "
          "MirroredStrategy()");
}

Function::~Function() = default;
Function::Function(Function&&) noexcept = default;
Function& Function::operator=(Function&&) noexcept = default;

void Function::wrong_count(std::size_t takes, std::size_t given) {
  fail<UsageError>("[function] it takes {} arguments, {} are given", takes, given);
}

Tensor Function::first(std::vector<Tensor> results) {
  require(results.size() <= 1, "[function] it has {} results: call run to get them all",
          results.size());
  return results.empty() ? Tensor() : results.front();
}

Function::Traced* Function::find(int replica, const std::vector<ValueType>& signature) {
  const auto found = std::ranges::find_if(traced_, [&](const Traced& traced) {
    return traced.replica == replica && traced.signature == signature;
  });
  if (found == traced_.end()) return nullptr;
  traced_.splice(traced_.begin(), traced_, found);
  return &traced_.front();
}

// Made by a strategy: the models whose variables the trace uses come to live together, on the
// strategy's replicas.
void Function::settle_session(const Graph& graph) {
  for (const VariableRef& variable : graph.variables()) {
    const auto impl = std::dynamic_pointer_cast<Model::Impl>(variable->owner.lock());
    if (impl == nullptr) continue;
    const bool known = std::ranges::any_of(
        models_, [&](const Model& model) { return &model.impl() == impl.get(); });
    if (!known) models_.push_back(Model(impl));
  }
  // All functions of a strategy share one session: what one leaves in a variable, others find.
  std::shared_ptr<Session>& shared = strategy_.impl().session;
  if (shared == nullptr) {
    shared = std::make_shared<Session>(
        SessionOptions{.replicas = strategy_.impl().replicas,
                       .seed = models_.empty() ? 0 : models_.front().impl().options.seed});
  }
  session_ = shared;
  for (const Model& model : models_) {
    require(!model.impl().progress, "[function] fit is running on one of the models");
    if (model.impl().current != session_) model.impl().move_to(session_);
  }
}

// Traces and plans what the replicas need for these arguments and do not have yet.
void Function::trace_missing(const std::vector<PerReplica>& arguments) {
  const int replicas = strategy_.defined() ? strategy_.num_replicas_in_sync() : session_->size();
  std::vector<ExecutorOrder> orders;
  std::vector<Traced> made;
  for (int r = 0; r < replicas; ++r) {
    std::vector<ValueType> signature;
    for (const PerReplica& argument : arguments) {
      require(argument.defined() && argument.at(r).defined(),
              "[function] argument {} is an empty tensor", signature.size());
      signature.push_back({argument.at(r).dtype(), argument.at(r).shape()});
    }
    if (find(r, signature) != nullptr) continue;
    const auto same = std::ranges::find(made, signature, &Traced::signature);
    if (same != made.end()) {
      const auto i = static_cast<std::size_t>(same - made.begin());
      Traced copy{.replica = r,
                  .signature = signature,
                  .executor = {},
                  .trains = same->trains,
                  .loss = same->loss,
                  .results = same->results};
      orders.push_back(
          {.replica = r, .graph = clone(orders[i].graph), .executor = {}, .precision = precision_});
      made.push_back(std::move(copy));
      continue;
    }
    Graph graph;
    std::vector<Value> values;
    for (std::size_t i = 0; i < signature.size(); ++i) {
      values.push_back(graph.input(argument_name(i), signature[i]));
    }
    const Results results = body_(ReplicaContext(graph, replicas), values);
    for (std::size_t i = 0; i < results.values.size(); ++i) {
      graph.output(result_name(i), results.values[i]);
    }
    if (strategy_.defined()) settle_session(graph);
    made.push_back({.replica = r,
                    .signature = std::move(signature),
                    .executor = {},
                    .trains = trains(graph),
                    .loss = results.loss,
                    .results = results.values.size()});
    orders.push_back(
        {.replica = r, .graph = std::move(graph), .executor = {}, .precision = precision_});
  }
  if (orders.empty()) return;
  session_->make_executors(orders);
  if (generation_ != session_->generation()) traced_.clear();
  generation_ = session_->generation();
  for (std::size_t i = 0; i < made.size(); ++i) {
    made[i].executor = std::move(orders[i].executor);
    traced_.push_front(std::move(made[i]));
  }
  while (traced_.size() > kMostTraced * static_cast<std::size_t>(replicas)) traced_.pop_back();
}

std::vector<PerReplica> Function::run_replicas(const std::vector<PerReplica>& arguments) {
  if (session_ != nullptr && generation_ != session_->generation()) {
    traced_.clear();
    generation_ = session_->generation();
  }
  trace_missing(arguments);
  Session& session = *session_;
  std::vector<Traced*> steps;
  std::vector<std::int64_t> first_row{0};
  for (int r = 0; r < session.size(); ++r) {
    std::vector<ValueType> signature;
    for (const PerReplica& argument : arguments) {
      signature.push_back({argument.at(r).dtype(), argument.at(r).shape()});
    }
    steps.push_back(find(r, signature));
    const bool rows = !signature.empty() && signature.front().shape.rank() > 0;
    first_row.push_back(first_row.back() + (rows ? signature.front().shape[0] : 0));
  }
  std::vector<std::vector<Tensor>> results(steps.front()->results);
  for (std::vector<Tensor>& values : results) values.resize(steps.size());

  session.run([&](int r) {
    const auto place = static_cast<std::size_t>(r);
    Executor& executor = *steps[place]->executor;
    {
      ScopedSpan span(session.track(r), "copy batch", SpanKind::Input);
      executor.await_inputs();
      for (std::size_t i = 0; i < arguments.size(); ++i) {
        put(executor, argument_name(i), arguments[i].at(r));
      }
      if (executor.has_input(kRandomStateInput)) {
        Tensor state = executor.input(kRandomStateInput);
        state.values<std::int64_t>()[0] = session.step;
        state.values<std::int64_t>()[1] = first_row[place];
      }
      if (executor.has_input(kReplicaInput)) {
        executor.input(kReplicaInput).values<std::int64_t>()[0] = r;
      }
    }
    executor.run();
    executor.wait();
    for (std::size_t i = 0; i < results.size(); ++i) {
      results[i][place] = on_host(executor.output(result_name(i)));
    }
  });
  if (steps.front()->trains) ++session.step;
  std::vector<PerReplica> values;
  if (steps.front()->loss) {
    values.emplace_back(std::move(results[0]), std::move(results[1]));
  } else {
    for (std::vector<Tensor>& result : results) values.emplace_back(std::move(result));
  }
  return values;
}

std::vector<PerReplica> Function::run_on_replicas(const Strategy& strategy,
                                                  const std::vector<PerReplica>& arguments) {
  require(strategy_.defined() && strategy.defined() &&
              strategy.impl().replicas == strategy_.impl().replicas,
          "[run] the function was not made by this strategy: make it with strategy.function(…)");
  for (const Model& model : models_) {
    if (model.impl().current == session_) continue;
    // Compiled again, or trained elsewhere, since: its values come back.
    require(!model.impl().progress, "[run] fit is running on one of the models");
    model.impl().move_to(session_);
  }
  return run_replicas(arguments);
}

std::vector<Tensor> Function::run(const std::vector<Tensor>& arguments) {
  std::vector<PerReplica> given;
  for (const Tensor& argument : arguments) given.emplace_back(argument);
  std::vector<PerReplica> results;
  if (strategy_.defined()) {
    require(strategy_.num_replicas_in_sync() == 1,
            "[function] there are {} replicas: strategy.run gives each its own arguments",
            strategy_.num_replicas_in_sync());
    results = run_on_replicas(strategy_, given);
  } else {
    const std::shared_ptr<Session>& now = models_.front().impl().current;
    for (const Model& model : models_) {
      require(model.impl().current == now,
              "[function] one of its models was compiled again, or given to another function, "
              "since this function was made: make it anew");
    }
    require(now->size() == 1,
            "[function] the model lives on {} replicas: make the function with "
            "strategy.function(…), and run it with strategy.run",
            now->size());
    if (session_ != now) {
      traced_.clear();
      session_ = now;
    }
    results = run_replicas(given);
  }
  std::vector<Tensor> values;
  for (const PerReplica& result : results) {
    values.push_back(result.weights().empty() ? result.at(0)
                                              : Tensor(reduce_values(ReduceOp::Mean, result, 1)));
  }
  return values;
}

}  // namespace lockstep

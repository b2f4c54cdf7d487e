#include "lockstep/train/function.h"

#include <algorithm>
#include <cstring>

#include "lockstep/autodiff/gradients.h"
#include "lockstep/base/error.h"
#include "lockstep/graph/ops/collective.h"
#include "lockstep/graph/ops/elementwise.h"
#include "lockstep/passes/precision.h"
#include "lockstep/runtime/steps_in_flight.h"
#include "lockstep/train/model_impl.h"

namespace lockstep {
namespace {

std::string argument_name(std::size_t i) {
  return fmt::format("argument{}", i);
}
std::string result_name(std::size_t i) {
  return fmt::format("result{}", i);
}

// The results of a run. They are copied when they are read, or after the next step has been issued.
// An error in the run is kept and thrown again when they are read.
class RunResults final : public PendingResults {
 public:
  RunResults(CompiledStep step, std::size_t count) : step_(std::move(step)), values_(count) {}

  std::vector<Tensor> read(std::size_t result) override {
    finish();
    if (error_ != nullptr) std::rethrow_exception(error_);
    return values_[result];
  }
  // Waits for the run and copies its results. If the run failed, only the first call throws.
  void finish() {
    if (std::exchange(finished_, true)) return;
    try {
      step_.wait();
      for (std::size_t i = 0; i < values_.size(); ++i) {
        for (const Tensor& value : step_.outputs(i)) values_[i].push_back(on_host(value));
      }
    } catch (...) {
      error_ = std::current_exception();
      throw;
    }
  }

 private:
  CompiledStep step_;
  bool finished_ = false;
  std::vector<std::vector<Tensor>> values_;  // by result and local rank
  std::exception_ptr error_;
};

// The pieces of the local ranks in a batch that concatenates the rows of all ranks, and how many
// rows that has.
struct LocalPieces {
  std::vector<Piece> pieces;
  std::int64_t rows = 0;
};

LocalPieces pieces_of(World& world, std::span<const StepSignature> signatures) {
  std::vector<std::int64_t> rows;
  for (const StepSignature& signature : signatures) {
    const bool has_rows =
        !signature.inputs.empty() && signature.inputs.front().type.shape.rank() > 0;
    rows.push_back(has_rows ? signature.inputs.front().type.shape[0] : 0);
  }
  std::int64_t begin = 0;
  int rank = 0;
  LocalPieces found;
  const std::string_view mine(reinterpret_cast<const char*>(rows.data()),
                              rows.size() * sizeof(std::int64_t));
  for (const std::string& theirs : world.exchange(mine)) {
    for (std::size_t at = 0; at < theirs.size(); ++rank) {
      std::int64_t count = 0;
      std::memcpy(&count, theirs.data() + at, sizeof(count));
      if (rank < world.rank(0)) begin += count;
      found.rows += count;
      at += sizeof(count);
    }
  }
  for (std::int64_t count : rows) {
    found.pieces.push_back({begin, begin + count});
    begin += count;
  }
  return found;
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

// What was traced and compiled, and its session.
struct Function::State {
  // What is known about the trace for one signature, besides the graph.
  struct Traced {
    StepSignature signature;
    bool trains = false;
    bool loss = false;
    std::size_t results = 0;
  };

  explicit State(const FunctionOptions& options)
      : precision(precision_by_name("function", options.precision)),
        memory{.recompute = options.recompute,
               .shard = options.shard,
               .gather_bytes = options.gather_bytes,
               .offload = offload_by_name("[function]", options.offload),
               .gradients = gradient_type_by_name("[function]", options.gradient_dtype)},
        in_flight([](const CompiledStep&, const std::shared_ptr<RunResults>& results) {
          results->finish();
        }) {}
  // Results that have not been read yet outlive the function.
  ~State() {
    try {
      in_flight.finish();
    } catch (const std::exception&) {
      // The results keep the error.
    }
  }

  const Traced& traced(const StepSignature& signature) const {
    const auto found = std::ranges::find(traces, signature, &Traced::signature);
    ensure(found != traces.end(), "[function] a step runs that was never traced");
    return *found;
  }
  void move_to(std::shared_ptr<Session> to) {
    in_flight.finish();
    steps.clear();
    traces.clear();
    session = std::move(to);
  }

  std::optional<DType> precision;  // the 16-bit type, in mixed precision
  MemoryOptions memory;
  std::shared_ptr<Session> session;  // of the traced steps
  std::vector<Traced> traces;
  std::optional<Graph> first_graph;  // traced before there was a session
  StepCache steps;
  StepsInFlight<std::shared_ptr<RunResults>> in_flight;
};

// The signature of each local rank's arguments.
std::vector<StepSignature> signatures_of(const World& world,
                                         const std::vector<PerReplica>& arguments) {
  std::vector<StepSignature> signatures;
  for (int local = 0; local < world.local_size(); ++local) {
    StepSignature& signature = signatures.emplace_back();
    for (std::size_t i = 0; i < arguments.size(); ++i) {
      require(arguments[i].defined() && arguments[i].at(local).defined(),
              "[function] argument {} is an empty tensor", i);
      const Tensor& value = arguments[i].at(local);
      signature.inputs.push_back({argument_name(i), {value.dtype(), value.shape()}});
    }
  }
  return signatures;
}

Function::Function(std::vector<Model> models, Body body, const FunctionOptions& options)
    : models_(std::move(models)), body_(std::move(body)), state_(std::make_unique<State>(options)) {
  require(!models_.empty(), "[function] needs the model, or models, whose variables it uses");
  impl_of(models_.front()).session();
  for (const Model& model : models_) {
    require(!impl_of(model).progress, "[function] fit is running on one of the models");
    if (impl_of(model).current != impl_of(models_.front()).current) {
      impl_of(model).move_to(impl_of(models_.front()).current);
    }
  }
}

Function::Function(const Strategy& strategy, Body body, const FunctionOptions& options)
    : strategy_(strategy), body_(std::move(body)), state_(std::make_unique<State>(options)) {
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

// Calls the body for arguments of these types.
Graph Function::trace(const StepSignature& signature) {
  if (state_->first_graph) return std::move(*std::exchange(state_->first_graph, std::nullopt));
  Graph graph;
  std::vector<Value> values;
  for (const StepInput& input : signature.inputs) {
    values.push_back(graph.input(input.name, input.type));
  }
  const int replicas = strategy_.defined() ? strategy_.num_replicas_in_sync() : 1;
  const Results results = body_(ReplicaContext(graph, replicas), values);
  for (std::size_t i = 0; i < results.values.size(); ++i) {
    graph.output(result_name(i), results.values[i]);
  }
  state_->traces.push_back({.signature = signature,
                            .trains = trains(graph) && signature.form != MicroForm::Add,
                            .loss = results.loss,
                            .results = results.values.size()});
  if (strategy_.defined()) settle_session(graph);
  return graph;
}

// For a function made by a strategy: moves the models whose variables the trace uses to the
// strategy's session.
void Function::settle_session(const Graph& graph) {
  for (const VariableRef& variable : graph.variables()) {
    const auto impl = std::dynamic_pointer_cast<ModelImpl>(variable->owner.lock());
    if (impl == nullptr) continue;
    const bool known = std::ranges::any_of(
        models_, [&](const Model& model) { return &impl_of(model) == impl.get(); });
    if (!known) models_.push_back(model_of(impl));
  }
  // All functions of a strategy share one session, so that they see the same variables.
  std::shared_ptr<Session>& shared = impl_of(strategy_).session;
  if (shared == nullptr) {
    shared = std::make_shared<Session>(
        SessionOptions{.world = impl_of(strategy_).world,
                       .seed = models_.empty() ? 0 : impl_of(models_.front()).options.seed});
  }
  state_->session = shared;
  for (const Model& model : models_) {
    require(!impl_of(model).progress, "[function] fit is running on one of the models");
    if (impl_of(model).current != shared) impl_of(model).move_to(shared);
  }
}

std::vector<PerReplica> Function::run_replicas(const std::vector<PerReplica>& arguments,
                                               MicroRun& how) {
  State& state = *state_;
  World& world = strategy_.defined() ? *impl_of(strategy_).world : state.session->world();
  std::vector<StepSignature> signatures = signatures_of(world, arguments);
  for (StepSignature& signature : signatures) signature.form = how.form;
  if (state.session == nullptr) {
    Graph graph = trace(signatures.front());  // creates the session
    state.first_graph = std::move(graph);
  }
  Session& session = *state.session;
  // The forms of a step that accumulates take turns.
  const bool in_turns = how.accumulators != nullptr && state.steps.holds(session, signatures);
  if (!in_turns) state.in_flight.finish_unless(signatures);
  if (state.steps.stale(session)) state.in_flight.finish();
  const auto trace_rank = [this](const StepSignature& signature) { return trace(signature); };
  LocalPieces batch = pieces_of(world, signatures);
  how.rows = batch.rows;
  for (Piece& piece : batch.pieces) {
    piece = {piece.begin + how.first_row, piece.end + how.first_row};
  }
  CompiledStep& step = state.steps.get(session,
                                       {.trace = trace_rank,
                                        .precision = state.precision,
                                        .memory = state.memory,
                                        .accumulators = how.accumulators,
                                        .sum_outputs = false},
                                       signatures, batch.pieces);
  step.accumulated = how.accumulated;
  step.run(session, [&](int local, RankStep& rank, const Piece&) {
    for (std::size_t i = 0; i < arguments.size(); ++i) rank.feed(i, arguments[i].at(local));
  });
  const State::Traced& traced = state.traced(signatures.front());
  if (traced.trains) ++session.step;
  const auto results = std::make_shared<RunResults>(step, traced.results);
  const auto add = [&] {
    state.in_flight.add(session, step, results);
    return std::string();
  };
  // On a device that runs behind the host, this finishes the step before, which may have failed on
  // one worker.
  if (world.workers() > 1 && !session.device().shares_host_memory()) {
    world.gather(add);
  } else {
    add();
  }
  if (traced.loss) return {PerReplica(results, 0, 1)};
  std::vector<PerReplica> values;
  for (std::size_t i = 0; i < traced.results; ++i) values.emplace_back(results, i, std::nullopt);
  return values;
}

std::vector<PerReplica> Function::run_on_replicas(const Strategy& strategy,
                                                  const std::vector<PerReplica>& arguments) {
  MicroRun whole;
  return run_on_replicas(strategy, arguments, whole);
}

std::vector<PerReplica> Function::run_on_replicas(const Strategy& strategy,
                                                  const std::vector<PerReplica>& arguments,
                                                  MicroRun& how) {
  require(strategy_.defined() && strategy.defined() &&
              impl_of(strategy).world == impl_of(strategy_).world,
          "[run] the function was not made by this strategy: make it with strategy.function(…)");
  for (const Model& model : models_) {
    if (impl_of(model).current == state_->session) continue;
    // It has since been compiled again or trained elsewhere: move its values back.
    require(!impl_of(model).progress, "[run] fit is running on one of the models");
    impl_of(model).move_to(state_->session);
  }
  return run_replicas(arguments, how);
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
    const std::shared_ptr<Session>& now = impl_of(models_.front()).current;
    for (const Model& model : models_) {
      require(impl_of(model).current == now,
              "[function] one of its models was compiled again, or given to another function, "
              "since this function was made: make it anew");
    }
    require(now->world().size() == 1,
            "[function] the model lives on {} replicas: make the function with "
            "strategy.function(…), and run it with strategy.run",
            now->world().size());
    if (state_->session != now) state_->move_to(now);
    MicroRun whole;
    results = run_replicas(given, whole);
  }
  std::vector<Tensor> values;
  for (const PerReplica& result : results) {
    values.push_back(result.weights().empty() ? result.at(0)
                                              : Tensor(reduce_values(ReduceOp::Mean, result, 1)));
  }
  return values;
}

}  // namespace lockstep

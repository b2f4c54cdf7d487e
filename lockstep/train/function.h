// Function: a user-defined step, traced once per input signature and run as one plan.
//
//   ls::Function step(model, [&](ls::Value images, ls::Value labels) {
//     const ls::Value logits = model(images, {.training = true});
//     const ls::LossPair loss =
//         ls::sparse_categorical_crossentropy(labels, logits, {.from_logits = true});
//     optimizer.apply(ls::gradients(loss, model.trainable_variables()));
//     return loss;
//   });
//   double loss = step(images, labels).item();
//
// On several replicas: strategy.function([&](ls::Value images, ls::Value labels) { … }), run by
// strategy.run, each replica on its own piece of the batch. gradients() gives the gradients of one
// replica; Optimizer::apply all-reduces them.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "lockstep/nn/loss.h"
#include "lockstep/optim/optimizer.h"
#include "lockstep/passes/accumulate.h"
#include "lockstep/tensor/tensor.h"
#include "lockstep/train/model.h"
#include "lockstep/train/per_replica.h"
#include "lockstep/train/strategy.h"

namespace lockstep {

// Gradients of a loss's sum, together with its weight: the argument of Optimizer::apply.
Gradients gradients(const LossPair& loss, const std::vector<VariableRef>& parameters);

// What the body of a function knows about the replica that will run it.
class ReplicaContext {
 public:
  ReplicaContext(Graph& graph, int replicas) : graph_(&graph), replicas_(replicas) {}
  int num_replicas_in_sync() const { return replicas_; }
  // The graph being traced; for a function that takes no Values.
  Graph& graph() const { return *graph_; }
  // The index of this replica, an i64 scalar.
  Value replica_id() const;
  // The sum or mean of a value over the replicas; every replica gets the result.
  Value all_reduce(ReduceOp op, Value value) const;

 private:
  Graph* graph_;
  int replicas_;
};

struct FunctionOptions {
  // "float32", "mixed_float16" or "mixed_bfloat16", as in compile. With "mixed_float16" the
  // optimizer should have a loss scale:
  //   const ls::Optimizer optimizer = ls::Adam().with_loss_scale();
  //   … optimizer.apply(ls::gradients(optimizer.scale(loss, 64), model.trainable_variables()));
  // where 64 is the global batch size.
  std::string precision = "float32";
  // As in compile. (An Accumulator accumulates.)
  Recompute recompute = {};
  int shard = 0;
  std::size_t gather_bytes = 0;
  std::string offload = "none";
  std::string gradient_dtype = "float32";
};

// Variables belong to the models that the function is given: running it trains these models.
// Several models then share one session. Random numbers depend on the models' step count, which a
// function that applies an optimizer increases.
class Function {
 public:
  // What the body returns: values, or the sum and the weight of a loss.
  struct Results {
    std::vector<Value> values;
    bool loss = false;
  };
  using Body = std::function<Results(const ReplicaContext&, std::span<const Value>)>;

  // f takes up to six Values or a span of them, optionally after a ReplicaContext, and returns a
  // Value, a LossPair (the result is its mean), a vector of Values, or nothing. Side effects of f
  // happen only while it is traced.
  template <class F>
  requires(!std::is_same_v<std::remove_cvref_t<F>, Function>)
      Function(const Model& model, F f, const FunctionOptions& options = {})
      : Function(std::vector{model}, Body(wrap(std::move(f))), options) {}
  template <class F>
  Function(std::vector<Model> models, F f, const FunctionOptions& options = {})
      : Function(std::move(models), Body(wrap(std::move(f))), options) {}
  Function(std::vector<Model> models, Body body, const FunctionOptions& options = {});
  // On a strategy's replicas. Its models are the ones whose variables the body uses.
  template <class F>
  Function(const Strategy& strategy, F f, const FunctionOptions& options = {})
      : Function(strategy, Body(wrap(std::move(f))), options) {}
  Function(const Strategy& strategy, Body body, const FunctionOptions& options = {});
  ~Function();
  Function(Function&&) noexcept;
  Function& operator=(Function&&) noexcept;

  // Runs the step and returns copies of its results. UsageError on several replicas: use
  // strategy.run.
  std::vector<Tensor> run(const std::vector<Tensor>& arguments);
  // Runs it on every replica of the strategy that it was made for. On an asynchronous device the
  // step may still be in flight when this returns: reading its results waits for it, and an error
  // in its data is thrown then, or by a later run.
  std::vector<PerReplica> run_on_replicas(const Strategy& strategy,
                                          const std::vector<PerReplica>& arguments);
  // The same for a function with one result; without results it returns an undefined tensor.
  template <class... Arguments>
  Tensor operator()(const Arguments&... arguments) {
    return first(run(std::vector<Tensor>{arguments...}));
  }

 private:
  friend class Accumulator;
  // A run on one micro-batch of several.
  struct MicroRun {
    MicroForm form = MicroForm::Whole;
    bool accumulated = false;    // whether others were added up before
    std::int64_t first_row = 0;  // in the batch that they are together
    Accumulators* accumulators = nullptr;
    std::int64_t rows = 0;  // of all replicas; a result
  };
  static Tensor first(std::vector<Tensor> results);
  Graph trace(const struct StepSignature& signature);
  void settle_session(const Graph& graph);
  std::vector<PerReplica> run_on_replicas(const Strategy& strategy,
                                          const std::vector<PerReplica>& arguments, MicroRun& how);
  std::vector<PerReplica> run_replicas(const std::vector<PerReplica>& arguments, MicroRun& how);

  static Results results(Value value) { return {{value}, false}; }
  static Results results(const LossPair& loss) { return {{loss.sum, loss.weight}, true}; }
  static Results results(std::vector<Value> values) { return {std::move(values), false}; }

  // Calls f with the values, and with the context if it takes one.
  template <class F, class... V>
  static Results call(F& f, const ReplicaContext& context, V... values) {
    constexpr bool kWithContext = std::is_invocable_v<F&, const ReplicaContext&, V...>;
    const auto invoke = [&]() -> decltype(auto) {
      if constexpr (kWithContext) {
        return f(context, values...);
      } else {
        return f(values...);
      }
    };
    if constexpr (std::is_void_v<decltype(invoke())>) {
      invoke();
      return {};
    } else {
      return results(invoke());
    }
  }
  template <class F, class... V>
  static constexpr bool takes() {
    return std::is_invocable_v<F&, V...> || std::is_invocable_v<F&, const ReplicaContext&, V...>;
  }
  [[noreturn]] static void wrong_count(std::size_t takes, std::size_t given);

  template <class F, std::size_t... I>
  static Body take(F f, std::index_sequence<I...>) {
    return
        [f = std::move(f)](const ReplicaContext& context, std::span<const Value> values) mutable {
          if (values.size() != sizeof...(I)) wrong_count(sizeof...(I), values.size());
          return call(f, context, values[I]...);
        };
  }
  template <class F>
  static Body wrap(F f) {
    using V = Value;
    if constexpr (takes<F, std::span<const Value>>()) {
      return
          [f = std::move(f)](const ReplicaContext& context, std::span<const Value> values) mutable {
            return call(f, context, values);
          };
    } else if constexpr (takes<F>()) {
      return take(std::move(f), std::make_index_sequence<0>());
    } else if constexpr (takes<F, V>()) {
      return take(std::move(f), std::make_index_sequence<1>());
    } else if constexpr (takes<F, V, V>()) {
      return take(std::move(f), std::make_index_sequence<2>());
    } else if constexpr (takes<F, V, V, V>()) {
      return take(std::move(f), std::make_index_sequence<3>());
    } else if constexpr (takes<F, V, V, V, V>()) {
      return take(std::move(f), std::make_index_sequence<4>());
    } else if constexpr (takes<F, V, V, V, V, V>()) {
      return take(std::move(f), std::make_index_sequence<5>());
    } else {
      static_assert(takes<F, V, V, V, V, V, V>(),
                    "a Function takes none to six Values, or a span of them");
      return take(std::move(f), std::make_index_sequence<6>());
    }
  }

  struct State;  // function.cpp

  std::vector<Model> models_;
  Strategy strategy_;  // if it was made by one
  Body body_;
  std::unique_ptr<State> state_;
};

template <class F>
Function Strategy::function(F f) const {
  return Function(*this, std::move(f));
}

template <class F>
Function Strategy::function(F f, const FunctionOptions& options) const {
  return Function(*this, std::move(f), options);
}

template <class... Arguments>
PerReplica Strategy::run(Function& f, const Arguments&... arguments) const {
  std::vector<PerReplica> results = run_all(f, std::vector<PerReplica>{PerReplica(arguments)...});
  require(results.size() <= 1, "[run] the function has {} results: run_all gives them all",
          results.size());
  return results.empty() ? PerReplica() : std::move(results.front());
}

}  // namespace lockstep

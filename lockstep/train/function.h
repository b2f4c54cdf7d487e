// Function: a step of the user's own, traced once for each input signature and run as one plan.
//
//   ls::Function step(model, [&](ls::Value images, ls::Value labels) {
//     const ls::Value logits = model(images, {.training = true});
//     const ls::LossPair loss = ls::sparse_categorical_crossentropy(labels, logits);
//     optimizer.apply(ls::gradients(loss, model.trainable_variables()));
//     return loss;
//   });
//   double loss = step(images, labels).item();
#pragma once

#include <functional>
#include <list>
#include <memory>
#include <span>
#include <type_traits>
#include <utility>
#include <vector>

#include "lockstep/nn/loss.h"
#include "lockstep/optim/optimizer.h"
#include "lockstep/tensor/tensor.h"
#include "lockstep/train/model.h"

namespace lockstep {

// Gradients of a loss's sum, with its weight: what Optimizer::apply takes.
Gradients gradients(const LossPair& loss, const std::vector<VariableRef>& parameters);

// Variables live with the models that the function is given: training through it is training them.
// Several models then share one memory. Random numbers depend on the models' step count, which a
// function that applies an optimizer increases.
class Function {
 public:
  using Body = std::function<std::vector<Value>(std::span<const Value>)>;

  // f takes up to six Values, or a span of them, and returns a Value, a LossPair (its mean is the
  // result), a vector of Values, or nothing. What else it does happens while it is traced.
  template <class F>
  requires(!std::is_same_v<std::remove_cvref_t<F>, Function>) Function(const Model& model, F f)
      : Function(std::vector{model}, Body(wrap(std::move(f)))) {}
  template <class F>
  Function(std::vector<Model> models, F f)
      : Function(std::move(models), Body(wrap(std::move(f)))) {}
  Function(std::vector<Model> models, Body body);
  ~Function();
  Function(Function&&) noexcept;
  Function& operator=(Function&&) noexcept;

  // Runs the step: copies of its results.
  std::vector<Tensor> run(const std::vector<Tensor>& arguments);
  // The same for a function with one result; a function without any gives an undefined tensor.
  template <class... Arguments>
  Tensor operator()(const Arguments&... arguments) {
    return first(run(std::vector<Tensor>{arguments...}));
  }

 private:
  struct Traced;
  static Tensor first(std::vector<Tensor> results);
  Traced& traced(const std::vector<Tensor>& arguments);

  static std::vector<Value> results(Value value) { return {value}; }
  static std::vector<Value> results(const LossPair& loss);
  static std::vector<Value> results(std::vector<Value> values) { return values; }

  template <class F, std::size_t... I>
  static std::vector<Value> spread(F& f, std::span<const Value> values, std::index_sequence<I...>) {
    if constexpr (std::is_void_v<decltype(f(values[I]...))>) {
      f(values[I]...);
      return {};
    } else {
      return results(f(values[I]...));
    }
  }
  [[noreturn]] static void wrong_count(std::size_t takes, std::size_t given);

  template <std::size_t N, class F>
  static Body take(F f) {
    return [f = std::move(f)](std::span<const Value> values) mutable {
      if (values.size() != N) wrong_count(N, values.size());
      return spread(f, values, std::make_index_sequence<N>());
    };
  }
  template <class F>
  static Body wrap(F f) {
    using V = Value;
    if constexpr (std::is_invocable_v<F, std::span<const Value>>) {
      return [f = std::move(f)](std::span<const Value> values) mutable {
        if constexpr (std::is_void_v<decltype(f(values))>) {
          f(values);
          return std::vector<Value>();
        } else {
          return results(f(values));
        }
      };
    } else if constexpr (std::is_invocable_v<F, V>) {
      return take<1>(std::move(f));
    } else if constexpr (std::is_invocable_v<F, V, V>) {
      return take<2>(std::move(f));
    } else if constexpr (std::is_invocable_v<F, V, V, V>) {
      return take<3>(std::move(f));
    } else if constexpr (std::is_invocable_v<F, V, V, V, V>) {
      return take<4>(std::move(f));
    } else if constexpr (std::is_invocable_v<F, V, V, V, V, V>) {
      return take<5>(std::move(f));
    } else {
      static_assert(std::is_invocable_v<F, V, V, V, V, V, V>,
                    "a Function takes one to six Values, or a span of them");
      return take<6>(std::move(f));
    }
  }

  std::vector<Model> models_;
  Body body_;
  std::shared_ptr<class Session> session_;  // where what was traced lives
  std::list<Traced> traced_;                // the one used last in front
  std::uint64_t generation_ = 0;
};

}  // namespace lockstep

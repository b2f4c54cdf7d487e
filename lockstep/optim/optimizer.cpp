// Optimizer::apply: slots, the scale of the gradients, the rate, the Update node, the count.
#include "lockstep/optim/optimizer.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>

#include "lockstep/base/error.h"
#include "lockstep/graph/ops/collective.h"
#include "lockstep/graph/ops/elementwise.h"
#include "lockstep/graph/ops/state.h"
#include "lockstep/graph/ops/update.h"

namespace lockstep {
namespace {

// Parameters of so many elements come first, so that those behind them in the flat buffers start
// on whole vectors and cache lines.
constexpr std::int64_t kWholeVectors = 16;

VariableRef make_variable(std::string name, DType dtype, Shape shape, double start) {
  Variable variable{.name = std::move(name),
                    .dtype = dtype,
                    .shape = std::move(shape),
                    .trainable = false,
                    .initializer = {}};
  if (start != 0.0) {
    variable.initializer = [start](Tensor& target, std::uint64_t) {
      dispatch(target.dtype(), [&](auto zero) {
        using T = decltype(zero);
        std::ranges::fill(target.values<T>(), static_cast<T>(start));
      });
    };
  }
  return std::make_shared<const Variable>(std::move(variable));
}

void expect_clip(const std::string& optimizer, const Clip& clip) {
  const auto expect_positive = [&](std::string_view option, const std::optional<double>& limit) {
    if (!limit) return;
    require(std::isfinite(*limit) && *limit > 0.0,
            "[{}] clip.{} is {}; it must be a finite number above 0", optimizer, option, *limit);
  };
  expect_positive("value", clip.value);
  expect_positive("norm", clip.norm);
  expect_positive("global_norm", clip.global_norm);
  const int given = clip.value.has_value() + clip.norm.has_value() + clip.global_norm.has_value();
  require(given <= 1,
          "[{}] {} of clip.value, clip.norm and clip.global_norm are given; choose one of them",
          optimizer, given);
}

// What the gradients are multiplied with: one over the weight, times the factor that brings their
// norm down to the limit. 0 where the weight is 0, whatever the gradients hold. A norm that is not
// finite makes the scale NaN, so that it is seen and not clipped away.
Value scale_of(Value weight, std::span<const Value> gradients, const std::optional<double>& limit) {
  Graph& graph = weight.graph();
  Value scale = div(graph.scalar(1.0), weight);
  if (limit) {
    const Value norm = mul(global_norm(gradients), scale);
    const Value most = graph.scalar(*limit);
    const Value factor =
        select(less_equal(norm, most), graph.scalar(1.0), add(div(most, norm), sub(norm, norm)));
    scale = mul(scale, factor);
  }
  return select(greater(weight, graph.scalar(0.0)), scale, graph.scalar(0.0));
}

struct Sums {
  std::vector<Value> gradients;
  Value weight;
};

// What all replicas have together. The weight travels with the gradients where it can.
Sums sums_over_replicas(std::span<const Value> gradients, Value weight) {
  std::vector<Value> list(gradients.begin(), gradients.end());
  const bool together = list.front().dtype() == weight.dtype();
  if (together) list.push_back(weight);
  Sums sums{.gradients = all_reduce_gradients(list), .weight = {}};
  if (together) {
    sums.weight = sums.gradients.back();
    sums.gradients.pop_back();
  } else {
    sums.weight = all_reduce_gradients(std::span<const Value>(&weight, 1)).front();
  }
  return sums;
}

}  // namespace

struct Optimizer::Impl {
  Rule rule;
  Schedule schedule;
  Clip clip;
  VariableRef iterations;
  VariableRef rate;                                       // null where a schedule decides
  std::map<VariableRef, std::vector<VariableRef>> slots;  // of each parameter
  std::vector<VariableRef> slot_order;                    // all of them, as they were made

  const std::vector<VariableRef>& slots_of(const VariableRef& parameter);
};

const std::vector<VariableRef>& Optimizer::Impl::slots_of(const VariableRef& parameter) {
  const auto [place, is_new] = slots.try_emplace(parameter);
  if (is_new) {
    for (const std::string& slot : rule.slots) {
      place->second.push_back(
          make_variable(fmt::format("{}/{}/{}", rule.name, slot, parameter->name), parameter->dtype,
                        parameter->shape, rule.slot_start));
      slot_order.push_back(place->second.back());
    }
  }
  return place->second;
}

Optimizer::Optimizer(Rule rule, Schedule learning_rate, Clip clip) {
  expect_clip(rule.name, clip);
  VariableRef rate;
  if (learning_rate.constant()) {
    const double value = learning_rate.rate();
    require(std::isfinite(value) && value >= 0.0,
            "[{}] learning_rate is {}; it must be a finite number, 0 or more", rule.name, value);
    rate = make_variable(rule.name + "/learning_rate", DType::F32, {}, value);
  }
  if (clip.value) rule.attrs.set("clip_value", *clip.value);
  if (clip.norm) rule.attrs.set("clip_norm", *clip.norm);
  VariableRef iterations = make_variable(rule.name + "/iterations", DType::I64, {}, 0.0);
  impl_ = std::make_shared<Impl>(Impl{.rule = std::move(rule),
                                      .schedule = std::move(learning_rate),
                                      .clip = clip,
                                      .iterations = std::move(iterations),
                                      .rate = std::move(rate),
                                      .slots = {},
                                      .slot_order = {}});
}

void Optimizer::apply(Graph& graph, std::span<const VariableRef> parameters,
                      std::span<const Value> gradients_here, Value weight_here) const {
  require(defined(),
          "[optimizer] an optimizer without a rule was applied; make one, as Adam() does");
  require(parameters.size() == gradients_here.size(),
          "[{}] there are {} gradients for {} parameters; give one for each", name(),
          gradients_here.size(), parameters.size());
  require(weight_here.defined() && weight_here.type() == ValueType{DType::F32, {}},
          "[{}] the weight must be f32(), is {}", name(),
          weight_here.defined() ? weight_here.type().str() : "missing");
  if (parameters.empty()) return;
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    const ValueType type{parameters[i]->dtype, parameters[i]->shape};
    require(gradients_here[i].type() == type, "[{}] {} is {}, but its gradient is {}", name(),
            parameters[i]->name, type.str(), gradients_here[i].type().str());
  }
  Graph::NameScope scope(graph, name());
  const auto [gradients, weight] = sums_over_replicas(gradients_here, weight_here);

  std::vector<std::size_t> order(parameters.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::ranges::stable_partition(
      order, [&](std::size_t i) { return parameters[i]->shape.elements() % kWholeVectors == 0; });

  const Value iterations = graph.variable(impl_->iterations);
  UpdateInputs inputs{.rate = impl_->rate ? graph.variable(impl_->rate)
                                          : impl_->schedule.nodes(cast(iterations, DType::F32)),
                      .scale = scale_of(weight, gradients, impl_->clip.global_norm),
                      .iterations = iterations,
                      .parameters = {},
                      .gradients = {},
                      .slots = std::vector<std::vector<Value>>(impl_->rule.slots.size())};
  for (std::size_t i : order) {
    inputs.parameters.push_back(graph.variable(parameters[i]));
    inputs.gradients.push_back(gradients[i]);
    const std::vector<VariableRef>& slots = impl_->slots_of(parameters[i]);
    for (std::size_t s = 0; s < slots.size(); ++s) {
      inputs.slots[s].push_back(graph.variable(slots[s]));
    }
  }
  update(inputs, impl_->rule.name, impl_->rule.attrs);

  // An empty global batch is no iteration.
  const Value counts = cast(greater(weight, graph.scalar(0.0)), DType::I64);
  assign(impl_->iterations, iterations + counts);
}

std::string Optimizer::name() const {
  return impl_->rule.name;
}

std::vector<VariableRef> Optimizer::variables() const {
  std::vector<VariableRef> variables = {impl_->iterations};
  if (impl_->rate) variables.push_back(impl_->rate);
  variables.insert(variables.end(), impl_->slot_order.begin(), impl_->slot_order.end());
  return variables;
}

VariableRef Optimizer::iterations() const {
  return impl_->iterations;
}

VariableRef Optimizer::learning_rate() const {
  return impl_->rate;
}

const Schedule& Optimizer::schedule() const {
  return impl_->schedule;
}

}  // namespace lockstep

// Optimizer::apply: slots, the scale of the gradients, the rate, the Update node, the count.
#include "lockstep/optim/optimizer.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <map>
#include <numeric>

#include "lockstep/base/error.h"
#include "lockstep/graph/ops/collective.h"
#include "lockstep/graph/ops/elementwise.h"
#include "lockstep/graph/ops/state.h"
#include "lockstep/graph/ops/update.h"

namespace lockstep {
namespace {

// Parameters with a multiple of so many elements come first, so that the next ones in the flat
// buffers start on whole vectors and cache lines.
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
            "[{}] {} is {}; it must be a finite number above 0", optimizer, option, *limit);
  };
  expect_positive("clipvalue", clip.value);
  expect_positive("clipnorm", clip.norm);
  expect_positive("global_clipnorm", clip.global_norm);
  const int given = clip.value.has_value() + clip.norm.has_value() + clip.global_norm.has_value();
  require(given <= 1,
          "[{}] {} of clipvalue, clipnorm and global_clipnorm are given; choose one of them",
          optimizer, given);
}

// What the gradients are multiplied by: one over the weight, times the factor that reduces their
// norm to the limit, if there is one. A norm that is not finite makes it NaN, so that it shows up
// instead of being clipped away.
Value scale_of(Value weight, Value norm_of_sums, const std::optional<double>& limit) {
  Graph& graph = weight.graph();
  const Value scale = div(graph.scalar(1.0), weight);
  if (!limit) return scale;
  const Value norm = mul(norm_of_sums, scale);
  const Value most = graph.scalar(*limit);
  const Value factor =
      select(less_equal(norm, most), graph.scalar(1.0), add(div(most, norm), sub(norm, norm)));
  return mul(scale, factor);
}

struct Sums {
  std::vector<Value> gradients;
  Value weight;
};

// All-reduces the gradients and the weight.
Sums all_reduced(std::span<const Value> gradients, Value weight) {
  return {.gradients = all_reduce_gradients(gradients),
          .weight = all_reduce_aside(std::span<const Value>(&weight, 1)).front()};
}

// The loss scale stays between these: a smaller one has no use, and with a larger one sums would
// overflow f32.
constexpr double kLeastScale = 1.0;
constexpr double kMostScale = 4294967296.0;  // 2^32

}  // namespace

struct Optimizer::LossScale {
  VariableRef scale;
  VariableRef good_steps;
  VariableRef skipped_steps;
  std::int64_t growth_steps = 0;

  // Adds the nodes that adjust the scale after a step that was applied, was skipped, or neither (an
  // empty global batch).
  void adjust(Value applied, Value overflowed) const;
};

void Optimizer::LossScale::adjust(Value applied, Value overflowed) const {
  Graph& graph = applied.graph();
  const Value now = graph.variable(scale);
  const Value none = graph.scalar(0, DType::I64);
  const Value good =
      select(overflowed, none, graph.variable(good_steps) + cast(applied, DType::I64));
  const Value grows =
      greater_equal(good, graph.scalar(static_cast<double>(growth_steps), DType::I64));
  const Value halved = maximum(now * 0.5, graph.scalar(kLeastScale));
  const Value doubled = minimum(now * 2.0, graph.scalar(kMostScale));
  assign(scale, select(overflowed, halved, select(grows, doubled, now)));
  assign(good_steps, select(grows, none, good));
  assign(skipped_steps, graph.variable(skipped_steps) + cast(overflowed, DType::I64));
}

struct Optimizer::Impl {
  Rule rule;
  Schedule schedule;
  Clip clip;
  VariableRef iterations;
  VariableRef rate;                                       // null if there is a schedule
  std::map<VariableRef, std::vector<VariableRef>> slots;  // per parameter
  std::vector<VariableRef> slot_order;                    // all of them, in the order of creation
  std::vector<std::string> not_decayed;                   // substrings of the names of parameters

  bool decays(const VariableRef& parameter) const {
    return !rule.attrs.has("weight_decay") ||
           std::ranges::none_of(not_decayed, [&](const std::string& text) {
             return parameter->name.find(text) != std::string::npos;
           });
  }
  // The update of the parameters with these indices.
  void write_update(UpdateInputs inputs, std::span<const std::size_t> places,
                    std::span<const VariableRef> parameters, std::span<const Value> gradients,
                    bool decayed, bool skips_overflow);
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
                                      .slot_order = {},
                                      .not_decayed = {}});
}

std::vector<Value> Optimizer::apply(Graph& graph, std::span<const VariableRef> parameters,
                                    std::span<const Value> gradients_here,
                                    Value weight_here) const {
  require(defined(),
          "[optimizer] an optimizer without a rule was applied; make one, as Adam() does");
  require(parameters.size() == gradients_here.size(),
          "[{}] there are {} gradients for {} parameters; give one for each", name(),
          gradients_here.size(), parameters.size());
  require(weight_here.defined() && weight_here.type() == ValueType{DType::F32, {}},
          "[{}] the weight must be f32(), is {}", name(),
          weight_here.defined() ? weight_here.type().str() : "missing");
  require(!parameters.empty(),
          "[{}] there are no parameters to update: give those of a model that is built and has "
          "trainable layers",
          name());
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    const ValueType type{parameters[i]->dtype, parameters[i]->shape};
    require(gradients_here[i].type() == type, "[{}] {} is {}, but its gradient is {}", name(),
            parameters[i]->name, type.str(), gradients_here[i].type().str());
  }
  Graph::NameScope scope(graph, name());
  const auto [gradients, weight] = all_reduced(gradients_here, weight_here);

  std::vector<std::size_t> order(parameters.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_partition(order.begin(), order.end(), [&](std::size_t i) {
    return parameters[i]->shape.elements() % kWholeVectors == 0;
  });

  const std::optional<double>& limit = impl_->clip.global_norm;
  const Value norm = limit || loss_scale_ ? global_norm(gradients) : Value();
  const Value some = greater(weight, graph.scalar(0.0));
  Value applied = some;  // an empty global batch does not count as an iteration
  if (loss_scale_) {
    const Value finite =
        less_equal(norm, graph.scalar(std::numeric_limits<float>::max()));  // false for NaN
    applied = logical_and(some, finite);
    loss_scale_->adjust(applied, logical_and(some, logical_not(finite)));
  }

  // The update reads the new count, so that replacing the old one need not wait for the update.
  const Value iterations = graph.variable(impl_->iterations);
  const Value counted = iterations + cast(applied, DType::I64);
  const UpdateInputs inputs{
      .rate = impl_->rate ? graph.variable(impl_->rate)
                          : impl_->schedule.nodes(cast(iterations, DType::F32)),
      .scale = select(applied, scale_of(weight, norm, limit), graph.scalar(0.0)),
      .step = counted,
      .parameters = {},
      .gradients = {},
      .slots = std::vector<std::vector<Value>>(impl_->rule.slots.size())};
  const auto rest = std::stable_partition(
      order.begin(), order.end(), [&](std::size_t i) { return impl_->decays(parameters[i]); });
  impl_->write_update(inputs, {order.begin(), rest}, parameters, gradients, true,
                      loss_scale_ != nullptr);
  impl_->write_update(inputs, {rest, order.end()}, parameters, gradients, false,
                      loss_scale_ != nullptr);
  assign(impl_->iterations, counted);
  return gradients;
}

void Optimizer::Impl::write_update(UpdateInputs inputs, std::span<const std::size_t> places,
                                   std::span<const VariableRef> parameters,
                                   std::span<const Value> gradients, bool decayed,
                                   bool skips_overflow) {
  if (places.empty()) return;
  Graph& graph = inputs.rate.graph();
  for (const std::size_t i : places) {
    inputs.parameters.push_back(graph.variable(parameters[i]));
    inputs.gradients.push_back(gradients[i]);
    const std::vector<VariableRef>& slots = slots_of(parameters[i]);
    for (std::size_t s = 0; s < slots.size(); ++s) {
      inputs.slots[s].push_back(graph.variable(slots[s]));
    }
  }
  Attrs attrs = rule.attrs;
  if (!decayed) attrs.set("weight_decay", 0.0);
  if (skips_overflow) attrs.set(kSkipsOverflow, true);
  update(inputs, rule.name, std::move(attrs));
}

void Optimizer::exclude_from_weight_decay(std::vector<std::string> names) const {
  require(defined(),
          "[optimizer] there is no optimizer whose weight decay could exclude parameters");
  require(impl_->slots.empty(),
          "[{}] exclude_from_weight_decay comes before the first step: {} parameters have been "
          "updated already",
          name(), impl_->slots.size());
  impl_->not_decayed = std::move(names);
}

Optimizer Optimizer::with_loss_scale(const LossScaleOptions& options) const {
  require(defined(), "[optimizer] there is no optimizer to scale losses for");
  int exponent = 0;
  require(options.initial >= kLeastScale && options.initial <= kMostScale &&
              std::frexp(options.initial, &exponent) == 0.5,
          "[{}] the loss scale starts at {}; it must be a power of two between 1 and 2^32", name(),
          options.initial);
  require(options.growth_steps > 0,
          "[{}] the loss scale grows after {} good steps; it must be 1 or more", name(),
          options.growth_steps);
  Optimizer scaled = *this;
  scaled.loss_scale_ = std::make_shared<const LossScale>(
      LossScale{.scale = make_variable(name() + "/loss_scale", DType::F32, {}, options.initial),
                .good_steps = make_variable(name() + "/good_steps", DType::I64, {}, 0.0),
                .skipped_steps = make_variable(name() + "/skipped_steps", DType::I64, {}, 0.0),
                .growth_steps = options.growth_steps});
  return scaled;
}

Value Optimizer::scale_for(Graph& graph, std::int64_t examples) const {
  Graph::NameScope scope(graph, name());
  const auto by = std::bit_floor(static_cast<std::uint64_t>(std::max<std::int64_t>(examples, 1)));
  const Value scale = graph.variable(loss_scale_->scale);
  return by == 1 ? scale : scale * (1.0 / static_cast<double>(by));
}

Value Optimizer::times(Value value, Value factor) {
  return mul(value, factor);
}

std::vector<VariableRef> Optimizer::loss_scale_variables() const {
  if (loss_scale_ == nullptr) return {};
  return {loss_scale_->scale, loss_scale_->good_steps, loss_scale_->skipped_steps};
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

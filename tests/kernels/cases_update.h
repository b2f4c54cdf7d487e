// Cases of the ops that change variables, whose new values must agree.
#pragma once

#include <ostream>

#include "kernels/op_case.h"

namespace lockstep {

// A variable with random values that depend on its name: normal, or positive ones (for squares).
inline VariableRef random_variable(std::string name, Shape shape, bool positive = false,
                                   DType dtype = DType::F32) {
  const std::uint64_t stream = hash_name(name);
  return std::make_shared<Variable>(Variable{
      .name = std::move(name),
      .dtype = dtype,
      .shape = std::move(shape),
      .trainable = true,
      .initializer = [stream, positive](Tensor& target, std::uint64_t seed) {
        fill(target, {positive ? Fill::Kind::Uniform : Fill::Kind::Normal, 0.1, 1.0}, seed, stream);
      }});
}

struct RuleCase {
  std::string name;
  std::string rule;
  Attrs attrs;
  std::size_t slots = 0;
};

// Makes a failing rule print its name instead of its bytes.
inline void PrintTo(const RuleCase& rule, std::ostream* out) {
  *out << rule.name;
}

// Every rule, with every option that changes it.
inline std::vector<RuleCase> rule_cases() {
  return {
      {"sgd", "sgd", {{"momentum", 0.0}, {"nesterov", false}}, 0},
      {"sgd_decayed", "sgd", {{"weight_decay", 0.1}}, 0},
      {"sgd_momentum", "sgd", {{"momentum", 0.9}, {"nesterov", false}}, 1},
      {"sgd_nesterov", "sgd", {{"momentum", 0.9}, {"nesterov", true}}, 1},
      {"sgd_nesterov_decayed",
       "sgd",
       {{"momentum", 0.9}, {"nesterov", true}, {"weight_decay", 0.05}},
       1},
      {"sgd_clipped_by_value", "sgd", {{"clip_value", 0.5}}, 0},
      {"sgd_clipped_by_norm", "sgd", {{"clip_norm", 1.5}}, 0},
      {"adam", "adam", {{"beta_1", 0.9}, {"beta_2", 0.999}, {"epsilon", 1e-7}}, 2},
      {"adam_clipped_by_value",
       "adam",
       {{"beta_1", 0.9}, {"beta_2", 0.999}, {"epsilon", 1e-7}, {"clip_value", 0.3}},
       2},
      {"adam_clipped_by_norm",
       "adam",
       {{"beta_1", 0.8}, {"beta_2", 0.99}, {"epsilon", 1e-3}, {"clip_norm", 1.0}},
       2},
      {"adamw",
       "adamw",
       {{"beta_1", 0.9}, {"beta_2", 0.999}, {"epsilon", 1e-7}, {"weight_decay", 0.01}},
       2},
      {"rmsprop",
       "rmsprop",
       {{"rho", 0.9}, {"momentum", 0.0}, {"epsilon", 1e-7}, {"centered", false}},
       1},
      {"rmsprop_momentum",
       "rmsprop",
       {{"rho", 0.9}, {"momentum", 0.5}, {"epsilon", 1e-7}, {"centered", false}},
       2},
      {"rmsprop_centered",
       "rmsprop",
       {{"rho", 0.9}, {"momentum", 0.0}, {"epsilon", 4.0}, {"centered", true}},
       2},
      {"rmsprop_centered_momentum",
       "rmsprop",
       {{"rho", 0.9}, {"momentum", 0.5}, {"epsilon", 4.0}, {"centered", true}},
       3},
      {"adagrad", "adagrad", {{"epsilon", 1e-7}, {"weight_decay", 0.1}}, 1},
      {"lars",
       "lars",
       {{"momentum", 0.9}, {"weight_decay", 0.01}, {"trust", 0.001}, {"epsilon", 1e-7}},
       1},
      {"lars_clipped_by_norm",
       "lars",
       {{"momentum", 0.9},
        {"weight_decay", 0.01},
        {"trust", 0.001},
        {"epsilon", 1e-7},
        {"clip_norm", 1.0}},
       1},
      {"accumulate", kAccumulateRule, {}, 0},
      {"lamb",
       "lamb",
       {{"beta_1", 0.9}, {"beta_2", 0.999}, {"epsilon", 1e-6}, {"weight_decay", 0.01}},
       2},
  };
}

// Updates three parameters by a rule; x0 is the learning rate, x1 the scale, x2 the number of
// earlier steps; then the gradients follow.
inline OpCase update_case(const RuleCase& rule) {
  const std::vector<Shape> shapes{{7}, {33, 5}, {4, 3, 2}};
  OpCase op_case{.name = rule.name,
                 .inputs = {f32_uniform({}, 0.01, 0.1), f32_uniform({}, 0.5, 1.0), integers({}, 9)},
                 .build = {},
                 .differentiable = false};
  for (const Shape& shape : shapes) op_case.inputs.push_back(f32(shape));
  op_case.build = [rule, shapes](Graph& graph, CaseInputs in) {
    UpdateInputs inputs{.rate = in[0],
                        .scale = in[1],
                        .step = in[2] + 1,
                        .parameters = {},
                        .gradients = {in.begin() + 3, in.end()},
                        .slots = {}};
    inputs.slots.resize(rule.slots);
    for (std::size_t i = 0; i < shapes.size(); ++i) {
      inputs.parameters.push_back(
          graph.variable(random_variable(fmt::format("parameter_{}", i), shapes[i])));
      for (std::size_t s = 0; s < rule.slots; ++s) {
        inputs.slots[s].push_back(
            graph.variable(random_variable(fmt::format("slot_{}_{}", s, i), shapes[i], true)));
      }
    }
    update(inputs, rule.rule, rule.attrs);
    return CaseOutputs();
  };
  return op_case;
}

// Rounds three gradients; x0 is the unit of errors, x1 whether they are kept. Several elements
// overflow f16.
inline OpCase round_case(DType dtype, bool kept) {
  const std::vector<Shape> shapes{{7}, {33, 5}, {4, 3, 2}};
  const double keep = kept ? 1.0 : 0.0;
  OpCase op_case{.name = fmt::format("round_{}{}", name_of(dtype), kept ? "" : "_without_errors"),
                 .inputs = {f32_uniform({}, 1.0, 9.0), f32_uniform({}, keep, keep)},
                 .build = {},
                 .differentiable = false};
  for (const Shape& shape : shapes) op_case.inputs.push_back(f32(shape));
  op_case.build = [dtype, shapes](Graph& graph, CaseInputs in) {
    RoundInputs inputs{.unit = in[0], .keep = in[1], .gradients = {}, .errors = {}};
    for (std::size_t i = 0; i < shapes.size(); ++i) {
      inputs.gradients.push_back(in[2 + i] * (i == 1 ? 1e5 : 1.0));
      inputs.errors.push_back(
          graph.variable(random_variable(fmt::format("error_{}", i), shapes[i])));
    }
    std::vector<Value> rounded;
    for (const Value& value : round_gradients(inputs, dtype)) {
      rounded.push_back(cast(value, DType::F32));
    }
    return rounded;
  };
  return op_case;
}

// The norms that a rule needs, of the same parameters and of an empty one.
inline OpCase update_norms_case(const RuleCase& rule, UpdateNorm of) {
  const std::vector<Shape> shapes{{7}, {0}, {33, 5}, {4, 3, 2}};
  OpCase op_case{.name = rule.name + (of == UpdateNorm::Trust ? "_trust_norms" : "_norms"),
                 .inputs = {f32_uniform({}, 0.01, 0.1), f32_uniform({}, 0.5, 1.0), integers({}, 9)},
                 .build = {},
                 .differentiable = false};
  for (std::size_t list = 0; list < 2 + rule.slots; ++list) {
    for (const Shape& shape : shapes) op_case.inputs.push_back(f32_uniform(shape, 0.1, 1.0));
  }
  op_case.build = [rule, of, shapes](Graph&, CaseInputs in) {
    const auto list = [&](std::size_t i) {
      const auto begin = in.begin() + static_cast<std::ptrdiff_t>(3 + i * shapes.size());
      return std::vector<Value>(begin, begin + static_cast<std::ptrdiff_t>(shapes.size()));
    };
    UpdateInputs inputs{.rate = in[0],
                        .scale = in[1],
                        .step = in[2] + 1,
                        .parameters = list(0),
                        .gradients = list(1),
                        .slots = {}};
    for (std::size_t s = 0; s < rule.slots; ++s) inputs.slots.push_back(list(2 + s));
    return CaseOutputs(update_norms(inputs, rule.rule, rule.attrs, of));
  };
  return op_case;
}

// Written after the pass of mixed precision, and therefore not run in it.
inline std::vector<OpCase> round_cases() {
  std::vector<OpCase> cases;
  for (const DType dtype : {DType::F16, DType::BF16}) {
    for (const bool kept : {true, false}) cases.push_back(round_case(dtype, kept));
  }
  return cases;
}

inline std::vector<OpCase> update_cases() {
  std::vector<OpCase> cases;
  for (const RuleCase& rule : rule_cases()) {
    cases.push_back(update_case(rule));
    if (rule.attrs.has("clip_norm")) {
      cases.push_back(update_norms_case(rule, UpdateNorm::Gradients));
    }
    if (rule.rule == std::string("lars") || rule.rule == std::string("lamb")) {
      cases.push_back(update_norms_case(rule, UpdateNorm::Trust));
    }
  }
  cases.push_back({.name = "global_norm",
                   .inputs = {f32({7}), f32({33, 5}), f32({0, 3}), f32({})},
                   .build = [](Graph&, CaseInputs in) { return global_norm(in); },
                   .differentiable = false});
  cases.push_back({.name = "global_norm_timed",
                   .inputs = {f32({1000, 1000})},
                   .build = [](Graph&, CaseInputs in) { return global_norm(in); },
                   .differentiable = false,
                   .timed = true});
  cases.push_back({.name = "assign",
                   .inputs = {f32({5, 3})},
                   .build =
                       [](Graph& graph, CaseInputs in) {
                         const VariableRef variable = random_variable("target", {5, 3});
                         assign(variable, mul(in[0], 2.0) + graph.variable(variable));
                         return CaseOutputs();
                       },
                   .differentiable = false});
  return cases;
}

}  // namespace lockstep

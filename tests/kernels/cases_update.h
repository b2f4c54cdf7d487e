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

inline std::vector<OpCase> update_cases() {
  std::vector<OpCase> cases;
  for (const RuleCase& rule : rule_cases()) cases.push_back(update_case(rule));
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

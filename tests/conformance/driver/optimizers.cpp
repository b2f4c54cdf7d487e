// Optimizers: parameters after each of several steps with given gradients.
#include "conformance/driver/case.h"

namespace conformance {
namespace {

std::optional<double> given(const Case& c, const char* name) {
  return c.options.contains(name) ? std::optional(c.options.at(name).get<double>()) : std::nullopt;
}

// Options that the case does not set keep Lockstep's defaults, which must be the peer's.
template <class Options>
Options common(const Case& c) {
  Options options;
  if (c.options.contains("learning_rate")) {
    options.learning_rate = make_schedule(c.options["learning_rate"]);
  }
  options.weight_decay = c.option("weight_decay", options.weight_decay);
  options.clipvalue = given(c, "clipvalue");
  options.clipnorm = given(c, "clipnorm");
  options.global_clipnorm = given(c, "global_clipnorm");
  return options;
}

template <class Options>
Options with_betas(const Case& c) {
  auto options = common<Options>(c);
  options.beta_1 = c.option("beta_1", options.beta_1);
  options.beta_2 = c.option("beta_2", options.beta_2);
  options.epsilon = c.option("epsilon", options.epsilon);
  return options;
}

}  // namespace

ls::Optimizer make_optimizer(const std::string& name, const Case& c) {
  if (name == "sgd") {
    auto options = common<ls::SGDOptions>(c);
    options.momentum = c.option("momentum", options.momentum);
    options.nesterov = c.option("nesterov", options.nesterov);
    return ls::SGD(options);
  }
  if (name == "adam") return ls::Adam(with_betas<ls::AdamOptions>(c));
  if (name == "adamw") return ls::AdamW(with_betas<ls::AdamWOptions>(c));
  if (name == "lamb") return ls::LAMB(with_betas<ls::LAMBOptions>(c));
  if (name == "rmsprop") {
    auto options = common<ls::RMSpropOptions>(c);
    options.rho = c.option("rho", options.rho);
    options.momentum = c.option("momentum", options.momentum);
    options.epsilon = c.option("epsilon", options.epsilon);
    options.centered = c.option("centered", options.centered);
    return ls::RMSprop(options);
  }
  if (name == "adagrad") {
    auto options = common<ls::AdagradOptions>(c);
    options.initial_accumulator_value =
        c.option("initial_accumulator_value", options.initial_accumulator_value);
    options.epsilon = c.option("epsilon", options.epsilon);
    return ls::Adagrad(options);
  }
  if (name == "lars") {
    auto options = common<ls::LARSOptions>(c);
    options.momentum = c.option("momentum", options.momentum);
    options.trust = c.option("trust", options.trust);
    options.epsilon = c.option("epsilon", options.epsilon);
    return ls::LARS(options);
  }
  unknown(c);
}

// Inputs: start0, start1, …; gradients0 (steps, …), …. Results: parameter0 (steps, …), ….
Tensors run_optimizer(const Case& c) {
  const ls::Optimizer optimizer = make_optimizer(c.what, c);
  std::vector<ls::VariableRef> parameters;
  while (c.has("start" + std::to_string(parameters.size()))) {
    const std::string number = std::to_string(parameters.size());
    parameters.push_back(variable_of("parameter" + number, c.input("start" + number)));
  }
  const double weight = c.option("weight", 1.0);
  const ls::OneDeviceStrategy strategy;
  ls::Function step = strategy.function([&](std::span<const ls::Value> gradients) {
    ls::Graph& graph = gradients.front().graph();
    optimizer.apply(graph, parameters, gradients, graph.scalar(weight));
  });
  ls::Function read = strategy.function([&](const ls::ReplicaContext& context) {
    std::vector<ls::Value> values;
    for (const auto& parameter : parameters) values.push_back(context.graph().variable(parameter));
    return values;
  });

  const std::int64_t steps = c.input("gradients0").shape()[0];
  std::vector<std::vector<ls::Tensor>> seen(parameters.size());
  for (std::int64_t i = 0; i < steps; ++i) {
    std::vector<ls::PerReplica> gradients;
    for (std::size_t p = 0; p < parameters.size(); ++p) {
      const ls::Tensor& all = c.input("gradients" + std::to_string(p));
      gradients.emplace_back(all.rows(i, 1).reshaped(parameters[p]->shape).clone());
    }
    strategy.run_all(step, gradients);
    const std::vector<ls::PerReplica> now = strategy.run_all(read, {});
    for (std::size_t p = 0; p < parameters.size(); ++p) {
      ls::Tensor value = now[p].at(0).clone();
      std::vector<std::int64_t> dims = {1};
      for (const std::int64_t extent : value.shape().dims()) dims.push_back(extent);
      seen[p].push_back(value.reshaped(ls::Shape(dims)));
    }
  }
  Tensors results;
  for (std::size_t p = 0; p < parameters.size(); ++p) {
    results.emplace("parameter" + std::to_string(p), ls::concatenate_rows(seen[p], "conformance"));
  }
  return results;
}

}  // namespace conformance

// Learning rates, computed on the host and as nodes of a graph.
#include "conformance/driver/case.h"

namespace conformance {

ls::Schedule make_schedule(const Json& options) {
  if (options.is_number()) return options.get<double>();
  const std::string kind = options.at("schedule");
  const auto number = [&](const char* name, double otherwise) {
    return options.value(name, otherwise);
  };
  const ls::WarmUp warm_up{.steps = options.value("warmup_steps", std::int64_t{0}),
                           .start = number("warmup_start", 0.0)};
  const double initial = number("initial", 0.1);
  const std::int64_t steps = options.value("decay_steps", std::int64_t{1000});
  if (kind == "exponential") {
    return ls::ExponentialDecay({.initial_learning_rate = initial,
                                 .decay_steps = steps,
                                 .decay_rate = number("decay_rate", 0.96),
                                 .staircase = options.value("staircase", false),
                                 .warm_up = warm_up});
  }
  if (kind == "cosine") {
    return ls::CosineDecay({.initial_learning_rate = initial,
                            .decay_steps = steps,
                            .alpha = number("alpha", 0.0),
                            .warm_up = warm_up});
  }
  if (kind == "polynomial") {
    ls::PolynomialDecayOptions made{
        .initial_learning_rate = initial, .decay_steps = steps, .warm_up = warm_up};
    made.end_learning_rate = number("end", made.end_learning_rate);
    made.power = number("power", made.power);
    return ls::PolynomialDecay(made);
  }
  if (kind == "piecewise") {
    return ls::PiecewiseConstantDecay({.boundaries = options.at("boundaries"),
                                       .values = options.at("values"),
                                       .warm_up = warm_up});
  }
  if (kind == "constant") return ls::ConstantRate({.rate = initial, .warm_up = warm_up});
  ls::fail<ls::UsageError>("[conformance] there is no schedule {}", kind);
}

// Input: iterations (i64). Results: the rates on the host and on the device.
Tensors run_schedule(const Case& c) {
  const ls::Schedule schedule = make_schedule(c.options);
  const auto iterations = c.input("iterations").values<std::int64_t>();
  const std::vector<std::int64_t> list(iterations.begin(), iterations.end());
  const ls::OneDeviceStrategy strategy;
  ls::Function rate = strategy.function([&](ls::Value t) { return schedule.nodes(t); });
  std::vector<float> host, device;
  for (const std::int64_t iteration : list) {
    host.push_back(static_cast<float>(schedule.at(iteration)));
    const auto now = ls::Tensor::scalar(static_cast<float>(iteration));
    device.push_back(static_cast<float>(strategy.run(rate, now).at(0).item()));
  }
  const ls::Shape shape{static_cast<std::int64_t>(list.size())};
  return {{"host", ls::Tensor::of(host, shape)}, {"device", ls::Tensor::of(device, shape)}};
}

}  // namespace conformance

// Every rule of ops/update.h and every way of clipping, against the formulas written out in double,
// over several steps, on both kernel libraries.
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>

#include "lockstep/base/random.h"
#include "lockstep/optim/optimizer.h"
#include "optim/steps.h"

namespace lockstep {
namespace {

using testing::parameter;
using testing::Steps;
using Vector = std::vector<double>;

double norm(const Vector& x) {
  double sum = 0.0;
  for (double each : x) sum += each * each;
  return std::sqrt(sum);
}

// One parameter's p and up to three slots; `step` is the formula.
struct Hand {
  Vector p;
  Vector a, b, c;
};
using Formula = std::function<void(Hand& x, const Vector& g, double t)>;

struct RuleCase {
  std::string name;
  Optimizer optimizer;
  Formula formula;
  double slot_start = 0.0;
};

Formula sgd(double r, double momentum, bool nesterov, double decay = 0.0) {
  return [=](Hand& x, const Vector& g, double) {
    for (std::size_t i = 0; i < g.size(); ++i) {
      x.p[i] -= r * decay * x.p[i];
      x.a[i] = momentum * x.a[i] - r * g[i];
      x.p[i] += nesterov ? momentum * x.a[i] - r * g[i] : x.a[i];
    }
  };
}

Formula adam(double r, double beta_1, double beta_2, double epsilon, double decay = 0.0) {
  return [=](Hand& x, const Vector& g, double t) {
    const double rate = r * std::sqrt(1 - std::pow(beta_2, t)) / (1 - std::pow(beta_1, t));
    for (std::size_t i = 0; i < g.size(); ++i) {
      x.p[i] -= r * decay * x.p[i];
      x.a[i] += (g[i] - x.a[i]) * (1 - beta_1);
      x.b[i] += (g[i] * g[i] - x.b[i]) * (1 - beta_2);
      x.p[i] -= rate * x.a[i] / (std::sqrt(x.b[i]) + epsilon);
    }
  };
}

Formula rmsprop(double r, double rho, double momentum, double epsilon, bool centered) {
  return [=](Hand& x, const Vector& g, double) {
    for (std::size_t i = 0; i < g.size(); ++i) {
      x.a[i] = rho * x.a[i] + (1 - rho) * g[i] * g[i];
      x.c[i] = rho * x.c[i] + (1 - rho) * g[i];
      const double d = centered ? x.a[i] - x.c[i] * x.c[i] : x.a[i];
      x.b[i] = momentum * x.b[i] + r * g[i] / std::sqrt(d + epsilon);
      x.p[i] -= x.b[i];
    }
  };
}

Formula adagrad(double r, double epsilon) {
  return [=](Hand& x, const Vector& g, double) {
    for (std::size_t i = 0; i < g.size(); ++i) {
      x.a[i] += g[i] * g[i];
      x.p[i] -= r * g[i] / std::sqrt(x.a[i] + epsilon);
    }
  };
}

Formula lars(double r, double momentum, double decay, double trust, double epsilon) {
  return [=](Hand& x, const Vector& g, double) {
    const double p = norm(x.p);
    const double size = norm(g);
    const double local = p == 0.0 || size == 0.0 ? 1.0 : trust * p / (size + decay * p + epsilon);
    for (std::size_t i = 0; i < g.size(); ++i) {
      x.a[i] = momentum * x.a[i] + local * r * (g[i] + decay * x.p[i]);
      x.p[i] -= x.a[i];
    }
  };
}

Formula lamb(double r, double beta_1, double beta_2, double epsilon, double decay) {
  return [=](Hand& x, const Vector& g, double t) {
    Vector u(g.size());
    for (std::size_t i = 0; i < g.size(); ++i) {
      x.a[i] += (g[i] - x.a[i]) * (1 - beta_1);
      x.b[i] += (g[i] * g[i] - x.b[i]) * (1 - beta_2);
      const double m = x.a[i] / (1 - std::pow(beta_1, t));
      const double v = x.b[i] / (1 - std::pow(beta_2, t));
      u[i] = m / (std::sqrt(v) + epsilon) + decay * x.p[i];
    }
    const double p = norm(x.p);
    const double size = norm(u);
    const double ratio = p == 0.0 || size == 0.0 ? 1.0 : p / size;
    for (std::size_t i = 0; i < g.size(); ++i) x.p[i] -= r * ratio * u[i];
  };
}

Formula clip_value(double most, Formula inner) {
  return [=](Hand& x, const Vector& g, double t) {
    Vector clipped = g;
    for (double& each : clipped) each = std::max(-most, std::min(most, each));
    inner(x, clipped, t);
  };
}

Formula clip_norm(double most, Formula inner) {
  return [=](Hand& x, const Vector& g, double t) {
    Vector clipped = g;
    const double size = norm(g);
    if (size > most) {
      for (double& each : clipped) each *= most / size;
    }
    inner(x, clipped, t);
  };
}

std::vector<RuleCase> rule_cases() {
  return {
      {"sgd", SGD({.learning_rate = 0.1}), sgd(0.1, 0, false)},
      {"sgd with decay", SGD({.learning_rate = 0.1, .weight_decay = 0.2}), sgd(0.1, 0, false, 0.2)},
      {"momentum", SGD({.learning_rate = 0.1, .momentum = 0.9}), sgd(0.1, 0.9, false)},
      {"nesterov", SGD({.learning_rate = 0.1, .momentum = 0.9, .nesterov = true}),
       sgd(0.1, 0.9, true)},
      {"nesterov without momentum", SGD({.learning_rate = 0.1, .nesterov = true}),
       sgd(0.1, 0, true)},
      {"adam", Adam({.learning_rate = 0.01}), adam(0.01, 0.9, 0.999, 1e-7)},
      {"adam with decay", Adam({.learning_rate = 0.01, .beta_1 = 0.5, .weight_decay = 0.3}),
       adam(0.01, 0.5, 0.999, 1e-7, 0.3)},
      {"adamw", AdamW({.learning_rate = 0.01, .weight_decay = 0.1, .epsilon = 1e-3}),
       adam(0.01, 0.9, 0.999, 1e-3, 0.1)},
      {"rmsprop", RMSprop({.learning_rate = 0.01}), rmsprop(0.01, 0.9, 0, 1e-7, false)},
      {"rmsprop with momentum", RMSprop({.learning_rate = 0.01, .momentum = 0.8}),
       rmsprop(0.01, 0.9, 0.8, 1e-7, false)},
      {"rmsprop centered", RMSprop({.learning_rate = 0.01, .epsilon = 1e-4, .centered = true}),
       rmsprop(0.01, 0.9, 0, 1e-4, true)},
      {"rmsprop centered with momentum",
       RMSprop({.learning_rate = 0.01, .momentum = 0.8, .epsilon = 1e-4, .centered = true}),
       rmsprop(0.01, 0.9, 0.8, 1e-4, true)},
      {"adagrad", Adagrad({.learning_rate = 0.1}), adagrad(0.1, 1e-7), 0.1},
      {"lars", LARS({.learning_rate = 0.5, .weight_decay = 1e-2, .trust = 0.02}),
       lars(0.5, 0.9, 1e-2, 0.02, 1e-8)},
      {"lamb", LAMB({.learning_rate = 0.01, .weight_decay = 0.1}),
       lamb(0.01, 0.9, 0.999, 1e-6, 0.1)},
      {"sgd clipped by value", SGD({.learning_rate = 0.1, .clipvalue = 0.3}),
       clip_value(0.3, sgd(0.1, 0, false))},
      {"sgd clipped by norm", SGD({.learning_rate = 0.1, .momentum = 0.9, .clipnorm = 0.7}),
       clip_norm(0.7, sgd(0.1, 0.9, false))},
      {"adam clipped by value", Adam({.learning_rate = 0.01, .clipvalue = 0.3}),
       clip_value(0.3, adam(0.01, 0.9, 0.999, 1e-7))},
      {"adam clipped by norm", Adam({.learning_rate = 0.01, .clipnorm = 0.7}),
       clip_norm(0.7, adam(0.01, 0.9, 0.999, 1e-7))},
      {"rmsprop clipped by value",
       RMSprop({.learning_rate = 0.01, .momentum = 0.8, .clipvalue = 0.3}),
       clip_value(0.3, rmsprop(0.01, 0.9, 0.8, 1e-7, false))},
      {"adagrad clipped by norm", Adagrad({.learning_rate = 0.1, .clipnorm = 0.7}),
       clip_norm(0.7, adagrad(0.1, 1e-7)), 0.1},
      {"lars clipped by value", LARS({.learning_rate = 0.5, .trust = 0.02, .clipvalue = 0.3}),
       clip_value(0.3, lars(0.5, 0.9, 1e-4, 0.02, 1e-8))},
      {"lars clipped by norm", LARS({.learning_rate = 0.5, .trust = 0.02, .clipnorm = 0.7}),
       clip_norm(0.7, lars(0.5, 0.9, 1e-4, 0.02, 1e-8))},
      {"lamb clipped by value", LAMB({.learning_rate = 0.01, .clipvalue = 0.3}),
       clip_value(0.3, lamb(0.01, 0.9, 0.999, 1e-6, 0))},
      {"lamb clipped by norm", LAMB({.learning_rate = 0.01, .clipnorm = 0.7}),
       clip_norm(0.7, lamb(0.01, 0.9, 0.999, 1e-6, 0))},
  };
}

// Several parameters of sizes that do and do not fill vectors; the last starts at zero, so that the
// rules that look at its norm take their other way.
const std::vector<Shape> kShapes = {{3, 5}, {16}, {1}, {4, 8}, {2, 3, 11}, {7}};

std::vector<float> random_floats(std::int64_t count, std::uint64_t stream) {
  std::vector<float> values;
  for (std::int64_t i = 0; i < count; ++i) {
    const auto bits = philox(make_key(7, stream), {static_cast<std::uint32_t>(i), 0, 0, 0});
    values.push_back(2.0F * to_unit_float(bits[0]) - 1.0F);
  }
  return values;
}

struct Problem {
  std::vector<VariableRef> parameters;
  std::vector<Hand> hands;
};

Problem make_problem(double slot_start) {
  Problem problem;
  for (std::size_t k = 0; k < kShapes.size(); ++k) {
    const auto count = kShapes[k].elements();
    std::vector<float> start =
        k + 1 == kShapes.size() ? std::vector<float>(7, 0.0F) : random_floats(count, k);
    const auto size = static_cast<std::size_t>(count);
    problem.hands.push_back({.p = Vector(start.begin(), start.end()),
                             .a = Vector(size, slot_start),
                             .b = Vector(size, 0.0),
                             .c = Vector(size, 0.0)});
    problem.parameters.push_back(parameter("p" + std::to_string(k), kShapes[k], std::move(start)));
  }
  return problem;
}

void expect_agreement(const Steps& steps, const Problem& problem) {
  for (std::size_t k = 0; k < kShapes.size(); ++k) {
    const std::vector<float> ours = steps.value(k);
    const Vector& theirs = problem.hands[k].p;
    for (std::size_t i = 0; i < theirs.size(); ++i) {
      ASSERT_NEAR(ours[i], theirs[i], 2e-5 * std::max(1.0, std::abs(theirs[i])))
          << "parameter " << k << ", element " << i;
    }
  }
}

constexpr int kSteps = 6;
constexpr double kWeight = 4.0;

std::vector<std::vector<float>> gradients_of(int step) {
  std::vector<std::vector<float>> gradients;
  for (std::size_t k = 0; k < kShapes.size(); ++k) {
    gradients.push_back(
        random_floats(kShapes[k].elements(), 100 + static_cast<std::uint64_t>(step) * 10 + k));
    for (float& each : gradients.back()) each *= static_cast<float>(kWeight);
  }
  return gradients;
}

TEST(Rules, FollowTheirFormulasOnBothLibraries) {
  for (const KernelLibrary* library : {&reference_kernels(), &cpu_kernels()}) {
    for (const RuleCase& rule : rule_cases()) {
      SCOPED_TRACE(rule.name + (library == &cpu_kernels() ? " (cpu)" : " (reference)"));
      Problem problem = make_problem(rule.slot_start);
      Steps steps(rule.optimizer, problem.parameters, *library);
      for (int step = 0; step < kSteps; ++step) {
        const auto gradients = gradients_of(step);
        steps.run(gradients, static_cast<float>(kWeight));
        for (std::size_t k = 0; k < kShapes.size(); ++k) {
          Vector g(gradients[k].begin(), gradients[k].end());
          for (double& each : g) each /= kWeight;
          rule.formula(problem.hands[k], g, step + 1.0);
        }
      }
      expect_agreement(steps, problem);
    }
  }
}

TEST(Rules, ClippingByGlobalNormScalesAllGradientsAlike) {
  const double limit = 1.5;
  for (const KernelLibrary* library : {&reference_kernels(), &cpu_kernels()}) {
    // One limit that every step reaches and one that none does.
    for (const double most : {limit, 1e6}) {
      const Formula formula = sgd(0.1, 0.9, false);
      Problem problem = make_problem(0.0);
      Steps steps(SGD({.learning_rate = 0.1, .momentum = 0.9, .global_clipnorm = most}),
                  problem.parameters, *library);
      for (int step = 0; step < kSteps; ++step) {
        const auto gradients = gradients_of(step);
        steps.run(gradients, static_cast<float>(kWeight));
        Vector all;
        for (const auto& each : gradients) all.insert(all.end(), each.begin(), each.end());
        const double size = norm(all) / kWeight;
        EXPECT_GT(size, limit);
        const double factor = std::min(1.0, most / size) / kWeight;
        for (std::size_t k = 0; k < kShapes.size(); ++k) {
          Vector g(gradients[k].begin(), gradients[k].end());
          for (double& each : g) each *= factor;
          formula(problem.hands[k], g, step + 1.0);
        }
      }
      expect_agreement(steps, problem);
    }
  }
}

TEST(Rules, AGradientThatIsNotFiniteIsSeenInTheParametersAndNotClippedAway) {
  for (const float bad :
       {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
    Steps steps(SGD({.global_clipnorm = 1.0}), {parameter("p", {2}, {1.0F, 2.0F})}, cpu_kernels());
    steps.run({{bad, 1.0F}});
    EXPECT_TRUE(std::isnan(steps.value(0)[0]));
  }
}

}  // namespace
}  // namespace lockstep

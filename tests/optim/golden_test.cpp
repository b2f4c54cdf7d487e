// Five steps of each rule against Keras's optimizers (golden/make_ops.py).
#include <gtest/gtest.h>

#include <cmath>

#include "golden/ops.h"
#include "optim/steps.h"

namespace lockstep::testing {
namespace {

std::vector<float> numbers(const Tensor& tensor) {
  const auto values = tensor.values<float>();
  return {values.begin(), values.end()};
}

TEST(GoldenUpdate, EveryRuleFollowsKeras) {
  const std::vector<std::pair<std::string, Optimizer>> rules = {
      {"sgd", SGD({.learning_rate = 0.1})},
      {"sgd_decayed", SGD({.learning_rate = 0.1, .weight_decay = 0.1})},
      {"sgd_momentum", SGD({.learning_rate = 0.1, .momentum = 0.9})},
      {"sgd_nesterov", SGD({.learning_rate = 0.1, .momentum = 0.9, .nesterov = true})},
      {"sgd_clipped_by_value", SGD({.learning_rate = 0.1, .clipvalue = 0.5})},
      {"sgd_clipped_by_norm", SGD({.learning_rate = 0.1, .clipnorm = 1.5})},
      {"sgd_clipped_by_global_norm", SGD({.learning_rate = 0.1, .global_clipnorm = 1.5})},
      {"adam", Adam({.learning_rate = 0.01})},
      {"adamw", AdamW({.learning_rate = 0.01, .weight_decay = 0.01})},
      {"rmsprop", RMSprop({.learning_rate = 0.01})},
      {"rmsprop_momentum", RMSprop({.learning_rate = 0.01, .momentum = 0.5})},
      {"rmsprop_centered", RMSprop({.learning_rate = 0.01, .centered = true})},
      {"adagrad", Adagrad({.learning_rate = 0.01, .weight_decay = 0.1})},
      {"lamb", LAMB({.learning_rate = 0.01})}};
  std::size_t results = 0;
  for (const auto& [name, tensor] : golden::ops()) {
    results += name.starts_with("update/") && name.ends_with("/0");
  }
  EXPECT_EQ(results, rules.size()) << "each rule of the script is to be compared";

  const std::vector<Shape> shapes = {{7}, {33, 5}};
  for (const auto& [name, optimizer] : rules) {
    for (const KernelLibrary* library : {&reference_kernels(), &cpu_kernels()}) {
      std::vector<VariableRef> parameters;
      for (std::size_t i = 0; i < shapes.size(); ++i) {
        parameters.push_back(parameter(fmt::format("p{}", i), shapes[i],
                                       numbers(golden::op(fmt::format("update/start{}", i)))));
      }
      Steps steps(optimizer, parameters, *library);
      for (std::int64_t step = 0; step < 5; ++step) {
        std::vector<std::vector<float>> gradients;
        for (std::size_t i = 0; i < shapes.size(); ++i) {
          gradients.push_back(
              numbers(golden::op(fmt::format("update/gradients{}", i)).rows(step, 1)));
        }
        steps.run(gradients);
      }
      for (std::size_t i = 0; i < shapes.size(); ++i) {
        const std::vector<float> expected =
            numbers(golden::op(fmt::format("update/{}/{}", name, i)));
        const std::vector<float> found = steps.value(i);
        ASSERT_EQ(found.size(), expected.size());
        for (std::size_t k = 0; k < found.size(); ++k) {
          // Keras rounds to f32 after each of the dozen operations of a step.
          EXPECT_NEAR(found[k], expected[k], 5e-6 * (1 + std::abs(expected[k])))
              << name << " parameter " << i << " element " << k;
        }
      }
    }
  }
}

}  // namespace
}  // namespace lockstep::testing

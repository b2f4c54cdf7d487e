// The initial state of a ResNet's blocks.
#include <gtest/gtest.h>

#include <algorithm>

#include "lockstep/train/applications.h"

namespace lockstep {
namespace {

TEST(ResNetStart, ZeroInitResidualZeroesTheLastNormOfEachBlock) {
  for (const bool zero : {false, true}) {
    const Model model = applications::ResNet18({.input_shape = {32, 32, 3},
                                                .classes = 4,
                                                .small_input = true,
                                                .zero_init_residual = zero});
    const std::vector<VariableRef> variables = model.variables();
    const std::vector<Tensor> weights = model.weights();
    int last_norms = 0;
    for (std::size_t i = 0; i < variables.size(); ++i) {
      const std::string& name = variables[i]->name;
      if (!name.ends_with("gamma")) continue;
      const bool ends_block = name.find("_bn2") != std::string::npos;
      last_norms += ends_block ? 1 : 0;
      const float expected = zero && ends_block ? 0.0f : 1.0f;
      EXPECT_TRUE(std::ranges::all_of(weights[i].values<float>(), [&](float value) {
        return value == expected;
      })) << name;
    }
    EXPECT_EQ(last_norms, 8);
  }
}

}  // namespace
}  // namespace lockstep

// The option to keep the optimizer's state in host memory, where it is there already.
#include <gtest/gtest.h>

#include <algorithm>

#include "train/problem.h"

namespace lockstep::testing {
namespace {

TEST(OffloadOnACpu, ChangesNothingAndSaysSo) {
  const Problem data = make_problem(64);
  const auto trained = [&](const std::string& offload) {
    Sequential model = make_model();
    CompileOptions options = with_adam();
    options.offload = offload;
    model.compile(options);
    model.fit(data.x, data.y, {.epochs = 2});
    return model;
  };
  const Sequential plain = trained("none");
  const Sequential offloaded = trained("optimizer");
  EXPECT_TRUE(same_weights(plain, offloaded));
  const auto about_offload = [](const std::string& remark) {
    return remark.find("offload = optimizer changes nothing on cpu:0") != std::string::npos;
  };
  EXPECT_EQ(std::ranges::count_if(offloaded.remarks(), about_offload), 1);
  EXPECT_EQ(std::ranges::count_if(plain.remarks(), about_offload), 0);
}

}  // namespace
}  // namespace lockstep::testing

#include "lockstep/base/json_depth.h"

#include <gtest/gtest.h>

#include <string>

namespace lockstep {
namespace {

TEST(JsonDepth, CountsBracketsExceptInStrings) {
  EXPECT_FALSE(nests_too_deep(R"({"a":[1,{"b":[]}],"c":[]})", 4));
  EXPECT_TRUE(nests_too_deep(R"({"a":[1,{"b":[]}],"c":[]})", 3));
  EXPECT_FALSE(nests_too_deep(R"(["[[[[\"[[[[","]"])", 1));
  EXPECT_TRUE(nests_too_deep(R"(["\\",[]])", 1)) << "the string ends after its two backslashes";
  EXPECT_TRUE(nests_too_deep(std::string(100000, '[')));
  EXPECT_FALSE(nests_too_deep("]]]]"));
}

}  // namespace
}  // namespace lockstep

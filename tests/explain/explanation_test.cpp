#include "lockstep/explain/explanation.h"

#include <gtest/gtest.h>

#include <set>
#include <string>

namespace lockstep {
namespace {

TEST(Cause, EveryOneHasANameOfItsOwn) {
  std::set<std::string> names;
  int causes = 0;
  for (int i = 0; i <= static_cast<int>(Cause::Failures); ++i, ++causes) {
    names.insert(name_of(static_cast<Cause>(i)));
  }
  EXPECT_EQ(static_cast<int>(names.size()), causes);
  EXPECT_FALSE(names.contains(""));
}

}  // namespace
}  // namespace lockstep

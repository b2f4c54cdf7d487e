#include "lockstep/graph/attrs.h"

#include <gtest/gtest.h>

#include "lockstep/base/error.h"

namespace lockstep {
namespace {

TEST(Attrs, GiveBackWhatWasPutIn) {
  Attrs attrs = {{"axis", std::int64_t{1}}, {"keepdims", true}, {"kind", std::string("relu")}};
  attrs.set("alpha", 0.5);
  attrs.set("axes", Ints{0, 2});
  EXPECT_EQ(attrs.integer("axis"), 1);
  EXPECT_TRUE(attrs.flag("keepdims"));
  EXPECT_EQ(attrs.text("kind"), "relu");
  EXPECT_EQ(attrs.real("alpha"), 0.5);
  EXPECT_EQ(attrs.ints("axes"), (Ints{0, 2}));
  EXPECT_EQ(attrs.text_or_empty("activation"), "");
  EXPECT_EQ(attrs.str(), "{alpha=0.5, axes=[0,2], axis=1, keepdims=true, kind=relu}");
  EXPECT_EQ(Attrs().str(), "");
}

TEST(Attrs, AMissingOneOrOneOfAnotherKindIsABug) {
  const Attrs attrs = {{"axis", std::int64_t{1}}};
  EXPECT_THROW(attrs.integer("rows"), InternalError);
  EXPECT_THROW(attrs.real("axis"), InternalError);
}

}  // namespace
}  // namespace lockstep

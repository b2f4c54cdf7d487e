#include "lockstep/graph/placement.h"

#include <gtest/gtest.h>

#include <set>

#include "lockstep/base/error.h"
#include "lockstep/graph/op_def.h"
#include "lockstep/graph/ops/ops.h"
#include "zero_variable.h"

namespace lockstep {
namespace {

TEST(Placement, EveryOpThatMayStandBeforePlaceHasARule) {
  const std::set<Op> leaves = {Op::Input, Op::Variable, Op::Constant};
  const std::set<Op> made_later = {Op::RoundGradients, Op::Pointwise, Op::PointwiseAssign,
                                   Op::Reorder};
  for (int i = 0; i <= static_cast<int>(Op::Reorder); ++i) {
    const auto op = static_cast<Op>(i);
    const bool needs_one = !leaves.contains(op) && !made_later.contains(op);
    EXPECT_EQ(op_def(op).place != nullptr, needs_one) << op_def(op).name;
  }
}

TEST(Placement, ReadsAsItIsWritten) {
  EXPECT_EQ(Placement::replicated().str(), "Replicated");
  EXPECT_EQ(Placement::sharded(1).str(), "Sharded(1)");
  EXPECT_EQ(Placement::sharded_flat().str(), "Sharded(flat)");
  EXPECT_EQ(Placement::partial().str(), "Partial(sum)");
  EXPECT_EQ(Placement::partial(Placement::Reduction::Max).str(), "Partial(max)");
  EXPECT_EQ(Placement::local().str(), "Local");
}

TEST(Placement, IsReplicatedOnAxesThatAreNotMentioned) {
  Placements placements = Placement::sharded(0);
  EXPECT_TRUE(placements.on("model").is_replicated());
  placements.set("model", Placement::partial());
  EXPECT_EQ(placements.str(), "data=Sharded(0) model=Partial(sum)");
  placements.set("model", Placement::replicated());
  EXPECT_EQ(placements, Placements(Placement::sharded(0)));
}

TEST(Placement, StandsInThePrintedGraphAndSurvivesACopy) {
  Graph graph;
  auto metric = std::make_shared<Variable>();
  metric->name = "count";
  metric->placement = Placement::local();
  graph.output("y", graph.variable(metric) + 1.0);
  EXPECT_NE(print(graph).find("data=Local"), std::string::npos) << print(graph);
  EXPECT_EQ(print(clone(graph)), print(graph));
}

TEST(Collective, SlicesAreThoseOfTheWholeListAndMayBeEmpty) {
  Graph graph;
  const std::vector<Value> values = {graph.input("a", {DType::F32, {3, 5}}),
                                     graph.input("b", {DType::F32, {2}}),
                                     graph.input("c", {DType::F32, {}})};
  std::int64_t elements = 0;
  for (int r = 0; r < 4; ++r) {
    const Slice own = slice_of(18, sizeof(float), r, 4);
    std::int64_t here = 0;
    for (const Value& slice : reduce_scatter(values, {.rank = r, .size = 4})) {
      EXPECT_EQ(slice.shape().rank(), 1);
      here += slice.shape().elements();
    }
    EXPECT_EQ(here, static_cast<std::int64_t>(own.size()));
    elements += here;
  }
  EXPECT_EQ(elements, 18);
  verify(graph);
}

TEST(Collective, AGatherTakesThisRanksSlicesOnly) {
  Graph graph;
  const Value five = graph.input("five", {DType::F32, {5}});
  const Shape shapes[] = {{3, 3}};
  EXPECT_EQ(all_gather({&five, 1}, shapes, {.rank = 1, .size = 2})[0].shape(), shapes[0]);
  EXPECT_THROW(all_gather({&five, 1}, shapes, {.rank = 0, .size = 2}), UsageError);
  EXPECT_THROW(all_gather({&five, 1}, shapes, {.rank = 2, .size = 2}), UsageError);
}

TEST(Collective, CostsTheBytesThatTheOthersLack) {
  Graph graph;
  const Value x = graph.input("x", {DType::F32, {64}});
  reduce_scatter({&x, 1}, {.rank = 0, .size = 4});
  EXPECT_EQ(cost_of(graph, graph.nodes().back()).bytes, 2 * 64 * 4 * 3.0 / 4);
  const Value slice = own_slice({&x, 1}, {.rank = 0, .size = 4})[0];
  const Shape shapes[] = {{64}};
  all_gather({&slice, 1}, shapes, {.rank = 0, .size = 4});
  EXPECT_EQ(cost_of(graph, graph.nodes().back()).bytes, 2 * 64 * 4 * 3.0 / 4);
}

}  // namespace
}  // namespace lockstep

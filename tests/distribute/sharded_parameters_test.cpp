// Parameters of which ranks have slices (ZeRO 3): when they are gathered, and that training has the
// bits of whole ones.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "lockstep/autodiff/gradients.h"
#include "lockstep/base/error.h"
#include "lockstep/base/random.h"
#include "lockstep/distribute/bucket.h"
#include "lockstep/distribute/place.h"
#include "lockstep/distribute/schedule.h"
#include "lockstep/graph/ops/ops.h"
#include "lockstep/optim/optimizer.h"
#include "lockstep/passes/precision.h"
#include "ranks.h"

namespace lockstep {
namespace {

// A forward pass over groups of these sizes and a backward pass over them: group g is used at nodes
// g and 2 * groups - 1 - g.
std::vector<GatheredGroup> there_and_back(const std::vector<std::size_t>& bytes) {
  std::vector<GatheredGroup> groups;
  const auto count = static_cast<NodeId>(bytes.size());
  for (NodeId g = 0; g < count; ++g) {
    groups.push_back({.bytes = bytes[static_cast<std::size_t>(g)], .uses = {g, 2 * count - 1 - g}});
  }
  return groups;
}

TEST(Gathers, AGroupStaysWholeWhereTheBudgetAllows) {
  const std::vector<GatheredGroup> groups = there_and_back({4, 4, 4});
  const std::vector<PlannedGather> all = plan_gathers(groups, 6, 100);
  ASSERT_EQ(all.size(), 3u);
  for (const PlannedGather& gather : all) EXPECT_EQ(gather.at, 0);
  // With room for two, the first group is released until the backward pass comes back to it. What
  // comes next is started while the one before is in use.
  const std::vector<PlannedGather> two = plan_gathers(groups, 6, 8);
  const std::vector<PlannedGather> expected{{.group = 0, .at = 0, .first = 0, .last = 0},
                                            {.group = 1, .at = 0, .first = 1, .last = 4},
                                            {.group = 2, .at = 1, .first = 2, .last = 3},
                                            {.group = 0, .at = 4, .first = 5, .last = 5}};
  EXPECT_EQ(two, expected);
  EXPECT_EQ(default_gather_bytes(groups), 8u);
}

TEST(Gathers, CoverEveryUseInOrderWithinTheBudget) {
  RandomSequence random(3, 1);
  for (int turn = 0; turn < 200; ++turn) {
    const NodeId nodes = 40;
    std::vector<GatheredGroup> groups;
    for (std::uint64_t g = 0; g < 1 + random.below(6); ++g) {
      GatheredGroup& group = groups.emplace_back();
      group.bytes = 1 + random.below(9);
      for (NodeId n = 0; n < nodes; ++n) {
        if (random.below(8) == 0) group.uses.push_back(n);
      }
    }
    const std::size_t budget = random.below(30);
    const std::vector<PlannedGather> all = plan_gathers(groups, nodes, budget);
    std::vector<std::size_t> there(static_cast<std::size_t>(nodes), 0);
    std::vector<std::size_t> needed(static_cast<std::size_t>(nodes), 0);
    for (std::size_t g = 0; g < groups.size(); ++g) {
      for (NodeId use : groups[g].uses) {
        needed[static_cast<std::size_t>(use)] += groups[g].bytes;
        EXPECT_EQ(std::ranges::count_if(all,
                                        [&](const PlannedGather& each) {
                                          return each.group == g && each.first <= use &&
                                                 use <= each.last;
                                        }),
                  1);
      }
    }
    for (std::size_t i = 0; i < all.size(); ++i) {
      EXPECT_LE(all[i].at, all[i].first);
      EXPECT_TRUE(i == 0 || all[i - 1].at <= all[i].at);
      for (NodeId n = all[i].at; n <= all[i].last; ++n) {
        there[static_cast<std::size_t>(n)] += groups[all[i].group].bytes;
      }
    }
    for (std::size_t n = 0; n < there.size(); ++n) {
      EXPECT_LE(there[n], std::max(budget, needed[n])) << "node " << n;
    }
  }
}

// Three dense layers; the last parameter is larger than all others together.
struct DeepNet {
  std::vector<VariableRef> parameters;
  Optimizer optimizer;

  explicit DeepNet(Optimizer with, std::int64_t width = 13) : optimizer(std::move(with)) {
    const Shape shapes[] = {{7, width}, {width}, {width, width}, {width}, {width, 91}, {91}};
    for (int i = 0; i < 6; ++i) {
      Variable variable;
      variable.name = fmt::format("{}", i);
      variable.shape = shapes[i];
      variable.initializer = [i](Tensor& target, std::uint64_t) {
        double next = i;
        for (float& x : target.values<float>()) x = static_cast<float>(0.3 * std::sin(next += 1));
      };
      parameters.push_back(std::make_shared<const Variable>(std::move(variable)));
    }
  }

  Graph trace(std::int64_t samples) const {
    Graph graph;
    Value y = graph.input("x", {DType::F32, {samples, 7}});
    for (std::size_t i = 0; i < parameters.size(); i += 2) {
      y = tanh(matmul(y, graph.variable(parameters[i])) + graph.variable(parameters[i + 1]));
    }
    const Value loss = reduce_sum(square(y - 1.0));
    std::vector<Value> targets;
    for (const VariableRef& parameter : parameters) targets.push_back(graph.variable(parameter));
    optimizer.apply(graph, parameters, gradients(loss, targets),
                    graph.scalar(static_cast<double>(samples)));
    graph.output("loss", loss);
    return graph;
  }
};

struct DeepOptions {
  bool sharded = false;
  std::optional<DType> precision = {};
  std::size_t gather_bytes = 0;
  BucketSizes sizes = {.first_bytes = 64, .bytes = 600};
};

Graph distributed_deep(Graph graph, int rank, int ranks, const DeepOptions& options) {
  const Placement placement = options.sharded ? Placement::sharded_flat() : Placement();
  std::vector<std::unique_ptr<Pass>> passes;
  if (options.precision) passes.push_back(std::make_unique<MixedPrecision>(*options.precision));
  passes.push_back(std::make_unique<PlacePass>(
      PlaceOptions{.ranks = ranks, .inputs = {}, .slots = placement, .parameters = placement}));
  passes.push_back(std::make_unique<BucketPass>(BucketOptions{
      .rank = rank, .ranks = ranks, .sizes = options.sizes, .gather_bytes = options.gather_bytes}));
  run_passes(graph, passes);
  return graph;
}

std::unique_ptr<Ranks> trained_deep(const DeepNet& net, int size, const DeepOptions& options) {
  auto ranks = std::make_unique<Ranks>(
      size, [&](int r) { return distributed_deep(net.trace(r + 2), r, size, options); });
  for (int step = 0; step < 6; ++step) {
    for (int r = 0; r < size; ++r) {
      double next = 100 * step + 10 * r;
      for (float& x : ranks->executor(r).input("x").values<float>()) {
        x = static_cast<float>(std::cos(next += 1));
      }
    }
    ranks->run();
  }
  return ranks;
}

// Slices of all ranks make up the whole, each element once.
void expect_slices_of(const Tensor& whole, const Variable& variable, Ranks& ranks, int size) {
  std::size_t elements = 0;
  for (int r = 0; r < size; ++r) {
    const Slice slice = ranks.state(r).slice(variable);
    elements += slice.size();
    const Tensor here = ranks.state(r).get_slice(variable);
    EXPECT_EQ(std::memcmp(here.raw(), whole.raw() + slice.begin * sizeof(float),
                          slice.size() * sizeof(float)),
              0)
        << variable.name << " on rank " << r << " of " << size;
  }
  EXPECT_EQ(elements, static_cast<std::size_t>(whole.elements()));
}

TEST(ShardedParameters, GiveTheBitsOfWholeOnes) {
  using Make = Optimizer (*)();
  for (const Make make : {Make([] { return Adam(1e-2); }), Make([] { return SGD(1e-2); })}) {
    for (const int size : {2, 3, 4}) {
      const DeepNet plain(make());
      const auto whole = trained_deep(plain, size, {});
      for (const std::size_t gather_bytes :
           {std::size_t{0}, std::size_t{1}, std::size_t{1} << 20}) {
        const DeepNet net(make());
        const auto sliced =
            trained_deep(net, size, {.sharded = true, .gather_bytes = gather_bytes});
        for (std::size_t p = 0; p < net.parameters.size(); ++p) {
          expect_slices_of(whole->state(0).get(*plain.parameters[p]), *net.parameters[p], *sliced,
                           size);
        }
      }
    }
  }
}

TEST(ShardedParameters, AreGatheredInSixteenBitsInMixedPrecision) {
  const int size = 2;
  const DeepNet plain(Adam(1e-2));
  const auto whole = trained_deep(plain, size, {.precision = DType::BF16});
  const DeepNet net(Adam(1e-2));
  const DeepOptions options{.sharded = true, .precision = DType::BF16};
  const auto sliced = trained_deep(net, size, options);
  for (std::size_t p = 0; p < net.parameters.size(); ++p) {
    expect_slices_of(whole->state(0).get(*plain.parameters[p]), *net.parameters[p], *sliced, size);
  }
  const std::string schedule = describe_schedule(distributed_deep(net.trace(2), 0, size, options));
  EXPECT_NE(schedule.find("all_gather data bf16"), std::string::npos) << schedule;
  EXPECT_NE(schedule.find("reduce_scatter data f32"), std::string::npos) << schedule;
  for (int r = 0; r < size; ++r) {
    EXPECT_FALSE(first_difference(schedule, describe_schedule(distributed_deep(net.trace(r + 2), r,
                                                                               size, options)))
                     .has_value());
  }
}

// Fewer parameters than ranks: some have empty slices of everything.
TEST(ShardedParameters, MayBeFewerThanRanks) {
  const int size = 4;
  const DeepNet plain(Adam(1e-2), 1);
  const auto whole = trained_deep(plain, size, {.sizes = {1, 1}});
  const DeepNet net(Adam(1e-2), 1);
  const auto sliced = trained_deep(net, size, {.sharded = true, .sizes = {1, 1}});
  for (std::size_t p = 0; p < net.parameters.size(); ++p) {
    expect_slices_of(whole->state(0).get(*plain.parameters[p]), *net.parameters[p], *sliced, size);
  }
}

TEST(ShardedParameters, ASmallerBudgetTakesNoMoreMemory) {
  const DeepNet net(Adam(), 200);
  std::size_t before = std::numeric_limits<std::size_t>::max();
  for (const std::size_t budget : {std::size_t{1} << 30, std::size_t{200'000}, std::size_t{1}}) {
    Ranks ranks(2, [&](int r) {
      return distributed_deep(net.trace(2), r, 2,
                              {.sharded = true, .gather_bytes = budget, .sizes = {1, 1}});
    });
    const std::size_t now = ranks.executor(0).plan().arena_bytes;
    EXPECT_LE(now, before) << "budget " << budget;
    before = now;
  }
}

}  // namespace
}  // namespace lockstep

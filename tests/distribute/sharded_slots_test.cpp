// Optimizers whose slots are Sharded(flat): every rank updates its own slice of each bucket.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>

#include "lockstep/autodiff/gradients.h"
#include "lockstep/base/error.h"
#include "lockstep/distribute/bucket.h"
#include "lockstep/distribute/place.h"
#include "lockstep/distribute/schedule.h"
#include "lockstep/graph/op_def.h"
#include "lockstep/graph/ops/ops.h"
#include "lockstep/optim/optimizer.h"
#include "ranks.h"

namespace lockstep {
namespace {

// Two dense layers of sizes that no number of ranks divides.
struct Net {
  std::vector<VariableRef> parameters;
  Optimizer optimizer;

  explicit Net(Optimizer with) : optimizer(std::move(with)) {
    const Shape shapes[] = {{7, 131}, {131}, {131, 5}, {5}};
    const char* names[] = {"a/kernel", "a/bias", "b/kernel", "b/bias"};
    for (int i = 0; i < 4; ++i) {
      Variable variable;
      variable.name = names[i];
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
    const Value x = graph.input("x", {DType::F32, {samples, 7}});
    const Value hidden =
        tanh(matmul(x, graph.variable(parameters[0])) + graph.variable(parameters[1]));
    const Value y = matmul(hidden, graph.variable(parameters[2])) + graph.variable(parameters[3]);
    const Value loss = reduce_sum(square(y - 1.0));
    std::vector<Value> targets;
    for (const VariableRef& parameter : parameters) targets.push_back(graph.variable(parameter));
    optimizer.apply(graph, parameters, gradients(loss, targets),
                    graph.scalar(static_cast<double>(samples)));
    graph.output("loss", loss);
    return graph;
  }
};

Graph distributed(Graph graph, int rank, int ranks, BucketSizes sizes, Placement slots) {
  std::vector<std::unique_ptr<Pass>> passes;
  passes.push_back(
      std::make_unique<PlacePass>(PlaceOptions{.ranks = ranks, .inputs = {}, .slots = slots}));
  passes.push_back(
      std::make_unique<BucketPass>(BucketOptions{.rank = rank, .ranks = ranks, .sizes = sizes}));
  run_passes(graph, passes);
  return graph;
}

// Ten steps; rank r has r + 2 samples.
std::unique_ptr<Ranks> trained(const Net& net, int size, BucketSizes sizes, Placement slots) {
  auto ranks = std::make_unique<Ranks>(
      size, [&](int r) { return distributed(net.trace(r + 2), r, size, sizes, slots); });
  for (int step = 0; step < 10; ++step) {
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

std::size_t slot_bytes(const State& state, const Net& net) {
  std::size_t bytes = 0;
  for (const VariableRef& variable : net.optimizer.variables()) {
    if (variable->shape.rank() > 0) bytes += state.bytes(*variable);
  }
  return bytes;
}

Optimizer with_decay_of_kernels() {
  Optimizer optimizer = AdamW(1e-2);
  optimizer.exclude_from_weight_decay({"bias"});
  return optimizer;
}

struct SlotCase {
  const char* name;
  Optimizer (*make)();
};
const SlotCase kSlotCases[] = {
    {"SGDWithoutSlots", [] { return SGD(1e-2); }},
    {"SGDWithMomentum", [] { return SGD({.learning_rate = 1e-2, .momentum = 0.9}); }},
    {"Adam", [] { return Adam(1e-2); }},
    {"AdamWithClippedValues", [] { return Adam({.learning_rate = 1e-2, .clipvalue = 0.1}); }},
    {"AdamWOnKernels", with_decay_of_kernels},
};

class ShardedSlots : public testing::TestWithParam<SlotCase> {};

TEST_P(ShardedSlots, GiveTheBitsOfReplicatedOnesOnAnyNumberOfRanks) {
  const BucketSizes kSizes[] = {{.first_bytes = 1, .bytes = 1},
                                {.first_bytes = 64, .bytes = 4000},
                                {.first_bytes = 1 << 20, .bytes = 1 << 20}};
  for (const int size : {2, 3, 4}) {
    const Net plain(GetParam().make());
    const auto whole = trained(plain, size, kSizes[1], Placement::replicated());
    for (const BucketSizes& sizes : kSizes) {
      const Net net(GetParam().make());
      const auto sliced = trained(net, size, sizes, Placement::sharded_flat());
      for (std::size_t p = 0; p < net.parameters.size(); ++p) {
        const Tensor expected = whole->state(0).get(*plain.parameters[p]);
        State untrained(host(), 1);
        untrained.add(plain.parameters[p]);
        EXPECT_FALSE(untrained.get(*plain.parameters[p]).same_bits(expected));
        for (int r = 0; r < size; ++r) {
          EXPECT_TRUE(sliced->state(r).get(*net.parameters[p]).same_bits(expected))
              << net.parameters[p]->name << " on rank " << r << " of " << size;
        }
      }
      // Slots: slices that make up the whole ones.
      const std::size_t all = slot_bytes(whole->state(0), plain);
      std::size_t sum = 0;
      for (int r = 0; r < size; ++r) {
        const std::size_t here = slot_bytes(sliced->state(r), net);
        sum += here;
        EXPECT_LE(here, all / static_cast<std::size_t>(size) + 4 * 2 * 64) << "rank " << r;
      }
      EXPECT_EQ(sum, all);
      for (std::size_t v = 0; v < net.optimizer.variables().size(); ++v) {
        const VariableRef slot = net.optimizer.variables()[v];
        if (slot->shape.rank() == 0) continue;
        const Tensor expected = whole->state(0).get(*plain.optimizer.variables()[v]);
        for (int r = 0; r < size; ++r) {
          const Slice slice = sliced->state(r).slice(*slot);
          const Tensor here = sliced->state(r).get_slice(*slot);
          EXPECT_EQ(std::memcmp(here.raw(), expected.raw() + slice.begin * sizeof(float),
                                slice.size() * sizeof(float)),
                    0)
              << slot->name << " on rank " << r;
        }
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(, ShardedSlots, testing::ValuesIn(kSlotCases),
                         [](const auto& info) { return std::string(info.param.name); });

// Rules with norms: ranks add up the squares of the norms of their slices, so that results agree to
// rounding; whether a step is skipped is one decision of all.
struct NormCase {
  const char* name;
  Optimizer (*make)();
};
const NormCase kNormCases[] = {
    {"Lars", [] { return LARS({.learning_rate = 1.0, .trust = 0.01}); }},
    {"LarsClipped", [] { return LARS({.learning_rate = 1.0, .trust = 0.01, .clipnorm = 0.02}); }},
    {"Lamb", [] { return LAMB({.learning_rate = 1e-2, .weight_decay = 0.01}); }},
    {"LambOnKernels",
     [] {
       Optimizer optimizer = LAMB({.learning_rate = 1e-2, .weight_decay = 0.1, .clipnorm = 0.1});
       optimizer.exclude_from_weight_decay({"bias"});
       return optimizer;
     }},
    {"ClipNorm", [] { return Adam({.learning_rate = 1e-2, .clipnorm = 0.05}); }},
    {"ClipNormWithoutSlots", [] { return SGD({.learning_rate = 0.1, .clipnorm = 0.05}); }},
    {"GlobalClipNorm", [] { return Adam({.learning_rate = 1e-2, .global_clipnorm = 0.05}); }},
    {"LossScale", [] { return Adam(1e-2).with_loss_scale(); }},
};

class ShardedNorms : public testing::TestWithParam<NormCase> {};
INSTANTIATE_TEST_SUITE_P(, ShardedNorms, testing::ValuesIn(kNormCases),
                         [](const auto& info) { return std::string(info.param.name); });

TEST_P(ShardedNorms, AreThoseOfWholeParametersToRounding) {
  for (const int size : {2, 3, 4}) {
    const Net plain(GetParam().make());
    const auto whole = trained(plain, size, {64, 4000}, Placement::replicated());
    for (const BucketSizes& sizes : {BucketSizes{1, 1}, BucketSizes{1 << 20, 1 << 20}}) {
      const Net net(GetParam().make());
      const auto sliced = trained(net, size, sizes, Placement::sharded_flat());
      for (std::size_t p = 0; p < net.parameters.size(); ++p) {
        const Tensor expected = whole->state(0).get(*plain.parameters[p]);
        const Tensor first = sliced->state(0).get(*net.parameters[p]);
        double most = 0;
        for (std::size_t i = 0; i < expected.values<float>().size(); ++i) {
          most = std::max(most, static_cast<double>(std::abs(expected.values<float>()[i] -
                                                             first.values<float>()[i])));
        }
        EXPECT_LT(most, 2e-6) << net.parameters[p]->name << " on " << size << " ranks";
        for (int r = 1; r < size; ++r) {
          EXPECT_TRUE(sliced->state(r).get(*net.parameters[p]).same_bits(first)) << "rank " << r;
        }
      }
    }
  }
}

// One gradient of one rank is infinite: nobody applies the step, and all halve the scale alike.
TEST(ShardedSlotsOf, AGradientThatIsNotFiniteOnOneRankSkipsTheStepOnAll) {
  const Net net(Adam(1e-2).with_loss_scale());
  const int size = 3;
  Ranks ranks(size, [&](int r) {
    return distributed(net.trace(r + 2), r, size, {64, 2000}, Placement::sharded_flat());
  });
  const auto run = [&](float of_rank_1) {
    for (int r = 0; r < size; ++r) {
      for (float& x : ranks.executor(r).input("x").values<float>()) x = r == 1 ? of_rank_1 : 0.5f;
    }
    ranks.run();
  };
  run(0.25f);
  std::vector<Tensor> before;
  for (const VariableRef& parameter : net.parameters) {
    before.push_back(ranks.state(0).get(*parameter));
  }
  const std::vector<VariableRef> scale = net.optimizer.loss_scale_variables();
  const double start = ranks.state(0).get(*scale[0]).item();
  const VariableRef slot = net.optimizer.variables().back();
  std::vector<Tensor> slots;
  for (int r = 0; r < size; ++r) slots.push_back(ranks.state(r).get_slice(*slot));
  run(std::numeric_limits<float>::quiet_NaN());
  for (int r = 0; r < size; ++r) {
    for (std::size_t p = 0; p < before.size(); ++p) {
      EXPECT_TRUE(ranks.state(r).get(*net.parameters[p]).same_bits(before[p])) << "rank " << r;
    }
    EXPECT_TRUE(ranks.state(r).get_slice(*slot).same_bits(slots[static_cast<std::size_t>(r)]));
    EXPECT_EQ(ranks.state(r).get(*scale[0]).item(), start / 2) << "rank " << r;
    EXPECT_EQ(ranks.state(r).get(*scale[2]).item(), 1) << "rank " << r;
  }
  run(0.25f);
  EXPECT_FALSE(ranks.state(0).get(*net.parameters[0]).same_bits(before[0]));
}

// Who reads whole sums beside the update gets them: they are then all-reduced.
TEST(ShardedSlotsOf, SumsThatSomethingElseReadsAreWholeForIt) {
  const Net net(Adam(1e-2));
  const int size = 3;
  const auto trace = [&](int r, Placement slots) {
    Graph graph;
    const Value x = graph.input("x", {DType::F32, {r + 1, 7}});
    const Value parameter = graph.variable(net.parameters[0]);
    const Value loss = reduce_sum(square(matmul(x, parameter)));
    const std::vector<Value> sums =
        net.optimizer.apply(graph, {&net.parameters[0], 1}, gradients(loss, {&parameter, 1}),
                            graph.scalar(static_cast<double>(r + 1)));
    graph.output("sum", sums[0]);
    return distributed(std::move(graph), r, size, {}, slots);
  };
  const auto run = [&](Placement slots) {
    auto ranks = std::make_unique<Ranks>(size, [&](int r) { return trace(r, slots); });
    for (int r = 0; r < size; ++r) {
      for (float& x : ranks->executor(r).input("x").values<float>())
        x = 0.1f * static_cast<float>(r);
    }
    ranks->run();
    return ranks;
  };
  const auto whole = run(Placement::replicated());
  const auto sliced = run(Placement::sharded_flat());
  for (int r = 0; r < size; ++r) {
    EXPECT_TRUE(sliced->executor(r).output("sum").same_bits(whole->executor(r).output("sum")));
    EXPECT_TRUE(sliced->state(r)
                    .get(*net.parameters[0])
                    .same_bits(whole->state(r).get(*net.parameters[0])));
  }
  const VariableRef slot = net.optimizer.variables().back();
  EXPECT_LT(sliced->state(0).bytes(*slot), whole->state(0).bytes(*slot));
}

// What Bucket writes follows the ops' rules, too.
TEST(ShardedSlotsOf, EveryValueLiesAsItsRuleSays) {
  for (const Placement& slots : {Placement::replicated(), Placement::sharded_flat()}) {
    Graph graph = distributed(Net(Adam()).trace(2), 1, 3, {}, slots);
    EXPECT_NO_THROW(derive_placements(graph, kDataAxis)) << print(graph);
    for (const Node& node : graph.nodes()) {
      for (ValueId id : node.outputs) {
        const bool slice = graph.info(id).placement.on(kDataAxis).is_flat();
        const bool makes_slices = node.op == Op::ReduceScatter || node.op == Op::OwnSlice ||
                                  node.op == Op::Update || node.attrs.has("begin");
        EXPECT_EQ(slice, makes_slices) << op_def(node.op).name;
      }
    }
  }
}

// A slot that was made Sharded(flat) stays so whatever the pass is asked for.
TEST(ShardedSlotsOf, AVariableSaysHowItLies) {
  Graph graph;
  const Value x = graph.input("x", {DType::F32, {4, 8}});
  Variable kernel;
  kernel.name = "kernel";
  kernel.shape = {8, 3};
  Variable velocity = kernel;
  velocity.name = "velocity";
  velocity.placement = Placement::sharded_flat();
  const Value parameter = graph.variable(std::make_shared<const Variable>(kernel));
  const Value loss = reduce_sum(square(matmul(x, parameter)));
  update({.rate = graph.scalar(0.1),
          .scale = graph.scalar(1.0),
          .step = graph.scalar(1, DType::I64),
          .parameters = {parameter},
          .gradients = all_reduce_gradients(gradients(loss, {&parameter, 1})),
          .slots = {{graph.variable(std::make_shared<const Variable>(velocity))}}},
         "sgd", {{"momentum", 0.9}, {"nesterov", false}});
  const std::string schedule =
      describe_schedule(distributed(std::move(graph), 0, 2, {}, Placement::replicated()));
  EXPECT_EQ(schedule,
            "gradients 1: reduce_scatter data f32 24: kernel (8, 3)\n"
            "gradients 2: all_gather data f32 24: kernel (8, 3)\n");
}

TEST(ShardedSlotsOf, RanksOfOneScheduleAgree) {
  const Net net(Adam());
  const BucketSizes sizes{.first_bytes = 64, .bytes = 2000};
  std::vector<std::string> schedules;
  for (int r = 0; r < 3; ++r) {
    schedules.push_back(
        describe_schedule(distributed(net.trace(r + 2), r, 3, sizes, Placement::sharded_flat())));
    EXPECT_FALSE(first_difference(schedules.front(), schedules.back()).has_value());
  }
  EXPECT_NE(schedules.front().find("reduce_scatter data f32"), std::string::npos);
  EXPECT_NE(schedules.front().find("all_gather data f32"), std::string::npos);
  EXPECT_NE(schedules.front().find("a/kernel (7, 131)"), std::string::npos) << schedules.front();
}

}  // namespace
}  // namespace lockstep

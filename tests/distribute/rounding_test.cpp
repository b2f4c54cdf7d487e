// Gradients that are communicated in 16 bits, and the feedback of what rounding them loses.
#include "lockstep/distribute/rounding.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "lockstep/autodiff/gradients.h"
#include "lockstep/base/error.h"
#include "lockstep/distribute/bucket.h"
#include "lockstep/distribute/place.h"
#include "lockstep/distribute/schedule.h"
#include "lockstep/graph/ops/ops.h"
#include "lockstep/optim/optimizer.h"
#include "ranks.h"

namespace lockstep {
namespace {

struct RoundingPair {
  Value sum;
  Value weight;
};

// Parameters whose gradients are the inputs: each rank feeds its own.
struct FedGradients {
  std::vector<VariableRef> parameters;
  Optimizer optimizer;

  explicit FedGradients(Optimizer with, std::vector<Shape> shapes = {{5}, {3, 32}})
      : optimizer(std::move(with)) {
    for (std::size_t i = 0; i < shapes.size(); ++i) {
      parameters.push_back(std::make_shared<const Variable>(
          Variable{.name = fmt::format("p{}", i), .shape = shapes[i], .initializer = {}}));
    }
  }

  Graph trace() const {
    Graph graph;
    Value loss = graph.scalar(0.0);
    std::vector<Value> targets;
    for (const VariableRef& parameter : parameters) {
      targets.push_back(graph.variable(parameter));
      const Value x = graph.input("x/" + parameter->name, {DType::F32, parameter->shape});
      loss = loss + reduce_sum(x * targets.back());
    }
    const RoundingPair pair =
        optimizer.scale(RoundingPair{loss, reduce_sum(graph.input("weight", {DType::F32, {1}}))});
    optimizer.apply(graph, parameters, gradients(pair.sum, targets), pair.weight);
    return graph;
  }
};

Graph rounded_graph(Graph graph, int rank, int ranks, const RoundingOptions& rounding,
                    BucketSizes sizes = {.first_bytes = 1, .bytes = 1}) {
  std::map<std::string, Placement> inputs;
  for (const auto& [name, id] : graph.inputs()) inputs[name] = Placement::local();
  std::vector<std::unique_ptr<Pass>> passes;
  passes.push_back(std::make_unique<PlacePass>(PlaceOptions{.ranks = ranks, .inputs = inputs}));
  passes.push_back(std::make_unique<BucketPass>(
      BucketOptions{.rank = rank, .ranks = ranks, .sizes = sizes, .rounding = rounding}));
  run_passes(graph, passes);
  return graph;
}

// Two ranks, whose errors are variables of the same names.
class OnTwoRanks {
 public:
  OnTwoRanks(const FedGradients& net, DType dtype, bool with_feedback = true) : net_(net) {
    ranks_ = std::make_unique<Ranks>(2, [&](int r) {
      return rounded_graph(net.trace(), r, 2,
                           {.dtype = dtype, .feedback = with_feedback ? &feedback : nullptr});
    });
    for (int r = 0; r < 2; ++r) set_weight(r, 1.0F);
  }

  void set_weight(int rank, float weight) {
    ranks_->executor(rank).input("weight").values<float>()[0] = weight;
  }
  // All elements of all gradients.
  void feed(int rank, float gradient) {
    for (const VariableRef& parameter : net_.parameters) {
      const auto values = ranks_->executor(rank).input("x/" + parameter->name).values<float>();
      std::ranges::fill(values, gradient);
    }
  }
  std::span<float> input(int rank, std::size_t parameter) {
    return ranks_->executor(rank).input("x/" + net_.parameters[parameter]->name).values<float>();
  }
  void run() { ranks_->run(); }
  Tensor value(int rank, const VariableRef& variable) { return ranks_->state(rank).get(*variable); }
  Tensor parameter(int rank, std::size_t i) { return value(rank, net_.parameters[i]); }
  Tensor error(int rank, std::size_t i) {
    return value(rank, feedback.error_of(net_.parameters[i]));
  }
  float applied(int rank) {
    return value(rank, feedback.applied_for(net_.parameters[0])).values<float>()[0];
  }

  ErrorFeedback feedback;

 private:
  const FedGradients& net_;
  std::unique_ptr<Ranks> ranks_;
};

std::size_t bytes_of_collectives(const Graph& graph) {
  std::size_t bytes = 0;
  for (const Node& node : graph.nodes()) {
    if (!is_collective(node)) continue;
    for (ValueId id : node.outputs) bytes += graph.bytes(id);
  }
  return bytes;
}

TEST(GradientRounding, HalvesTheBytesOfGradientsAndLeavesTheWeightInF32) {
  const FedGradients net(Adam());
  ErrorFeedback feedback;
  const Graph plain = rounded_graph(net.trace(), 0, 2, {});
  const Graph rounded =
      rounded_graph(net.trace(), 0, 2, {.dtype = DType::BF16, .feedback = &feedback});
  const std::size_t elements = 5 + 3 * 32;
  EXPECT_EQ(bytes_of_collectives(plain), 4 * elements + 4);
  EXPECT_EQ(bytes_of_collectives(rounded), 2 * elements + 4);
  const std::string schedule = describe_schedule(rounded);
  EXPECT_NE(schedule.find("all_reduce data bf16 96: p1 (3, 32)"), std::string::npos) << schedule;
  EXPECT_NE(schedule.find("all_reduce data f32 1: "), std::string::npos) << schedule;
}

TEST(GradientRounding, RanksWithOtherTypesAreToldApart) {
  const FedGradients net(Adam());
  ErrorFeedback feedback;
  const std::string bf16 = describe_schedule(
      rounded_graph(net.trace(), 0, 2, {.dtype = DType::BF16, .feedback = &feedback}));
  const std::string f32 = describe_schedule(rounded_graph(net.trace(), 1, 2, {}));
  EXPECT_FALSE(first_difference(bf16, bf16).has_value());
  ASSERT_TRUE(first_difference(bf16, f32).has_value());
}

TEST(GradientRounding, BucketsAreCutByTheirBytesOnTheWire) {
  const FedGradients net(SGD(0.1), {{1000}, {1000}, {1000}, {1000}});
  ErrorFeedback feedback;
  const BucketSizes sizes{.first_bytes = 4000, .bytes = 4000};
  const auto buckets = [](const Graph& graph) {
    return std::ranges::count_if(graph.nodes(), [&](const Node& node) {
      return is_bucket(node) && graph.bytes(node.outputs[0]) > 100;
    });
  };
  EXPECT_EQ(buckets(rounded_graph(net.trace(), 0, 2, {}, sizes)), 4);
  EXPECT_EQ(buckets(rounded_graph(net.trace(), 0, 2, {.dtype = DType::BF16, .feedback = &feedback},
                                  sizes)),
            2);
}

// The ranks' gradients nearly cancel; what is left of them is less than a rounding step of each.
float after_many_steps(bool with_feedback, DType dtype) {
  const FedGradients net(dtype == DType::F16 ? SGD(1.0).with_loss_scale({.initial = 1.0})
                                             : SGD(1.0));
  OnTwoRanks ranks(net, dtype, with_feedback);
  const float left = dtype == DType::F16 ? 0x1p-15F : 0x1p-12F;
  ranks.feed(0, 1.0F + left);
  ranks.feed(1, -1.0F);
  for (int step = 0; step < 256; ++step) ranks.run();
  EXPECT_TRUE(ranks.parameter(0, 1).same_bits(ranks.parameter(1, 1)));
  const Tensor parameter = ranks.parameter(0, 1);
  const float whole = -256 * left / 2;  // the mean over both ranks
  for (float x : parameter.values<float>()) EXPECT_EQ(x, parameter.values<float>()[0]);
  return parameter.values<float>()[0] / whole;
}

TEST(ErrorFeedback, GradientsBelowARoundingStepAreLateButNotLost) {
  EXPECT_EQ(after_many_steps(false, DType::BF16), 0.0F);
  EXPECT_NEAR(after_many_steps(true, DType::BF16), 1.0F, 0.13F);
  EXPECT_EQ(after_many_steps(false, DType::F16), 0.0F);
  EXPECT_NEAR(after_many_steps(true, DType::F16), 1.0F, 0.13F);
}

// Rank 1 adds nothing, so that sums are rounded gradients of rank 0.
TEST(ErrorFeedback, HoldsWhatTheMeanGradientLacksWhateverTheWeightOfASteps) {
  const FedGradients net(SGD(1.0));
  OnTwoRanks ranks(net, DType::BF16);
  ranks.feed(1, 0.0F);
  double whole = 0;
  for (int step = 0; step < 20; ++step) {
    const float weight = step % 3 == 0 ? 8.0F : 2.0F;
    for (int r = 0; r < 2; ++r) ranks.set_weight(r, weight);
    const float mean = 0.3F + 0.01F * static_cast<float>(step);
    ranks.feed(0, mean * 2 * weight);
    ranks.run();
    whole += mean;
    const double lacking = whole + ranks.parameter(0, 0).values<float>()[2];
    EXPECT_NEAR(ranks.error(0, 0).values<float>()[2], lacking, 1e-5) << step;
    EXPECT_EQ(ranks.error(1, 0).values<float>()[2], 0.0F);
  }
}

TEST(ErrorFeedback, AnEmptyPieceLeavesItAsItIs) {
  const FedGradients net(SGD(1.0));
  OnTwoRanks ranks(net, DType::BF16);
  for (int r = 0; r < 2; ++r) ranks.feed(r, 0.3F);
  ranks.run();
  const Tensor before = ranks.error(0, 1);
  EXPECT_NE(before.values<float>()[0], 0.0F);
  ranks.feed(0, 0.0F);
  ranks.set_weight(0, 0.0F);
  ranks.run();
  EXPECT_TRUE(ranks.error(0, 1).same_bits(before));
  EXPECT_EQ(ranks.applied(0), 1.0F);
}

class OneRankOverflows : public ::testing::TestWithParam<float> {};

// An infinite gradient, one that is NaN, and one that only float16 cannot hold.
INSTANTIATE_TEST_SUITE_P(By, OneRankOverflows,
                         ::testing::Values(std::numeric_limits<float>::infinity(),
                                           std::numeric_limits<float>::quiet_NaN(), 1e6F));

TEST_P(OneRankOverflows, AllSkipTheStepAndGoOnAsIfItHadNoErrors) {
  const FedGradients net(Adam().with_loss_scale({.initial = 4.0}));
  OnTwoRanks ranks(net, DType::F16);
  for (int r = 0; r < 2; ++r) ranks.feed(r, 0.3F);
  ranks.run();
  const std::vector<Tensor> before = {ranks.parameter(0, 0), ranks.parameter(0, 1)};
  ranks.input(1, 1)[40] = GetParam();
  ranks.run();
  for (int r = 0; r < 2; ++r) {
    for (std::size_t i = 0; i < before.size(); ++i) {
      EXPECT_TRUE(ranks.parameter(r, i).same_bits(before[i])) << r << " " << i;
      const Tensor error = ranks.error(r, i);
      for (float e : error.values<float>()) EXPECT_TRUE(std::isfinite(e));
    }
    EXPECT_EQ(ranks.applied(r), 0.0F) << r;
    EXPECT_EQ(ranks.value(r, net.optimizer.loss_scale_variables()[0]).values<float>()[0], 2.0F);
    EXPECT_EQ(ranks.value(r, net.optimizer.loss_scale_variables()[2]).item(), 1.0);
  }
  ranks.feed(1, 0.3F);
  ranks.run();
  const FedGradients fresh(Adam().with_loss_scale({.initial = 2.0}));
  OnTwoRanks other(fresh, DType::F16);
  for (int r = 0; r < 2; ++r) other.feed(r, 0.3F);
  other.run();
  for (int r = 0; r < 2; ++r) {
    EXPECT_EQ(ranks.applied(r), 1.0F);
    for (std::size_t i = 0; i < before.size(); ++i) {
      EXPECT_TRUE(ranks.error(r, i).same_bits(other.error(r, i))) << r << " " << i;
    }
  }
}

TEST(GradientRounding, Float16NeedsALossScale) {
  const FedGradients net(Adam());
  ErrorFeedback feedback;
  for (const int ranks : {1, 2}) {
    try {
      rounded_graph(net.trace(), 0, ranks, {.dtype = DType::F16, .feedback = &feedback});
      FAIL();
    } catch (const UsageError& error) {
      EXPECT_NE(std::string(error.what()).find("with_loss_scale"), std::string::npos);
    }
  }
}

TEST(GradientRounding, OnOneRankNothingIsRounded) {
  const FedGradients net(Adam());
  ErrorFeedback feedback;
  const Graph graph =
      rounded_graph(net.trace(), 0, 1, {.dtype = DType::BF16, .feedback = &feedback});
  for (const Node& node : graph.nodes()) EXPECT_NE(node.op, Op::RoundGradients);
}

}  // namespace
}  // namespace lockstep

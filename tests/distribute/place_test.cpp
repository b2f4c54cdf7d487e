// Placements of values by the ops' rules, and what is rejected.
#include "lockstep/distribute/place.h"

#include <gtest/gtest.h>

#include "lockstep/autodiff/gradients.h"
#include "lockstep/base/error.h"
#include "lockstep/distribute/bucket.h"
#include "lockstep/distribute/schedule.h"
#include "lockstep/graph/op_def.h"
#include "lockstep/graph/ops/ops.h"
#include "lockstep/optim/optimizer.h"
#include "lockstep/passes/pipeline.h"
#include "zero_variable.h"

namespace lockstep {
namespace {

// A graph with a slice of a batch, a parameter, and a value that differs per rank.
class Place : public testing::Test {
 protected:
  std::string placed(Value value) {
    derive_placements(graph_, kDataAxis);
    return graph_.info(value.id()).placement.on(kDataAxis).str();
  }
  // The error message if the graph is rejected.
  std::string refusal() {
    try {
      derive_placements(graph_, kDataAxis);
    } catch (const UsageError& error) {
      return error.what();
    }
    return "";
  }
  static void expect_words(const std::string& text, std::initializer_list<const char*> words) {
    for (const char* word : words) {
      EXPECT_NE(text.find(word), std::string::npos) << word << " is missing in: " << text;
    }
  }

  Graph graph_;
  Value x_ = graph_.input("x", {DType::F32, {6, 4}});
  Value weight_ = graph_.variable(zero_variable("dense/kernel", {4, 3}));
};

TEST_F(Place, TheForwardPassKeepsSlicesAndALossOverThemIsPartial) {
  const Value y = matmul(x_, weight_);
  EXPECT_EQ(placed(y), "Sharded(0)");
  EXPECT_EQ(placed(tanh(y) + graph_.scalar(1.0)), "Sharded(0)");
  EXPECT_EQ(placed(reduce_sum(y, {.axes = {1}})), "Sharded(0)");
  EXPECT_EQ(placed(reduce_sum(y)), "Partial(sum)");
  EXPECT_EQ(placed(reduce_max(y, {.axes = {0}})), "Partial(max)");
  EXPECT_EQ(placed(reduce_mean(y)), "Local");
  EXPECT_EQ(placed(transpose(y, {1, 0})), "Sharded(1)");
  EXPECT_EQ(placed(reshape(y, {6, 3, 1})), "Sharded(0)");
  EXPECT_EQ(placed(reshape(y, {18})), "Sharded(0)");
  EXPECT_EQ(placed(reshape(y, {1, 6, 3})), "Sharded(1)");
  EXPECT_EQ(placed(broadcast_to(y, {2, 6, 3})), "Sharded(1)");
  EXPECT_EQ(placed(softmax(y)), "Sharded(0)");
}

TEST_F(Place, GradientsOfParametersArePartialAndOfSamplesSlices) {
  const Value bias = graph_.variable(zero_variable("dense/bias", {3}));
  const Value loss = reduce_sum(square(matmul(x_, weight_) + bias));
  const Value targets[] = {weight_, bias, x_};
  const std::vector<Value> grads = gradients(loss, targets);
  EXPECT_EQ(placed(grads[0]), "Partial(sum)");
  EXPECT_EQ(placed(grads[1]), "Partial(sum)");
  EXPECT_EQ(placed(grads[2]), "Sharded(0)");
}

TEST_F(Place, SumsOfSumsStaySumsAndWhatIsNotLinearIsTheRanksOwn) {
  const Value sum = reduce_sum(x_);
  const Value scale = graph_.variable(zero_variable("scale", {}));
  EXPECT_EQ(placed(sum + sum), "Partial(sum)");
  EXPECT_EQ(placed(sum * scale), "Partial(sum)");
  EXPECT_EQ(placed(sum / scale), "Partial(sum)");
  EXPECT_EQ(placed(-sum), "Partial(sum)");
  EXPECT_EQ(placed(sum + scale), "Local");
  EXPECT_EQ(placed(scale / sum), "Local");
  EXPECT_EQ(placed(sum * sum), "Local");
  EXPECT_EQ(placed(all_reduce(sum) + scale), "Replicated");
  EXPECT_EQ(placed(x_ + cast(replica_id(graph_), DType::F32)), "Local");
}

TEST_F(Place, BatchNormHasItsOwnStatisticsAndPartialGradients) {
  const Value gamma = graph_.variable(zero_variable("gamma", {4}));
  const Value beta = graph_.variable(zero_variable("beta", {4}));
  const BatchNormResult result = batch_norm(x_, gamma, beta);
  EXPECT_EQ(placed(result.y), "Sharded(0)");
  EXPECT_EQ(placed(result.mean), "Local");
  const Value targets[] = {gamma, beta, x_};
  const std::vector<Value> grads = gradients(reduce_sum(square(result.y)), targets);
  EXPECT_EQ(placed(grads[0]), "Partial(sum)");
  EXPECT_EQ(placed(grads[1]), "Partial(sum)");
  EXPECT_EQ(placed(grads[2]), "Sharded(0)");
}

TEST_F(Place, ASampleHasItsMaskWhateverTheRank) {
  EXPECT_EQ(placed(dropout(x_, {.rate = 0.5})), "Sharded(0)");
  EXPECT_EQ(placed(dropout(weight_, {.rate = 0.5})), "Local");
}

TEST_F(Place, ConvolutionsAndEmbeddingsFollowTheSamples) {
  const Value images = graph_.input("images", {DType::F32, {2, 8, 8, 3}});
  const Value filter = graph_.variable(zero_variable("filter", {3, 3, 3, 4}));
  const Value y = max_pool(conv2d(images, filter, ConvOptions{}));
  EXPECT_EQ(placed(y), "Sharded(0)");
  const Value table = graph_.variable(zero_variable("table", {10, 4}));
  const Value rows = gather(table, graph_.input("ids", {DType::I32, {5}}));
  EXPECT_EQ(placed(rows), "Sharded(0)");
  const Value targets[] = {filter, table};
  const std::vector<Value> grads =
      gradients(reduce_sum(square(y)) + reduce_sum(square(rows)), targets);
  EXPECT_EQ(placed(grads[0]), "Partial(sum)");
  EXPECT_EQ(placed(grads[1]), "Partial(sum)");
}

TEST_F(Place, AnUpdateThatReadsGradientsThatWereNotAddedUpIsRefused) {
  const Value loss = reduce_sum(square(matmul(x_, weight_)));
  const Graph::NameScope scope(graph_, "my_optimizer");
  update({.rate = graph_.scalar(0.1),
          .scale = graph_.scalar(1.0),
          .step = graph_.scalar(1, DType::I64),
          .parameters = {weight_},
          .gradients = gradients(loss, {&weight_, 1}),
          .slots = {}},
         "sgd", {});
  expect_words(refusal(), {"[update]", "my_optimizer", "dense/kernel", "Partial(sum)", "data",
                           "all_reduce_gradients"});
}

TEST_F(Place, AReplicatedVariableTakesNoRanksOwnValue) {
  const VariableRef average = zero_variable("average", {});
  assign(average, reduce_mean(x_));
  expect_words(refusal(), {"[assign]", "average", "Replicated", "Local", "all_reduce"});
}

TEST_F(Place, AVariableThatIsEachRanksOwnTakesWhatTheRankHas) {
  auto count = std::make_shared<Variable>();
  count->name = "count";
  count->placement = Placement::local();
  assign(count, graph_.variable(count) + reduce_sum(x_));
  EXPECT_EQ(refusal(), "");
}

TEST_F(Place, SlicesAreNotAddedUpOverRanks) {
  const Graph::NameScope scope(graph_, "layer");
  all_reduce(x_);
  expect_words(refusal(), {"[all_reduce]", "layer", "Sharded(0)", "reduce along that dimension"});
}

// A parameter with an axis of samples, of extent 1: on a rank with one sample its gradient is that
// of the sample, and no node adds it.
TEST_F(Place, TheOneSampleOfARankIsItsOwnSum) {
  const Value one = graph_.input("one", {DType::F32, {1, 4}});
  const Value bias = graph_.variable(zero_variable("bias", {1, 4}));
  const Value loss = reduce_sum(square(one + bias));
  const std::vector<Value> sums = all_reduce_gradients(gradients(loss, {&bias, 1}));
  EXPECT_EQ(placed(sums[0]), "Replicated");
}

TEST_F(Place, AnOpWithoutARuleIsRefused) {
  const Graph::NameScope scope(graph_, "later");
  graph_.add1(Op::Reorder, {x_});
  expect_words(refusal(), {"[reorder]", "later", "data", "no placement rule"});
}

TEST_F(Place, OnAnotherAxisWhatIsNotLinearIsRefusedAndNotAssumed) {
  tanh(matmul(x_, weight_));
  try {
    derive_placements(graph_, "model", {{"x", Placement::sharded(1)}});
    FAIL() << "tanh of a partial sum";
  } catch (const UsageError& error) {
    expect_words(error.what(), {"[activation]", "model", "Partial(sum)"});
  }
}

TEST_F(Place, OneRankNeedsNoCollectives) {
  Value whole = all_reduce(for_each_rank(x_));
  const std::vector<Value> slices = reduce_scatter({&whole, 1}, {.rank = 0, .size = 1});
  const Shape shapes[] = {{6, 4}};
  const Value y = all_gather(slices, shapes, {.rank = 0, .size = 1})[0];
  graph_.output("y", broadcast(y, 0));
  PlacePass({.ranks = 1}).run(graph_);
  verify(graph_);
  for (const Node& node : graph_.nodes()) EXPECT_FALSE(is_for_ranks(node)) << print(graph_);
  EXPECT_EQ(graph_.type(graph_.output_id("y")).shape, (Shape{6, 4}));
}

// Buckets are agreed by value: names and positions, not addresses.
TEST(BucketCuts, SurviveTheirText) {
  BucketCuts cuts;
  cuts.remember({"a/kernel", "a/bias", ""}, {{1}, {0, 2}});
  cuts.remember({"line\nend\\n", ""}, {{1, 0}});
  EXPECT_EQ(BucketCuts::parse(cuts.serialize()), cuts);
  EXPECT_EQ(BucketCuts::parse(BucketCuts().serialize()), BucketCuts());
}

TEST(BucketCuts, ATextThatIsDamagedIsADataError) {
  for (const char* text :
       {"", "list", "list 2\na\nb\nbucket 0\nend\n", "list 1\na\nbucket 0 0\nend\n",
        "list 1\na\nbucket 0\n", "list 1\na\nbucket 1\nend\n", "nonsense\nend\n"}) {
    EXPECT_THROW(BucketCuts::parse(text), DataError) << text;
  }
}

Graph step_with(const std::vector<VariableRef>& parameters, const Optimizer& optimizer) {
  Graph graph;
  Value x = graph.input("x", {DType::F32, {8, 32}});
  for (const VariableRef& kernel : parameters) x = tanh(matmul(x, graph.variable(kernel)));
  std::vector<Value> targets;
  for (const VariableRef& parameter : parameters) targets.push_back(graph.variable(parameter));
  optimizer.apply(graph, parameters, gradients(reduce_sum(square(x)), targets), graph.scalar(8.0));
  return graph;
}

TEST(BucketCuts, ThatWereAgreedAreTakenInsteadOfOwnOnes) {
  const std::vector<VariableRef> parameters = {
      zero_variable("a", {32, 32}), zero_variable("b", {32, 32}), zero_variable("c", {32, 32})};
  const Optimizer optimizer = SGD(0.1);
  const auto scheduled = [&](BucketSizes sizes, BucketCuts& cuts) {
    Graph graph = step_with(parameters, optimizer);
    PlacePass({.ranks = 2}).run(graph);
    BucketPass({.rank = 0, .ranks = 2, .sizes = sizes, .cuts = &cuts}).run(graph);
    return describe_schedule(graph);
  };
  BucketCuts chosen;
  const std::string first = scheduled({.first_bytes = 1, .bytes = 1}, chosen);
  BucketCuts agreed = BucketCuts::parse(chosen.serialize());
  const BucketSizes large{.first_bytes = 1 << 20, .bytes = 1 << 20};
  EXPECT_EQ(scheduled(large, agreed), first);
  EXPECT_EQ(agreed, chosen);

  BucketCuts own;
  const std::string second = scheduled(large, own);
  const auto difference = first_difference(first, second);
  ASSERT_TRUE(difference.has_value());
  EXPECT_EQ(difference->line, 1u);
  // The weight of the batch travels in this bucket or the next one: where a compiler evaluates the
  // arguments of a call in another order, it is traced later.
  EXPECT_TRUE(difference->first == "gradients 0: all_reduce data f32 1025: c (32, 32), sgd ()" ||
              difference->first == "gradients 0: all_reduce data f32 1024: c (32, 32)")
      << difference->first;
  EXPECT_EQ(difference->second,
            "gradients 0: all_reduce data f32 3073: c (32, 32), b (32, 32), a (32, 32), sgd ()");
}

TEST(Schedule, TheOneThatEndsFirstDiffersThere) {
  EXPECT_FALSE(first_difference("a\nb\n", "a\nb\n").has_value());
  const auto difference = first_difference("a\n", "a\nb\n");
  ASSERT_TRUE(difference.has_value());
  EXPECT_EQ(difference->line, 2u);
  EXPECT_EQ(difference->first, "");
  EXPECT_EQ(difference->second, "b");
}

}  // namespace
}  // namespace lockstep

#include "lockstep/graph/graph.h"

#include <gtest/gtest.h>

#include "lockstep/base/error.h"
#include "lockstep/graph/op_def.h"
#include "lockstep/graph/ops/ops.h"

namespace lockstep {
namespace {

VariableRef variable(std::string name, Shape shape) {
  auto made = std::make_shared<Variable>();
  made->name = std::move(name);
  made->shape = std::move(shape);
  return made;
}

TEST(Graph, EveryOpHasADefinition) {
  for (int i = 0; i <= static_cast<int>(Op::Reorder); ++i) {
    const OpDef& def = op_def(static_cast<Op>(i));
    EXPECT_EQ(static_cast<int>(def.op), i) << def.name;
    EXPECT_FALSE(def.name.empty());
    const bool leaf = def.op == Op::Input || def.op == Op::Variable || def.op == Op::Constant;
    EXPECT_EQ(def.infer == nullptr, leaf) << def.name;
  }
}

TEST(Graph, AVariableHasOneNodeHoweverOftenItIsMentioned) {
  Graph graph;
  const VariableRef kernel = variable("dense/kernel", {3, 4});
  const Value first = graph.variable(kernel);
  EXPECT_EQ(graph.variable(kernel), first);
  EXPECT_EQ(graph.variables(), std::vector<VariableRef>{kernel});
}

TEST(Graph, NamesOfInputsAndOutputsAreUniqueAndKnown) {
  Graph graph;
  const Value x = graph.input("image", {DType::F32, {2}});
  EXPECT_THROW(graph.input("image", {DType::F32, {2}}), UsageError);
  graph.output("copy", x);
  EXPECT_THROW(graph.output("copy", x), UsageError);
  EXPECT_EQ(graph.input_id("image"), x.id());
  try {
    graph.input_id("label");
    FAIL() << "an input was found that is not there";
  } catch (const UsageError& error) {
    EXPECT_STREQ(error.what(), "[graph] there is no input called label; there are: image");
  }
}

TEST(Graph, ValuesOfAnotherGraphAreRefused) {
  Graph graph;
  Graph other;
  const Value x = graph.input("x", {DType::F32, {2}});
  const Value y = other.input("y", {DType::F32, {2}});
  EXPECT_THROW(add(x, y), InternalError);
  EXPECT_THROW(add(x, Value()), InternalError);
  EXPECT_THROW(graph.output("y", y), InternalError);
}

TEST(Graph, ScopesNameTheNodesAddedInThem) {
  Graph graph;
  const Value x = graph.input("x", {DType::F32, {2}});
  {
    Graph::NameScope outer(graph, "block");
    Graph::NameScope inner(graph, "dense");
    EXPECT_EQ(graph.producer(neg(x).id()).name, "block/dense");
  }
  EXPECT_EQ(graph.producer(neg(x).id()).name, "");
}

TEST(Graph, BytesFollowTypeAndLayout) {
  Graph graph;
  const Value x = graph.input("x", {DType::F32, {2, 3, 3, 5}});
  EXPECT_EQ(graph.bytes(x.id()), 2u * 3 * 3 * 5 * 4);
  graph.info(x.id()).layout = {.order = {0, 3, 1, 2}, .blocks = {{3, 8}}};
  EXPECT_EQ(graph.bytes(x.id()), 2u * 3 * 3 * 8 * 4);
  EXPECT_EQ(graph.info(x.id()).layout.str(), "aDbc8d");
}

TEST(Graph, CostsAreThoseOfTheRules) {
  Graph graph;
  const Value x = graph.input("x", {DType::F32, {10, 6}});
  const Value bias = graph.input("b", {DType::F32, {6}});
  const Cost sum = cost_of(graph, graph.producer(add(x, bias).id()));
  EXPECT_EQ(sum.flops, 60);
  EXPECT_EQ(sum.bytes, (60 + 6 + 60) * 4);
  const Cost moved = cost_of(graph, graph.producer(transpose(x, {1, 0}).id()));
  EXPECT_EQ(moved.flops, 0);
  EXPECT_EQ(moved.bytes, 2 * 60 * 4);
}

TEST(Print, ShowsANodeALine) {
  Graph graph;
  const Value x = graph.input("x", {DType::F32, {2, 3}});
  Value y;
  {
    Graph::NameScope scope(graph, "head");
    y = reduce_sum(relu(x), {.axes = {-1}});
  }
  graph.output("y", y);
  EXPECT_EQ(print(graph),
            "%0 f32(2, 3) = input()  # x\n"
            "%1 f32(2, 3) = activation(%0){alpha=0.2, kind=relu}  # head\n"
            "%2 f32(2,) = reduce_sum(%1){axes=[1], keepdims=false}  # head\n"
            "output y = %2\n");
}

TEST(Rewriter, CopiesFaithfully) {
  Graph graph;
  const Value x = graph.input("x", {DType::F32, {2, 3, 3, 8}});
  const Value w = graph.variable(variable("w", {8}));
  Value y;
  {
    Graph::NameScope scope(graph, "block/dense");
    const Value c = graph.constant(Tensor::scalar(2.0f));
    const std::vector<Value> parts = split(x * w + c, {1, 2}, 1);
    y = concat(std::vector<Value>{parts[1], parts[0]}, 1);
  }
  graph.info(y.id()).layout = {.order = {0, 3, 1, 2}, .blocks = {{3, 8}}};
  graph.output("y", y);
  Rewriter rewriter(graph);
  for (const Node& node : graph.nodes()) rewriter.copy(node);
  const Graph copy = rewriter.finish();
  verify(copy);
  EXPECT_EQ(print(copy), print(graph));
  EXPECT_EQ(copy.variables(), graph.variables());
}

TEST(Rewriter, PutsOneValueInThePlaceOfAnother) {
  Graph graph;
  const Value x = graph.input("x", {DType::F32, {4}});
  graph.output("y", exp(neg(x)));
  Rewriter rewriter(graph);
  for (const Node& node : graph.nodes()) {
    if (node.op == Op::Neg) {
      rewriter.set(node.outputs[0], square(rewriter.map(node.inputs[0])));
    } else {
      rewriter.copy(node);
    }
  }
  const Graph changed = rewriter.finish();
  verify(changed);
  EXPECT_EQ(changed.nodes()[1].op, Op::Square);
  EXPECT_EQ(changed.nodes()[2].op, Op::Exp);
}

TEST(Rewriter, RefusesAValueThatWasLeftOut) {
  Graph graph;
  const Value x = graph.input("x", {DType::F32, {4}});
  neg(x);
  Rewriter rewriter(graph);
  EXPECT_THROW(rewriter.copy(graph.nodes()[1]), InternalError);
}

TEST(Verify, AcceptsWhatTheOpsBuild) {
  Graph graph;
  const Value x = graph.input("x", {DType::F32, {2, 3}});
  graph.output("y", reduce_mean(exp(x)));
  EXPECT_NO_THROW(verify(graph));
}

TEST(Verify, SeesATypeThatIsNotTheRules) {
  Graph graph;
  const Value x = graph.input("x", {DType::F32, {2, 3}});
  Value y;
  {
    Graph::NameScope scope(graph, "dense_1");
    y = neg(x);
  }
  graph.info(y.id()).type.shape = Shape{3, 2};
  try {
    verify(graph);
    FAIL() << "a broken graph was accepted";
  } catch (const InternalError& error) {
    EXPECT_STREQ(error.what(), "[verify] neg dense_1: output 0 is f32(3, 2), not f32(2, 3)");
  }
}

TEST(Verify, SeesAnInputThatNoLongerFits) {
  Graph graph;
  const Value a = graph.input("a", {DType::F32, {2, 3}});
  const Value b = graph.input("b", {DType::F32, {2, 3}});
  add(a, b);
  graph.info(b.id()).type.shape = Shape{4};
  EXPECT_THROW(verify(graph), Error);
}

}  // namespace
}  // namespace lockstep

#include "lockstep/graph/ops/pointwise.h"

#include <gtest/gtest.h>

#include "lockstep/base/error.h"
#include "lockstep/graph/op_def.h"
#include "lockstep/graph/ops/state.h"
#include "zero_variable.h"

namespace lockstep {
namespace {

TEST(PointwiseProgram, IsTheSameAfterBeingPrintedAndRead) {
  const std::string text =
      "mul $0 0.1:f32; activation.leaky_relu:0.3 %0; activation_grad.gelu $1 %1; cast.bf16 %2; "
      "add %3 2.5:bf16; cast.i64 %4; maximum %5 -9223372036854775807:i64; greater %5 %6; "
      "logical_and %7 1:bool; select %8 %5 7:i64; cast.f64 $1; sub %10 1e-300:f64; neg %11";
  EXPECT_EQ(print(parse_pointwise(text)), text);
  const std::vector<DType> inputs = {DType::F32, DType::F32};
  const std::vector<DType> results = result_dtypes(parse_pointwise(text), inputs);
  EXPECT_EQ(results[3], DType::BF16);
  EXPECT_EQ(results[7], DType::Bool);
  EXPECT_EQ(results[9], DType::I64);
  EXPECT_EQ(results[12], DType::F64);
}

TEST(PointwiseProgram, LiteralsKeepTheirBits) {
  for (const float value : {0.1f, 1.0f / 3.0f, 1e-42f, std::numeric_limits<float>::infinity()}) {
    const PointwiseOperand literal = literal_of(Tensor::of(std::vector<float>{value}, Shape{}));
    const PointwiseProgram program = {{Op::Neg, {}, {literal}}};
    const PointwiseProgram read = parse_pointwise(print(program));
    EXPECT_EQ(static_cast<float>(read[0].operands[0].real), value);
  }
}

TEST(PointwiseProgram, WhatIsNoProgramIsRefused) {
  EXPECT_THROW(parse_pointwise("matmul $0 $1"), InternalError);
  EXPECT_THROW(parse_pointwise("add $0 x:f32"), InternalError);
  const std::vector<DType> inputs = {DType::F32};
  EXPECT_THROW(result_dtypes(parse_pointwise("add $0 $1"), inputs), UsageError);
  EXPECT_THROW(result_dtypes(parse_pointwise("add $0 1:i32"), inputs), UsageError);
  EXPECT_THROW(result_dtypes(parse_pointwise("neg %0"), inputs), UsageError);
}

Attrs attrs(const char* program, std::int64_t count, Ints scalars, Ints results) {
  return {{"program", std::string(program)},
          {"count", count},
          {"scalars", std::move(scalars)},
          {"results", std::move(results)}};
}

TEST(PointwiseNode, ASegmentHasTheShapeOfItsOperands) {
  Graph graph;
  const Value inputs[] = {
      graph.input("a", {DType::F32, Shape{4}}), graph.input("b", {DType::F32, Shape{}}),
      graph.input("c", {DType::F32, Shape{2, 3}}), graph.input("d", {DType::F32, Shape{1}})};
  const auto outputs =
      graph.add(Op::Pointwise, inputs, attrs("mul $0 $1; less %0 1:f32", 2, {1}, {0, 1}));
  ASSERT_EQ(outputs.size(), 4u);
  EXPECT_EQ(outputs[0].type(), (ValueType{DType::F32, Shape{4}}));
  EXPECT_EQ(outputs[1].type(), (ValueType{DType::Bool, Shape{4}}));
  EXPECT_EQ(outputs[2].type(), (ValueType{DType::F32, Shape{2, 3}}));
  EXPECT_EQ(outputs[3].type(), (ValueType{DType::Bool, Shape{2, 3}}));
  const Node& node = graph.producer(outputs[0].id());
  // Each output over the operand of its own segment that is no scalar.
  EXPECT_EQ(in_place_pairs(graph, node),
            (std::vector<std::pair<int, int>>{{0, 0}, {0, 1}, {2, 2}, {2, 3}}));
  EXPECT_EQ(cost_of(graph, node).flops, 2.0 * (4 + 6));
}

TEST(PointwiseNode, OperandsThatDoNotFitAreRefused) {
  Graph graph;
  const Value inputs[] = {graph.input("a", {DType::F32, Shape{4}}),
                          graph.input("b", {DType::F32, Shape{3, 4}})};
  EXPECT_THROW(graph.add(Op::Pointwise, inputs, attrs("add $0 $1", 1, {}, {0})), UsageError);
  EXPECT_THROW(graph.add(Op::Pointwise, inputs, attrs("neg $0", 2, {0}, {0})), UsageError);
  EXPECT_THROW(graph.add(Op::Pointwise, inputs, attrs("neg $0", 2, {}, {1})), UsageError);
}

TEST(PointwiseNode, ChangesTheVariablesThatItsResultsGoTo) {
  Graph graph;
  const VariableRef variable = zero_variable("v", Shape{4});
  const Value inputs[] = {graph.input("a", {DType::F32, Shape{4}}), graph.variable(variable)};
  Attrs assigning = attrs("add $0 $1", 1, {}, {0});
  assigning.set("targets", Ints{1});
  EXPECT_TRUE(graph.add(Op::PointwiseAssign, inputs, assigning).empty());
  EXPECT_TRUE(is_assignment(graph.nodes().back()));
  EXPECT_EQ(changed_variables(graph.nodes().back()), std::vector<ValueId>{inputs[1].id()});
}

}  // namespace
}  // namespace lockstep

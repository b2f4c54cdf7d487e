// Shape rules of elementwise ops, reductions and ops that move elements about: what they accept,
// and the words in which they refuse.
#include <gtest/gtest.h>

#include <functional>

#include "lockstep/base/error.h"
#include "lockstep/graph/ops/ops.h"

namespace lockstep {
namespace {

class LightOps : public testing::Test {
 protected:
  Value f32(Shape shape) { return input(DType::F32, std::move(shape)); }
  Value i64(Shape shape) { return input(DType::I64, std::move(shape)); }
  Value boolean(Shape shape) { return input(DType::Bool, std::move(shape)); }

  // What the op says when it refuses, in the scope dense_1.
  std::string refusal(const std::function<void()>& build) {
    Graph::NameScope scope(graph_, "dense_1");
    try {
      build();
    } catch (const UsageError& error) {
      return error.what();
    }
    return "(not refused)";
  }

  Graph graph_;

 private:
  Value input(DType dtype, Shape shape) {
    return graph_.input(fmt::format("x{}", count_++), {dtype, std::move(shape)});
  }
  int count_ = 0;
};

TEST_F(LightOps, BinaryOpsBroadcast) {
  EXPECT_EQ(add(f32({4, 1}), f32({5})).shape(), (Shape{4, 5}));
  EXPECT_EQ(less(f32({4, 1}), f32({5})).dtype(), DType::Bool);
  EXPECT_EQ(refusal([&] {
              add(f32({4, 3}), f32({4}));
            }),
            "[add] dense_1: shapes do not broadcast: (4, 3) with (4,)");
}

TEST_F(LightOps, BinaryOpsWantOneType) {
  EXPECT_EQ(refusal([&] { mul(f32({2}), i64({2})); }),
            "[mul] dense_1: dtypes differ: f32(2,) and i64(2,); cast one of them");
  EXPECT_EQ(refusal([&] { add(boolean({2}), boolean({2})); }),
            "[add] dense_1: needs numbers, not bool(2,); cast first");
  EXPECT_EQ(refusal([&] { div(i64({2}), i64({2})); }),
            "[div] dense_1: needs floating-point elements, not i64(2,); cast first");
  EXPECT_EQ(refusal([&] { logical_and(i64({2}), i64({2})); }),
            "[logical_and] dense_1: needs bool elements, not i64(2,); compare or cast first");
}

TEST_F(LightOps, ErrorsOutsideAnyScopeNameTheOpAlone) {
  try {
    exp(i64({2}));
    FAIL() << "exp took integers";
  } catch (const UsageError& error) {
    EXPECT_STREQ(error.what(), "[exp] needs floating-point elements, not i64(2,); cast first");
  }
}

TEST_F(LightOps, LinearActivationAddsNothing) {
  const Value x = f32({3});
  EXPECT_EQ(activation(x, "linear"), x);
  EXPECT_EQ(activation_grad(x, x, "linear"), x);
}

TEST_F(LightOps, AnUnknownActivationIsAnsweredWithTheKnownOnes) {
  EXPECT_EQ(refusal([&] { activation(f32({3}), "mish"); }),
            "[activation] dense_1: there is no activation called 'mish'; there are: linear, relu, "
            "relu6, leaky_relu, gelu, gelu_tanh, silu, tanh, sigmoid, softplus");
  EXPECT_THROW(activation_grad_uses_output("mish"), UsageError);
}

TEST_F(LightOps, CastToTheSameTypeAddsNothing) {
  const Value x = f32({3});
  EXPECT_EQ(cast(x, DType::F32), x);
  EXPECT_EQ(cast(x, DType::U8).dtype(), DType::U8);
}

TEST_F(LightOps, SelectWantsABoolAndTwoOfOneType) {
  EXPECT_EQ(select(boolean({4, 1}), f32({3}), f32({})).shape(), (Shape{4, 3}));
  EXPECT_EQ(refusal([&] { select(f32({2}), f32({2}), f32({2})); }),
            "[select] dense_1: the condition must be bool, not f32(2,); compare first");
  EXPECT_EQ(refusal([&] { select(boolean({2}), f32({2}), i64({2})); }),
            "[select] dense_1: dtypes differ: f32(2,) and i64(2,); cast one of them");
}

TEST_F(LightOps, ReductionsDropOrKeepTheirAxes) {
  const Value x = f32({2, 3, 4});
  EXPECT_EQ(reduce_sum(x).shape(), Shape{});
  EXPECT_EQ(reduce_sum(x, {.axes = {-1, 0}}).shape(), Shape{3});
  EXPECT_EQ(reduce_max(x, {.axes = {1}, .keepdims = true}).shape(), (Shape{2, 1, 4}));
  EXPECT_EQ(argmax(x, 0).type(), (ValueType{DType::I64, Shape{3, 4}}));
  EXPECT_EQ(refusal([&] { reduce_sum(x, {.axes = {3}}); }),
            "[reduce_sum] dense_1: axis 3 is outside a value of shape (2, 3, 4)");
  EXPECT_EQ(refusal([&] {
              reduce_sum(x, {.axes = {1, -2}});
            }),
            "[reduce_sum] dense_1: an axis of (2, 3, 4) is named twice in [1, 1]");
  EXPECT_EQ(refusal([&] { reduce_mean(i64({2})); }),
            "[reduce_mean] dense_1: needs floating-point elements, not i64(2,); cast first");
  EXPECT_EQ(refusal([&] {
              argmax(f32({2, 0}));
            }),
            "[argmax] dense_1: axis 1 of (2, 0) has no elements to choose from");
}

TEST_F(LightOps, SumToUndoesBroadcasting) {
  const Value x = f32({2, 3, 4});
  EXPECT_EQ(sum_to(x, {2, 3, 4}), x);
  for (const Shape& shape :
       {Shape{}, Shape{4}, Shape{1}, Shape{3, 1}, Shape{2, 1, 4}, Shape{1, 4}}) {
    EXPECT_EQ(sum_to(x, shape).shape(), shape);
  }
}

TEST_F(LightOps, ReshapeFillsInTheOpenExtent) {
  const Value x = f32({2, 3, 4});
  EXPECT_EQ(reshape(x, {-1, 4}).shape(), (Shape{6, 4}));
  EXPECT_EQ(reshape(f32({0, 4}), {-1, 2}).shape(), (Shape{0, 2}));
  EXPECT_EQ(refusal([&] {
              reshape(x, {5, -1});
            }),
            "[reshape] dense_1: (2, 3, 4) cannot be reshaped to [5, -1]");
  EXPECT_EQ(refusal([&] {
              reshape(x, {-1, -1});
            }),
            "[reshape] dense_1: only one extent of [-1, -1] may be -1");
  EXPECT_EQ(refusal([&] {
              reshape(x, {5, 5});
            }),
            "[reshape] dense_1: (2, 3, 4) with 24 elements cannot be reshaped to (5, 5) with 25");
  EXPECT_NE(refusal([&] { reshape(f32({0, 4}), {-1, 0}); }), "(not refused)");
}

TEST_F(LightOps, TransposeWantsEveryAxisOnce) {
  const Value x = f32({2, 3, 4});
  EXPECT_EQ(transpose(x, {2, 0, 1}).shape(), (Shape{4, 2, 3}));
  EXPECT_EQ(refusal([&] {
              transpose(x, {0, 1, 1});
            }),
            "[transpose] dense_1: [0, 1, 1] does not name each axis of (2, 3, 4) once");
}

TEST_F(LightOps, ConcatAndSplitAgreeOnTheRest) {
  const std::vector<Value> values = {f32({2, 3}), f32({2, 5})};
  EXPECT_EQ(concat(values, -1).shape(), (Shape{2, 8}));
  EXPECT_EQ(refusal([&] { concat(values, 0); }),
            "[concat] dense_1: values differ in more than axis 0: f32(2, 3) and f32(2, 5)");
  EXPECT_EQ(split(values[0], {1, 2}, 1)[1].shape(), (Shape{2, 2}));
  EXPECT_EQ(refusal([&] {
              split(values[0], {1, 1}, 1);
            }),
            "[split] dense_1: sizes [1, 1] do not add up to axis 1 of (2, 3)");
  EXPECT_THROW(concat({}, 0), UsageError);
}

TEST_F(LightOps, SlicesAndPaddingStayInside) {
  const Value x = f32({4, 6});
  EXPECT_EQ(slice(x, {1, 2}, {2, -1}).shape(), (Shape{2, 4}));
  EXPECT_EQ(refusal([&] {
              slice(x, {3, 0}, {2, 6});
            }),
            "[slice] dense_1: begin [3, 0] with size [2, 6] exceeds (4, 6)");
  EXPECT_EQ(refusal([&] { slice(x, {3}, {1}); }),
            "[slice] dense_1: begin [3] needs one entry for each axis of (4, 6)");
  EXPECT_EQ(pad(x, {1, 0}, {0, 2}).shape(), (Shape{5, 8}));
  EXPECT_EQ(refusal([&] {
              pad(x, {-1, 0}, {0, 2});
            }),
            "[pad] dense_1: padding may not be negative: before [-1, 0], after [0, 2]");
}

TEST_F(LightOps, BroadcastToOnlyGrows) {
  EXPECT_EQ(broadcast_to(f32({3, 1}), Shape{2, 3, 4}).shape(), (Shape{2, 3, 4}));
  EXPECT_EQ(refusal([&] {
              broadcast_to(f32({3, 4}), Shape{3, 1});
            }),
            "[broadcast_to] dense_1: (3, 4) cannot be broadcast to (3, 1)");
}

TEST_F(LightOps, IndicesAreIntegers) {
  EXPECT_EQ(gather(f32({10, 4}), i64({2, 3})).shape(), (Shape{2, 3, 4}));
  EXPECT_EQ(one_hot(i64({2}), 5).type(), (ValueType{DType::F32, Shape{2, 5}}));
  EXPECT_EQ(gather_grad(f32({2, 3, 4}), i64({2, 3}), 10).shape(), (Shape{10, 4}));
  EXPECT_EQ(refusal([&] {
              gather(f32({10, 4}), f32({2}));
            }),
            "[gather] dense_1: indices must be integers, not f32(2,); cast first");
  EXPECT_EQ(refusal([&] { one_hot(i64({2}), 0); }),
            "[one_hot] dense_1: needs at least one class, not 0");
}

}  // namespace
}  // namespace lockstep

#include "lockstep/graph/ops/softmax.h"

#include "lockstep/graph/ops/placement_rules.h"
#include "lockstep/graph/ops/reduce.h"
#include "lockstep/graph/ops/rules.h"
#include "lockstep/graph/ops/shape.h"

namespace lockstep {
namespace {

std::vector<ValueType> infer_softmax(const OpCall& call) {
  require_floating(call, 0, "the input");
  require(call.shape(0).rank() >= 1, "the input needs an axis of classes, but is a scalar");
  require(call.shape(0)[-1] > 0, "the last axis of {} is empty", call.shape(0));
  return {call.inputs[0]};
}

std::vector<ValueType> infer_softmax_grad(const OpCall& call) {
  require_type(call, 1, call.inputs[0], "the softmax");
  return {call.inputs[0]};
}

std::vector<Value> gradient_softmax(const GradCall& call) {
  return {call.graph.add1(Op::SoftmaxGrad, {call.grads[0], call.outputs[0]})};
}

void require_classes(const OpCall& call, std::size_t labels, const Shape& logits) {
  const DType dtype = call.dtype(labels);
  require(dtype == DType::U8 || dtype == DType::I32 || dtype == DType::I64,
          "labels must be u8, i32 or i64, not {}", call.inputs[labels].str());
  require(call.shape(labels) == leading_shape(logits),
          "labels {} do not fit logits {}: there must be one label per row, {}", call.shape(labels),
          logits, leading_shape(logits));
}

std::vector<ValueType> infer_sparse_cross_entropy(const OpCall& call) {
  infer_softmax(call);
  require_classes(call, 1, call.shape(0));
  const ValueType losses{call.dtype(0), leading_shape(call.shape(0))};
  if (call.inputs.size() > 2) require_type(call, 2, losses, "the loss's gradient");
  const bool sum = call.attrs.has("sum");
  return {sum ? ValueType{call.dtype(0), {}} : losses, call.inputs[0]};
}

std::vector<ValueType> infer_cross_entropy(const OpCall& call) {
  infer_softmax(call);
  require_type(call, 1, call.inputs[0], "labels");
  return {{call.dtype(0), leading_shape(call.shape(0))}, call.inputs[0]};
}

void require_losses(const OpCall& call) {
  require_type(call, 0, {call.dtype(1), leading_shape(call.shape(1))}, "the loss's gradient");
}

std::vector<ValueType> infer_sparse_cross_entropy_grad(const OpCall& call) {
  require_losses(call);
  require_classes(call, 2, call.shape(1));
  return {call.inputs[1]};
}

std::vector<ValueType> infer_cross_entropy_grad(const OpCall& call) {
  require_losses(call);
  require_type(call, 2, call.inputs[1], "labels");
  return {call.inputs[1]};
}

std::vector<Value> gradient_sparse_cross_entropy(const GradCall& call) {
  ensure(!call.grads[1].defined(), "the softmax of a cross entropy is only for its gradient");
  std::vector<Value> grads(2);
  grads[0] =
      call.graph.add1(Op::SparseCrossEntropyGrad, {call.grads[0], call.outputs[1], call.inputs[1]});
  return grads;
}

std::vector<Value> gradient_cross_entropy(const GradCall& call) {
  ensure(!call.grads[1].defined(), "the softmax of a cross entropy is only for its gradient");
  const Value logits = call.inputs[0];
  std::vector<Value> grads(2);
  if (call.needed[0]) {
    grads[0] =
        call.graph.add1(Op::CrossEntropyGrad, {call.grads[0], call.outputs[1], call.inputs[1]});
  }
  if (call.needed[1]) {
    Ints column(logits.shape().dims().begin(), logits.shape().dims().end());
    column.back() = 1;
    grads[1] = neg(mul(reshape(call.grads[0], column), log_softmax(logits)));
  }
  return grads;
}

// Over the last axis, the classes.
std::vector<Placement> place_classes(const PlaceCall& call) {
  return place_samples(call, {.last_dims = 1});
}

}  // namespace

Value softmax(Value x) {
  return x.graph().add1(Op::Softmax, {x});
}

Value log_softmax(Value x) {
  const Value shifted = sub(x, reduce_max(x, {.axes = {-1}, .keepdims = true}));
  return sub(shifted, log(reduce_sum(exp(shifted), {.axes = {-1}, .keepdims = true})));
}

Value sparse_cross_entropy(Value logits, Value labels) {
  return logits.graph().add1(Op::SparseCrossEntropy, {logits, labels});
}

Value cross_entropy(Value logits, Value labels) {
  return logits.graph().add1(Op::CrossEntropy, {logits, labels});
}

Value sigmoid_cross_entropy(Value logits, Value labels) {
  return sub(softplus(logits), mul(logits, labels));
}

std::vector<OpDef> softmax_ops() {
  return {{.op = Op::Softmax,
           .name = "softmax",
           .infer = infer_softmax,
           .gradient = gradient_softmax,
           .cost = cost_per_element<10>,
           .in_place = {{0, 0}},
           .place = place_classes},
          {.op = Op::SoftmaxGrad,
           .name = "softmax_grad",
           .infer = infer_softmax_grad,
           .cost = cost_per_element<4>,
           .in_place = {{0, 0}, {1, 0}},
           .place = place_classes},
          {.op = Op::SparseCrossEntropy,
           .name = "sparse_cross_entropy",
           .infer = infer_sparse_cross_entropy,
           .gradient = gradient_sparse_cross_entropy,
           .cost = cost_per_element<10>,
           .in_place = {{0, 1}},
           .place = place_classes},
          {.op = Op::SparseCrossEntropyGrad,
           .name = "sparse_cross_entropy_grad",
           .infer = infer_sparse_cross_entropy_grad,
           .in_place = {{1, 0}},
           .place = place_classes},
          {.op = Op::CrossEntropy,
           .name = "cross_entropy",
           .infer = infer_cross_entropy,
           .gradient = gradient_cross_entropy,
           .cost = cost_per_element<12>,
           .place = place_classes},
          {.op = Op::CrossEntropyGrad,
           .name = "cross_entropy_grad",
           .infer = infer_cross_entropy_grad,
           .in_place = {{1, 0}},
           .place = place_classes}};
}

}  // namespace lockstep

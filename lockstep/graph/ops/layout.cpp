#include "lockstep/graph/ops/layout.h"

#include "lockstep/graph/op_def.h"

namespace lockstep {
namespace {

std::vector<ValueType> infer_reorder(const OpCall& call) {
  return {call.inputs[0]};
}

std::vector<Value> gradient_reorder(const GradCall& call) {
  return {call.grads[0]};
}

}  // namespace

Value reorder(Value x, const Layout& layout) {
  const Value y = x.graph().add1(Op::Reorder, {x});
  x.graph().info(y.id()).layout = layout;
  return y;
}

std::vector<OpDef> layout_ops() {
  return {
      {.op = Op::Reorder, .name = "reorder", .infer = infer_reorder, .gradient = gradient_reorder}};
}

}  // namespace lockstep

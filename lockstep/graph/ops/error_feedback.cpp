#include "lockstep/graph/ops/error_feedback.h"

#include "lockstep/base/half.h"
#include "lockstep/graph/ops/rules.h"

namespace lockstep {
namespace {

std::vector<ValueType> infer_round(const OpCall& call) {
  const auto dtype = dtype_named(call.attrs.text("dtype"));
  const auto count = static_cast<std::size_t>(call.attrs.integer("count"));
  require(is_small_float(dtype), "gradients are rounded to f16 or bf16, not to {}", name_of(dtype));
  ensure(count > 0 && call.inputs.size() == kRoundScalars + 2 * count,
         "{} gradients are rounded with {} inputs", count, call.inputs.size());
  require_type(call, 0, {DType::F32, {}}, "the unit of errors");
  require_type(call, 1, {DType::F32, {}}, "whether errors are kept");
  std::vector<ValueType> rounded;
  for (std::size_t i = kRoundScalars; i < kRoundScalars + count; ++i) {
    require(call.dtype(i) == DType::F32, "gradient {} is {}, not f32", i - kRoundScalars,
            call.inputs[i].str());
    require(call.inputs[i + count] == call.inputs[i], "gradient {} is {}, but its error is {}",
            i - kRoundScalars, call.inputs[i].str(), call.inputs[i + count].str());
    rounded.push_back({dtype, call.shape(i)});
  }
  return rounded;
}

// Reads gradients and errors, writes both.
Cost cost_round(const OpCall& call, std::span<const ValueType> outputs) {
  double elements = 0;
  for (const ValueType& type : outputs) elements += static_cast<double>(type.shape.elements());
  return {6 * elements, bytes_moved(call, outputs) + elements * sizeof(float)};
}

}  // namespace

std::vector<Value> round_gradients(const RoundInputs& inputs, DType dtype) {
  require(!inputs.gradients.empty() && inputs.errors.size() == inputs.gradients.size(),
          "[round_gradients] there are {} gradients and {} errors", inputs.gradients.size(),
          inputs.errors.size());
  std::vector<Value> all{inputs.unit, inputs.keep};
  all.insert(all.end(), inputs.gradients.begin(), inputs.gradients.end());
  all.insert(all.end(), inputs.errors.begin(), inputs.errors.end());
  return inputs.unit.graph().add(Op::RoundGradients, all,
                                 {{"dtype", std::string(name_of(dtype))},
                                  {"count", static_cast<std::int64_t>(inputs.gradients.size())}});
}

std::vector<OpDef> error_feedback_ops() {
  return {{.op = Op::RoundGradients,
           .name = "round_gradients",
           .infer = infer_round,
           .cost = cost_round,
           .effect = true}};
}

}  // namespace lockstep

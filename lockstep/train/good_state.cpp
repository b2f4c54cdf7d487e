#include "lockstep/train/good_state.h"

#include <algorithm>
#include <cmath>

namespace lockstep {
namespace {

bool all_finite(const Tensor& tensor) {
  if (!is_floating(tensor.dtype())) return true;
  return dispatch(tensor.dtype(), [&](auto zero) {
    return std::ranges::all_of(tensor.values<decltype(zero)>(), [](auto value) {
      return std::isfinite(static_cast<double>(value));
    });
  });
}

}  // namespace

bool GoodState::keep() {
  const PhaseScope checkpoint(impl_.session().phases(), Phase::Checkpoint);
  tried_at_ = impl_.session().step;
  std::vector<std::pair<VariableRef, Tensor>> values;
  const std::vector<VariableRef> scale = impl_.options.optimizer.loss_scale_variables();
  for (const auto& [name, variable] : impl_.checkpoint_variables(/*with_metrics=*/true)) {
    const bool metric = name.starts_with(kMetricPrefix);
    if (variable == impl_.options.optimizer.iterations()) continue;
    if (!scale.empty() && variable == scale[2]) continue;  // skipped steps
    Tensor value = impl_.session().get(variable);
    if (!metric && !all_finite(value)) return false;
    values.emplace_back(variable, std::move(value));
  }
  values_ = std::move(values);
  step_ = impl_.session().step;
  return true;
}

void GoodState::restore() {
  const PhaseScope checkpoint(impl_.session().phases(), Phase::Checkpoint);
  for (const auto& [variable, value] : values_) impl_.session().set(variable, value);
  impl_.reset_errors();
}

}  // namespace lockstep

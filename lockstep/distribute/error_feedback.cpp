#include "lockstep/distribute/error_feedback.h"

namespace lockstep {

const VariableRef& ErrorFeedback::error_of(const VariableRef& parameter) {
  VariableRef& error = error_by_parameter_[parameter];
  if (error == nullptr) {
    error = std::make_shared<const Variable>(Variable{.name = "error_feedback/" + parameter->name,
                                                      .dtype = DType::F32,
                                                      .shape = parameter->shape,
                                                      .trainable = false,
                                                      .placement = Placement::local(),
                                                      .initializer = {}});
  }
  return error;
}

const VariableRef& ErrorFeedback::applied_of(const VariableRef& first_parameter) {
  VariableRef& applied = applied_by_first_[first_parameter];
  if (applied == nullptr) {
    const auto one = [](Tensor& target, std::uint64_t) { target.values<float>()[0] = 1.0F; };
    applied = std::make_shared<const Variable>(
        Variable{.name = "error_feedback_applied/" + first_parameter->name,
                 .dtype = DType::F32,
                 .shape = {},
                 .trainable = false,
                 .initializer = one});
  }
  return applied;
}

VariableRef ErrorFeedback::applied_for(const VariableRef& parameter) const {
  const auto first = first_by_parameter_.find(parameter);
  if (first == first_by_parameter_.end()) return nullptr;
  return applied_by_first_.at(first->second);
}

void ErrorFeedback::update_with(const VariableRef& parameter, const VariableRef& first_parameter) {
  first_by_parameter_[parameter] = first_parameter;
  applied_of(first_parameter);
}

}  // namespace lockstep

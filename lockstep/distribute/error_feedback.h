// ErrorFeedback: the variables that hold what rounding gradients to 16 bits has lost
// (graph/ops/error_feedback.h). Each rank has its own errors (Local); their sum over the ranks is
// what the mean gradient still lacks, and is kept when the number of ranks changes.
#pragma once

#include <map>

#include "lockstep/graph/variable.h"

namespace lockstep {

// Shared by all graphs of a session, so that every step goes on with the errors of the one before.
class ErrorFeedback {
 public:
  // What is lacking in the gradient of a parameter: "error_feedback/<parameter>".
  const VariableRef& error_of(const VariableRef& parameter);
  // 1 if the last step with these gradients was applied, 0 if it was skipped, as a f32 scalar;
  // known by the first of the parameters that are updated together.
  const VariableRef& applied_of(const VariableRef& first_parameter);

  // Of a parameter whose gradient a step rounds, the variable that says whether its error counts;
  // null before such a step was traced.
  VariableRef applied_for(const VariableRef& parameter) const;
  void update_with(const VariableRef& parameter, const VariableRef& first_parameter);

 private:
  std::map<VariableRef, VariableRef> error_by_parameter_;
  std::map<VariableRef, VariableRef> applied_by_first_;
  std::map<VariableRef, VariableRef> first_by_parameter_;
};

}  // namespace lockstep

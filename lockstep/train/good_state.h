// GoodState: an in-memory copy of a model's state, to restore when the loss stops being finite.
#pragma once

#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "lockstep/train/model_impl.h"

namespace lockstep {

class GoodState {
 public:
  explicit GoodState(ModelImpl& impl) : impl_(impl) {}

  // Copies weights, the optimizer's state, the loss scale and the metrics. If any of them except
  // the metrics is not finite, keeps the previous copy instead and returns false. Metrics are not
  // checked: a loss that the loss scale made harmless remains in them until the epoch ends.
  bool keep();
  bool has() const { return !values_.empty(); }
  std::int64_t step() const { return step_; }  // training steps done when it was copied
  // The same for the last call of keep, whether or not it copied anything.
  const std::optional<std::int64_t>& tried_at() const { return tried_at_; }
  // Restores everything but the step counts: schedules and random numbers continue.
  void restore();

 private:
  ModelImpl& impl_;
  std::vector<std::pair<VariableRef, Tensor>> values_;
  std::int64_t step_ = 0;
  std::optional<std::int64_t> tried_at_;
};

}  // namespace lockstep

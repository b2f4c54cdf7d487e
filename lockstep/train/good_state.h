// GoodState: a copy of a model's state in memory, to go back to when numbers stop being finite.
#pragma once

#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "lockstep/train/model_impl.h"

namespace lockstep {

class GoodState {
 public:
  explicit GoodState(Model::Impl& impl) : impl_(impl) {}

  // Copies weights, the optimizer's state, the loss scale and the metrics, unless one of them other
  // than a metric holds a number that is not finite: then the copy before stays. Whether it was
  // taken. A single loss that a loss scale made harmless stays in the metrics until the epoch ends.
  bool keep();
  bool has() const { return !values_.empty(); }
  std::int64_t step() const { return step_; }  // training steps done when it was taken
  // The same when keep was called last, whatever came of it.
  const std::optional<std::int64_t>& tried_at() const { return tried_at_; }
  // Sets everything but the numbers of steps: schedules and random numbers go on.
  void restore();

 private:
  Model::Impl& impl_;
  std::vector<std::pair<VariableRef, Tensor>> values_;
  std::int64_t step_ = 0;
  std::optional<std::int64_t> tried_at_;
};

}  // namespace lockstep

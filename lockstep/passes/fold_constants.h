// Computes once what every step would compute from constants alone, and removes nodes that change
// nothing: x · 1, x / 1, x - 0 and a select with a constant condition. (x + 0 stays: it turns -0
// into 0.) The bits of results do not change.
#pragma once

#include "lockstep/graph/backend.h"
#include "lockstep/passes/pass.h"

namespace lockstep {

class FoldConstants final : public Pass {
 public:
  explicit FoldConstants(const Backend& backend) : backend_(backend) {}
  std::string_view name() const override { return "fold constants"; }
  void run(Graph& graph) override;

 private:
  const Backend& backend_;
};

}  // namespace lockstep

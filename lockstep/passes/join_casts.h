// Joins casts that a backend does in one kernel: those of variables, at the step's beginning, and
// those that the same nodes read, the gradients of an update say. Behind the layout pass, which
// decides for each cast by itself.
#pragma once

#include "lockstep/graph/backend.h"
#include "lockstep/passes/pass.h"

namespace lockstep {

class JoinCasts final : public Pass {
 public:
  explicit JoinCasts(const Backend& backend) : backend_(backend) {}
  std::string_view name() const override { return "join casts"; }
  void run(Graph& graph) override;

 private:
  const Backend& backend_;
};

}  // namespace lockstep

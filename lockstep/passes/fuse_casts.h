// Fuses casts that a backend does in one kernel: those of variables, at the beginning of the step,
// and those that the same nodes read, such as the gradients of an update. Runs after the layout
// pass, which decides about each cast separately.
#pragma once

#include "lockstep/graph/backend.h"
#include "lockstep/passes/pass.h"

namespace lockstep {

class FuseCasts final : public Pass {
 public:
  explicit FuseCasts(const Backend& backend) : backend_(backend) {}
  std::string_view name() const override { return "fuse casts"; }
  void run(Graph& graph) override;

 private:
  const Backend& backend_;
};

}  // namespace lockstep

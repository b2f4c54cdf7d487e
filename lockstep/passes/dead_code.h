// Removes nodes that nothing reads, and casts to the type that a value already has. Inputs, outputs
// and nodes that change variables stay.
#pragma once

#include "lockstep/passes/pass.h"

namespace lockstep {

class DeadCode final : public Pass {
 public:
  std::string_view name() const override { return "dead code"; }
  void run(Graph& graph) override;
};

}  // namespace lockstep

// Computes a scalar once where several nodes compute the same one. A kernel for one number takes as
// long to begin as one for thousands, and steps have hundreds: what each layer of a kind makes of
// the number of replicas, say.
#pragma once

#include "lockstep/passes/pass.h"

namespace lockstep {

class JoinScalars final : public Pass {
 public:
  std::string_view name() const override { return "join scalars"; }
  void run(Graph& graph) override;
};

}  // namespace lockstep

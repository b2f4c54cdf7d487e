// Lets a kernel compute gradients along with its own result, where the backend offers that:
//   a product that is the gradient of weights: also that of the bias, the sums of dy's columns
//   a sparse cross entropy: also its gradient, and the sum of its losses
#pragma once

#include "lockstep/graph/backend.h"
#include "lockstep/passes/pass.h"

namespace lockstep {

class FuseGradients final : public Pass {
 public:
  explicit FuseGradients(const Backend& backend) : backend_(backend) {}
  std::string_view name() const override { return "fuse gradients"; }
  void run(Graph& graph) override;

 private:
  const Backend& backend_;
};

}  // namespace lockstep

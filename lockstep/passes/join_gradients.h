// Lets a kernel give gradients beside what it computes, where the backend offers that:
//   a product that is the gradient of weights, the gradient of the bias: the sums of dy's columns
//   a sparse cross entropy, its own gradient, and the sum of its losses
#pragma once

#include "lockstep/graph/backend.h"
#include "lockstep/passes/pass.h"

namespace lockstep {

class JoinGradients final : public Pass {
 public:
  explicit JoinGradients(const Backend& backend) : backend_(backend) {}
  std::string_view name() const override { return "join gradients"; }
  void run(Graph& graph) override;

 private:
  const Backend& backend_;
};

}  // namespace lockstep

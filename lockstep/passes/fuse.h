// Fuses nodes that a backend computes in one kernel:
//   conv2d or matmul, then an activation
//   batch norm, then (an addition and) ReLU, forward and backward
//   two batch norms, whose results are added, then ReLU, forward and backward
//   batch norm, ReLU and max pooling, forward and backward
// and applies ReLU and its gradient's mask to the results of max pooling instead of the images.
#pragma once

#include "lockstep/graph/backend.h"
#include "lockstep/passes/pass.h"

namespace lockstep {

class Fuse final : public Pass {
 public:
  explicit Fuse(const Backend& backend) : backend_(backend) {}
  std::string_view name() const override { return "fuse"; }
  void run(Graph& graph) override;

 private:
  const Backend& backend_;
};

}  // namespace lockstep

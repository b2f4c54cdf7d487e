// Lets a node hand on what it knows to one that would otherwise sweep memory for it, where the
// backend offers that:
//   a convolution, to the batch norm behind it: the sums of each channel and of its squares
//   a batch norm with a residual and ReLU, to its gradient: ReLU's mask as bits
//   a matrix product with ReLU, to the product whose result its gradient masks: the same
#pragma once

#include "lockstep/graph/backend.h"
#include "lockstep/passes/pass.h"

namespace lockstep {

class HandOn final : public Pass {
 public:
  explicit HandOn(const Backend& backend) : backend_(backend) {}
  std::string_view name() const override { return "hand on"; }
  void run(Graph& graph) override;

 private:
  const Backend& backend_;
};

}  // namespace lockstep

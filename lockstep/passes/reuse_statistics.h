// Lets a node pass what it has computed to one that would otherwise make a pass over memory for it,
// where the backend offers that:
//   a convolution, to the batch norm after it: the sums of each channel and of its squares
//   a batch norm with a residual and ReLU, to its gradient: ReLU's mask as bits
//   a matrix product with ReLU, to the product whose result its gradient masks: the same
#pragma once

#include "lockstep/graph/backend.h"
#include "lockstep/passes/pass.h"

namespace lockstep {

class ReuseStatistics final : public Pass {
 public:
  explicit ReuseStatistics(const Backend& backend) : backend_(backend) {}
  std::string_view name() const override { return "reuse statistics"; }
  void run(Graph& graph) override;

 private:
  const Backend& backend_;
};

}  // namespace lockstep

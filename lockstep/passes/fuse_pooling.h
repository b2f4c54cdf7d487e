// Lets a convolution pool its own result, and the filter's gradient undo the pooling, where the
// backend offers it and nothing else reads the image between them:
//   conv2d → max_pool
//   max_pool_grad → conv2d_grad_filter
// The image, the largest of a network's first layers, then never exists as a whole.
#pragma once

#include "lockstep/graph/backend.h"
#include "lockstep/passes/pass.h"

namespace lockstep {

class FusePooling final : public Pass {
 public:
  explicit FusePooling(const Backend& backend) : backend_(backend) {}
  std::string_view name() const override { return "fuse pooling"; }
  void run(Graph& graph) override;

 private:
  const Backend& backend_;
};

}  // namespace lockstep

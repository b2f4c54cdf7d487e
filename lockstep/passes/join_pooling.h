// Lets a convolution pool its own result, and a filter's gradient undo that by itself, where the
// backend offers it and nobody else reads the image between them:
//   conv2d → max_pool
//   max_pool_grad → conv2d_grad_filter
// The image need not exist as a whole then: it is the largest of a network's first layers.
#pragma once

#include "lockstep/graph/backend.h"
#include "lockstep/passes/pass.h"

namespace lockstep {

class JoinPooling final : public Pass {
 public:
  explicit JoinPooling(const Backend& backend) : backend_(backend) {}
  std::string_view name() const override { return "join pooling"; }
  void run(Graph& graph) override;

 private:
  const Backend& backend_;
};

}  // namespace lockstep

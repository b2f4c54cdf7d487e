// Chooses the layout of every value and puts reorders where two nodes do not agree. Variables get
// the layout of the node that reads them first, so that weights and their gradients stay as the
// convolutions want them and the optimizer sweeps over them as they lie. Inputs and outputs of the
// graph stay row-major.
#pragma once

#include "lockstep/graph/backend.h"
#include "lockstep/passes/pass.h"
#include "lockstep/passes/pipeline.h"

namespace lockstep {

class ChooseLayouts final : public Pass {
 public:
  ChooseLayouts(const Backend& backend, LayoutOf layout_of)
      : backend_(backend), layout_of_(std::move(layout_of)) {}
  std::string_view name() const override { return "layout"; }
  void run(Graph& graph) override;

 private:
  const Backend& backend_;
  LayoutOf layout_of_;
};

}  // namespace lockstep

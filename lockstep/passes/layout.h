// Chooses the layout of every value and inserts reorders where two nodes disagree. A variable gets
// the first layout that a node wants for it, so that weights and their gradients stay in the layout
// of the convolutions and the optimizer processes them as they are. Inputs and outputs of the graph
// stay row-major.
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

// Lets the product that computes a gradient add it to the gradient's accumulator
// (passes/accumulate.h), where the backend offers that and nothing else reads the gradient: no pass
// over memory of its own.
//
//   Add   the sum is assigned to the accumulator, so the planner has it computed there
//   Last  the sum goes where it is read. If it is communicated, that is a bucket; otherwise it is
//         assigned to the accumulator, too, whose contents nobody needs after the step
#pragma once

#include "lockstep/graph/backend.h"
#include "lockstep/passes/pass.h"

namespace lockstep {

class FuseAccumulation final : public Pass {
 public:
  explicit FuseAccumulation(const Backend& backend) : backend_(backend) {}
  std::string_view name() const override { return "fuse accumulation"; }
  void run(Graph& graph) override;

 private:
  const Backend& backend_;
};

}  // namespace lockstep

// Fuses elementwise nodes into Pointwise nodes (graph/ops/pointwise.h), for backends that launch
// kernels one by one and compile a program to one kernel:
//   chains: nodes that read each other element by element, and scalars, become one program, and
//     the values between them are never stored; an Assign at the end writes its variable;
//   scalars: the bookkeeping of a step (means, schedules, counters) is fused even if unrelated;
//   segments: small, independent programs that differ only in shapes and operands (moving averages,
//     layer by layer) become the segments of one node.
// Nodes only move later, at most to just before their first reader: no value is computed twice, and
// large values live no longer than before.
#pragma once

#include "lockstep/passes/pass.h"

namespace lockstep {

class FusePointwise final : public Pass {
 public:
  std::string_view name() const override { return "pointwise"; }
  void run(Graph& graph) override;
};

}  // namespace lockstep

// Joins elementwise nodes into Pointwise nodes (graph/ops/pointwise.h), for backends that launch
// kernels one by one and make one of each program:
//   chains: what is computed from each other element by element, with scalars, is one program, and
//     what lies between is never stored; an Assign at the end of a chain writes its variable;
//   scalars: the bookkeeping of a step (means, schedules, counters), joined as they come;
//   likes: programs that are the same but for shapes and operands, small and independent of each
//     other (moving averages, layer by layer), are the segments of one node.
// Nodes only move behind one another, up to before their first reader: no value is computed twice,
// and large values live no longer than before.
#pragma once

#include "lockstep/passes/pass.h"

namespace lockstep {

class FusePointwise final : public Pass {
 public:
  std::string_view name() const override { return "pointwise"; }
  void run(Graph& graph) override;
};

}  // namespace lockstep

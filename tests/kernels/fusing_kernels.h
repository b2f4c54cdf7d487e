// The reference as a library for which the passes fuse elementwise nodes as they do for GPUs, so
// that fusion can be tested without one.
#pragma once

#include "lockstep/kernels/kernel.h"

namespace lockstep {

inline const KernelLibrary& fusing_kernels() {
  static const KernelLibrary library = [] {
    const auto interpret = [](const KernelCall& call) {
      return reference_kernels().make(call.graph, call.node);
    };
    KernelLibrary result;
    result.add(Op::Pointwise, {.name = "interpreted.pointwise", .make = interpret});
    result.add(Op::PointwiseAssign, {.name = "interpreted.pointwise_assign", .make = interpret});
    add_reference_kernels(result);
    return result;
  }();
  return library;
}

}  // namespace lockstep

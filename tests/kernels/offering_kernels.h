// The reference as a library whose kernels offer every fusion that a pass asks for, as those of
// GPUs do, so that the passes can be tested without a GPU.
#pragma once

#include "lockstep/kernels/kernel.h"

namespace lockstep {

inline const KernelLibrary& offering_kernels() {
  static const KernelLibrary library = [] {
    const auto interpret = [](const KernelCall& call) {
      return reference_kernels().make(call.graph, call.node);
    };
    const auto workspace_bytes = [](const KernelCall& call) {
      return reference_kernels().workspace_bytes(call.graph, call.node);
    };
    KernelLibrary result;
    for (const Op op : {Op::MatMul, Op::SparseCrossEntropy}) {
      result.add(op, {.name = "interpreted.offering",
                      .make = interpret,
                      .workspace_bytes = workspace_bytes,
                      .fuses_activation = [](const KernelCall&, std::string_view) { return true; },
                      .offers = [](const KernelCall&, std::string_view) { return true; }});
    }
    add_reference_kernels(result);
    return result;
  }();
  return library;
}

}  // namespace lockstep

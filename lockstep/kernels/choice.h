// Chooses the kernel for a node that several can compute: oneDNN has more than one convolution, for
// example, and some of our own compete with them.
//
// By default a library takes the first kernel in its order. It does not measure unless told to,
// because kernels for the same op round differently: if the clock chose, two runs with the same
// seed could give different bits, and a resumed run could use other kernels than before. The fixed
// order follows oneDNN's and our own measurements. To get the last percent of speed, allow
// measuring:
//
//   KernelLibrary kernels = make_cpu_kernels();
//   kernels.choose_by_measuring();
//
// The layout pass, which asks first, then times every kernel that could compute a node on memory of
// the node's sizes, including the reorders that its layouts would cost. The fastest stays chosen
// for that op with those attributes and types as long as the library lives. `choices()` returns the
// choices; pass them to `choose_by_measuring` in the next run to get the same bits again.
#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>
#include <string>
#include <vector>

#include "lockstep/kernels/kernel.h"

namespace lockstep {

class MeasuredChoice {
 public:
  MeasuredChoice(MeasuringOptions options, KernelChoices known);

  // A kernel that could compute the node, and the layouts it would use.
  struct Candidate {
    const KernelDef* def = nullptr;
    NodeLayouts layouts;
  };

  // The index of the candidate chosen earlier, otherwise of the fastest; 0 once the time budget is
  // spent. `library` provides the kernels that reorder.
  std::size_t choose(const KernelCall& call, const std::vector<Candidate>& candidates,
                     const KernelLibrary& library);
  // The name of the kernel chosen for such a node; empty if there is none.
  std::string chosen(const KernelCall& call) const;
  KernelChoices choices() const;

 private:
  std::size_t measure(const KernelCall& call, const std::vector<Candidate>& candidates,
                      const KernelLibrary& library);

  MeasuringOptions options_;
  mutable std::mutex mutex_;
  KernelChoices chosen_;
  std::atomic<std::int64_t> spent_ns_ = 0;
};

}  // namespace lockstep

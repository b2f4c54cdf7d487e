// Which kernel computes a node for which there are several: oneDNN's other convolutions, say, or
// one of our own beside them.
//
// A library takes the first in its order unless it is told to measure. Not by itself, because
// kernels that compute the same op differ in rounding: were the faster chosen by the clock, two
// runs with the same seed could give different bits, and a run could go on after a stop with other
// kernels than before. The order is fixed, and it is the one that oneDNN and our own measurements
// have; whoever would rather have the last percent allows it:
//
//   KernelLibrary kernels = make_cpu_kernels();
//   kernels.choose_by_measuring();
//
// Then the layout pass, which asks first, has every kernel that could compute a node run on memory
// of the node's own sizes, with the reorders that its layouts would cost, and the fastest stays
// chosen for that op, those attributes and types as long as the library lives. `choices()` are what
// was found; given to `choose_by_measuring` in the next run, they give the same bits again.
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

  // A kernel that could compute the node, and the layouts in which it would.
  struct Candidate {
    const KernelDef* def = nullptr;
    NodeLayouts layouts;
  };

  // The index of the one chosen before, or else of the fastest; 0 once the time is up. `library`
  // has the kernels that reorder.
  std::size_t choose(const KernelCall& call, const std::vector<Candidate>& candidates,
                     const KernelLibrary& library);
  // The name of the kernel that was chosen for such a node; empty where none was.
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

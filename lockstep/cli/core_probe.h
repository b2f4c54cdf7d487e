// CoreProbe: how fast a core is while the machine's other cores compute too, relative to its speed
// alone.
//
// The work is arithmetic in registers: replicas that share no memory, cache or lock would lose
// about as much. The loss (hyper-threads, other guests of the host, the lower clock of a busy chip)
// is the machine's. As replicas do after each step, all cores wait for the last one after each
// piece of work; pieces much shorter than a step would overstate the waiting.
#pragma once

#include <cstdint>
#include <vector>

namespace lockstep::cli {

class CoreProbe {
 public:
  // The cores of each replica, and how long an idle core takes for a piece of work.
  CoreProbe(std::vector<std::vector<int>> cores, double piece_ms);

  // One round: `pieces` on the first replica's cores alone, then as many on all cores.
  void measure(int pieces);
  // Speed with all cores busy relative to the first replica's cores alone: the median over the
  // rounds.
  double at_once() const;

 private:
  std::vector<int> first_, all_;
  std::int64_t work_ = 0;  // loop iterations per piece
  std::vector<double> ratios_;
};

}  // namespace lockstep::cli

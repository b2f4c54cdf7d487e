// CoreProbe: how much of its speed alone a machine's core has when others compute beside it.
//
// The work is arithmetic in registers: replicas that share no memory, no cache and no lock would
// lose about as much. What is missing (siblings and neighbours on the host, the clock of a warm
// chip) is the machine's. As replicas do behind each step, all wait for the last one behind each
// piece of work; pieces much shorter than a step show more waiting than it would.
#pragma once

#include <cstdint>
#include <vector>

namespace lockstep::cli {

class CoreProbe {
 public:
  // The cores of each replica, and how long a piece of work takes an undisturbed core.
  CoreProbe(std::vector<std::vector<int>> cores, double piece_ms);

  // A round: some pieces on the first replica's cores alone, and as many on all.
  void measure(int pieces);
  // Of the first replica's speed alone, what each has at once with the others: the median of the
  // rounds so far.
  double at_once() const;

 private:
  std::vector<int> first_, all_;
  std::int64_t work_ = 0;  // of a piece
  std::vector<double> ratios_;
};

}  // namespace lockstep::cli

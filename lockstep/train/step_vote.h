// What the workers of a job agree on before every step: whether somebody still has samples, how
// many each has, whether to stop, and whether a step must be compiled. One small exchange.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "lockstep/runtime/world.h"

namespace lockstep {

// What one worker says.
struct StepVote {
  bool has_batch = false;
  bool stop = false;         // a callback asked fit to end
  bool interrupted = false;  // the caller asked fit to end
  bool compiled = false;     // it has the step for the rows that it expects
  bool measured = false;     // the step is to be sampled for the noise scale; the chief decides
  std::int64_t rows = 0;     // of its batch
  std::uint64_t due = 0;     // a bit per callback: whether needs_sync said so
  double busy_s = -1;        // with the step before, input included; negative: nothing to say
};

// What all said, by worker.
struct StepVotes {
  std::vector<StepVote> all;

  bool any(bool StepVote::*flag) const;
  bool every(bool StepVote::*flag) const;
  std::int64_t rows() const;                   // of all workers
  std::int64_t rows_before(int worker) const;  // of the workers before this one
};

// Collective. If vote() throws on a worker, all throw its error.
StepVotes take_votes(World& world, const std::function<StepVote()>& vote);

}  // namespace lockstep

// probe_links: measures the links between all workers of a job, one pair at a time while the others
// wait, so that no measurement disturbs another.
//
// Over Gloo or MPI, messages go straight over a wire; in shared memory, through the group of the
// two. The lower worker of a pair measures, with its own clock: every round begins with a word that
// starts the other end, and where the lower worker could not see the end of the round, it ends with
// a word from there. What these words take is subtracted.
#pragma once

#include <chrono>
#include <cstddef>
#include <functional>
#include <vector>

#include "lockstep/comm/worker_links.h"

namespace lockstep {

struct MeasuredLink {
  int from = 0;
  int to = 0;
  double latency_s = 0;         // half of the median round trip of a small message
  double bytes_per_s = 0;       // while nothing goes the other way
  double both_bytes_per_s = 0;  // of both ways together, while both are busy
};

struct LinkProbeOptions {
  std::size_t block_bytes = std::size_t{8} << 20;  // of a large message; a multiple of 16
  // How long to measure a pair. A slow link takes longer: every kind of round is repeated a few
  // times at least.
  std::chrono::milliseconds time_per_pair = std::chrono::seconds(1);
  // How long workers wait for one another.
  std::chrono::milliseconds timeout = std::chrono::minutes(2);
  // Called on every worker whenever a pair is done: how many are, of how many.
  std::function<void(int done, int pairs)> on_pair = {};
};

// Every ordered pair of workers, by `from`, then by `to`; the same on all workers. Collective. The
// failure of one worker reaches all.
std::vector<MeasuredLink> probe_links(WorkerLinks& links, const LinkProbeOptions& options = {});

}  // namespace lockstep

// Explanation: why N devices were not N times as fast, and what would change that. All seconds are
// per step, means over the run unless they are said to be totals; `lost` and what was got add up
// to the whole.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace lockstep {

// Why time was lost. The order is that of the waterfall.
enum class Cause : std::uint8_t {
  SmallPieces,  // computation that does not shrink with the batch
  Contention,   // what devices take from one another when all compute
  Latency,      // exposed communication: what remains however fast the link
  Bandwidth,    // exposed communication: bytes
  Input,
  Imbalance,        // waiting for a slower replica
  Synchronisation,  // waiting although all are equally fast: steps vary
  Host,
  Start,
  Validation,
  Checkpoint,
  Failures,
};
const char* name_of(Cause cause);

struct LostTime {
  Cause cause = Cause::Host;
  double seconds = 0;   // over the whole run
  double fraction = 0;  // of the run's time
  std::string where;    // "bucket 3 of 5", "map 'decode' (stage 2)", "cuda:1 since step 1200"
};

struct Advice {
  std::string change;   // "batch 32 -> 128 per replica"
  std::string gain;     // "1.9x -> 3.4x on 4 devices; memory 1.1 -> 3.9 GiB of 16"
  double speed_up = 1;  // of the step or run, predicted
  double sure = 0;      // 0 … 1
  std::string command;  // that does it; empty if there is none
};

struct Predicted {
  double step_ms = 0;  // recorded before the run
  double low_ms = 0;   // what was thought likely
  double high_ms = 0;
  double measured_ms = 0;
};

struct Explanation {
  std::string run;
  int replicas = 1;
  double seconds = 0;          // of the run
  double step_ms = 0;          // median
  double speed_up = 1;         // over one device that does the same work
  double possible = 1;         // with everything gone that could be changed
  std::vector<LostTime> lost;  // fractions and speed_up / replicas add up to 1
  std::vector<Advice> advice;  // the most useful first
  std::optional<Predicted> predicted;
};

}  // namespace lockstep

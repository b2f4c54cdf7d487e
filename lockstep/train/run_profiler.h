// RunProfiler: records what a run's RunProfile is made of while fit trains.
//
// It adds next to nothing to a step: times are read from the tracks at the end of a window of
// steps, and the windows become longer as the run does. The spans of a step are copied only where
// that step is an example: at fixed numbers, the same on every worker, and where a step took much
// longer than those before it.
#pragma once

#include <cstdint>
#include <deque>
#include <span>
#include <string>
#include <vector>

#include "lockstep/explain/run_profile.h"
#include "lockstep/runtime/session.h"
#include "lockstep/train/history.h"
#include "lockstep/train/worker_clocks.h"

namespace lockstep {

// The parts of so many seconds.
TimeParts seconds_of(const Attribution& attribution, double seconds);

class RunProfiler {
 public:
  explicit RunProfiler(Session& session);

  // Training begins, or goes on with another generation of workers. Collective.
  void begin();
  // A step is over, and the local ranks are idle. `samples` of each local rank so far.
  void step_done(std::int64_t step, std::int64_t begin_ns, std::int64_t end_ns,
                 std::span<const std::int64_t> samples);
  // What a step taught.
  void note_loss(std::int64_t step, double loss) { curve_.add_loss(step, loss); }
  void note_noise(std::int64_t step, const NoiseScale& noise) { curve_.add_noise(step, noise); }
  // A training step was planned; this is the plan of the first local rank.
  void planned(const Plan& plan);
  // The profile of the run so far, of all workers. Collective.
  RunProfile collect(const History& history);

 private:
  struct Totals {
    std::int64_t compute_ns = 0;
    std::int64_t input_ns = 0;
    std::int64_t wait_ns = 0;
    std::int64_t samples = 0;
  };
  std::vector<Totals> read(std::span<const std::int64_t> samples) const;
  void end_window(std::span<const std::int64_t> samples);
  void merge_windows();
  bool is_slow(std::int64_t ns) const;
  ExampleStep copy_step(std::int64_t step, std::int64_t begin_ns, std::int64_t end_ns, bool slow);
  std::vector<CollectiveProfile> collectives() const;

  Session& session_;
  WorkerClocks clocks_;
  std::vector<Totals> before_;  // at the beginning of the window
  std::int64_t window_first_ = 0;
  std::int64_t window_steps_ = 0;
  std::int64_t window_ns_ = 0;
  std::int64_t window_length_ = 1;
  std::vector<StepWindow> windows_;
  std::vector<PlannedInstruction> plan_;
  StepMemory memory_;  // of the plan
  LearningCurve curve_;
  std::vector<CollectiveProfile> planned_;  // without times
  std::int64_t seen_ = 0;                   // steps
  std::int64_t next_example_;
  std::vector<ExampleStep> typical_;  // the latest
  std::vector<ExampleStep> slow_;
  std::int64_t copying_ns_ = 0;  // spent on copying examples
  std::int64_t running_ns_ = 0;  // of all steps
};

}  // namespace lockstep

// StragglerWatch: finds the worker that the others wait for.
//
// After every step the workers tell one another how long they were busy with it, with input and
// computation. A worker is named if it took at least a tenth longer than its peers throughout a
// window of steps: the median over each quarter of the window says so. What comes and goes names
// nobody, and neither do rows: a worker that has more of them than its peers must be slower per
// row, too.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace lockstep {

struct SlowWorker {
  int worker = 0;
  double times = 1;        // as long as its peers
  double waiting = 0;      // the part of a step that its peers wait for it
  std::int64_t steps = 0;  // after which it was named
  double seconds = 0;      // that its peers waited for it in these steps

  // "worker 2 is 1.4x slower than the others: 29% of each step is spent waiting for it".
  std::string text() const;
};

struct StragglerOptions {
  std::size_t window = 32;  // steps; a multiple of 4
  double times = 1.1;
};

// What a worker tells about a step.
struct WorkerStep {
  double busy_s = -1;     // negative: the step says nothing, as one that had to be planned
  std::int64_t rows = 0;  // of its largest piece
};

class StragglerWatch {
 public:
  explicit StragglerWatch(int workers, StragglerOptions options = {});

  // A step, by worker, and how long it took.
  void observe(std::span<const WorkerStep> workers, double step_s);
  // The slowest one now, if one is to be named; judged four times per window.
  const std::optional<SlowWorker>& now() const { return now_; }
  // All that were named, by worker: what they were like when they were last.
  std::vector<SlowWorker> all() const;

 private:
  struct Step {
    std::vector<double> times;  // by worker: as long as the median of its peers
    std::vector<double> late;   // by worker: seconds after it
    double seconds = 0;
  };
  void judge();

  std::size_t workers_;
  StragglerOptions options_;
  std::deque<Step> window_;
  std::uint64_t observed_ = 0;  // steps
  std::optional<SlowWorker> now_;
  std::vector<SlowWorker> named_;  // by worker; steps 0: never
};

}  // namespace lockstep

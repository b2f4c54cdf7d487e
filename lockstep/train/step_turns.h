// Turns: the step of one size on the first device alone, or on all devices at once, run in turns
// with others, and what it took. Of measure_step.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "lockstep/explain/measured_step.h"
#include "lockstep/train/solo_step.h"

namespace lockstep {

// 0 of none.
double median_of(std::vector<double> values);
double seconds_from(std::int64_t begin_ns);
bool is_gpu(World& world);

class Turns {
 public:
  Turns(World& world, int copies, const StepRecipe& recipe, const ModelStep& step,
        std::int64_t samples, const SoloOptions& options);
  ~Turns();
  Turns(const Turns&) = delete;
  Turns& operator=(const Turns&) = delete;

  bool fits_in_memory() const { return fits_; }
  double samples() const { return static_cast<double>(samples_); }
  double plan_bytes() const { return plan_bytes_; }
  const std::vector<MeasuredInstruction>& instructions() const { return measured_; }

  // Makes the executors; the seconds of a step, from the second of two.
  double begin();
  // So many steps on each rank at once, which do not wait for one another. Unless steps take long,
  // the first is not timed: caches hold what ran in between.
  void turn(int steps);

  double seconds() const { return median_of(all_); }
  const std::vector<double>& turns() const { return turns_; }  // the median of each
  std::vector<double> jitter() const;
  // The seconds of each instruction, scaled to add up to the measured step.
  std::vector<double> instruction_seconds();

 private:
  template <class F>
  void on_ranks(const F& f) {
    world_.run([&](int local) {
      const auto i = static_cast<std::size_t>(local);
      if (local < copies_ && i < steps_.size()) f(i);
    });
  }

  World& world_;
  std::int64_t samples_;
  int copies_;
  int ranks_;
  bool fits_ = false;
  std::uint64_t seed_ = 0;
  double plan_bytes_ = 0;
  std::vector<StepPlans> plans_;  // until begin()
  // Of the last micro-batch, of one before it, and of the whole step.
  std::vector<MeasuredInstruction> last_, earlier_, measured_;
  std::int64_t earlier_times_ = 0;
  std::vector<std::unique_ptr<SoloStep>> steps_;
  std::vector<double> all_, relative_, turns_;
};

}  // namespace lockstep

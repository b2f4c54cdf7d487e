// SoloStep: the training step of one replica of several, run without the others: its plan has all
// collectives, and they do nothing. What is measured on it is what a replica computes in a job of
// any size.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "lockstep/distribute/buckets.h"
#include "lockstep/exec/executor.h"
#include "lockstep/profile/recorder.h"
#include "lockstep/runtime/compiled_step.h"
#include "lockstep/runtime/world.h"
#include "lockstep/train/model_step.h"

namespace lockstep {

struct SoloOptions {
  int ranks = 2;  // as if there were so many, of which this is the first; 1: it is alone
  BucketSizes buckets = {};
};

// The plans of a local rank for a piece of so many samples, as if there were other ranks: one
// rank's of StepPlans. `step` has the types of a batch of any size. Nothing is allocated.
StepPlans solo_plans(World& world, int local, const StepRecipe& recipe, ModelStep step,
                     std::int64_t samples, const SoloOptions& options);

class SoloStep {
 public:
  // Must be made, run and destroyed on the thread of the rank (World::run). Inputs are noise, and
  // labels of two classes.
  SoloStep(World& world, int local, StepPlans plans, std::uint64_t seed, int ranks);
  SoloStep(World& world, int local, Plan plan, std::uint64_t seed);
  ~SoloStep();
  SoloStep(const SoloStep&) = delete;
  SoloStep& operator=(const SoloStep&) = delete;

  // One step. On an asynchronous device it is only issued.
  void run();
  void wait();
  const Plan& plan() const;  // of the last micro-batch
  // Seconds of each instruction of plan(): the median over the latest runs; collectives take none.
  // On an asynchronous device each is run on its own; the step's values are meaningless afterwards.
  std::vector<double> instruction_seconds();
  // The same of a micro-batch before the last; empty where there is none.
  std::vector<double> earlier_seconds();

 private:
  struct Parts;
  std::unique_ptr<Parts> parts_;
};

}  // namespace lockstep

// measure_step: what a training step of a replica costs on one device of this machine, for any
// number of samples, and what its devices take from one another; within a few seconds, and without
// communication between replicas. simulate() (explain/simulate.h) predicts other scales from it.
//
// Pieces of two or three sizes take turns, so that a slow moment of the machine affects all of
// them. Each instruction gets a fixed part and a part per sample, which give its time for `batch`
// exactly. The same step runs on several devices at once, also in turns: what it takes longer then
// is contention for memory, caches and power. At last, the devices all-reduce buckets as large as
// those of the step.
//
// A step that accumulates has the times of a micro-batch before the last and of the last one. Where
// ranks have slices, each instruction says which part of its work shrinks with them.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/explain/measured_step.h"
#include "lockstep/runtime/world.h"
#include "lockstep/train/model_step.h"

namespace lockstep {

struct MeasureStepOptions {
  std::string model = {};  // as the user named it
  // Of which the first is measured alone, and then all at once: "cpu:0", "cpu:1". None: the first
  // GPU, or all cores.
  std::vector<std::string> devices = {};
  int logical_cpus = 0;  // into which the cores are split; 0: as many as the names need
  CudaKernelOptions cuda = {};
  std::int64_t batch = 32;  // samples of a piece
  // Numbers of replicas whose memory is planned.
  std::vector<int> ranks = {};
  bool divided = false;  // `batch` is then of all of them
  // About how long to measure. A large step is run a few times at least.
  double seconds = 4;
  // Called now and then: what is being measured, and which part of the whole is done.
  std::function<void(std::string_view what, double done)> on_progress = {};
};

// `step` has the types of a batch of any size. UsageError if the step does not fit into memory.
MeasuredStep measure_step(const StepRecipe& recipe, const ModelStep& step,
                          const MeasureStepOptions& options);

}  // namespace lockstep

// Where `lockstep scale` takes a measured step from: a run's folder, a file, or a measurement that
// it makes now.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/cli/command.h"
#include "lockstep/explain/measured_step.h"
#include "lockstep/explain/network.h"

namespace lockstep::cli {

struct ScaleSourceOptions {
  std::string run;    // a run's folder, or a file with a measured step; empty: `model`
  std::string model;  // of the zoo
  BatchFlags batch;
  std::string precision;  // empty: the run's, or float32
  bool tf32 = false;      // on GPUs, even if the run had --no-tf32
  std::string optimizer;
  MemoryFlags memory;  // of a run only those of `given`: the others are the run's
  GivenFlags given = {};
  std::string device;  // empty: what is here
  int cores = 0;
  std::optional<Topology> topology;
  std::vector<int> counts = {};  // of replicas that are asked for, of which the memory is planned
  int most = 1;                  // of them
  double seconds = 4;            // to measure in
};

struct ScaleSource {
  MeasuredStep step;
  int per_host = 1;      // replicas
  bool measured = true;  // on the device that the step is for
  std::string basis;     // where the figures come from, and how sure they are
};

// UsageError or DataError, naming what is wrong. Shows progress on standard error while it
// measures.
ScaleSource scale_source(const ScaleSourceOptions& options);

}  // namespace lockstep::cli

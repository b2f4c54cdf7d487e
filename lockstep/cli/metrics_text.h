// The progress of a run as metrics in the text format of Prometheus, version 0.0.4.
#pragma once

#include <string>

#include "lockstep/train/run_progress.h"

namespace lockstep::cli {

// What does not change while a run goes on.
struct MetricsLabels {
  std::string run;  // its folder
  std::string model;
  std::string version;  // of the program
};
std::string metrics_text(const RunProgress& progress, const MetricsLabels& labels);

}  // namespace lockstep::cli

// The samples that a trained run is evaluated on.
#pragma once

#include <cstdint>
#include <string>

#include "lockstep/cli/trained_run.h"
#include "lockstep/data/dataset.h"

namespace lockstep::cli {

struct TestData {
  Dataset batches;
  std::int64_t samples = 0;
  std::string where;  // "the 10,000 test samples of fashion-mnist"
};

struct TestDataOptions {
  std::string data = {};  // other samples; empty: the run's own test data
  std::int64_t batch = 64;
};

// UsageError if the samples do not fit the run's model.
TestData test_data(const TrainedRun& run, const TestDataOptions& options);

}  // namespace lockstep::cli

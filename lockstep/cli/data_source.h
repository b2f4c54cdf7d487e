// What --data names: a folder, told apart by what is in it, or "synthetic".
#pragma once

#include <cstdint>
#include <string>

#include "lockstep/cli/zoo.h"
#include "lockstep/data/dataset.h"

namespace lockstep::cli {

// Samples, not yet batched.
struct DataSource {
  Dataset train;
  Dataset test;
  Task task;
  std::string description;  // "fashion-mnist: 60,000 + 10,000 samples (28, 28, 1), 10 classes"
};

struct DataOptions {
  std::string data;             // empty: Fashion-MNIST, as Debian packages it
  Task task;                    // of synthetic samples
  std::int64_t samples = 1024;  // of synthetic training data
  std::uint64_t seed = 0;
};

// UsageError or DataError, naming the folder, where nothing in it can be trained on.
DataSource open_data(const DataOptions& options);

}  // namespace lockstep::cli

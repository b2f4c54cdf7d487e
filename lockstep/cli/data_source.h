// What --data names: a folder, told apart by what is in it, or "synthetic".
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "lockstep/cli/zoo.h"
#include "lockstep/data/dataset.h"

namespace lockstep::cli {

struct DataSource {
  // Batches to train on, shuffled anew in every epoch, and to test on.
  std::function<Dataset(std::int64_t batch, std::uint64_t seed)> train;
  std::function<Dataset(std::int64_t batch)> test;
  Task task;
  std::string description;  // "fashion-mnist: 60,000 + 10,000 samples (28, 28, 1), 10 classes"
};

struct DataOptions {
  std::string data;             // empty: Fashion-MNIST, as Debian packages it
  Task task;                    // of synthetic samples; pictures are made its size
  std::int64_t samples = 1024;  // of synthetic training data
  std::uint64_t seed = 0;
};

// UsageError or DataError, naming the folder, where nothing in it can be trained on.
DataSource open_data(const DataOptions& options);

}  // namespace lockstep::cli

// What --data names: a folder, told apart by what is in it, or "synthetic".
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/cli/augment.h"
#include "lockstep/cli/command.h"
#include "lockstep/cli/zoo.h"
#include "lockstep/data/dataset.h"

namespace lockstep::cli {

struct ImageSize {
  std::int64_t height = 0;
  std::int64_t width = 0;
};
// "224", or height and width "240x320"; UsageError for anything else.
ImageSize image_size_by_text(const std::string& text);

struct DataOptions {
  std::string data;             // empty: Fashion-MNIST, as Debian packages it
  Task task;                    // of synthetic samples; pictures are made its size
  std::int64_t samples = 1024;  // of synthetic training data
  std::uint64_t seed = 0;
  std::optional<ImageSize> image_size = {};  // --image-size; none: what the model is made for
  std::optional<Augment> augment = {};       // --augment; none: crop for pictures in files
};

struct DataSource {
  // Batches to train on, shuffled anew in every epoch, and to test on.
  std::function<Dataset(std::int64_t batch, std::uint64_t seed)> train;
  std::function<Dataset(std::int64_t batch)> test;
  std::optional<Dataset> in_memory;  // the samples of `train`, one by one, where memory holds them
  Task task;
  std::string description;  // "fashion-mnist: 60,000 + 10,000 samples (28, 28, 1), 10 classes"

  std::string kind;                          // "idx", "cifar", "tfrecord", "images", "synthetic"
  std::filesystem::path root;                // the folder; empty for synthetic samples
  std::vector<std::filesystem::path> files;  // all that samples are read from
  std::int64_t train_samples = 0;
  std::int64_t test_samples = 0;
  std::vector<std::string> class_names;  // by label; numbers where nobody gave names
  // How a picture becomes a sample: height, width, color_mode, rescale, mean, deviation, antialias,
  // and the part that is taken in training and in testing. Null where samples are not pictures.
  Json image;
};

// What a run's record keeps of its data: the kind, the place, a fingerprint of the contents, the
// sizes, the class names and the image handling.
Json data_json(const DataSource& source, const DataOptions& options);

// UsageError or DataError, naming the folder, where nothing in it can be trained on.
DataSource open_data(const DataOptions& options);

}  // namespace lockstep::cli

// Opens what --data names: a folder, whose format follows from its files, or "synthetic".
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
  Task task;                    // shape of synthetic samples; pictures are resized to it
  std::int64_t samples = 1024;  // synthetic training samples
  std::uint64_t seed = 0;
  std::optional<ImageSize> image_size = {};  // --image-size; none: the model's default
  std::optional<Augment> augment = {};       // --augment; none: crop for pictures in files
};

struct DataSource {
  // Batches to train on, reshuffled in every epoch, and to test on.
  std::function<Dataset(std::int64_t batch, std::uint64_t seed)> train;
  std::function<Dataset(std::int64_t batch)> test;
  std::optional<Dataset> in_memory;  // the unbatched samples of `train`, if memory holds them
  Task task;
  std::string description;  // "digits: 60,000 training and 10,000 test samples of shape …"

  std::string kind;                          // "idx", "cifar", "tfrecord", "images", "synthetic"
  std::filesystem::path root;                // the folder; empty for synthetic samples
  std::vector<std::filesystem::path> files;  // all files that samples are read from
  std::int64_t train_samples = 0;
  std::int64_t test_samples = 0;
  std::vector<std::string> class_names;  // by label; numbers if the data has no names
  // How a picture becomes a sample: height, width, color_mode, rescale, mean, deviation, antialias,
  // and the crop in training and in testing. Null if samples are not pictures.
  Json image;
};

// What a run's record stores about its data: kind, path, fingerprint of the contents, sizes, class
// names and image handling.
Json data_json(const DataSource& source, const DataOptions& options);

// UsageError or DataError, naming the folder, if it holds nothing to train on.
DataSource open_data(const DataOptions& options);

}  // namespace lockstep::cli

#include "lockstep/cli/data_source.h"

#include <algorithm>
#include <filesystem>

#include "lockstep/base/error.h"
#include "lockstep/cli/format.h"
#include "lockstep/data/datasets.h"
#include "lockstep/data/image/map_images.h"
#include "lockstep/data/image_directory.h"
#include "lockstep/data/records.h"

namespace lockstep::cli {
namespace {

std::string described(const std::string& name, std::int64_t train, std::int64_t test,
                      const Task& task) {
  return fmt::format("{}: {} samples to train on, {} to test on; {} each, {} classes", name,
                     count_text(train), count_text(test), task.sample, task.classes);
}

// Samples in memory.
DataSource from_samples(const std::string& name, const Dataset& train, const Dataset& test,
                        const Task& task) {
  return {.train =
              [train](std::int64_t batch, std::uint64_t seed) {
                return train.shuffle({.seed = seed}).batch(batch).prefetch();
              },
          .test = [test](std::int64_t batch) { return test.batch(batch).prefetch(); },
          .task = task,
          .description = described(name, train.cardinality().value_or(0),
                                   test.cardinality().value_or(0), task)};
}

DataSource from_split(const std::string& name, const datasets::Split& split) {
  const std::vector<ElementSpec> spec = split.train.element_spec();
  const Task task{.sample = spec.at(0).shape, .classes = datasets::count_classes(split.train)};
  return from_samples(name, split.train, split.test, task);
}

// Pictures as networks for ImageNet want them: a random part to train on, the middle to test on.
ImageReaderOptions photo_reader(bool training) {
  ImageReaderOptions reader{
      .rescale = 1.0f / 255, .mean = kImageNetMean, .deviation = kImageNetDeviation};
  reader.crop = training ? ImageCrop::Random : ImageCrop::ToAspect;
  reader.mirror_probability = training ? 0.5f : 0.0f;
  reader.crop_fraction = training ? 1.0 : 0.875;
  reader.antialias = true;
  return reader;
}

// The size that pictures are given: what the model is made for, or, where it takes vectors, that of
// Fashion-MNIST.
Shape picture_shape(const Task& task) {
  return task.sample.rank() == 3 ? task.sample : Shape{28, 28, 1};
}

std::optional<std::filesystem::path> folder_named(const std::filesystem::path& folder,
                                                  std::initializer_list<const char*> names) {
  for (const char* name : names) {
    if (is_image_directory(folder / name)) return folder / name;
  }
  return std::nullopt;
}

// One folder of images a class; or such folders below train and val (or validation, or test). Where
// there is but one, a tenth of the files is kept for testing.
DataSource from_images(const std::string& name, const std::filesystem::path& folder,
                       const DataOptions& options) {
  const auto train_folder = folder_named(folder, {"train", "training"});
  const auto test_folder = folder_named(folder, {"val", "validation", "test"});
  const bool apart = train_folder && test_folder;
  constexpr double kHeldOut = 0.1;
  const auto open = [=, sample = picture_shape(options.task)](
                        bool training, std::optional<std::int64_t> batch, std::uint64_t seed) {
    ImageDirectoryOptions how{.batch_size = batch,
                              .height = static_cast<int>(sample[0]),
                              .width = static_cast<int>(sample[1]),
                              .shuffle = training,
                              .seed = seed,
                              .reader = photo_reader(training)};
    how.color_mode = sample[2] == 1 ? ColorMode::Grayscale : ColorMode::Rgb;
    if (apart) {
      return image_dataset_from_directory(training ? *train_folder : *test_folder, how);
    }
    // The split must not depend on the run's seed: a resumed run tests on the same files.
    how.validation_split = kHeldOut;
    how.subset = training ? Subset::Training : Subset::Validation;
    how.split_seed = 0;
    return image_dataset_from_directory(folder, how);
  };
  const ImageDirectory train = open(true, std::nullopt, 0);
  const ImageDirectory test = open(false, std::nullopt, 0);
  const Task task{.sample = picture_shape(options.task), .classes = std::ssize(train.class_names)};
  return {.train = [open](std::int64_t batch,
                          std::uint64_t seed) { return open(true, batch, seed).dataset; },
          .test = [open](std::int64_t batch) { return open(false, batch, 0).dataset; },
          .task = task,
          .description = described(name, std::ssize(train.files), std::ssize(test.files), task)};
}

using Files = std::vector<std::filesystem::path>;

// The TFRecord files of a folder whose names begin with one of these words.
Files record_files(const std::filesystem::path& folder, std::initializer_list<const char*> words) {
  Files found;
  for (const std::filesystem::directory_entry& entry :
       std::filesystem::directory_iterator(folder)) {
    const std::string file = entry.path().filename().string();
    const bool is_record = file.find("tfrecord") != std::string::npos;
    const bool begins =
        std::ranges::any_of(words, [&](const char* word) { return file.starts_with(word); });
    if (entry.is_regular_file() && is_record && begins) found.push_back(entry.path());
  }
  std::ranges::sort(found);
  return found;
}

// TFRecord files train… and val…, validation… or test… of encoded images with labels. Labels are
// counted in a first pass over the files.
DataSource from_records(const std::string& name, const Files& train, const Files& test,
                        const DataOptions& options) {
  constexpr std::int64_t kShuffled = 4096;
  constexpr int kFilesInTurns = 4;
  std::int64_t samples[2] = {0, 0};
  std::int64_t classes = 0;
  for (const bool training : {true, false}) {
    const auto iterator = datasets::image_examples(training ? train : test).iterator();
    while (const std::optional<Element> element = iterator->next()) {
      classes = std::max(classes, static_cast<std::int64_t>((*element)[1].item()) + 1);
      ++samples[training ? 0 : 1];
    }
  }
  const auto open = [=, sample = picture_shape(options.task)](bool training, std::int64_t batch,
                                                              std::uint64_t seed) {
    ImageReaderOptions reader = photo_reader(training);
    reader.height = static_cast<int>(sample[0]);
    reader.width = static_cast<int>(sample[1]);
    reader.color_mode = sample[2] == 1 ? ColorMode::Grayscale : ColorMode::Rgb;
    Dataset records =
        datasets::image_examples(training ? train : test, {.cycle = training ? kFilesInTurns : 1});
    if (training) records = records.shuffle({.buffer = kShuffled, .seed = seed});
    return records
        .map_into(decode_images(reader), {.spec = decoded_spec(reader, {{DType::I32, {}}}),
                                          .parallel = AUTOTUNE,
                                          .seed = seed,
                                          .name = "decode"})
        .batch(batch)
        .prefetch();
  };
  const Task task{.sample = picture_shape(options.task), .classes = classes};
  return {
      .train = [open](std::int64_t batch, std::uint64_t seed) { return open(true, batch, seed); },
      .test = [open](std::int64_t batch) { return open(false, batch, 0); },
      .task = task,
      .description = described(name, samples[0], samples[1], task)};
}

DataSource synthetic(const DataOptions& options) {
  const auto make = [&](std::int64_t count, std::uint64_t seed) {
    return datasets::synthetic({.sample = options.task.sample,
                                .count = count,
                                .classes = options.task.classes,
                                .seed = seed});
  };
  return from_samples("synthetic", make(options.samples, options.seed),
                      make(std::max<std::int64_t>(1, options.samples / 8), options.seed + 1),
                      options.task);
}

}  // namespace

DataSource open_data(const DataOptions& options) {
  if (options.data.empty()) return from_split("fashion-mnist", datasets::fashion_mnist());
  if (options.data == "synthetic") return synthetic(options);
  const std::filesystem::path folder = options.data;
  require(std::filesystem::is_directory(folder),
          "--data {}: there is no such folder (and it is not the word synthetic)", options.data);
  const auto last = folder.filename().empty() ? folder.parent_path().filename() : folder.filename();
  const std::string name = last.string();
  if (datasets::is_idx_directory(folder)) return from_split(name, datasets::idx_directory(folder));
  if (datasets::is_cifar_directory(folder)) {
    return from_split(name, datasets::cifar_directory(folder));
  }
  const Files train_records = record_files(folder, {"train"});
  const Files test_records = record_files(folder, {"val", "test"});
  if (!train_records.empty() && !test_records.empty()) {
    return from_records(name, train_records, test_records, options);
  }
  if (is_image_directory(folder) || folder_named(folder, {"train", "training"})) {
    return from_images(name, folder, options);
  }
  fail<UsageError>(
      "--data {}: found nothing to train on; it needs IDX files (train-images-idx3-ubyte, "
      "train-labels-idx1-ubyte, t10k-images-idx3-ubyte and t10k-labels-idx1-ubyte, plain or .gz), "
      "a "
      "binary CIFAR set, TFRecord files of encoded images (train-….tfrecord and "
      "validation-….tfrecord), or one folder of JPEG or PNG files a class",
      options.data);
}

}  // namespace lockstep::cli

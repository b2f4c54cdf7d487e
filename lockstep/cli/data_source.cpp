#include "lockstep/cli/data_source.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <filesystem>
#include <fstream>

#include "lockstep/base/error.h"
#include "lockstep/cli/augment.h"
#include "lockstep/cli/fingerprint.h"
#include "lockstep/cli/format.h"
#include "lockstep/data/datasets.h"
#include "lockstep/data/image/map_images.h"
#include "lockstep/data/image_directory.h"
#include "lockstep/data/records.h"

namespace lockstep::cli {
namespace {

std::string described(const std::string& name, std::int64_t train, std::int64_t test,
                      const Task& task) {
  return fmt::format("{}: {} training and {} test samples of shape {}, {} classes", name,
                     count_text(train), count_text(test), task.sample, task.classes);
}

using Files = std::vector<std::filesystem::path>;

std::vector<std::string> numbered(std::int64_t classes) {
  std::vector<std::string> names;
  for (std::int64_t i = 0; i < classes; ++i) names.push_back(std::to_string(i));
  return names;
}

// From samples in memory.
DataSource from_samples(const std::string& name, const Dataset& train, const Dataset& test,
                        const Task& task) {
  DataSource source;
  source.in_memory = train;
  source.train = [train](std::int64_t batch, std::uint64_t seed) {
    return train.shuffle({.seed = seed}).batch(batch).prefetch();
  };
  source.test = [test](std::int64_t batch) { return test.batch(batch).prefetch(); };
  source.task = task;
  source.train_samples = train.cardinality().value_or(0);
  source.test_samples = test.cardinality().value_or(0);
  source.class_names = numbered(task.classes);
  source.description = described(name, source.train_samples, source.test_samples, task);
  return source;
}

// "random", "middle", "whole"
const char* name_of(ImageCrop crop) {
  switch (crop) {
    case ImageCrop::Random:
      return "random";
    case ImageCrop::ToAspect:
      return "middle";
    case ImageCrop::Whole:
      return "whole";
  }
  return "";
}

// `sample` is the shape (height, width, channels) that pictures are read into.
Json image_json(const Shape& sample, const ImageReaderOptions& training,
                const ImageReaderOptions& testing) {
  const auto channels = static_cast<std::size_t>(sample[2]);
  const auto of_channels = [&](const std::array<float, 4>& values) {
    return std::vector<float>(values.begin(),
                              values.begin() + static_cast<std::ptrdiff_t>(channels));
  };
  const auto part = [](const ImageReaderOptions& reader) -> Json {
    return {{"crop", name_of(reader.crop)},
            {"crop_fraction", reader.crop_fraction},
            {"mirror_probability", reader.mirror_probability}};
  };
  return {{"height", sample[0]},
          {"width", sample[1]},
          {"color_mode", channels == 1 ? "grayscale" : "rgb"},
          {"rescale", testing.rescale},
          {"mean", of_channels(testing.mean)},
          {"deviation", of_channels(testing.deviation)},
          {"antialias", testing.antialias},
          {"training", part(training)},
          {"testing", part(testing)}};
}

// From samples that are stored in files at their final size; bytes become numbers from 0 to 1.
DataSource from_split(const std::string& name, const datasets::Split& split) {
  const std::vector<ElementSpec> spec = split.train.element_spec();
  const Task task{.sample = spec.at(0).shape, .classes = datasets::count_classes(split.train)};
  DataSource source = from_samples(name, split.train, split.test, task);
  const bool picture = task.sample.rank() == 3 && (task.sample[2] == 1 || task.sample[2] == 3);
  const ImageReaderOptions plain{.rescale = 1.0f / 255};
  if (picture) source.image = image_json(task.sample, plain, plain);
  return source;
}

// The files in a folder and its subfolders whose names match, sorted.
template <class Matches>
Files files_below(const std::filesystem::path& folder, Matches matches) {
  Files found;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder)) {
    if (entry.is_regular_file() && matches(entry.path().filename().string())) {
      found.push_back(entry.path());
    }
  }
  std::ranges::sort(found);
  return found;
}

DataSource from_idx(const std::string& name, const std::filesystem::path& folder,
                    const datasets::Split& split) {
  DataSource source = from_split(name, split);
  source.kind = "idx";
  source.root = folder;
  source.files = files_below(folder, [](const std::string& file) {
    const bool part =
        file.starts_with("train-") || file.starts_with("t10k-") || file.starts_with("test-");
    return part &&
           (file.find("-images") != std::string::npos || file.find("-labels") != std::string::npos);
  });
  return source;
}

DataSource fashion_mnist() {
  DataSource source = from_idx("fashion-mnist", datasets::FashionMnistOptions{}.directory,
                               datasets::fashion_mnist());
  source.class_names = {"T-shirt/top", "Trouser", "Pullover", "Dress", "Coat",
                        "Sandal",      "Shirt",   "Sneaker",  "Bag",   "Ankle boot"};
  return source;
}

// The lines that are not empty.
std::vector<std::string> lines_of(const std::filesystem::path& file) {
  std::ifstream stream(file);
  std::vector<std::string> lines;
  for (std::string line; std::getline(stream, line);) {
    if (line.ends_with('\r')) line.pop_back();
    if (!line.empty()) lines.push_back(line);
  }
  return lines;
}

DataSource from_cifar(const std::string& name, const std::filesystem::path& folder) {
  DataSource source = from_split(name, datasets::cifar_directory(folder));
  source.kind = "cifar";
  source.root = folder;
  source.files = files_below(
      folder, [](const std::string& file) { return file.find(".bin") != std::string::npos; });
  for (const char* names : {"batches.meta.txt", "fine_label_names.txt"}) {
    const Files found = files_below(folder, [&](const std::string& file) { return file == names; });
    const std::vector<std::string> lines =
        found.empty() ? std::vector<std::string>() : lines_of(found[0]);
    if (std::ssize(lines) == source.task.classes) source.class_names = lines;
  }
  return source;
}

// Pictures as ImageNet networks expect them: a random crop for training unless --augment says
// otherwise, the middle for testing.
ImageReaderOptions photo_reader(const DataOptions& options, bool training) {
  ImageReaderOptions reader{
      .rescale = 1.0f / 255, .mean = kImageNetMean, .deviation = kImageNetDeviation};
  reader.crop = ImageCrop::ToAspect;
  reader.crop_fraction = 0.875;
  reader.antialias = true;
  if (training) augment(reader, options.augment.value_or(Augment::Crop));
  return reader;
}

// The size that pictures are resized to: --image-size, else the model's default, or that of
// Fashion-MNIST if the model takes vectors.
Shape picture_shape(const DataOptions& options) {
  const Shape& sample = options.task.sample;
  const Shape usual = sample.rank() == 3 ? sample : Shape{28, 28, 1};
  if (!options.image_size) return usual;
  return {options.image_size->height, options.image_size->width, usual[2]};
}

// Without a validation folder, a tenth of the training files is held out. Test samples use the
// class numbers of the training samples.
DataSource from_images(const std::string& name, const std::filesystem::path& folder,
                       const ImageFolders& folders, const DataOptions& options) {
  constexpr double kHeldOut = 0.1;
  const auto open = [=, sample = picture_shape(options)](
                        bool training, std::optional<std::int64_t> batch, std::uint64_t seed,
                        const std::vector<std::string>& classes) {
    ImageDirectoryOptions how{.batch_size = batch,
                              .height = static_cast<int>(sample[0]),
                              .width = static_cast<int>(sample[1]),
                              .shuffle = training,
                              .seed = seed,
                              .reader = photo_reader(options, training)};
    how.color_mode = sample[2] == 1 ? ColorMode::Grayscale : ColorMode::Rgb;
    if (folders.validation) {
      if (!training) how.known_classes = classes;
      return image_dataset_from_directory(training ? folders.train : *folders.validation, how);
    }
    // The split must not depend on the run's seed: a resumed run tests on the same files.
    how.validation_split = kHeldOut;
    how.subset = training ? Subset::Training : Subset::Validation;
    how.split_seed = 0;
    return image_dataset_from_directory(folders.train, how);
  };
  const ImageDirectory train = open(true, std::nullopt, 0, {});
  const std::vector<std::string> classes = train.class_names;
  const ImageDirectory test = open(false, std::nullopt, 0, classes);
  const Task task{.sample = picture_shape(options), .classes = std::ssize(train.class_names)};
  DataSource source;
  source.train = [open](std::int64_t batch, std::uint64_t seed) {
    return open(true, batch, seed, {}).dataset;
  };
  source.test = [open, classes](std::int64_t batch) {
    return open(false, batch, 0, classes).dataset;
  };
  source.task = task;
  source.train_samples = std::ssize(train.files);
  source.test_samples = std::ssize(test.files);
  source.description = described(name, source.train_samples, source.test_samples, task);
  source.kind = "images";
  source.root = folder;
  source.files = train.files;
  source.files.insert(source.files.end(), test.files.begin(), test.files.end());
  source.class_names = train.class_names;
  source.image = image_json(task.sample, photo_reader(options, true), photo_reader(options, false));
  return source;
}

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

// TFRecord files train… and val… or test… of encoded images with labels. A first pass over the
// files counts samples and classes.
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
  const auto open = [=, sample = picture_shape(options)](bool training, std::int64_t batch,
                                                         std::uint64_t seed) {
    ImageReaderOptions reader = photo_reader(options, training);
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
  const Task task{.sample = picture_shape(options), .classes = classes};
  DataSource source;
  source.train = [open](std::int64_t batch, std::uint64_t seed) { return open(true, batch, seed); };
  source.test = [open](std::int64_t batch) { return open(false, batch, 0); };
  source.task = task;
  source.train_samples = samples[0];
  source.test_samples = samples[1];
  source.description = described(name, samples[0], samples[1], task);
  source.kind = "tfrecord";
  source.root = train.front().parent_path();
  source.files = train;
  source.files.insert(source.files.end(), test.begin(), test.end());
  source.class_names = numbered(classes);
  source.image = image_json(task.sample, photo_reader(options, true), photo_reader(options, false));
  return source;
}

DataSource synthetic(const DataOptions& options) {
  const auto make = [&](std::int64_t count, std::uint64_t seed) {
    return datasets::synthetic({.sample = options.task.sample,
                                .count = count,
                                .classes = options.task.classes,
                                .seed = seed});
  };
  DataSource source = from_samples(
      "synthetic", make(options.samples, options.seed),
      make(std::max<std::int64_t>(1, options.samples / 8), options.seed + 1), options.task);
  source.kind = "synthetic";
  return source;
}

DataSource find_data(const DataOptions& options) {
  if (options.data.empty()) return fashion_mnist();
  if (options.data == "synthetic") return synthetic(options);
  const std::filesystem::path folder = options.data;
  require(std::filesystem::is_directory(folder),
          "--data {}: there is no such folder; give a folder, or the word synthetic", options.data);
  const auto last = folder.filename().empty() ? folder.parent_path().filename() : folder.filename();
  const std::string name = last.string();
  if (datasets::is_idx_directory(folder)) {
    return from_idx(name, folder, datasets::idx_directory(folder));
  }
  if (datasets::is_cifar_directory(folder)) return from_cifar(name, folder);
  const Files train_records = record_files(folder, {"train"});
  const Files test_records = record_files(folder, {"val", "test"});
  if (!train_records.empty() && !test_records.empty()) {
    return from_records(name, train_records, test_records, options);
  }
  if (const std::optional<ImageFolders> folders = find_image_folders(folder)) {
    return from_images(name, folder, *folders, options);
  }
  fail<UsageError>(
      "--data {}: found nothing to train on; it needs IDX files (train-images-idx3-ubyte, "
      "train-labels-idx1-ubyte, t10k-images-idx3-ubyte and t10k-labels-idx1-ubyte, plain or .gz), "
      "a binary CIFAR set, TFRecord files of encoded images (train-….tfrecord and "
      "validation-….tfrecord), or one folder of JPEG or PNG files per class",
      options.data);
}

}  // namespace

DataSource open_data(const DataOptions& options) {
  DataSource source = find_data(options);
  if (!source.in_memory) return source;
  require(
      !options.image_size,
      "--image-size resizes pictures in files; the samples of this data have the fixed shape {}",
      source.task.sample);
  if (options.augment) {
    source.train = [samples = *source.in_memory, how = *options.augment](std::int64_t batch,
                                                                         std::uint64_t seed) {
      return augmented(samples.shuffle({.seed = seed}), how, seed).batch(batch).prefetch();
    };
  }
  return source;
}

ImageSize image_size_by_text(const std::string& text) {
  constexpr std::int64_t kMost = 16'384;
  ImageSize size;
  const char* end = text.data() + text.size();
  std::from_chars_result read = std::from_chars(text.data(), end, size.height);
  size.width = size.height;
  if (read.ec == std::errc() && read.ptr != end && *read.ptr == 'x') {
    read = std::from_chars(read.ptr + 1, end, size.width);
  }
  const auto fits = [](std::int64_t side) { return side > 0 && side <= kMost; };
  require(read.ec == std::errc() && read.ptr == end && fits(size.height) && fits(size.width),
          "--image-size {}: give a side (224), or height and width (240x320), up to {}", text,
          kMost);
  return size;
}

Json data_json(const DataSource& source, const DataOptions& options) {
  Json json = {{"kind", source.kind}};
  if (source.root.empty()) {
    json["path"] = options.data;
    json["fingerprint"] = fmt::format("seed {}", options.seed);
  } else {
    const Fingerprint print = fingerprint(source.root, source.files);
    json["path"] = std::filesystem::weakly_canonical(source.root).string();
    json["fingerprint"] = print.text;
    json["fingerprint_covers"] = print.covers;
    json["files"] = print.files;
    json["bytes"] = print.bytes;
  }
  json["train_samples"] = source.train_samples;
  json["test_samples"] = source.test_samples;
  json["sample"] =
      std::vector<std::int64_t>(source.task.sample.dims().begin(), source.task.sample.dims().end());
  json["classes"] = source.task.classes;
  json["class_names"] = source.class_names;
  json["image"] = source.image;
  return json;
}

}  // namespace lockstep::cli

#include "lockstep/data/image_directory.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <numeric>

#include "lockstep/base/error.h"
#include "lockstep/base/random.h"
#include "lockstep/data/image/map_images.h"
#include "lockstep/data/transformations.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;

std::string lower_extension(const fs::path& path) {
  std::string extension = path.extension().string();
  std::ranges::transform(extension, extension.begin(),
                         [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return extension;
}

bool is_image(const fs::path& path) {
  const std::string extension = lower_extension(path);
  return extension == ".jpg" || extension == ".jpeg" || extension == ".png";
}

// Formats that Keras reads and this reader does not: an error is better than leaving them out.
bool is_unsupported_image(const fs::path& path) {
  const std::string extension = lower_extension(path);
  return extension == ".gif" || extension == ".bmp";
}

// Files that operating systems and archives leave behind: .DS_Store, ._photo.jpg, __MACOSX.
bool is_ignored(const fs::path& path) {
  const std::string name = path.filename().string();
  return name.starts_with(".") || name == "__MACOSX" || name == "__pycache__";
}

struct Files {
  std::vector<fs::path> paths;
  std::vector<std::int32_t> classes;
};

void expect_directory(const fs::path& directory) {
  std::error_code error;
  if (!fs::is_directory(directory, error)) {
    fail<DataError>("[image directory] {}: no such folder", directory.string());
  }
}

// The images in a folder and its subfolders, sorted.
std::vector<fs::path> images_below(const fs::path& folder, const ImageDirectoryOptions& options) {
  const auto how = options.follow_links ? fs::directory_options::follow_directory_symlink
                                        : fs::directory_options::none;
  std::vector<fs::path> found;
  try {
    for (fs::recursive_directory_iterator at(folder, how); at != fs::end(at); ++at) {
      const fs::directory_entry& entry = *at;
      if (is_ignored(entry.path())) {
        at.disable_recursion_pending();
        continue;
      }
      if (!entry.exists() && is_image(entry.path()) && options.on_error == OnError::Raise) {
        fail<DataError>(
            "[image directory] {}: the link is broken; remove it, or skip such files with "
            ".on_error = OnError::Skip",
            entry.path().string());
      }
      if (!entry.is_regular_file()) continue;
      if (is_image(entry.path())) found.push_back(entry.path());
      if (is_unsupported_image(entry.path()) && options.on_error == OnError::Raise) {
        fail<DataError>(
            "[image directory] {}: only JPEG and PNG are supported; convert it, or skip such files "
            "with .on_error = OnError::Skip",
            entry.path().string());
      }
    }
  } catch (const fs::filesystem_error& error) {
    fail<DataError>("[image directory] {}: {}", folder.string(), error.code().message());
  }
  std::ranges::sort(found);
  return found;
}

std::vector<std::string> folders_in(const fs::path& directory) {
  std::vector<std::string> names;
  for (const fs::directory_entry& entry : fs::directory_iterator(directory)) {
    if (entry.is_directory() && !is_ignored(entry.path()))
      names.push_back(entry.path().filename().string());
  }
  std::ranges::sort(names);
  return names;
}

std::vector<std::string> class_names_of(const fs::path& directory,
                                        const ImageDirectoryOptions& options) {
  const std::vector<std::string> there = folders_in(directory);
  const std::vector<std::string>& known = options.known_classes;
  if (!known.empty()) {
    for (const std::string& name : there) {
      if (std::ranges::count(known, name) > 0) continue;
      fail<DataError>(
          "[image directory] {}: class {} is not one of the {} training classes ({}); remove the "
          "folder, or add one of that name to the training folder",
          (directory / name).string(), name, known.size(), fmt::join(known, ", "));
    }
    return known;
  }
  for (const std::string& name : options.class_names) {
    require(std::ranges::count(there, name) > 0,
            "[image directory] .class_names has {}, but there is no such folder in {}", name,
            directory.string());
  }
  const std::vector<std::string>& names = options.class_names.empty() ? there : options.class_names;
  if (names.empty()) {
    fail<DataError>(
        "[image directory] {}: there are no folders in it, one per class; for images without "
        "labels set .labels = ImageLabels::None",
        directory.string());
  }
  if (names.size() == 1 && options.class_names.empty() && options.label_mode != LabelMode::None) {
    fail<DataError>(
        "[image directory] {}: {} is the only class, and classifying needs at least two; give the "
        "folder that has one folder per class",
        directory.string(), names.front());
  }
  return names;
}

Files files_by_class(const fs::path& directory, const std::vector<std::string>& names,
                     const ImageDirectoryOptions& options) {
  Files files;
  for (std::size_t number = 0; number < names.size(); ++number) {
    const bool may_lack = !options.known_classes.empty();
    if (may_lack && !fs::exists(directory / names[number])) continue;
    const std::vector<fs::path> found = images_below(directory / names[number], options);
    if (found.empty() && !may_lack) {
      fail<DataError>("[image directory] {}: the class has no JPEG or PNG files",
                      (directory / names[number]).string());
    }
    files.paths.insert(files.paths.end(), found.begin(), found.end());
    files.classes.insert(files.classes.end(), found.size(), static_cast<std::int32_t>(number));
  }
  if (files.paths.empty()) {
    fail<DataError>("[image directory] {}: none of the classes has a JPEG or PNG file",
                    directory.string());
  }
  return files;
}

Files files_without_classes(const fs::path& directory, const ImageDirectoryOptions& options) {
  Files files{.paths = images_below(directory, options), .classes = {}};
  if (files.paths.empty()) {
    fail<DataError>("[image directory] {}: there are no JPEG or PNG files in it",
                    directory.string());
  }
  if (options.labels == ImageLabels::Given) {
    require(options.given_labels.size() == files.paths.size(),
            "[image directory] {} labels were given for {} files", options.given_labels.size(),
            files.paths.size());
    require(
        std::ranges::all_of(options.given_labels, [](std::int32_t label) { return label >= 0; }),
        "[image directory] the given labels must not be negative");
    files.classes = options.given_labels;
  }
  return files;
}

// The files of the subset, sorted by path.
Files subset_of(const Files& files, const ImageDirectoryOptions& options) {
  if (options.subset == Subset::All) return files;
  std::vector<std::size_t> order(files.paths.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  if (options.shuffle || options.split_seed) {
    RandomSequence random(options.split_seed.value_or(options.seed), hash_name("validation split"));
    for (std::size_t i = order.size(); i-- > 1;) {
      std::swap(order[i], order[static_cast<std::size_t>(random.below(i + 1))]);
    }
  }
  const auto held_out =
      static_cast<std::size_t>(options.validation_split * static_cast<double>(order.size()));
  const auto split = order.end() - static_cast<std::ptrdiff_t>(held_out);
  std::vector<std::size_t> chosen = options.subset == Subset::Training
                                        ? std::vector<std::size_t>(order.begin(), split)
                                        : std::vector<std::size_t>(split, order.end());
  require(!chosen.empty(),
          "[image directory] a validation split of {1} leaves none of the {0} files for the subset",
          files.paths.size(), options.validation_split);
  std::ranges::sort(chosen);
  Files subset;
  for (const std::size_t i : chosen) {
    subset.paths.push_back(files.paths[i]);
    if (!files.classes.empty()) subset.classes.push_back(files.classes[i]);
  }
  return subset;
}

// Labels as the mode requires them: (samples) or (samples, width).
Tensor labels_as(LabelMode mode, const std::vector<std::int32_t>& labels, std::int64_t classes) {
  const std::int64_t count = std::ssize(labels);
  if (mode == LabelMode::Int) return Tensor::of(labels, {count});
  const std::int64_t width = mode == LabelMode::Binary ? 1 : classes;
  Tensor tensor(DType::F32, {count, width});
  const std::span<float> values = tensor.values<float>();
  for (std::int64_t i = 0; i < count; ++i) {
    const std::int32_t label = labels[static_cast<std::size_t>(i)];
    if (mode == LabelMode::Binary) {
      values[static_cast<std::size_t>(i)] = static_cast<float>(label);
    } else {
      values[static_cast<std::size_t>(i * width + label)] = 1;
    }
  }
  return tensor;
}

ImageReaderOptions reader_options(const ImageDirectoryOptions& options) {
  ImageReaderOptions reader = options.reader;
  reader.height = options.height;
  reader.width = options.width;
  reader.color_mode = options.color_mode;
  reader.interpolation = options.interpolation;
  if (options.crop_to_aspect_ratio) reader.crop = ImageCrop::ToAspect;
  return reader;
}

void check(const ImageDirectoryOptions& options) {
  require(options.validation_split >= 0 && options.validation_split < 1,
          "[image directory] .validation_split must be in [0, 1), not {}",
          options.validation_split);
  require((options.validation_split > 0) == (options.subset != Subset::All),
          "[image directory] .validation_split and .subset go together: give both or neither");
  require(options.labels == ImageLabels::Inferred || options.class_names.empty(),
          "[image directory] .class_names are for labels inferred from folders");
  require(options.known_classes.empty() ||
              (options.labels == ImageLabels::Inferred && options.class_names.empty()),
          "[image directory] .known_classes are for labels inferred from folders, and replace "
          ".class_names");
  require(!options.batch_size || *options.batch_size > 0,
          "[image directory] .batch_size must be at least 1, not {}",
          options.batch_size.value_or(0));
}

}  // namespace

ImageDirectory image_dataset_from_directory(const fs::path& directory,
                                            const ImageDirectoryOptions& options) {
  check(options);
  expect_directory(directory);
  std::vector<std::string> names;
  Files files;
  if (options.labels == ImageLabels::Inferred) {
    names = class_names_of(directory, options);
    files = files_by_class(directory, names, options);
  } else {
    files = files_without_classes(directory, options);
  }
  std::int64_t classes = std::ssize(names);
  if (options.labels == ImageLabels::Given) classes = std::ranges::max(files.classes) + 1;
  require(options.label_mode != LabelMode::Binary || classes == 2,
          "[image directory] binary labels need two classes; {} has {}", directory.string(),
          classes);
  files = subset_of(files, options);

  const std::int64_t count = std::ssize(files.paths);
  Tensor numbers(DType::I64, {count});
  std::iota(numbers.values<std::int64_t>().begin(), numbers.values<std::int64_t>().end(), 0);
  std::uint64_t identity = 0;
  for (const fs::path& path : files.paths) {
    identity = combine(identity, hash_name(path.lexically_relative(directory).string()));
  }
  std::vector<Column> columns{{.stored = std::move(numbers), .dtype = DType::I64}};
  const bool labelled =
      options.labels != ImageLabels::None && options.label_mode != LabelMode::None;
  if (labelled) {
    Tensor labels = labels_as(options.label_mode, files.classes, classes);
    const DType dtype = labels.dtype();
    columns.push_back({.stored = std::move(labels), .dtype = dtype});
  }
  Dataset samples(
      make_file_list(make_tensors(std::move(columns), fmt::format("files {:016x}", identity)),
                     FileAccess::Samples));
  std::vector<ElementSpec> rest = samples.element_spec();
  rest.erase(rest.begin());
  if (options.shuffle) samples = samples.shuffle({.seed = options.seed});
  if (options.repeat != 1) samples = samples.repeat(options.repeat);
  const ImageReaderOptions reader = reader_options(options);
  Dataset dataset =
      samples.map_into(read_image_files(files.paths, reader), {.spec = decoded_spec(reader, rest),
                                                               .parallel = options.parallel,
                                                               .on_error = options.on_error,
                                                               .seed = options.seed,
                                                               .name = "read images"});
  if (options.batch_size) dataset = dataset.batch(*options.batch_size).prefetch(AUTOTUNE);
  return {.dataset = std::move(dataset),
          .class_names = std::move(names),
          .files = std::move(files.paths),
          .labels = labelled ? std::move(files.classes) : std::vector<std::int32_t>()};
}

bool is_image_directory(const fs::path& directory) {
  std::error_code error;
  for (const fs::directory_entry& folder : fs::directory_iterator(directory, error)) {
    if (!folder.is_directory(error) || is_ignored(folder.path())) continue;
    for (const fs::directory_entry& entry : fs::directory_iterator(folder.path(), error)) {
      const bool counts = is_image(entry.path()) && !is_ignored(entry.path());
      if (counts && entry.is_regular_file(error)) return true;
    }
  }
  return false;
}

std::optional<ImageFolders> find_image_folders(const fs::path& directory) {
  const auto named = [&](std::initializer_list<const char*> names) -> std::optional<fs::path> {
    for (const char* name : names) {
      if (is_image_directory(directory / name)) return directory / name;
    }
    return std::nullopt;
  };
  if (const std::optional<fs::path> train = named({"train", "training"})) {
    return ImageFolders{.train = *train, .validation = named({"val", "validation", "test"})};
  }
  if (!is_image_directory(directory)) return std::nullopt;
  return ImageFolders{.train = directory, .validation = std::nullopt};
}

}  // namespace lockstep

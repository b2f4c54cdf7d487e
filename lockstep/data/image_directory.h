// Image files as a data set, one folder per class, as in Keras's image_dataset_from_directory.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/data/dataset.h"
#include "lockstep/data/image/reader.h"

namespace lockstep {

// Where labels come from: the names of the folders, the caller, or nowhere.
enum class ImageLabels { Inferred, Given, None };
// Int: i32. Categorical: f32 (classes), 1 for the class. Binary: f32 (1), 0 or 1.
enum class LabelMode { Int, Categorical, Binary, None };
enum class Subset { All, Training, Validation };

struct ImageDirectoryOptions {
  ImageLabels labels = ImageLabels::Inferred;
  std::vector<std::int32_t> given_labels = {};  // for Given: one per file, files sorted by path
  LabelMode label_mode = LabelMode::Int;
  std::vector<std::string> class_names = {};  // folders to read, in this order; if empty, all
  // The classes of the training folder, whose numbering the labels follow. This folder may lack
  // some of them; DataError if it has a class that is not among them.
  std::vector<std::string> known_classes = {};
  ColorMode color_mode = ColorMode::Rgb;
  std::optional<std::int64_t> batch_size = 32;  // nullopt: single samples
  int height = 256;
  int width = 256;
  bool shuffle = true;
  std::int64_t repeat = 1;  // passes over the files per pass over the data set; -1: forever
  std::uint64_t seed = 0;
  // The fraction of the files held out: the last ones, after a shuffle if `shuffle` is set.
  double validation_split = 0;
  Subset subset = Subset::All;
  std::optional<std::uint64_t> split_seed = {};  // for that shuffle, instead of `seed`
  Interpolation interpolation = Interpolation::Bilinear;
  bool follow_links = false;
  bool crop_to_aspect_ratio = false;
  // Not in Keras: how samples are read (random crops, mirroring, colour, normalisation, dtype,
  // layout). The options above set its size, colour mode, interpolation and crop.
  ImageReaderOptions reader = {};
  int parallel = AUTOTUNE;
  OnError on_error = OnError::Raise;
};

struct ImageDirectory {
  Dataset dataset;  // {image, label} or {image}; images are f32 from 0 to 255 by default
  std::vector<std::string> class_names;
  std::vector<std::filesystem::path> files;  // of the subset, sorted by path
  std::vector<std::int32_t> labels;          // of these files; empty without labels
};

// Names that begin with a dot and folders that archives leave behind (__MACOSX) are ignored.
// DataError if the folder is missing or empty, a class has no images, there is only one class
// (unless .class_names names it), or a file has an unsupported format; UsageError for options that
// contradict each other or the folder.
ImageDirectory image_dataset_from_directory(const std::filesystem::path& directory,
                                            const ImageDirectoryOptions& options = {});

// Whether a folder contains folders of images.
bool is_image_directory(const std::filesystem::path& directory);

// Where a folder keeps its images: in `train` (or `training`) and `val` (or `validation`, or
// `test`), each with one folder per class; in `train` alone; or directly in one folder per class.
// Without a folder for validation, the caller holds out some of the files.
struct ImageFolders {
  std::filesystem::path train;
  std::optional<std::filesystem::path> validation;
};
// Nullopt if none of these places has an image.
std::optional<ImageFolders> find_image_folders(const std::filesystem::path& directory);

}  // namespace lockstep

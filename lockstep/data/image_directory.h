// A folder of pictures as a data set: one folder a class, as Keras's image_dataset_from_directory
// takes it.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/data/dataset.h"
#include "lockstep/data/image/reader.h"

namespace lockstep {

// Where labels come from: the folders' names, the caller, nowhere.
enum class ImageLabels { Inferred, Given, None };
// Int: i32. Categorical: f32 (classes), 1 for the class. Binary: f32 (1), 0 or 1.
enum class LabelMode { Int, Categorical, Binary, None };
enum class Subset { All, Training, Validation };

struct ImageDirectoryOptions {
  ImageLabels labels = ImageLabels::Inferred;
  std::vector<std::int32_t> given_labels =
      {};  // of Given: one a file, files in order of their paths
  LabelMode label_mode = LabelMode::Int;
  std::vector<std::string> class_names = {};  // the folders to take, in this order (all, sorted)
  // The classes of another folder, that of the training files: labels count as they do there. This
  // folder may lack some of them, and DataError where it has another.
  std::vector<std::string> known_classes = {};
  ColorMode color_mode = ColorMode::Rgb;
  std::optional<std::int64_t> batch_size = 32;  // nothing: samples one by one
  int height = 256;
  int width = 256;
  bool shuffle = true;
  std::int64_t repeat = 1;  // passes over the files in one of the data set; -1: for ever
  std::uint64_t seed = 0;
  // Of the files, the last ones (behind a shuffle by the seed, where `shuffle` asks for it).
  double validation_split = 0;
  Subset subset = Subset::All;
  std::optional<std::uint64_t> split_seed = {};  // of that shuffle, where it is not `seed`
  Interpolation interpolation = Interpolation::Bilinear;
  bool follow_links = false;
  bool crop_to_aspect_ratio = false;
  // More than Keras has: how samples are read (random crops, mirroring, colour, normalisation,
  // dtype, layout). Size, colours, interpolation and crop are taken from above.
  ImageReaderOptions reader = {};
  int parallel = AUTOTUNE;
  OnError on_error = OnError::Raise;
};

struct ImageDirectory {
  Dataset dataset;  // {image, label}, or {image}; images are f32 from 0 to 255 unless asked else
  std::vector<std::string> class_names;
  std::vector<std::filesystem::path> files;  // of the subset, in order of their paths
  std::vector<std::int32_t> labels;          // of these files; none without labels
};

// Names that begin with a dot, and folders that archives bring along (__MACOSX), are passed over.
// DataError where the folder is missing or empty, a class has no picture, there is but one class
// (unless .class_names names it), or a file is of a kind that is not read; UsageError for options
// that contradict each other or the folder.
ImageDirectory image_dataset_from_directory(const std::filesystem::path& directory,
                                            const ImageDirectoryOptions& options = {});

// Whether a folder has folders with pictures in it.
bool is_image_directory(const std::filesystem::path& directory);

// Where the pictures of a folder are: in `train` (or `training`) and `val` (or `validation`, or
// `test`) below it, each with a folder a class; in `train` alone; or in folders of classes of its
// own. Without one for validation, a part of the files is to be held out.
struct ImageFolders {
  std::filesystem::path train;
  std::optional<std::filesystem::path> validation;
};
// Nothing where there is no picture in any of these places.
std::optional<ImageFolders> find_image_folders(const std::filesystem::path& directory);

}  // namespace lockstep

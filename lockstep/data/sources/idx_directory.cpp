#include <algorithm>
#include <optional>
#include <system_error>
#include <vector>

#include "lockstep/data/datasets.h"
#include "lockstep/data/sources/idx.h"
#include "lockstep/data/transformations.h"

namespace lockstep::datasets {
namespace {

namespace fs = std::filesystem;

constexpr float kByteScale = 1.0f / 255.0f;

// One of the four files of a folder.
struct Part {
  std::string_view split;
  std::string_view other_split;  // another name of the split
  std::string_view what;
};

constexpr Part kTrainImages{"train", "train", "images"};
constexpr Part kTrainLabels{"train", "train", "labels"};
constexpr Part kTestImages{"t10k", "test", "images"};
constexpr Part kTestLabels{"t10k", "test", "labels"};

// "train-images-idx3-ubyte.gz", also "emnist-letters-train-images-idx3-ubyte".
bool matches(const Part& part, const std::string& name) {
  const auto is_of = [&](std::string_view split) {
    return name.starts_with(split) || name.find(fmt::format("-{}-", split)) != std::string::npos;
  };
  return name.find("idx") != std::string::npos && name.find(part.what) != std::string::npos &&
         (is_of(part.split) || is_of(part.other_split));
}

// The file of this part; the plain one if there is a compressed one as well.
std::optional<fs::path> find(const fs::path& directory, const Part& part) {
  std::vector<fs::path> found;
  std::error_code error;
  for (const fs::directory_entry& entry : fs::directory_iterator(directory, error)) {
    if (matches(part, entry.path().filename().string())) found.push_back(entry.path());
  }
  if (error) fail<DataError>("{}: cannot be listed: {}", directory.string(), error.message());
  std::ranges::sort(found);
  if (found.size() == 2 && found[1] == found[0].string() + ".gz") found.pop_back();
  if (found.size() > 1) {
    fail<DataError>("{}: both {} and {} could be the {} {}; remove one", directory.string(),
                    found[0].filename().string(), found[1].filename().string(), part.split,
                    part.what);
  }
  return found.empty() ? std::nullopt : std::optional(found[0]);
}

fs::path require_file(const fs::path& directory, const Part& part) {
  std::optional<fs::path> file = find(directory, part);
  if (!file) {
    fail<DataError>("{}: there is no {}-{}-idx file, plain or .gz", directory.string(), part.split,
                    part.what);
  }
  return *file;
}

Column load_images(const fs::path& file) {
  Tensor images = load_idx(file);
  const Shape& shape = images.shape();
  if (shape.rank() != 3 && shape.rank() != 4) {
    fail<DataError>("{}: images need 3 axes, or 4 with channels; the shape is {}", file.string(),
                    shape);
  }
  if (shape.rank() == 3) images = images.reshaped({shape[0], shape[1], shape[2], 1});
  if (images.dtype() == DType::U8) return {images, DType::F32, kByteScale};
  return {images.cast(DType::F32), DType::F32};
}

Column load_labels(const fs::path& file) {
  const Tensor labels = load_idx(file);
  if (labels.shape().rank() != 1 || is_floating(labels.dtype())) {
    fail<DataError>("{}: labels need one axis of integers, not {} {}", file.string(),
                    name_of(labels.dtype()), labels.shape());
  }
  if (labels.dtype() == DType::I32) {
    const auto values = labels.values<std::int32_t>();
    const auto negative =
        std::ranges::find_if(values, [](std::int32_t label) { return label < 0; });
    if (negative != values.end()) {
      fail<DataError>("{}: label {} is {}; labels must not be negative", file.string(),
                      negative - values.begin(), *negative);
    }
  }
  return {labels, DType::I32};
}

Dataset load(const fs::path& directory, const Part& images_part, const Part& labels_part) {
  const fs::path images_file = require_file(directory, images_part);
  const fs::path labels_file = require_file(directory, labels_part);
  Column images = load_images(images_file);
  Column labels = load_labels(labels_file);
  if (images.stored.shape()[0] != labels.stored.shape()[0]) {
    fail<DataError>("{}: {} images, but {} has {} labels", images_file.string(),
                    images.stored.shape()[0], labels_file.string(), labels.stored.shape()[0]);
  }
  return Dataset(make_tensors({std::move(images), std::move(labels)}));
}

}  // namespace

Split idx_directory(const fs::path& directory) {
  return {load(directory, kTrainImages, kTrainLabels), load(directory, kTestImages, kTestLabels)};
}

bool is_idx_directory(const fs::path& directory) {
  std::error_code error;
  return fs::is_directory(directory, error) && find(directory, kTrainImages).has_value();
}

Split fashion_mnist(FashionMnistOptions options) {
  if (!is_idx_directory(options.directory)) {
    fail<DataError>(
        "{}: there is no train-images-idx file; install Fashion-MNIST with 'apt install "
        "dataset-fashion-mnist', or set .directory to the folder of its IDX files",
        options.directory.string());
  }
  return idx_directory(options.directory);
}

}  // namespace lockstep::datasets

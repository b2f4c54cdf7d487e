// Ready-made data sets.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "lockstep/data/dataset.h"

namespace lockstep::datasets {

struct Split {
  Dataset train;
  Dataset test;
};

struct FashionMnistOptions {
  // The folder of the four IDX files. Debian's package dataset-fashion-mnist installs them here.
  std::filesystem::path directory = "/usr/share/datasets/fashion-mnist";
};

// 60,000 training and 10,000 test images of clothes in 10 classes (Xiao, Rasul, Vollgraf, 2017).
// Elements are an image, f32 (28, 28, 1) from 0 to 1, and its label, i32 (). Images are stored as
// bytes and converted to floats, times 1/255, when they are read. If the files are missing,
// DataError says what to install.
Split fashion_mnist(FashionMnistOptions options = {});

// The same from a folder of the user's own IDX files, plain or .gz: train-images…, train-labels…,
// and t10k- or test-images…, …-labels…. Images have 3 axes (one channel) or 4; labels have one and
// start at 0. Images of bytes are scaled as above; others are converted to f32 without scaling.
// DataError, naming the file, if one is missing, duplicate or invalid, or if the counts differ.
Split idx_directory(const std::filesystem::path& directory);
// Whether a folder has the training images that idx_directory expects.
bool is_idx_directory(const std::filesystem::path& directory);

// CIFAR-10 or CIFAR-100 in the binary version (sources/cifar.h): images f32 (32, 32, 3) from 0 to
// 1, stored as bytes, and i32 labels, the fine ones for CIFAR-100.
Split cifar_directory(const std::filesystem::path& directory);
bool is_cifar_directory(const std::filesystem::path& directory);

struct SyntheticOptions {
  Shape sample = {28, 28, 1};
  std::int64_t count = 1024;  // all samples are kept in memory
  std::int64_t classes = 10;
  std::uint64_t seed = 0;
};

// Noise for benchmarks: f32 samples of mean 0 and standard deviation 1, labels i32 below `classes`.
Dataset synthetic(SyntheticOptions options = {});

struct SyntheticSignatureOptions {
  std::int64_t count = 1024;  // -1: forever
  std::uint64_t seed = 0;
  std::int64_t classes = 10;
};

// The same for any spec, generated on the fly: a sample depends only on the seed and its number.
// Floats have mean 0 and standard deviation 1; i32 and i64 are below `classes`; u8 and bool take
// all values. If a component varies, each extent is drawn between 1 and that of the spec.
Dataset synthetic(std::vector<ElementSpec> spec, SyntheticSignatureOptions options);

// One more than the largest label; labels are the second component and i32. UsageError if there are
// no such labels, or if the number of elements is unknown or infinite.
std::int64_t count_classes(const Dataset& dataset);

}  // namespace lockstep::datasets

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
  // Where the four IDX files lie. Debian's package dataset-fashion-mnist puts them here.
  std::filesystem::path directory = "/usr/share/datasets/fashion-mnist";
};

// 60,000 and 10,000 pictures of clothes of 10 kinds (Xiao, Rasul, Vollgraf, 2017). Elements are an
// image, f32 (28, 28, 1) from 0 to 1, and its label, i32 (). Images stay bytes in memory and become
// floats, times 1/255, as they are read. DataError, saying what to install, without the files.
Split fashion_mnist(FashionMnistOptions options = {});

// The same from a folder of the user's own IDX files, plain or .gz: train-images…, train-labels…,
// and t10k- or test-images…, …-labels…. Images have 3 axes (one channel) or 4; labels have one and
// count from 0. Images of bytes are scaled as above; others are taken as f32 as they are.
// DataError, naming the file, where one is missing, doubled or invalid, or the counts differ.
Split idx_directory(const std::filesystem::path& directory);
// Whether a folder has the training images that idx_directory looks for.
bool is_idx_directory(const std::filesystem::path& directory);

// CIFAR-10 or CIFAR-100 in their binary form (sources/cifar.h): f32 (32, 32, 3) from 0 to 1, kept
// as bytes, and i32 labels, the fine ones of CIFAR-100.
Split cifar_directory(const std::filesystem::path& directory);
bool is_cifar_directory(const std::filesystem::path& directory);

struct SyntheticOptions {
  Shape sample = {28, 28, 1};
  std::int64_t count = 1024;  // all samples are kept in memory
  std::int64_t classes = 10;
  std::uint64_t seed = 0;
};

// Noise to measure speed with: f32 samples of mean 0 and deviation 1, i32 labels below `classes`.
Dataset synthetic(SyntheticOptions options = {});

struct SyntheticSignatureOptions {
  std::int64_t count = 1024;  // -1: for ever
  std::uint64_t seed = 0;
  std::int64_t classes = 10;
};

// The same for any signature, made on the fly: a sample depends on the seed and its number alone.
// Floats have mean 0 and deviation 1; i32 and i64 are below `classes`, u8 and bool take all their
// values. Where a component varies, each extent is drawn from 1 to that of the spec.
Dataset synthetic(std::vector<ElementSpec> spec, SyntheticSignatureOptions options);

// One more than the greatest label, the second component of the elements, which is i32. UsageError
// where there is none, or a data set without end.
std::int64_t count_classes(const Dataset& dataset);

}  // namespace lockstep::datasets

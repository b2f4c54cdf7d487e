// CIFAR-10 and CIFAR-100 (Krizhevsky, 2009) in the binary version: records of a label (CIFAR-100: a
// coarse and a fine one) and a 32 × 32 image, first the red plane, then green, then blue.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/tensor/tensor.h"

namespace lockstep {

enum class CifarKind { Cifar10, Cifar100 };

struct CifarSamples {
  Tensor images;         // u8 (count, 32, 32, 3)
  Tensor labels;         // u8 (count): below 10, or the fine ones, below 100
  Tensor coarse_labels;  // u8 (count), below 20; undefined for CIFAR-10
};

struct Cifar {
  CifarKind kind = CifarKind::Cifar10;
  CifarSamples train;
  CifarSamples test;
  // From the files of names that come with the data; empty if they are missing.
  std::vector<std::string> class_names;
  std::vector<std::string> coarse_class_names;
};

// Which of the two is in the folder, or in the subfolder that its archive unpacks to
// (cifar-10-batches-bin, cifar-100-binary); nullopt if neither is.
std::optional<CifarKind> cifar_kind(const std::filesystem::path& directory);

// Loads the samples of such a folder into memory. DataError, naming the file and the record, if a
// file is missing, is not a whole number of records, or has an invalid label.
Cifar load_cifar(const std::filesystem::path& directory);

// One file's samples from bytes in memory, which may be compressed; `name` is for messages.
CifarSamples parse_cifar(std::string_view bytes, CifarKind kind, const std::string& name);

}  // namespace lockstep

// CIFAR-10 and CIFAR-100 (Krizhevsky, 2009) in their binary form: records of a label (CIFAR-100: a
// coarse and a fine one) and an image of 32 × 32, its red plane first, then green, then blue.
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
  Tensor coarse_labels;  // u8 (count), below 20; none in CIFAR-10
};

struct Cifar {
  CifarKind kind = CifarKind::Cifar10;
  CifarSamples train;
  CifarSamples test;
  // From the files of names that come with the data; empty where they are not there.
  std::vector<std::string> class_names;
  std::vector<std::string> coarse_class_names;
};

// What the folder, or the one of the set's own name in it (cifar-10-batches-bin, cifar-100-binary),
// holds; nothing where it is neither.
std::optional<CifarKind> cifar_kind(const std::filesystem::path& directory);

// Such a folder's samples, in memory. DataError, naming the file and the record, where a file is
// missing, is no whole number of records, or has a label that cannot be.
Cifar load_cifar(const std::filesystem::path& directory);

// One file's samples from bytes in memory, which may be compressed; `name` is for messages.
CifarSamples parse_cifar(std::string_view bytes, CifarKind kind, const std::string& name);

}  // namespace lockstep

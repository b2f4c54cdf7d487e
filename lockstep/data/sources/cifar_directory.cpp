// CIFAR as a data set of samples in memory.
#include "lockstep/data/datasets.h"
#include "lockstep/data/sources/cifar.h"
#include "lockstep/data/transformations.h"

namespace lockstep::datasets {
namespace {

Dataset samples_of(CifarSamples samples) {
  std::vector<Column> columns;
  columns.push_back(
      {.stored = std::move(samples.images), .dtype = DType::F32, .scale = 1.0f / 255.0f});
  columns.push_back({.stored = std::move(samples.labels), .dtype = DType::I32});
  return Dataset(make_tensors(std::move(columns)));
}

}  // namespace

Split cifar_directory(const std::filesystem::path& directory) {
  Cifar cifar = load_cifar(directory);
  return {.train = samples_of(std::move(cifar.train)), .test = samples_of(std::move(cifar.test))};
}

bool is_cifar_directory(const std::filesystem::path& directory) {
  return cifar_kind(directory).has_value();
}

}  // namespace lockstep::datasets

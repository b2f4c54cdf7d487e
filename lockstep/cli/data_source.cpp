#include "lockstep/cli/data_source.h"

#include <filesystem>

#include "lockstep/base/error.h"
#include "lockstep/cli/format.h"
#include "lockstep/data/datasets.h"

namespace lockstep::cli {
namespace {

DataSource describe(const std::string& name, Dataset train, Dataset test, Task task) {
  std::string text =
      fmt::format("{}: {} samples to train on, {} to test on; {} each, {} classes", name,
                  count_text(train.cardinality().value_or(0)),
                  count_text(test.cardinality().value_or(0)), task.sample, task.classes);
  return {std::move(train), std::move(test), std::move(task), std::move(text)};
}

DataSource from_split(const std::string& name, datasets::Split split) {
  const std::vector<ElementSpec> spec = split.train.element_spec();
  Task task{.sample = spec.at(0).shape, .classes = datasets::count_classes(split.train)};
  return describe(name, std::move(split.train), std::move(split.test), std::move(task));
}

DataSource synthetic(const DataOptions& options) {
  const auto make = [&](std::int64_t count, std::uint64_t seed) {
    return datasets::synthetic({.sample = options.task.sample,
                                .count = count,
                                .classes = options.task.classes,
                                .seed = seed});
  };
  return describe("synthetic", make(options.samples, options.seed),
                  make(std::max<std::int64_t>(1, options.samples / 8), options.seed + 1),
                  options.task);
}

}  // namespace

DataSource open_data(const DataOptions& options) {
  if (options.data.empty()) return from_split("fashion-mnist", datasets::fashion_mnist());
  if (options.data == "synthetic") return synthetic(options);
  const std::filesystem::path folder = options.data;
  require(std::filesystem::is_directory(folder),
          "--data {}: there is no such folder (and it is not the word synthetic)", options.data);
  require(
      datasets::is_idx_directory(folder),
      "--data {}: found nothing to train on; it needs IDX files: train-images-idx3-ubyte, "
      "train-labels-idx1-ubyte, t10k-images-idx3-ubyte and t10k-labels-idx1-ubyte, plain or .gz",
      options.data);
  const auto name = folder.filename().empty() ? folder.parent_path().filename() : folder.filename();
  return from_split(name.string(), datasets::idx_directory(folder));
}

}  // namespace lockstep::cli

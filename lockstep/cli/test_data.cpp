#include "lockstep/cli/test_data.h"

#include <fmt/core.h>

#include "lockstep/base/error.h"
#include "lockstep/cli/data_source.h"
#include "lockstep/cli/format.h"
#include "lockstep/cli/run_record.h"
#include "lockstep/data/image_directory.h"

namespace lockstep::cli {
namespace {

// A folder of pictures is used as a whole, without a split into training and test samples.
TestData whole_folder(const TrainedRun& run, const TestDataOptions& options) {
  const ImageReaderOptions reader = testing_reader(run);
  const ImageDirectory images =
      image_dataset_from_directory(options.data, {.known_classes = run.class_names,
                                                  .color_mode = reader.color_mode,
                                                  .batch_size = options.batch,
                                                  .height = reader.height,
                                                  .width = reader.width,
                                                  .shuffle = false,
                                                  .reader = reader});
  const std::int64_t count = std::ssize(images.files);
  return {.batches = images.dataset,
          .samples = count,
          .where = fmt::format("the {} pictures in {}", count_text(count), options.data)};
}

}  // namespace

TestData test_data(const TrainedRun& run, const TestDataOptions& options) {
  const std::string& data = options.data.empty() ? run.options.data : options.data;
  if (!options.data.empty() && data != "synthetic" && is_image_directory(data)) {
    return whole_folder(run, options);
  }
  const DataSource source = open_data(
      {.data = data,
       .task = run.task,
       .samples = record_part(run.record, "data", run.folder).value("train_samples", 1024),
       .seed = run.options.seed,
       .image_size = run.options.image_size.empty()
                         ? std::nullopt
                         : std::optional(image_size_by_text(run.options.image_size))});
  require(source.task.sample == run.task.sample && source.task.classes <= run.task.classes,
          "--data {}: its samples have shape {} and {} classes; the run was trained on {} and {}",
          data, source.task.sample, source.task.classes, run.task.sample, run.task.classes);
  return {.batches = source.test(options.batch),
          .samples = source.test_samples,
          .where = fmt::format("the {} test samples of {}", count_text(source.test_samples),
                               data.empty() ? "fashion-mnist" : data)};
}

}  // namespace lockstep::cli

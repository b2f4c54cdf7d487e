#include "lockstep/cli/trained_run.h"

#include <algorithm>
#include <array>

#include "lockstep/base/error.h"
#include "lockstep/cli/run_folder.h"
#include "lockstep/cli/run_record.h"

namespace lockstep::cli {
namespace {

namespace fs = std::filesystem;

// The value under a key of a record; DataError if it is missing or has another type.
template <class T>
T value_of(const Json& part, const char* key, const fs::path& file) {
  try {
    return part.at(key).get<T>();
  } catch (const nlohmann::json::exception&) {
    fail<DataError>("{}: the run's record has no usable {}", file.string(), key);
  }
}

struct Place {
  fs::path folder;
  fs::path checkpoint;
};

// For a folder, the best checkpoint if the run saved it, or else the last one.
Place find_place(const std::string& run) {
  const fs::path given = run;
  if (!fs::is_directory(given)) {
    require(
        fs::is_regular_file(given),
        "{}: there is no such run; name the folder that lockstep train wrote, such as runs/last",
        run);
    return {.folder = given.has_parent_path() ? given.parent_path() : fs::path("."),
            .checkpoint = given};
  }
  for (const char* name : {kBestCheckpoint, kLastCheckpoint}) {
    if (fs::is_regular_file(given / name)) return {.folder = given, .checkpoint = given / name};
  }
  fail<UsageError>("{}: the run has no checkpoint yet; the first is saved after the first epoch",
                   run);
}

}  // namespace

TrainedRun open_untrained(const OpenRunOptions& options) {
  const Place place = find_place(options.run);
  const fs::path file = place.folder / kRecordFile;
  const std::optional<Json> record = read_record(file);
  require(record.has_value(),
          "{}: there is no {}, which describes the run; train it again with this version",
          place.folder.string(), file.string());
  const TrainOptions of_run =
      resumed_options(record_part(*record, "options", file), {}, {}, file.string());
  const Json& data = record_part(*record, "data", file);
  const Task task{.sample = Shape(value_of<std::vector<std::int64_t>>(data, "sample", file)),
                  .classes = value_of<std::int64_t>(data, "classes", file)};
  const int replicas = one_count(options.placement);
  Model model(zoo_entry(of_run.model).make(task));
  model.compile({.strategy = make_strategy(options.placement, replicas, replicas),
                 .optimizer = SGD(),
                 .loss = SparseCategoricalCrossentropy({.from_logits = true}),
                 .metrics = {SparseCategoricalAccuracy({.name = "accuracy"})},
                 .precision = of_run.placement.precision,
                 .seed = of_run.seed});
  model.build(task.sample);
  return {.folder = place.folder,
          .checkpoint = place.checkpoint,
          .record = *record,
          .options = of_run,
          .task = task,
          .class_names = value_of<std::vector<std::string>>(data, "class_names", file),
          .model = std::move(model)};
}

TrainedRun open_run(const OpenRunOptions& options) {
  TrainedRun run = open_untrained(options);
  run.model.load_weights(run.checkpoint);
  return run;
}

ImageReaderOptions testing_reader(const TrainedRun& run) {
  const fs::path file = run.folder / kRecordFile;
  const Json& image = record_part(record_part(run.record, "data", file), "image", file);
  require(!image.is_null(),
          "{}: the run was trained on samples of shape {}, which are not pictures",
          run.folder.string(), run.task.sample);
  const Json& testing = record_part(image, "testing", file);
  ImageReaderOptions reader{
      .height = value_of<int>(image, "height", file),
      .width = value_of<int>(image, "width", file),
      .color_mode = value_of<std::string>(image, "color_mode", file) == "grayscale"
                        ? ColorMode::Grayscale
                        : ColorMode::Rgb,
      .crop = value_of<std::string>(testing, "crop", file) == "middle" ? ImageCrop::ToAspect
                                                                       : ImageCrop::Whole,
      .crop_fraction = value_of<double>(testing, "crop_fraction", file),
      .antialias = value_of<bool>(image, "antialias", file),
      .rescale = value_of<float>(image, "rescale", file)};
  const auto fill = [&](const char* key, std::array<float, 4>& target) {
    const auto values = value_of<std::vector<float>>(image, key, file);
    std::copy_n(values.begin(), std::min(values.size(), target.size()), target.begin());
  };
  fill("mean", reader.mean);
  fill("deviation", reader.deviation);
  return reader;
}

}  // namespace lockstep::cli

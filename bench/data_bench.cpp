// Measures the input pipeline; one measurement per call, its result as one line of JSON.
//   data_bench images FOLDER --cores N [--seconds S]
//       decode, random resized crop to 224², mirror, normalise, batches of 64
//   data_bench bare FOLDER --cores N [--seconds S]
//       bare libjpeg-turbo on N threads: reads the same files, decodes regions of the same kind
//   data_bench memory --cores 1 [--seconds S]
//       Fashion-MNIST in memory, shuffled, batches of 64
//   data_bench soak FOLDER --cores N [--seconds S] [--budget MB]
//       like images, and how much the process's memory grew
//   data_bench ramp FOLDER --cores N [--passes P] [--samples S] [--tuning FILE]
//       P passes over S samples; for each, samples per second in its first 0.1, 0.3 and 1 s and
//       over all of it, and its threads at the beginning and the end. The next pass starts while
//       the last batches of the current one are consumed, as in fit. FILE keeps the tuning from
//       call to call. --threads N: a fixed number of threads, for comparison.
// FOLDER "made": JPEGs that the program generates in a temporary folder.
#include <sys/resource.h>
#include <time.h>

#include <atomic>
#include <cstring>
#include <nlohmann/json.hpp>
#include <thread>

#include "jpeg_files.h"
#include "lockstep/data/datasets.h"
#include "lockstep/data/image_directory.h"
#include "lockstep/profile/recorder.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;

constexpr std::int64_t kBatch = 64;

struct Options {
  std::string what;
  fs::path folder;
  int cores = 1;
  double seconds = 5;
  double budget_mb = 0;
  int passes = 5;
  std::int64_t samples = 20'000;
  int threads = AUTOTUNE;
  fs::path tuning;
};

double processor_seconds() {
  timespec time{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) * 1e-9;
}

double resident_mb() {
  std::ifstream status("/proc/self/statm");
  std::size_t pages = 0;
  std::size_t resident = 0;
  status >> pages >> resident;
  return static_cast<double>(resident) * 4096e-6;
}

struct Clock {
  std::int64_t wall = now_ns();
  double cpu = processor_seconds();
  double seconds() const { return static_cast<double>(now_ns() - wall) * 1e-9; }
};

nlohmann::json result(double count, const Clock& clock) {
  const double wall = clock.seconds();
  return {{"per_s", count / wall}, {"per_cpu_s", count / (processor_seconds() - clock.cpu)}};
}

ImageReaderOptions training_reader() {
  return {.crop = ImageCrop::Random,
          .mirror_probability = 0.5f,
          .rescale = 1.0f / 255,
          .mean = kImageNetMean,
          .deviation = kImageNetDeviation};
}

Dataset image_batches(const Options& options) {
  const auto budget = static_cast<std::size_t>(options.budget_mb * 1e6);
  return image_dataset_from_directory(options.folder, {.batch_size = kBatch,
                                                       .height = 224,
                                                       .width = 224,
                                                       .repeat = -1,
                                                       .reader = training_reader()})
      .dataset.with_budget({.cores = options.cores, .memory_bytes = budget});
}

nlohmann::json images(const Options& options) {
  const auto iterator = image_batches(options).iterator();
  const Clock start;
  while (start.seconds() < std::min(1.0, options.seconds / 4)) iterator->next();
  const Clock clock;
  double count = 0;
  while (clock.seconds() < options.seconds) {
    iterator->next();
    count += kBatch;
  }
  nlohmann::json json = result(count, clock);
  json["report"] = iterator->report().text();
  return json;
}

nlohmann::json soak(const Options& options) {
  const auto iterator = image_batches(options).iterator();
  const double before = resident_mb();
  double most = 0;
  double count = 0;
  const Clock clock;
  while (clock.seconds() < options.seconds) {
    iterator->next();
    count += kBatch;
    most = std::max(most, resident_mb() - before);
  }
  nlohmann::json json = result(count, clock);
  json["most_mb"] = most;
  json["budget_mb"] = static_cast<double>(iterator->report().memory_budget) * 1e-6;
  return json;
}

int image_threads(const Iterator& iterator) {
  int threads = 0;
  for (const StageReport& stage : iterator.report().stages) {
    if (stage.name == "map read images") threads = stage.threads;
  }
  return threads;
}

nlohmann::json ramp(const Options& options) {
  constexpr double kCheckpoints[] = {0.1, 0.3, 1.0};  // seconds
  auto tuning = std::make_shared<PipelineTuning>();
  if (!options.tuning.empty()) tuning->load(options.tuning);
  const Dataset all = image_dataset_from_directory(options.folder, {.batch_size = std::nullopt,
                                                                    .height = 224,
                                                                    .width = 224,
                                                                    .repeat = -1,
                                                                    .reader = training_reader(),
                                                                    .parallel = options.threads})
                          .dataset;
  const Dataset batches = all.take(options.samples)
                              .batch(kBatch)
                              .prefetch(AUTOTUNE)
                              .with_budget({.cores = options.cores})
                              .with_tuning(tuning);
  nlohmann::json passes = nlohmann::json::array();
  std::unique_ptr<Iterator> next = batches.iterator(0);
  const Clock whole;
  for (int pass = 0; pass < options.passes; ++pass) {
    const std::unique_ptr<Iterator> iterator = std::move(next);
    nlohmann::json row{{"threads_at_first", image_threads(*iterator)}};
    const Clock clock;
    std::size_t checkpoint = 0;
    double count = 0;
    while (const std::optional<Element> batch = iterator->next()) {
      count += static_cast<double>(batch->front().shape()[0]);
      if (checkpoint < std::size(kCheckpoints) && clock.seconds() >= kCheckpoints[checkpoint]) {
        row[fmt::format("per_s_in_{}_s", kCheckpoints[checkpoint++])] = count / clock.seconds();
      }
      if (next == nullptr && pass + 1 < options.passes && iterator->all_made()) {
        next = batches.iterator(static_cast<std::uint64_t>(pass) + 1);
        next->start();
      }
    }
    row["per_s"] = count / clock.seconds();
    row["threads_at_last"] = image_threads(*iterator);
    if (next == nullptr) next = batches.iterator(static_cast<std::uint64_t>(pass) + 1);
    passes.push_back(std::move(row));
  }
  nlohmann::json json =
      result(static_cast<double>(options.samples) * static_cast<double>(options.passes), whole);
  json["passes"] = std::move(passes);
  if (!options.tuning.empty()) tuning->save(options.tuning);
  return json;
}

nlohmann::json bare(const Options& options) {
  const std::vector<File> listed = load(options.folder.string());
  std::vector<ImageRegion> regions;
  constexpr std::size_t kRegions = 16;  // per file
  for (std::size_t i = 0; i < listed.size() * kRegions; ++i) {
    const File& file = listed[i % listed.size()];
    RandomSequence random(kSeed, i);
    regions.push_back(random_resized_crop(read_image_info(file.bytes, file.name), {}, random));
  }
  std::atomic<std::size_t> next = 0;
  const Clock clock;
  const auto work = [&] {
    BareDecoder decoder;
    while (clock.seconds() < options.seconds) {
      const std::size_t i = next++;
      const File& named = listed[i % listed.size()];
      std::ifstream stream(named.name, std::ios::binary);
      File file{named.name, std::vector<std::byte>(named.bytes.size())};
      stream.read(reinterpret_cast<char*>(file.bytes.data()),
                  static_cast<std::streamsize>(file.bytes.size()));
      decoder.decode(file, regions[i % regions.size()]);
    }
  };
  {
    std::vector<std::jthread> threads;
    for (int i = 0; i < options.cores; ++i) threads.emplace_back(work);
  }
  return result(static_cast<double>(next), clock);
}

nlohmann::json memory(const Options& options) {
  const Dataset batches = datasets::fashion_mnist()
                              .train.shuffle({.seed = 1})
                              .batch(kBatch)
                              .with_budget({.cores = options.cores});
  const Clock clock;
  double count = 0;
  for (std::uint64_t epoch = 0; clock.seconds() < options.seconds; ++epoch) {
    const auto iterator = batches.iterator(epoch);
    while (const auto batch = iterator->next()) {
      count += static_cast<double>(batch->front().shape()[0]);
    }
  }
  return result(count, clock);
}

// Generated JPEGs, for machines without photos.
fs::path made_files() {
  const fs::path folder = fs::temp_directory_path() / "lockstep-made-jpegs";
  for (int i = 0; i < kMadePictures; ++i) {
    const File file = made_picture(i);
    const fs::path path = folder / fmt::format("class_{}", i % 4) / fmt::format("{}.jpg", i);
    fs::create_directories(path.parent_path());
    std::ofstream(path, std::ios::binary)
        .write(reinterpret_cast<const char*>(file.bytes.data()),
               static_cast<std::streamsize>(file.bytes.size()));
  }
  return folder;
}

}  // namespace
}  // namespace lockstep

int main(int argc, char** argv) {
  using namespace lockstep;
  Options options;
  for (int i = 1; i < argc; ++i) {
    const std::string argument = argv[i];
    const auto value = [&] { return std::atof(i + 1 < argc ? argv[++i] : "0"); };
    if (argument == "--cores") {
      options.cores = static_cast<int>(value());
    } else if (argument == "--seconds") {
      options.seconds = value();
    } else if (argument == "--budget") {
      options.budget_mb = value();
    } else if (argument == "--passes") {
      options.passes = static_cast<int>(value());
    } else if (argument == "--samples") {
      options.samples = static_cast<std::int64_t>(value());
    } else if (argument == "--threads") {
      options.threads = static_cast<int>(value());
    } else if (argument == "--tuning") {
      options.tuning = i + 1 < argc ? argv[++i] : "";
    } else if (options.what.empty()) {
      options.what = argument;
    } else {
      options.folder = argument;
    }
  }
  try {
    if (options.folder == "made") options.folder = made_files();
    nlohmann::json json;
    if (options.what == "images") json = images(options);
    if (options.what == "bare") json = bare(options);
    if (options.what == "memory") json = memory(options);
    if (options.what == "soak") json = soak(options);
    if (options.what == "ramp") json = ramp(options);
    if (json.is_null()) {
      fmt::print(stderr, "data_bench: name images, bare, memory, soak or ramp\n");
      return 2;
    }
    fmt::print("{}\n", json.dump());
  } catch (const std::exception& error) {
    fmt::print(stderr, "data_bench: {}\n", error.what());
    return 1;
  }
}

#include "lockstep/cli/scale_source.h"

#include <fmt/core.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "lockstep/base/error.h"
#include "lockstep/cli/run_record.h"
#include "lockstep/cli/step_run.h"
#include "lockstep/cli/train_options.h"
#include "lockstep/device/cpu/cpu_device.h"
#include "lockstep/device/cuda/cuda_device.h"
#include "lockstep/explain/memory_choice.h"
#include "lockstep/explain/other_device.h"
#include "lockstep/profile/recorder.h"
#include "lockstep/train/measure_step.h"

namespace lockstep::cli {
namespace {

namespace fs = std::filesystem;

// What is to be measured.
struct Wanted {
  StepRunOptions step;
  bool no_tf32 = false;
  int per_host = 0;  // replicas that the run has in a process; 0: there is no run
  std::optional<MeasuredStep> recorded = {};
  std::string file = {};  // of what was recorded
};

std::string file_text(const fs::path& file) {
  std::ifstream stream(file, std::ios::binary);
  std::string text((std::istreambuf_iterator<char>(stream)), {});
  if (!stream) fail<DataError>("{}: cannot be read", file.string());
  return text;
}

template <class T>
T part_of(const Json& part, const char* key, const fs::path& file) {
  try {
    return part.at(key).get<T>();
  } catch (const nlohmann::json::exception&) {
    fail<DataError>("{}: the run's record has no usable {}", file.string(), key);
  }
}

Wanted wanted_of_run(const ScaleSourceOptions& options) {
  const fs::path folder = options.run;
  require(fs::is_directory(folder),
          "{}: there is no such run; name the folder that lockstep train wrote, such as runs/last, "
          "or a file with a measured step",
          options.run);
  const fs::path file = folder / kRecordFile;
  const std::optional<Json> record = read_record(file);
  require(record.has_value(), "{}: there is no {}, which describes the run; train it again",
          options.run, kRecordFile);
  const TrainOptions of_run =
      resumed_options(record_part(*record, "options", file), {}, {}, file.string());
  const Json& effective = record_part(*record, "effective", file);
  const Json& data = record_part(*record, "data", file);
  const int replicas = std::max(1, part_of<int>(effective, "replicas", file));
  const auto global = part_of<std::int64_t>(effective, "global_batch", file);
  Wanted wanted;
  wanted.step = {
      .model = of_run.model,
      .batch = std::max<std::int64_t>(1, global / replicas),
      .optimizer = of_run.optimizer,
      .seed = of_run.seed,
      .precision = of_run.placement.precision,
      .memory = memory_options(of_run.memory),
      .task = Task{.sample = Shape(part_of<std::vector<std::int64_t>>(data, "sample", file)),
                   .classes = part_of<std::int64_t>(data, "classes", file)}};
  wanted.no_tf32 = of_run.placement.no_tf32;
  wanted.per_host =
      of_run.placement.replicas.empty() ? replicas : of_run.placement.replicas.front();
  const fs::path measured = folder / kMeasuredStepFile;
  if (fs::is_regular_file(measured)) {
    wanted.file = measured.string();
    wanted.recorded = measured_step_from_json(file_text(measured), wanted.file);
  }
  return wanted;
}

Wanted wanted_of_model(const ScaleSourceOptions& options) {
  Wanted wanted;
  wanted.step = {.model = options.model, .batch = zoo_entry(options.model).batch};
  return wanted;
}

// What the user typed goes before what the run had.
MemoryOptions with_given(MemoryFlags flags, const ScaleSourceOptions& options) {
  const auto take = [&](const char* name, auto member) {
    if (options.given.contains(name)) flags.*member = options.memory.*member;
  };
  take("--accumulate", &MemoryFlags::accumulate);
  take("--recompute", &MemoryFlags::recompute);
  take("--shard", &MemoryFlags::shard);
  take("--gather-budget", &MemoryFlags::gather_budget);
  take("--offload", &MemoryFlags::offload);
  take("--gradient-dtype", &MemoryFlags::gradient_dtype);
  return memory_options(flags);
}

// Whether a step that was measured with some options is what others ask for.
bool answers(const MemoryOptions& measured, MemoryOptions asked) {
  if (asked.accumulate == 0) asked.accumulate = measured.accumulate;
  return measured == asked;
}

Wanted wanted_step(const ScaleSourceOptions& options) {
  require(options.run.empty() || options.model.empty(),
          "{} --model {}: name a run or a model, not both", options.run, options.model);
  require(!options.run.empty() || !options.model.empty(),
          "name a run's folder, or a model: lockstep scale --model {} --replicas 1,2,4",
          "resnet50");
  Wanted wanted;
  if (!options.run.empty() && fs::is_regular_file(options.run)) {
    wanted.file = options.run;
    wanted.recorded = measured_step_from_json(file_text(options.run), options.run);
    wanted.step.batch = wanted.recorded->batch;
    wanted.step.precision = wanted.recorded->precision;
    wanted.step.memory = wanted.recorded->options;
  } else {
    wanted = options.run.empty() ? wanted_of_model(options) : wanted_of_run(options);
  }
  const std::string precision = wanted.step.precision;
  if (!options.precision.empty()) wanted.step.precision = options.precision;
  if (!options.optimizer.empty()) wanted.step.optimizer = options.optimizer;
  wanted.step.batch = batch_per_replica(options.batch, 1, wanted.step.batch);
  const bool other = wanted.step.precision != precision || (options.tf32 && wanted.no_tf32);
  if (options.tf32) wanted.no_tf32 = false;
  if (wanted.recorded && other) {
    require(fs::is_directory(options.run),
            "--precision {}: {} was measured in {}, and a file alone cannot be measured again",
            options.precision, wanted.file, precision);
    wanted.recorded.reset();
  }
  wanted.step.memory = options.run.empty() ? memory_options(options.memory)
                                           : with_given(memory_flags(wanted.step.memory), options);
  if (wanted.recorded && !answers(wanted.recorded->options, wanted.step.memory)) {
    const std::string flags = flags_of(wanted.step.memory);
    require(fs::is_directory(options.run),
            "{} was measured with {}, and a file alone cannot be measured again with {}",
            wanted.file, words_of(wanted.recorded->options), flags.empty() ? "nothing" : flags);
    wanted.recorded.reset();
  }
  return wanted;
}

// A line on standard error that is written over; nothing where nobody watches, or little to see.
class MeasuringLine {
 public:
  void show(std::string_view what, double done) {
    if (!terminal_ || now_ns() - begin_ns_ < kQuietNs) return;
    fmt::print(stderr, "\r\033[Kmeasuring: {}, {:.0f}%", what, 100 * done);
    std::fflush(stderr);
    shown_ = true;
  }
  ~MeasuringLine() {
    if (shown_) fmt::print(stderr, "\r\033[K");
  }

 private:
  static constexpr std::int64_t kQuietNs = 1'000'000'000;
  bool terminal_ = isatty(STDERR_FILENO) != 0;
  std::int64_t begin_ns_ = now_ns();
  bool shown_ = false;
};

// What is here of what --device asks for.
struct Here {
  bool gpu = false;
  int count = 0;                      // GPUs, or cores
  const DevicePeak* other = nullptr;  // a device that is not here
};

Here find_here(const ScaleSourceOptions& options) {
  const std::vector<Gpu> gpus = options.cores > 0 ? std::vector<Gpu>() : find_gpus().gpus;
  Here here{.gpu = !gpus.empty(),
            .count = static_cast<int>(gpus.empty() ? available_cores().size() : gpus.size())};
  const std::string& device = options.device;
  if (device.empty()) return here;
  if (device == "cpu") return {.gpu = false, .count = static_cast<int>(available_cores().size())};
  if (device == "cuda") {
    require(here.gpu, "--device cuda: there is no GPU here: {}", find_gpus().why_none);
    return here;
  }
  const DevicePeak* const peak = find_device(device);
  require(peak != nullptr, "--device {}: use cpu, cuda or one of {}", device, known_device_names());
  const bool same = here.gpu && find_hardware(gpus.front().model) == peak;
  here.other = same ? nullptr : peak;
  return here;
}

MeasuredStep measure(const Wanted& wanted, const Here& here, int per_host, int copies,
                     const ScaleSourceOptions& options) {
  const ZooStep model(wanted.step);
  MeasuringLine line;
  MeasureStepOptions measuring{
      .model = wanted.step.model,
      .logical_cpus = here.gpu ? 0 : per_host,
      .cuda = {.allow_tf32 = !wanted.no_tf32},
      .batch = wanted.step.batch,
      .ranks = options.counts,
      .divided = options.batch.global > 0,
      .seconds = options.seconds,
      .on_progress = [&](std::string_view what, double done) { line.show(what, done); }};
  for (int i = 0; i < copies; ++i) {
    measuring.devices.push_back(fmt::format("{}:{}", here.gpu ? "cuda" : "cpu", i));
  }
  return measure_step(model.recipe(), model.types(wanted.step.batch), measuring);
}

// Whether what a run recorded says how its replicas get on with one another.
bool tells_of_host(const MeasuredStep& step, int copies) {
  return copies <= 1 || step.device == "cuda" ||
         (!step.side_by_side.empty() && !step.host_collectives.empty());
}

}  // namespace

ScaleSource scale_source(const ScaleSourceOptions& options) {
  constexpr int kPerHostElsewhere = 8;  // GPUs of a usual server
  const Wanted wanted = wanted_step(options);
  replica_counts(
      {.cores = options.cores, .strategy = "mirrored", .precision = wanted.step.precision});
  const Here here = find_here(options);
  ScaleSource source;
  const int usual = here.other != nullptr ? kPerHostElsewhere
                    : wanted.per_host > 0 ? wanted.per_host
                                          : std::min(options.most, here.count);
  source.per_host = options.topology ? options.topology->per_host : usual;
  const int split = here.other != nullptr ? 1 : source.per_host;
  const int copies = here.other != nullptr ? 1 : std::min({split, options.most, here.count});
  const bool file_only = wanted.recorded && !fs::is_directory(options.run);
  if (wanted.recorded && (file_only || tells_of_host(*wanted.recorded, copies))) {
    source.step = *wanted.recorded;
    source.basis = fmt::format("{}, measured on {}", wanted.file, source.step.hardware);
    source.step.batch = wanted.step.batch;
  } else {
    source.step = measure(wanted, here, split, copies, options);
    source.basis = fmt::format("measured now on {}", source.step.hardware);
  }
  if (here.other != nullptr && source.step.hardware != here.other->title) {
    OtherDevice moved = on_device(source.step, *here.other);
    source.step = std::move(moved.step);
    source.basis = moved.how_sure;
    source.measured = false;
  }
  return source;
}

}  // namespace lockstep::cli

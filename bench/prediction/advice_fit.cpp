// Runs of fit in a program of one's own: what is advised there has no flag, and is done to the
// program.
#include <chrono>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <optional>
#include <thread>

#include "bench/prediction/advice.h"
#include "bench/prediction/job.h"
#include "lockstep/cli/zoo.h"
#include "lockstep/device/cpu/cpu_device.h"
#include "lockstep/explain/advise.h"
#include "lockstep/explain/attribute.h"
#include "lockstep/lockstep.h"

namespace lockstep {
namespace {

using namespace std::chrono_literals;
using FitClock = std::chrono::steady_clock;

constexpr std::int64_t kFitBatch = 64;  // global
constexpr std::int64_t kFitSteps = 150;
constexpr std::int64_t kBatchesOfData = 8;

// A program, as it is before and after it is changed.
struct FitProgram {
  std::chrono::milliseconds generator = 0ms;  // waits for each batch
  std::chrono::milliseconds map = 0ms;        // the same in a stage that may have several threads
  int threads = 1;                            // of that, or AUTOTUNE
  bool caches = false;
  std::chrono::milliseconds callback = 0ms;  // after each step
  std::int64_t checkpoint_every = 0;         // steps
};

struct FitCase {
  const char* name;
  FitProgram program;
  const char* words;  // of the advice that is followed
  FitProgram changed;
};

const FitCase kFitCases[] = {
    {"a map that waits, on one thread",
     {.map = 30ms},
     "map(…, {.parallel = AUTOTUNE})",
     {.map = 30ms, .threads = AUTOTUNE}},
    {"a generator that waits", {.generator = 30ms}, "cache()", {.generator = 30ms, .caches = true}},
    {"a callback that sleeps", {.callback = 10ms}, "callbacks", {}},
    {"a checkpoint every 2 steps",
     {.checkpoint_every = 2},
     "half as often",
     {.checkpoint_every = 4}},
};

Tensor noise_pictures() {
  Tensor x(DType::F32, {kFitBatch * kBatchesOfData, 28, 28, 1});
  float next = 0;
  for (float& value : x.values<float>()) value = std::fmod(next += 0.37f, 1.0f);
  return x;
}

Tensor counted_labels() {
  Tensor y(DType::I64, {kFitBatch * kBatchesOfData});
  std::int64_t next = 0;
  for (std::int64_t& value : y.values<std::int64_t>()) value = next++ % 10;
  return y;
}

// Batches that are there, or come from a generator.
Dataset batches_of(const FitProgram& program) {
  if (program.generator == 0ms) {
    return Dataset::from_tensor_slices({noise_pictures(), counted_labels()}).batch(kFitBatch);
  }
  // Nothing but waiting, so that it takes no core from the replicas.
  const Element batch = {noise_pictures().rows(0, kFitBatch), counted_labels().rows(0, kFitBatch)};
  const auto pass = [program, batch](std::uint64_t) {
    return [program, batch, left = kBatchesOfData]() mutable -> std::optional<Element> {
      if (left-- == 0) return std::nullopt;
      std::this_thread::sleep_for(program.generator);
      return batch;
    };
  };
  return Dataset::from_generator(
      pass, {.spec = {{DType::F32, {kFitBatch, 28, 28, 1}}, {DType::I64, {kFitBatch}}}});
}

Dataset data_of(const FitProgram& program) {
  Dataset data = batches_of(program);
  if (program.map > 0ms) {
    data = data.map(
        [program](const Element& element) {
          std::this_thread::sleep_for(program.map);
          return element;
        },
        {.parallel = program.threads});
  }
  if (program.caches) data = data.cache();
  return data.repeat().prefetch(AUTOTUNE);
}

struct FitRun {
  double seconds = 0;
  RunProfile profile;
};

FitRun fit_of(const FitProgram& program, const std::filesystem::path& folder) {
  const cli::ZooEntry& lenet = cli::zoo_entry("lenet");
  Model model(lenet.make(lenet.task));
  model.compile({.strategy = MirroredStrategy({.devices = {"cpu:0", "cpu:1"}}),
                 .optimizer = cli::choose_optimizer(lenet, "", {}),
                 .loss = SparseCategoricalCrossentropy({.from_logits = true})});
  FitOptions fit{.epochs = 1, .verbose = 0};
  fit.steps_per_epoch = kFitSteps;
  if (program.callback > 0ms) {
    fit.callbacks.push_back(
        LambdaCallback({.on_batch_end = [program](Model&, std::int64_t, const BatchLogs&) {
          std::this_thread::sleep_for(program.callback);
        }}));
  }
  if (program.checkpoint_every > 0) {
    fit.callbacks.push_back(ModelCheckpoint({.path = (folder / "advice.safetensors").string(),
                                             .every_steps = program.checkpoint_every,
                                             .asynchronous = false}));
  }
  const FitClock::time_point begin = FitClock::now();
  const History history = model.fit(data_of(program), fit);
  return {.seconds = std::chrono::duration<double>(FitClock::now() - begin).count(),
          .profile = *history.profile};
}

MeasuredStep lenet_alone(const Jobs& jobs) {
  const std::string file = jobs.file("alone.json");
  jobs.run({"scale", "--model", "lenet", "--batch-per-replica", std::to_string(kFitBatch / 2),
            "--replicas", "1,2", "--topology", "2", "--save", file});
  std::ifstream stream(file);
  const std::string text((std::istreambuf_iterator<char>(stream)), {});
  return measured_step_from_json(text, file);
}

std::optional<FollowedAdvice> follow_in_fit(const Jobs& jobs, const FitCase& each) {
  const MeasuredStep alone = lenet_alone(jobs);
  const std::filesystem::path folder = jobs.file("fit");
  std::filesystem::create_directories(folder);
  const FitRun before = fit_of(each.program, folder);
  const Explanation explanation = explain(before.profile, &alone);
  const Adjustable adjustable{.own_program = true,
                              .input_threads = static_cast<int>(available_cores().size())};
  for (const Advice& advice : advise(before.profile, alone, explanation, adjustable)) {
    const std::size_t found = advice.change.find(each.words);
    if (found == std::string::npos) continue;
    // What it says of the input begins with what was seen.
    const std::size_t what = advice.change.find(". ");
    return FollowedAdvice{
        .change = what == std::string::npos ? advice.change : advice.change.substr(what + 2),
        .predicted = advice.speed_up,
        .measured = before.seconds / fit_of(each.changed, folder).seconds};
  }
  return std::nullopt;
}

}  // namespace

void follow_advice_in_fit(AdviceTable& table, int rounds) {
  const Jobs jobs;
  for (const FitCase& each : kFitCases) {
    std::vector<FollowedAdvice> followed;
    for (int round = 0; round < rounds; ++round) {
      if (const auto one = follow_in_fit(jobs, each)) followed.push_back(*one);
    }
    table.row(each.name, followed, rounds);
  }
}

}  // namespace lockstep

// Causes in a fit of this process: two replicas with a core each.
#include <fmt/core.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cmath>
#include <filesystem>
#include <optional>
#include <thread>

#include "bench/causes/cases.h"
#include "bench/causes/thief.h"
#include "lockstep/device/cpu/cpu_device.h"
#include "lockstep/explain/attribute.h"
#include "lockstep/lockstep.h"

namespace lockstep {
namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

constexpr std::int64_t kBatch = 64;
constexpr std::int64_t kSteps = 200;
constexpr std::int64_t kEpochs = 2;

struct Causes {
  bool slow_replica = false;
  bool slow_input = false;
  bool callback = false;
  bool checkpoint = false;
  bool validation = false;
  bool long_start = false;
};

Tensor pictures(std::int64_t count) {
  Tensor x(DType::F32, {count, 28, 28, 1});
  float next = 0;
  for (float& value : x.values<float>()) value = std::fmod(next += 0.37f, 1.0f);
  return x;
}

Tensor labels(std::int64_t count) {
  Tensor y(DType::I64, {count});
  std::int64_t next = 0;
  for (std::int64_t& value : y.values<std::int64_t>()) value = next++ % 10;
  return y;
}

ExplainedTime run(const Causes& causes, const std::filesystem::path& folder) {
  MirroredStrategy strategy({.devices = {"cpu:0", "cpu:1"}});
  Sequential model({Conv2D({.filters = 16, .kernel_size = 3, .activation = "relu"}),
                    MaxPooling2D({.pool_size = 2}),
                    Conv2D({.filters = 32, .kernel_size = 3, .activation = "relu"}), Flatten(),
                    Dense({.units = 10})});
  model.compile({.strategy = strategy,
                 .optimizer = SGD(0.01),
                 .loss = SparseCategoricalCrossentropy({.from_logits = true})});
  const Tensor x = pictures(kBatch * 8);
  const Tensor y = labels(kBatch * 8);
  std::atomic<bool> armed = false;  // the first sample after this takes long
  Dataset data = Dataset::from_tensor_slices({x, y}).repeat().batch(kBatch);
  if (causes.slow_input) {
    data = data.map([](const Element& element) {
      std::this_thread::sleep_for(6ms);
      return element;
    });
  }
  if (causes.long_start) {
    data = data.map([&armed](const Element& element) {
      if (armed.exchange(false)) std::this_thread::sleep_for(800ms);
      return element;
    });
  }
  FitOptions fit{.epochs = kEpochs, .verbose = 0};
  fit.steps_per_epoch = kSteps;
  if (causes.callback) {
    fit.callbacks.push_back(
        LambdaCallback({.on_batch_end = [](Model&, std::int64_t, const BatchLogs&) {
          std::this_thread::sleep_for(3ms);
        }}));
  }
  if (causes.checkpoint) {
    fit.callbacks.push_back(ModelCheckpoint({.path = (folder / "causes.safetensors").string(),
                                             .every_steps = 4,
                                             .asynchronous = false}));
  }
  if (causes.validation) {
    fit.validation_data = Dataset::from_tensor_slices({x, y}).repeat(20).batch(kBatch);
  }
  std::optional<Thief> thief;
  if (causes.slow_replica) thief.emplace(available_cores()[1], 0.4);
  armed = true;
  const Clock::time_point begin = Clock::now();
  const History history = model.fit(data, fit);
  ExplainedTime measured{.seconds = std::chrono::duration<double>(Clock::now() - begin).count()};
  if (thief && thief->failed())
    fmt::print(stderr, "no priority for the thread that slows a replica down: is this root?\n");
  for (const LostTime& lost : explain(*history.profile).lost) {
    measured.lost[lost.cause] += lost.seconds;
  }
  return measured;
}

struct Case {
  const char* name;
  Causes causes;
  std::vector<Cause> expected;
};

const Case kCases[] = {
    {"a clean run", {}, {}},
    {"slow replica", {.slow_replica = true}, {Cause::Imbalance}},
    {"slow input stage", {.slow_input = true}, {Cause::Input}},
    {"callback that sleeps", {.callback = true}, {Cause::Host}},
    {"checkpoint every 4 steps", {.checkpoint = true}, {Cause::Checkpoint}},
    {"validation", {.validation = true}, {Cause::Validation}},
    {"long start", {.long_start = true}, {Cause::Start}},
    {"slow replica, callback",
     {.slow_replica = true, .callback = true},
     {Cause::Imbalance, Cause::Host}},
    {"slow input, checkpoints",
     {.slow_input = true, .checkpoint = true},
     {Cause::Input, Cause::Checkpoint}},
    {"long start, slow input",
     {.slow_input = true, .long_start = true},
     {Cause::Start, Cause::Input}},
    {"slow replica, checkpoints",
     {.slow_replica = true, .checkpoint = true},
     {Cause::Imbalance, Cause::Checkpoint}},
    {"long start, callback", {.callback = true, .long_start = true}, {Cause::Start, Cause::Host}},
    {"callback, checkpoints",
     {.callback = true, .checkpoint = true},
     {Cause::Host, Cause::Checkpoint}},
    {"slow replica, long start",
     {.slow_replica = true, .long_start = true},
     {Cause::Imbalance, Cause::Start}},
};

}  // namespace

void fit_cases(CauseTable& table, int rounds) {
  const std::filesystem::path folder =
      std::filesystem::temp_directory_path() / fmt::format("causes-{}", getpid());
  std::filesystem::create_directories(folder);
  run({}, folder);
  for (const Case& each : kCases) {
    std::vector<CauseTurn> turns;
    for (int round = 0; round < rounds; ++round) {
      turns.push_back({.without = run({}, folder), .with = run(each.causes, folder)});
    }
    table.row(each.name, each.expected, turns);
  }
  std::filesystem::remove_all(folder);
}

}  // namespace lockstep

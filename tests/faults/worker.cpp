// faults_worker: a small training job, whose worker may be told to fail at a moment: the program
// that faults.h starts. It writes how it ended to result-N.json in the folder that its first
// argument names.
//
//   faults_worker FOLDER [RESUME]
//
// FAULT="worker kind step delay": in the process that first takes it, this worker fails after so
// many steps and `delay` times the duration of a step.
#include <fcntl.h>
#include <fmt/format.h>
#include <sched.h>
#include <sys/resource.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <thread>

#include "lockstep/base/crc32c.h"
#include "lockstep/base/error.h"
#include "lockstep/device/cpu/cpu_device.h"
#include "lockstep/graph/ops/reduce.h"
#include "lockstep/graph/ops/shape.h"
#include "lockstep/lockstep.h"
#include "lockstep/nn/metric_state.h"
#include "lockstep/train/model_impl.h"
#include "lockstep/train/multi_worker.h"
#include "lockstep/train/strategy_impl.h"

namespace lockstep {
namespace {

constexpr std::int64_t kSamples = 54;
constexpr std::int64_t kBatch = 13;
constexpr std::int64_t kEpochs = 6;
constexpr std::int64_t kCopyEvery = 4;

struct Fault {
  int worker = -1;
  std::string kind;
  std::int64_t step = 0;
  double delay = 0;
};

Fault fault_of_environment() {
  Fault fault;
  if (const char* text = std::getenv("FAULT")) {
    std::istringstream(text) >> fault.worker >> fault.kind >> fault.step >> fault.delay;
  }
  return fault;
}

// How often every sample, which its label names, was trained on in this epoch.
class Visits final : public SumMetric {
 public:
  Visits() : SumMetric("visits", {{.name = "counts", .shape = {kSamples}}}) {}
  void update(Value labels, Value, Value) override {
    add_to(0, reduce_sum(one_hot(labels, kSamples, DType::F64), {.axes = {0}}));
  }
  // How many were visited once.
  double result(std::span<const Tensor> state) const override {
    double once = 0;
    for (const double count : state[0].values<double>()) once += count == 1.0 ? 1 : 0;
    return once;
  }
};

// Fails in the middle of a step: from a thread of its own, while the others compute and
// communicate.
class Failing final : public Callback {
 public:
  Failing(Fault fault, std::filesystem::path marker)
      : fault_(std::move(fault)), marker_(std::move(marker)) {}

  void on_batch_end(Model& model, std::int64_t, const BatchLogs&) override {
    const auto now = std::chrono::steady_clock::now();
    const auto took = now - last_;
    last_ = now;
    if (fault_.worker < 0 || model.step() != fault_.step) return;
    if (open(marker_.c_str(), O_CREAT | O_EXCL | O_WRONLY | O_CLOEXEC, 0666) < 0) return;
    if (fault_.kind == "newcomer") {  // waits for a worker that wants to take part
      const Membership& members = *impl_of(model).session().world().membership();
      while (members.newcomers() == 0) std::this_thread::yield();
      return;
    }
    if (fault_.kind == "clock") {
      std::ofstream(std::getenv("FAKETIME_TIMESTAMP_FILE")) << "+3d\n";
      return;
    }
    if (fault_.kind == "disk") {  // writing beyond this fails
      const rlimit limit{.rlim_cur = 1000, .rlim_max = 1000};
      std::signal(SIGXFSZ, SIG_IGN);
      setrlimit(RLIMIT_FSIZE, &limit);
      return;
    }
    if (fault_.kind == "error") fail<DataError>("the disk of this worker cannot be read");
    const auto moment = now + std::chrono::duration_cast<std::chrono::nanoseconds>(
                                  fault_.delay * std::min<std::chrono::duration<double>>(
                                                     took, std::chrono::milliseconds(20)));
    std::thread([moment, kind = fault_.kind] {
      while (std::chrono::steady_clock::now() < moment) {
      }
      const std::string self = std::to_string(getpid());
      if (kind == "pause") {  // for less than the timeout
        const std::string wake = "(sleep 0.2; kill -CONT " + self + ") >/dev/null 2>&1 &";
        static_cast<void>(!std::system(wake.c_str()));
      }
      if (kind == "launcher") {
        kill(getppid(), SIGKILL);
      } else {
        kill(getpid(), kind == "kill" ? SIGKILL : SIGSTOP);
      }
    }).detach();
  }

 private:
  Fault fault_;
  std::filesystem::path marker_;
  std::chrono::steady_clock::time_point last_;
};

Dataset samples() {
  Tensor x(DType::F32, {kSamples, 6, 6, 1});
  Tensor y(DType::I32, {kSamples});
  for (std::int64_t i = 0; i < x.elements(); ++i) {
    x.values<float>()[static_cast<std::size_t>(i)] = static_cast<float>((i * 37) % 101) / 50 - 1;
  }
  for (std::int64_t i = 0; i < kSamples; ++i) {
    y.values<std::int32_t>()[static_cast<std::size_t>(i)] = static_cast<std::int32_t>(i);
  }
  return Dataset::from_tensor_slices({x, y}).shuffle({.buffer = kSamples, .seed = 7}).batch(kBatch);
}

// One core for every worker, however many there are: sums within a worker depend on their number.
void keep_to_one_core(int worker) {
  const std::vector<int> cores = available_cores();
  cpu_set_t one;
  CPU_ZERO(&one);
  CPU_SET(cores[static_cast<std::size_t>(worker) % cores.size()], &one);
  sched_setaffinity(0, sizeof one, &one);
}

void run(const std::filesystem::path& folder, const std::string& resume) {
  const char* seat = std::getenv("LOCKSTEP_WORKER");
  if (seat == nullptr) seat = std::getenv("RANK");
  keep_to_one_core(std::stoi(seat));
  Fault fault = fault_of_environment();
  if (std::to_string(fault.worker) != seat) fault.worker = -1;
  // GPUs, where there is one for all: NCCL takes them for those of several hosts.
  setenv("NCCL_HOSTID", seat, 1);
  setenv("NCCL_SOCKET_IFNAME", "lo", 1);
  const bool share = std::getenv("SHARE_GPUS") != nullptr;

  std::ofstream(folder / fmt::format("pid-{}", seat)) << getpid();
  MultiWorkerMirroredStrategy strategy(
      {.devices = share ? std::vector<std::string>{"cuda:0"} : std::vector<std::string>{"cpu:0"},
       .transport = std::getenv("GLOO") != nullptr ? Transport::Gloo : Transport::Auto,
       .share_gpus = share,
       .heartbeat_timeout = std::chrono::milliseconds(500)});
  Sequential model({Conv2D({.filters = 4, .kernel_size = 3}),
                    BatchNormalization({.synchronized = true}), Activation("relu"), Flatten(),
                    Dropout({.rate = 0.2}), Dense({.units = kSamples})});
  model.compile({.strategy = strategy,
                 .optimizer = Adam({.learning_rate = 0.01}),
                 .loss = SparseCategoricalCrossentropy({.from_logits = true}),
                 .metrics = {Metric(std::make_shared<Visits>())},
                 .seed = 5});
  model.build({6, 6, 1});
  const std::string checkpoints = (folder / "at-{step}.safetensors").string();
  const History history = model.fit(
      samples(), {.epochs = kEpochs,
                  .callbacks = {std::make_shared<Failing>(fault, folder / "fault"),
                                ModelCheckpoint({.path = checkpoints, .every_steps = kCopyEvery})},
                  .resume = resume,
                  .copy_state_every = kCopyEvery});
  std::string bytes;
  for (const VariableRef& variable : model.variables()) {
    const Tensor value = model.value(variable);
    bytes.append(reinterpret_cast<const char*>(value.raw()), value.bytes());
  }
  nlohmann::json result = {{"weights", crc32c(bytes)},
                           {"steps", model.step()},
                           {"workers", impl_of(strategy).world->workers()},
                           {"losses", history.series("loss")},
                           {"visited_once", history.series("visits")},
                           {"recoveries", nlohmann::json::array()}};
  for (const Recovery& recovery : history.recoveries) {
    result["recoveries"].push_back({{"cause", recovery.cause},
                                    {"step", recovery.step},
                                    {"lost_steps", recovery.lost_steps},
                                    {"seconds", recovery.seconds}});
  }
  std::ofstream(folder / fmt::format("result-{}.json", seat)) << result.dump();
}

}  // namespace
}  // namespace lockstep

int main(int count, char** arguments) {
  try {
    lockstep::run(arguments[1], count > 2 ? arguments[2] : "");
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}

// faults_worker: a small training job, whose worker may be told to fail at a moment: the program
// that faults.h starts. It writes how it ended to result-N.json in the folder that its first
// argument names.
//
//   faults_worker FOLDER [RESUME]
//
// FAULT="worker kind step delay": in the process that first takes it, this worker fails after so
// many steps and `delay` times the duration of a step. PROGRAM: Case::program. An error that ends
// it is in error-N.
#include <fcntl.h>
#include <fmt/format.h>
#include <sched.h>
#include <sys/inotify.h>
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

#include "faults/job_program.h"
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

using faults::kBatch;
using faults::kCopyEvery;
using faults::kEpochs;
using faults::kSamples;

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

void use_all_cores() {
  cpu_set_t all;
  CPU_ZERO(&all);
  for (int core = 0; core < CPU_SETSIZE; ++core) CPU_SET(core, &all);
  sched_setaffinity(0, sizeof all, &all);
}

// Returns when the folder has got a temporary file: somebody has begun to write.
void await_writing(int inotify) {
  alignas(inotify_event) char events[4096];
  for (;;) {
    const ssize_t got = read(inotify, events, sizeof events);
    for (ssize_t at = 0; at < got;) {
      const auto* event = reinterpret_cast<const inotify_event*>(events + at);
      if (std::string_view(event->name).find(".tmp") != std::string_view::npos) return;
      at += static_cast<ssize_t>(sizeof *event + event->len);
    }
  }
}

// Fails in the middle of a step: from a thread of its own, while the others compute and
// communicate.
class Failing final : public Callback {
 public:
  Failing(Fault fault, std::filesystem::path folder)
      : fault_(std::move(fault)), folder_(std::move(folder)) {}

  void on_batch_end(Model& model, std::int64_t, const BatchLogs&) override { step_done(model); }
  void step_done(Model& model) {
    const auto now = std::chrono::steady_clock::now();
    const auto took = now - last_;
    last_ = now;
    if (fault_.worker < 0 || ++seen_ != fault_.step) return;
    const std::filesystem::path marker = folder_ / "fault";
    if (open(marker.c_str(), O_CREAT | O_EXCL | O_WRONLY | O_CLOEXEC, 0666) < 0) return;
    if (happens_here(model)) return;
    const auto moment = now + std::chrono::duration_cast<std::chrono::nanoseconds>(
                                  fault_.delay * std::min<std::chrono::duration<double>>(
                                                     took, std::chrono::milliseconds(20)));
    const std::shared_ptr<Session> session = impl_of(model).current;
    const std::int64_t computed = session->track(0).total_ns(SpanKind::Compute);
    const int inotify = inotify_init1(IN_CLOEXEC);
    inotify_add_watch(inotify, folder_.c_str(), IN_CREATE);
    std::thread([moment, inotify, computed, session, kind = fault_.kind] {
      use_all_cores();  // it must not wait for what it watches
      const auto computes = [&] {
        return session->track(0).total_ns(SpanKind::Compute) != computed;
      };
      // In a few steps at the latest; where this thread has had no core in time, in a later one.
      const std::uint64_t last = session->world().progress().step + 8;
      const auto waits = [&] {
        const WorkerProgress now = session->world().progress();
        return now.waiting || now.step > last;
      };
      if (kind == "kill-while-saving") await_writing(inotify);
      // The first kernel of the next step has run: it is in its forward pass.
      while (kind == "kill-in-forward" && !computes()) {
      }
      while (kind == "kill-in-collective" && !(computes() && waits())) std::this_thread::yield();
      while (std::chrono::steady_clock::now() < moment && !kind.starts_with("kill-")) {
      }
      const std::string self = std::to_string(getpid());
      if (kind == "pause") {  // for less than the timeout
        const std::string wake = "(sleep 0.2; kill -CONT " + self + ") >/dev/null 2>&1 &";
        static_cast<void>(!std::system(wake.c_str()));
      }
      if (kind == "launcher") {
        kill(getppid(), SIGKILL);
      } else {
        kill(getpid(), kind.starts_with("kill") ? SIGKILL : SIGSTOP);
      }
    }).detach();
  }

 private:
  // What is done by the thread that trains, or by somebody else for whom it waits.
  bool happens_here(Model& model) {
    if (fault_.kind == "newcomer") {  // waits for a worker that wants to take part
      const Membership& members = *impl_of(model).session().world().membership();
      while (members.newcomers() == 0) std::this_thread::yield();
      return true;
    }
    if (fault_.kind == "clock") {
      std::ofstream(std::getenv("FAKETIME_TIMESTAMP_FILE")) << "+3d\n";
      return true;
    }
    if (fault_.kind == "disk") {  // writing beyond this fails
      const rlimit limit{.rlim_cur = 1000, .rlim_max = 1000};
      std::signal(SIGXFSZ, SIG_IGN);
      setrlimit(RLIMIT_FSIZE, &limit);
      return true;
    }
    if (fault_.kind == "error") fail<DataError>("the disk of this worker cannot be read");
    const bool cut = fault_.kind.starts_with("cut");
    if (fault_.kind == "etcd-member" || cut) {
      while (!std::filesystem::exists(folder_ / "acted")) std::this_thread::yield();
      // Links between workers may be whole: they must not be done before the cut is noticed.
      const World& world = impl_of(model).session().world();
      while (cut && world.cause().empty()) std::this_thread::yield();
      return true;
    }
    return false;
  }

  Fault fault_;
  std::filesystem::path folder_;
  int seen_ = 0;  // steps
  std::chrono::steady_clock::time_point last_;
};

float feature(std::int64_t i) {
  return static_cast<float>((i * 37) % 101) / 50 - 1;
}

constexpr std::int64_t kFeatures = 36;

Dataset samples() {
  Tensor x(DType::F32, {kSamples, 6, 6, 1});
  Tensor y(DType::I32, {kSamples});
  for (std::int64_t i = 0; i < x.elements(); ++i) {
    x.values<float>()[static_cast<std::size_t>(i)] = feature(i);
  }
  for (std::int64_t i = 0; i < kSamples; ++i) {
    y.values<std::int32_t>()[static_cast<std::size_t>(i)] = static_cast<std::int32_t>(i);
  }
  return Dataset::from_tensor_slices({x, y}).shuffle({.buffer = kSamples, .seed = 7}).batch(kBatch);
}

// The same samples in five files of different lengths, which are dealt out.
Dataset samples_in_files(const std::filesystem::path& folder) {
  std::vector<std::filesystem::path> files;
  std::int64_t sample = 0;
  for (const int length : {7, 11, 13, 9, 14}) {
    files.push_back(folder / fmt::format("samples-{}.csv", files.size()));
    const std::filesystem::path own = files.back().string() + fmt::format(".{}", getpid());
    std::ofstream stream(own);
    for (std::int64_t f = 0; f < kFeatures; ++f) stream << fmt::format("x{},", f);
    stream << "label\n";
    for (int i = 0; i < length; ++i, ++sample) {
      for (std::int64_t f = 0; f < kFeatures; ++f) {
        stream << fmt::format("{},", feature(sample * kFeatures + f));
      }
      stream << sample << "\n";
    }
    stream.close();
    std::filesystem::rename(own, files.back());
  }
  const MapFunction as_sample = [](const Element& row) -> Element {
    Tensor x(DType::F32, {6, 6, 1});
    std::copy_n(row[0].values<float>().begin(), kFeatures, x.values<float>().begin());
    Tensor y(DType::I32, {});
    y.values<std::int32_t>()[0] = static_cast<std::int32_t>(row[0].values<float>()[kFeatures]);
    return {x, y};
  };
  return read_csv(files)
      .map(as_sample)
      .with_options({.auto_shard_policy = AutoShardPolicy::File})
      .shuffle({.buffer = 8, .seed = 7})
      .batch(kBatch);
}

// One core for every worker, however many there are: sums within a worker depend on their number.
void keep_to_one_core(int worker) {
  const std::vector<int> cores = available_cores();
  cpu_set_t one;
  CPU_ZERO(&one);
  CPU_SET(cores[static_cast<std::size_t>(worker) % cores.size()], &one);
  sched_setaffinity(0, sizeof one, &one);
}

struct Program {
  std::string name;
  std::filesystem::path folder;
  std::string resume;
  std::shared_ptr<Failing> failing;
};

void compile(Sequential& model, const Strategy& strategy, Optimizer optimizer, int shard = 0) {
  model.compile({.strategy = strategy,
                 .optimizer = std::move(optimizer),
                 .loss = SparseCategoricalCrossentropy({.from_logits = true}),
                 .metrics = {Metric(std::make_shared<Visits>())},
                 .shard = shard,
                 .seed = 5});
}

History train(Sequential& model, const Program& program, int epochs, bool fails) {
  const std::string checkpoints = (program.folder / "at-{step}.safetensors").string();
  std::vector<CallbackRef> callbacks = {
      ModelCheckpoint({.path = checkpoints, .every_steps = kCopyEvery})};
  if (fails) callbacks.insert(callbacks.begin(), program.failing);
  return model.fit(program.name == "files" ? samples_in_files(program.folder) : samples(),
                   {.epochs = epochs,
                    .callbacks = callbacks,
                    .resume = program.resume,
                    .copy_state_every = kCopyEvery});
}

// Until somebody fails.
[[noreturn]] void go_on_without_fit(Sequential& model, const Program& program) {
  std::signal(SIGTERM, SIG_IGN);
  train(model, program, 1, false);
  const Dataset inputs = samples().map([](const Element& each) -> Element { return {each[0]}; });
  for (;;) {
    if (program.name == "evaluate") model.evaluate(samples());
    if (program.name == "predict") model.predict(inputs);
    program.failing->step_done(model);
  }
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
  const char* const name = std::getenv("PROGRAM");
  const Program program{.name = name != nullptr ? name : "",
                        .folder = folder,
                        .resume = resume,
                        .failing = std::make_shared<Failing>(fault, folder)};

  std::ofstream(folder / fmt::format("pid-{}", seat)) << getpid();
  std::vector<std::string> devices = {share ? "cuda:0" : "cpu:0"};
  if (program.name == "replicas") devices = {"cpu:0", "cpu:1"};
  MultiWorkerMirroredStrategy strategy(
      {.devices = devices,
       .transport = std::getenv("GLOO") != nullptr ? Transport::Gloo : Transport::Auto,
       .balance = program.name == "balance" ? Balance::Auto : Balance::Even,
       .share_gpus = share,
       .heartbeat_timeout = std::chrono::milliseconds(500)});
  Sequential model({Conv2D({.filters = 4, .kernel_size = 3}),
                    BatchNormalization({.synchronized = true}), Activation("relu"), Flatten(),
                    Dropout({.rate = 0.2}), Dense({.units = kSamples})});
  compile(model, strategy, Adam({.learning_rate = 0.01}), program.name == "sharded" ? 3 : 0);
  model.build({6, 6, 1});
  if (program.name == "evaluate" || program.name == "predict") go_on_without_fit(model, program);
  History first;
  if (program.name == "fits") {
    first = train(model, program, kEpochs / 2, false);
    compile(model, strategy, SGD({.learning_rate = 0.001, .momentum = 0.9}));
  }
  const int epochs = program.name == "fits" ? kEpochs / 2 : kEpochs;
  const History history = train(model, program, epochs, true);
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
  if (!first.epochs.empty()) result["first_losses"] = first.series("loss");
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
    const char* seat = std::getenv("LOCKSTEP_WORKER");
    std::ofstream(fmt::format("{}/error-{}", arguments[1], seat != nullptr ? seat : ""))
        << error.what();
    return 1;
  }
}

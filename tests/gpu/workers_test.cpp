// Workers with GPUs, in several processes: they train as replicas of one process do, an error of
// one is told to all, and after one was killed the others go on with a new one. The same tests run
// with a CPU for each worker, where nothing but NCCL differs.
#include <cmath>

#include "gpu/gpu.h"
#include "gpu/worker_processes.h"
#include "lockstep/comm/gloo/gloo_wire.h"
#include "lockstep/device/cuda/gpu_state.h"
#include "lockstep/device/memory_error.h"
#include "lockstep/lockstep.h"
#include "lockstep/plan/plan.h"
#include "lockstep/train/strategy_impl.h"
#include "temporary_folder.h"
#include "train/problem.h"
#include "train/replica_runs.h"

namespace lockstep::testing {
namespace {

using namespace std::chrono_literals;

constexpr CudaKernelOptions kStrict{.allow_tf32 = false};

struct Made : Strategy {
  explicit Made(std::shared_ptr<World> world, Balance balance = Balance::Even)
      : Strategy({.world = std::move(world), .balance = balance, .check_replicas_every = 1}) {}
};

std::shared_ptr<World> make_world(const std::shared_ptr<ControlClient>& members,
                                  const std::string& device, bool share_gpus = true) {
  return std::make_shared<World>(WorldOptions{
      .devices = {device},
      .timeout = 60s,
      .cuda = kStrict,
      .share_gpus = share_gpus,
      .links = make_worker_links(
          members, {.timeout = 60s, .prefix = fmt::format("world {}", members->generation())}),
      .membership = members});
}

Sequential worker_cnn() {
  return Sequential({Conv2D({.filters = 6, .kernel_size = 3, .activation = "relu"}),
                     BatchNormalization({.synchronized = true}), MaxPooling2D({.pool_size = 2}),
                     Flatten(), Dense({.units = 16, .activation = "relu"}), Dropout({.rate = 0.2}),
                     Dense({.units = 4})});
}

Sequential compiled(const Strategy& strategy) {
  Sequential model = worker_cnn();
  model.compile({.strategy = strategy,
                 .optimizer = Adam({.learning_rate = 0.01}),
                 .loss = SparseCategoricalCrossentropy({.from_logits = true}),
                 .metrics = {SparseCategoricalAccuracy()},
                 .seed = 5});
  return model;
}

// Batches of 40, the last of 30.
FitOptions fit_options(const Samples& samples, std::vector<CallbackRef> callbacks, int epochs) {
  return {.epochs = epochs,
          .callbacks = std::move(callbacks),
          .batch_size = 40,
          .shuffle = false,
          .sample_weight = samples.weight};
}

std::vector<double> losses_of_fit(Model& model, const Samples& samples, int epochs) {
  LossesOf losses;
  model.fit({samples.x}, samples.y, fit_options(samples, {losses.callback()}, epochs));
  return losses.losses;
}

// The losses of all steps, then what the trained model gives for samples.
std::vector<double> train(const Strategy& strategy) {
  const Samples samples = make_samples(150);
  Sequential model = compiled(strategy);
  std::vector<double> results = losses_of_fit(model, samples, 4);
  const Logs evaluated = model.evaluate({samples.x}, samples.y, {.batch_size = 40});
  results.push_back(evaluated["loss"]);
  results.push_back(evaluated["sparse_categorical_accuracy"]);
  const Tensor rows = model.predict({samples.x}, {.batch_size = 40});
  for (const float value : rows.values<float>()) results.push_back(static_cast<double>(value));
  return results;
}

std::vector<double> train_in_one_process(const std::string& device) {
  const std::vector<std::string> devices = device == "cuda:0"
                                               ? std::vector<std::string>{"cuda:0/0", "cuda:0/1"}
                                               : std::vector<std::string>{"cpu:0", "cpu:1"};
  return train(MirroredStrategy({.devices = devices, .check_replicas_every = 1, .cuda = kStrict}));
}

void expect_close(const std::vector<double>& a, const std::vector<double>& b) {
  ASSERT_EQ(a.size(), b.size());
  ASSERT_FALSE(a.empty());
  for (std::size_t i = 0; i < a.size(); ++i) {
    // What is behind the losses of the steps has gone through all updates.
    const double tolerance = i < 16 ? 1e-5 : 1e-3;
    EXPECT_NEAR(a[i], b[i], tolerance * (1 + std::abs(b[i]))) << "number " << i;
  }
}

// Adds ones over the ranks of the world; what the first element becomes.
float sum_of_ones(World& world, const std::function<void()>& before = {}) {
  Device& device = world.device(0);
  Tensor memory(DType::F32, Shape{1000}, device);
  const std::vector<float> ones(1000, 1.0F);
  device.copy(memory.raw(), reinterpret_cast<const std::byte*>(ones.data()), memory.bytes());
  world.run([&](int local) {
    if (before) before();
    const auto sum = world.communicator(local, kCommunicationStream)
                         ->all_reduce({memory.raw(), memory.bytes()}, DType::F32);
    sum->start();
    sum->finish();
  });
  float result = 0;
  device.copy(reinterpret_cast<std::byte*>(&result), memory.raw(), sizeof(result));
  return result;
}

#define LOCKSTEP_AS_WORKER(place)                                  \
  const std::optional<WorkerPlace> found = WorkerPlace::current(); \
  if (!found) GTEST_SKIP() << "runs within WorkersAlone";          \
  const WorkerPlace& place = *found

// What workers run.

TEST(WorkerBody, Trains) {
  LOCKSTEP_AS_WORKER(place);
  const auto members = place.join();
  const auto world = make_world(members, place.device);
  EXPECT_EQ(world->size(), 2);
  write_numbers(place.folder / std::to_string(place.worker), train(Made(world)));
}

TEST(WorkerBody, SavesAndGoesOnWithAnotherStrategy) {
  LOCKSTEP_AS_WORKER(place);
  const auto members = place.join();
  const auto world = make_world(members, place.device);
  const Samples samples = make_samples(150);
  Sequential whole = compiled(Made(world));
  const std::vector<double> expected = losses_of_fit(whole, samples, 2);
  const std::filesystem::path file = place.folder / "half.safetensors";
  Sequential half = compiled(Made(world));
  half.fit({samples.x}, samples.y, fit_options(samples, {save_and_stop(4, file)}, 2));
  Sequential rest = compiled(Made(world, Balance::Auto));
  LossesOf losses;
  FitOptions options = fit_options(samples, {losses.callback()}, 2);
  options.resume = file.string();
  rest.fit({samples.x}, samples.y, options);
  ASSERT_EQ(losses.losses.size(), expected.size() / 2);
  for (std::size_t i = 0; i < losses.losses.size(); ++i) {
    EXPECT_NEAR(losses.losses[i], expected[expected.size() / 2 + i], 1e-4);
  }
}

// An error on one worker ends the collective in which the other waits; then all connect again, and
// steps that were recorded before are recorded again.
TEST(WorkerBody, GoesOnAfterAnErrorOfOne) {
  LOCKSTEP_AS_WORKER(place);
  const auto members = place.join();
  const auto world = make_world(members, place.device);
  const Samples samples = make_samples(150);
  Sequential model = compiled(Made(world));
  const std::vector<double> before = losses_of_fit(model, samples, 1);
  for (int round = 0; round < 2; ++round) {
    EXPECT_EQ(sum_of_ones(*world), 2.0F);
    const std::string what = message_of<DataError>([&] {
      sum_of_ones(*world, [&] {
        if (place.worker == 1) fail<DataError>("row 7 is bad");
      });
    });
    EXPECT_NE(what.find("row 7 is bad"), std::string::npos) << what;
    EXPECT_NE(what.find("replica 1"), std::string::npos) << what;
  }
  const std::vector<double> after = losses_of_fit(model, samples, 1);
  EXPECT_LT(after.back(), before.front());
}

// The label is in the rows of the second worker; on a GPU it is found when the step has run.
TEST(WorkerBody, TellsAllAboutABadLabelOfOne) {
  LOCKSTEP_AS_WORKER(place);
  const auto members = place.join();
  const auto world = make_world(members, place.device);
  const Samples samples = make_samples(150);
  Samples bad = make_samples(150);
  bad.y.values<std::int32_t>()[79] = 99;
  Sequential model = compiled(Made(world));
  const std::string what = message_of<DataError>([&] { losses_of_fit(model, bad, 1); });
  EXPECT_NE(what.find("99"), std::string::npos) << what;
  const std::vector<double> losses = losses_of_fit(model, samples, 2);
  EXPECT_TRUE(std::isfinite(losses.back()));
}

// The second worker is killed while the first one waits for it, and started again.
TEST(WorkerBody, OutlivesAnother) {
  LOCKSTEP_AS_WORKER(place);
  const auto members = place.join();
  if (place.attempt == 0) {
    const auto world = make_world(members, place.device);
    const Samples samples = make_samples(150);
    Sequential model = compiled(Made(world));
    const CallbackRef kill_second =
        LambdaCallback({.on_batch_end = [&](Model& trained, std::int64_t, const BatchLogs&) {
          if (place.worker == 1 && trained.step() == 3) raise(SIGKILL);
        }});
    const std::string what = message_of<CommError>(
        [&] { model.fit({samples.x}, samples.y, fit_options(samples, {kill_second}, 100)); });
    EXPECT_NE(what.find("worker 1"), std::string::npos) << what;
    EXPECT_TRUE(is_usable(world->device(0)));
    std::ofstream(place.folder / "heard") << what;
  }
  // The world of the first generation is gone, and its communicators with it.
  if (place.attempt == 0) members->rejoin(120s);
  EXPECT_EQ(members->generation(), 2u);
  write_numbers(place.folder / std::to_string(place.worker),
                train(Made(make_world(members, place.device))));
}

// The second worker is gone before the ranks have connected.
TEST(WorkerBody, IsToldOfOneThatNeverConnects) {
  LOCKSTEP_AS_WORKER(place);
  const auto members = place.join();
  const auto world = make_world(members, place.device);
  if (place.worker == 1) raise(SIGKILL);
  const std::string what = message_of<CommError>([&] { sum_of_ones(*world); });
  EXPECT_NE(what.find("worker 1"), std::string::npos) << what;
}

TEST(WorkerBody, IsToldThatAnotherHasTheSameGpu) {
  LOCKSTEP_AS_WORKER(place);
  const auto members = place.join();
  const std::string what =
      message_of<UsageError>([&] { make_world(members, place.device, false); });
  for (const char* part : {"cuda:0 of worker 0", "cuda:0 of worker 1", "the same GPU (GPU-"}) {
    EXPECT_NE(what.find(part), std::string::npos) << what;
  }
}

TEST(WorkerBody, IsToldThatAnotherHasNoGpu) {
  LOCKSTEP_AS_WORKER(place);
  const auto members = place.join();
  const std::string what = message_of<UsageError>(
      [&] { make_world(members, place.worker == 0 ? place.device : "cpu:0"); });
  for (const char* part : {"worker 0 has cuda:0", "worker 1 has cpu:0"}) {
    EXPECT_NE(what.find(part), std::string::npos) << what;
  }
}

TEST(WorkerBody, CannotUseAGpuAfterAnIllegalAccess) {
  LOCKSTEP_AS_WORKER(place);
  const auto device = make_cuda_device(place.device);
  const auto stream = device->make_stream();
  EXPECT_TRUE(is_usable(*device));
  EXPECT_THROW(device->allocate(std::size_t{1} << 50), MemoryError);
  EXPECT_TRUE(is_usable(*device));  // such an error passes
  stream->stamp(reinterpret_cast<std::int64_t*>(0x10));
  EXPECT_THROW(stream->synchronize(), InternalError);
  EXPECT_FALSE(is_usable(*device));
}

// What starts them.

class Job {
 public:
  Job(std::string body, std::string device)
      : body_(std::move(body)), device_(std::move(device)), server_({.workers = 2}) {}

  std::unique_ptr<WorkerProcess> start(int worker, int attempt = 0) {
    const WorkerPlace place{.worker = worker,
                            .workers = 2,
                            .attempt = attempt,
                            .address = server_.address(),
                            .device = device_,
                            .folder = folder_.path()};
    return std::make_unique<WorkerProcess>("/proc/self/exe", "WorkerBody." + body_, worker,
                                           std::pair(std::string(kPlaceVariable), place.text()));
  }
  void expect_success() {
    const auto first = start(0);
    const auto second = start(1);
    first->expect_success();
    second->expect_success();
  }
  std::vector<double> numbers_of(int worker) const {
    return read_numbers(folder_ / std::to_string(worker));
  }
  ControlServer& server() { return server_; }
  std::filesystem::path folder() const { return folder_.path(); }

 private:
  std::string body_;
  std::string device_;
  TemporaryFolder folder_;
  ControlServer server_;
};

class WorkersAlone : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    if (control_version().empty()) GTEST_SKIP() << "this build has no gRPC";
    if (names_cuda(GetParam())) LOCKSTEP_NEEDS_GPU();
  }
};

INSTANTIATE_TEST_SUITE_P(On, WorkersAlone, ::testing::Values("cuda:0", "cpu:0"),
                         [](const auto& info) { return names_cuda(info.param) ? "Gpu" : "Cpu"; });

TEST_P(WorkersAlone, TrainAsReplicasOfOneProcessDo) {
  Job job("Trains", GetParam());
  job.expect_success();
  const std::vector<double> one = train_in_one_process(GetParam());
  expect_close(job.numbers_of(0), one);
  EXPECT_EQ(job.numbers_of(0), job.numbers_of(1));
}

TEST_P(WorkersAlone, SaveAndGoOnWithAnotherStrategy) {
  Job("SavesAndGoesOnWithAnotherStrategy", GetParam()).expect_success();
}

TEST_P(WorkersAlone, GoOnAfterAnErrorOfOne) {
  Job("GoesOnAfterAnErrorOfOne", GetParam()).expect_success();
}

TEST_P(WorkersAlone, AreAllToldAboutABadLabelOfOne) {
  Job("TellsAllAboutABadLabelOfOne", GetParam()).expect_success();
}

TEST_P(WorkersAlone, GoOnWithANewOneAfterOneWasKilled) {
  Job job("OutlivesAnother", GetParam());
  const auto first = job.start(0);
  const auto killed = job.start(1);
  const int status = killed->wait();
  ASSERT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL) << killed->printed();
  while (!std::filesystem::exists(job.folder() / "heard") && first->runs()) {
    std::this_thread::yield();
  }
  job.server().new_generation({0, -1});
  const auto second = job.start(1, 1);
  first->expect_success();
  second->expect_success();
  expect_close(job.numbers_of(0), train_in_one_process(GetParam()));
  EXPECT_EQ(job.numbers_of(0), job.numbers_of(1));
}

TEST_P(WorkersAlone, AreToldOfOneThatNeverConnects) {
  Job job("IsToldOfOneThatNeverConnects", GetParam());
  const auto first = job.start(0);
  const auto killed = job.start(1);
  killed->wait();
  first->expect_success();
}

TEST(GpuWorkersAlone, TwoOnOneGpuAreToldAboutEachOther) {
  LOCKSTEP_NEEDS_GPU();
  Job("IsToldThatAnotherHasTheSameGpu", "cuda:0").expect_success();
}

TEST(GpuWorkersAlone, OneWithoutAGpuIsNamed) {
  LOCKSTEP_NEEDS_GPU();
  Job("IsToldThatAnotherHasNoGpu", "cuda:0").expect_success();
}

TEST(GpuWorkersAlone, AGpuCannotBeUsedAfterAnIllegalAccess) {
  LOCKSTEP_NEEDS_GPU();
  Job job("CannotUseAGpuAfterAnIllegalAccess", "cuda:0");
  job.start(0)->expect_success();
}

// Tests of train, with two workers whose replicas are on one GPU.
TEST(GpuWorkersAlone, RunTheTestsOfReplicas) {
  LOCKSTEP_NEEDS_GPU();
  if (!has_gloo()) GTEST_SKIP() << "this build has no Gloo";
  const std::filesystem::path folder =
      std::filesystem::read_symlink("/proc/self/exe").parent_path();
  const ControlServer server({.workers = 2});
  std::vector<std::unique_ptr<WorkerProcess>> workers;
  for (int worker = 0; worker < 2; ++worker) {
    workers.push_back(std::make_unique<WorkerProcess>(
        (folder / "train_test").string(),
        "Mirrored/EveryNumberOfReplicas.*/0:Mirrored.ClipsByTheNormOfAllReplicasGradients"
        ":CustomLoop.GivesTheLossesOfOneReplicaOnUnevenBatches"
        ":CustomLoop.TrainsTheModelThatItCalls:Workers.WithLambStayEqual"
        ":Workers.WithEveryRuleStayEqual:ShardedVariable.*/0",
        worker,
        std::pair(std::string(kWorkerVariable),
                  fmt::format("{} 2 gloo {} cuda:0", worker, server.address()))));
  }
  for (const auto& worker : workers) worker->expect_success();
}

}  // namespace
}  // namespace lockstep::testing

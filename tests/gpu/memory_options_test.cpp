// Options that save memory and traffic, on a GPU: the optimizer's state in host memory, and
// gradients in 16 bits between replicas.
#include "gpu/gpu.h"
#include "lockstep/lockstep.h"
#include "lockstep/train/model_impl.h"
#include "temporary_folder.h"
#include "train/problem.h"
#include "train/replica_runs.h"

namespace lockstep::testing {
namespace {

// Much arithmetic per parameter, so that the bus keeps up.
Model busy_cnn() {
  return Sequential({Conv2D({.filters = 64, .kernel_size = 3, .activation = "relu"}),
                     Conv2D({.filters = 64, .kernel_size = 3}), BatchNormalization(),
                     Activation("relu"), Conv2D({.filters = 64, .kernel_size = 3}),
                     Activation("relu"), GlobalAveragePooling2D(), Dense({.units = 4})});
}

// `plans` keeps the choices of algorithms, which are measured, for runs that are to have the same
// bits.
CompileOptions busy_options(const std::vector<std::string>& devices, const std::string& offload,
                            const std::string& precision = "float32",
                            const std::string& plans = kept_plans()) {
  CompileOptions options = {
      .strategy = MirroredStrategy({.devices = devices,
                                    .check_replicas_every = 1,
                                    .cuda = {.allow_tf32 = false, .plan_cache = plans}}),
      .optimizer = Adam({.learning_rate = 0.01}),
      .loss = SparseCategoricalCrossentropy({.from_logits = true})};
  options.seed = 5;
  options.precision = precision;
  options.offload = offload;
  return options;
}

struct BusyRun {
  std::vector<double> losses;
  std::vector<std::vector<float>> weights;
  std::vector<Tensor> slots;
  std::size_t resident = 0;
  std::size_t host = 0;
};

BusyRun busy_run(const CompileOptions& options) {
  const Samples samples = make_samples(512, 32);
  Model model = busy_cnn();
  model.compile(options);
  LossesOf seen;
  model.fit(Dataset::from_tensor_slices({samples.x, samples.y}).batch(256),
            {.epochs = 4, .callbacks = {seen.callback()}});
  BusyRun run;
  run.losses = seen.losses;
  run.weights = weights_of(model);
  Session& session = impl_of(model).session();
  for (const VariableRef& variable : options.optimizer.variables()) {
    run.slots.push_back(session.get(variable));
  }
  run.resident = session.resident_bytes();
  run.host = impl_of(model)
                 .plan_of({.mode = StepMode::Train,
                           .inputs = {{DType::F32, {256, 32, 32, 1}}},
                           .labels = {DType::I32, {256}}})
                 .host_bytes;
  return run;
}

TEST(GpuOffload, GivesTheBitsOfStateOnTheDeviceAndTakesLessOfItsMemory) {
  LOCKSTEP_NEEDS_GPU();
  const TemporaryFolder folder;
  const std::string plans = (folder / "plans").string();
  for (const std::vector<std::string>& devices :
       {std::vector<std::string>{"cuda:0"}, std::vector<std::string>{"cuda:0/0", "cuda:0/1"}}) {
    for (const std::string precision : {"float32", "mixed_float16"}) {
      const BusyRun here = busy_run(busy_options(devices, "none", precision, plans));
      const BusyRun away = busy_run(busy_options(devices, "optimizer", precision, plans));
      EXPECT_EQ(here.losses, away.losses) << precision << devices.size();
      EXPECT_EQ(here.weights, away.weights) << precision << devices.size();
      ASSERT_EQ(here.slots.size(), away.slots.size());
      for (std::size_t i = 0; i < here.slots.size(); ++i) {
        EXPECT_TRUE(here.slots[i].same_bits(away.slots[i])) << i;
      }
      EXPECT_EQ(here.host, 0U);
      EXPECT_GT(away.host, 2U * 4 * 64 * 64 * 9);
    }
  }
}

TEST(GpuOffload, ARunResumesBitForBit) {
  LOCKSTEP_NEEDS_GPU();
  const TemporaryFolder folder;
  const Samples samples = make_samples(512, 32);
  const Dataset batches = Dataset::from_tensor_slices({samples.x, samples.y}).batch(256);
  const auto compiled = [&](const std::string& offload) {
    Model model = busy_cnn();
    model.compile(busy_options({"cuda:0"}, offload, "float32", (folder / "plans").string()));
    return model;
  };
  Model straight = compiled("none");
  straight.fit(batches, {.epochs = 3});
  Model stopped = compiled("optimizer");
  stopped.fit(batches, {.epochs = 3, .callbacks = {save_and_stop(3, folder / "file")}});
  Model resumed = compiled("optimizer");
  resumed.fit(batches, {.epochs = 3, .resume = folder / "file"});
  EXPECT_TRUE(same_weights(straight, resumed));
}

// Slots of 256 MiB, of which two buffers of 64 MiB at most are on the device.
TEST(GpuOffload, TheDeviceHasOnlyTheStagingBuffersAsPlanned) {
  LOCKSTEP_NEEDS_GPU();
  const auto resident = [](const std::string& offload) {
    Sequential model({Dense({.units = 4096, .activation = "relu"}), Dense({.units = 4096}),
                      Dense({.units = 4})});
    model.compile(busy_options({"cuda:0"}, offload, "mixed_float16"));
    const std::int64_t batch = 32768;
    Tensor x(DType::F32, {batch, 4096});
    Tensor y(DType::I32, {batch});
    model.fit(Dataset::from_tensor_slices({x, y}).batch(batch), {.epochs = 2});
    Session& session = impl_of(model).session();
    const Plan& plan = impl_of(model).plan_of({.mode = StepMode::Train,
                                               .inputs = {{DType::F32, {batch, 4096}}},
                                               .labels = {DType::I32, {batch}},
                                               .global_batch = batch});
    EXPECT_EQ(bytes_on(session.device(), plan).variables, plan.variable_bytes);
    return session.resident_bytes();
  };
  const std::size_t here = resident("none");
  const std::size_t away = resident("optimizer");
  const std::size_t slots = std::size_t{2} * 2 * 4 * 4096 * 4096;
  EXPECT_LT(away, here - slots / 2);
}

TEST(GpuOffload, IsRefusedWithTheFiguresWhereTheBusWouldBeTheBottleneck) {
  LOCKSTEP_NEEDS_GPU();
  Sequential model({Dense({.units = 4096}), Dense({.units = 4096}), Dense({.units = 4})});
  model.compile(busy_options({"cuda:0"}, "optimizer"));
  const Tensor x(DType::F32, {4, 4096});
  const Tensor y(DType::I32, {4});
  const std::string message = message_of<UsageError>([&] {
    model.fit(Dataset::from_tensor_slices({x, y}).batch(4));
  });
  EXPECT_NE(message.find("would make the bus the bottleneck: "), std::string::npos) << message;
  EXPECT_NE(message.find("GB/s measured each way"), std::string::npos) << message;
}

TEST(GpuGradientsOnTheWire, TrainAsF32DoesAndLikeTheCpu) {
  LOCKSTEP_NEEDS_GPU();
  const Samples samples = make_samples(60);
  const auto run = [&](const std::vector<std::string>& devices, const std::string& dtype) {
    Sequential model({Conv2D({.filters = 8, .kernel_size = 3}), Activation("relu"), Flatten(),
                      Dense({.units = 4})});
    CompileOptions options = busy_options(devices, "none");
    options.gradient_dtype = dtype;
    model.compile(options);
    LossesOf seen;
    model.fit(Dataset::from_tensor_slices({samples.x, samples.y}).batch(20),
              {.epochs = 6, .callbacks = {seen.callback()}});
    return seen.losses;
  };
  const std::vector<std::string> gpus = {"cuda:0/0", "cuda:0/1"};
  const std::vector<double> whole = run(gpus, "float32");
  for (const std::string dtype : {"bfloat16", "float16"}) {
    const std::vector<double> rounded = run(gpus, dtype);
    EXPECT_EQ(rounded, run(gpus, dtype)) << dtype;
    EXPECT_NE(rounded, whole) << dtype;
    const std::vector<double> cpu = run({"cpu:0", "cpu:1"}, dtype);
    ASSERT_EQ(rounded.size(), whole.size());
    for (std::size_t i = 0; i < whole.size(); ++i) {
      EXPECT_NEAR(rounded[i], whole[i], 0.05) << dtype << " " << i;
      EXPECT_NEAR(rounded[i], cpu[i], 0.05) << dtype << " " << i;
    }
  }
}

}  // namespace
}  // namespace lockstep::testing

// The tests of replicas once more, with the replicas in several processes that meet in shared
// memory or over Gloo: every worker runs the same tests, and all expectations hold on each of them.
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <fstream>
#include <iterator>
#include <optional>
#include <sstream>
#include <string>
#include <vector>

#include "lockstep/base/crc32c.h"
#include "lockstep/base/vectorized.h"
#include "lockstep/comm/gloo/gloo_wire.h"
#include "lockstep/train/model_impl.h"
#include "temporary_folder.h"
#include "train/replica_runs.h"
#include "train/worker_processes.h"

namespace lockstep::testing {
namespace {

TEST(OverProcesses, TrainingOnReplicasGivesWhatItGivesInOne) {
  expect_success("Mirrored.*", 2);
}

class OverProcessesOf : public ::testing::TestWithParam<int> {};

TEST_P(OverProcessesOf, SoManyReplicasGiveTheLossesOfOne) {
  expect_success(fmt::format("Mirrored/EveryNumberOfReplicas.*/{}", GetParam() - 2), 2);
}

INSTANTIATE_TEST_SUITE_P(, OverProcessesOf, ::testing::Values(2, 3, 4));

TEST(OverGloo, TrainingOnReplicasGivesWhatItGivesInOne) {
  if (!has_gloo()) GTEST_SKIP() << "this build has no Gloo";
  expect_success(
      "Mirrored.*:Mirrored/EveryNumberOfReplicas.*/1"
      ":CustomLoop.GivesTheLossesOfOneReplicaOnUnevenBatches:CustomLoop.TrainsTheModelThatItCalls"
      ":Workers.AreAllToldOfADeviceThatIsNotThere",
      2, {}, Over::Gloo);
}

// The line that Workers.ShowTheirWeights prints.
std::string weights_in(const std::string& log) {
  const std::size_t begin = log.find("weights ");
  EXPECT_NE(begin, std::string::npos) << log;
  return log.substr(begin, log.find('\n', begin) - begin);
}

TEST(OverGloo, GivesTheBitsOfSharedMemoryForTheSameWorkersAndReplicas) {
  if (!has_gloo()) GTEST_SKIP() << "this build has no Gloo";
  for (const int workers : {2, 3}) {
    const std::string filter = "Workers.ShowTheirWeights";
    const std::vector<std::string> shared = expect_success(filter, workers);
    const std::vector<std::string> gloo = expect_success(filter, workers, {}, Over::Gloo);
    for (std::size_t w = 0; w < shared.size(); ++w) {
      EXPECT_EQ(weights_in(shared[w]), weights_in(shared[0])) << "worker " << w;
      EXPECT_EQ(weights_in(gloo[w]), weights_in(shared[0])) << "worker " << w;
    }
  }
}

TEST(OverProcesses, WorkersThatReadTheirOwnFilesVisitEverySampleOnceAndGoOnAsOne) {
  const TemporaryFolder folder;
  int sample = 0;
  for (const int count : {5, 9, 20}) {
    std::ofstream file(folder / std::to_string(folder.files()));
    file << "x,y\n";
    for (int i = 0; i < count; ++i, ++sample)
      file << sample * 0.1 << "," << sample * sample << "\n";
  }
  setenv("LOCKSTEP_TEST_FOLDER", folder.path().c_str(), 1);
  expect_success("Workers.ReadFilesOfTheirOwn", 2);
  unsetenv("LOCKSTEP_TEST_FOLDER");
}

TEST(OverProcesses, AccumulatingGivesWhatItGivesInOne) {
  expect_success(
      "Accumulate.ReplicasAndUnevenPiecesGiveTheLossesOfOne"
      ":Accumulate.TwoReplicasWithTwoMicroBatchesEqualFourReplicas"
      ":Accumulate.WithBatchNormMicroBatchesEqualReplicasOnTheSamePieces"
      ":Accumulate.WithSynchronisedBatchNormReplicasChangeNothing"
      ":Accumulate.AnOverflowInOneMicroBatchSkipsTheWholeUpdateOnce"
      ":Accumulator.AnyMicroBatchesEqualTheWholeBatchOnAnyNumberOfReplicas",
      2);
}

TEST(OverProcesses, EvaluateAndPredictReadOnlyTheRowsOfEachWorker) {
  expect_success("Workers.EvaluateAndPredictReadOnlyTheirRows", 2);
  expect_success("Workers.EvaluateAndPredictReadOnlyTheirRows", 3);
}

TEST(OverProcesses, ASecondStrategyOfAWorkerIsRefusedWithASentence) {
  expect_success("WorkersByResolver.MakeOneStrategyEach", 2, {}, Over::Gloo);
}

TEST(OverProcesses, AWorkerThatIsSlowerThanTheOthersIsNamed) {
  expect_success("Workers.NameOneThatIsSlower", 2);
}

TEST(OverProcesses, LoopsOfTheUsersOwnGiveWhatTheyGiveInOne) {
  expect_success("CustomLoop.*:ReplicaContext.*:Reduce.*:Distribute.*:StrategyFunction.*", 2);
}

// The same tests in a program whose loops have one version, for the compiler's own instruction set.
const char* const kOneIsaProgram = LOCKSTEP_BINARY_DIR "/bin/train_one_isa";

// Whether a program has versions of loops for other instruction sets: their symbols' names say so.
bool has_versions(const char* program) {
  std::ifstream file(program, std::ios::binary);
  EXPECT_TRUE(file.good()) << program << " is not there";
  const std::string bytes((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  // In two parts, since what stands here is in the program, too.
  const std::string clone = std::string(".arch_") + "x86_64_v";
  const std::string in_namespace = std::string("8lockstep6onednn") + "2v3";
  return bytes.find(clone) != std::string::npos || bytes.find(in_namespace) != std::string::npos;
}

TEST(OverProcesses, TheOtherBuildHasNoVersionsForOtherInstructionSets) {
  if (LOCKSTEP_HAS_VERSIONS) {
    EXPECT_TRUE(has_versions("/proc/self/exe"));
  }
  EXPECT_FALSE(has_versions(kOneIsaProgram));
}

// The second worker has another build, without the vectors and fused multiplications of the first
// one's loops; its C library does without them, too; and oneDNN, an instruction set lower, wants
// weights in other blocks. All agree on layouts that both can use, and what every rank computes for
// itself is the same: replicas are compared bit by bit after every step.
TEST(OverProcesses, WorkersWithOtherInstructionSetsAgree) {
  const bool wide = __builtin_cpu_supports("avx512f");
  expect_success(
      "Mirrored/EveryNumberOfReplicas.GivesTheLosses*/"
      "0:Mirrored.ClipsByTheNormOfAllReplicasGradients"
      ":Workers.WithLambStayEqual:Workers.WithEveryRuleStayEqual",
      2,
      {.path = kOneIsaProgram,
       .environment = {{"ONEDNN_MAX_CPU_ISA", wide ? "AVX2" : "SSE41"},
                       {"GLIBC_TUNABLES", "glibc.cpu.hwcaps=-AVX2,-FMA,-FMA4"}}});
}

TEST(OverProcesses, VariablesInSlicesAreTheSameOverProcesses) {
  expect_success("ShardedVariable.*", 2);
}

TEST(OverProcesses, ShardedStateGivesTheBitsOfReplicas) {
  // Not those that save files: each worker has a temporary folder of its own, and the chief writes.
  expect_success(
      "Sharded.TrainingGives*/1:Sharded.NormsAgree*/2:Sharded.Mixed*/1:Sharded.TinyModels*/1"
      ":Sharded.Loops*/1:Sharded.TheNoise*/1:ShardedAgain.*",
      2);
}

TEST(OverGloo, ShardedStateGivesTheBitsOfReplicas) {
  if (!has_gloo()) GTEST_SKIP() << "this build has no Gloo";
  expect_success("Sharded.TrainingGives*/1:Sharded.NormsAgree*/2:Sharded.Mixed*/1", 2, {},
                 Over::Gloo);
}

TEST(OverProcesses, WorkersThatCannotAgreeAreTold) {
  expect_success("Workers.ThatTrainDifferentModelsAreToldWhichCollectiveDiffers", 2);
}

TEST(OverProcesses, ADeviceThatIsNotThereIsNamedOnAllWorkers) {
  expect_success("Workers.AreAllToldOfADeviceThatIsNotThere", 2);
}

// What follows runs on workers alone.

// Three files of 5, 9 and 20 samples in batches of 8: one worker's files are at their end before
// the other's. With a learning rate of 0, the loss of an epoch is the mean over its samples,
// whatever their order, so it shows whether each was visited once.
TEST(Workers, ReadFilesOfTheirOwn) {
  if (TestWorker::current() == nullptr) GTEST_SKIP() << "runs within OverProcesses";
  const std::filesystem::path folder = std::getenv("LOCKSTEP_TEST_FOLDER");
  const std::vector<std::filesystem::path> files = {folder / "0", folder / "1", folder / "2"};
  constexpr int kSamples = 34;
  const MapFunction as_row = [](const Element& row) -> Element {
    return {row[0].rows(0, 1), row[0].rows(1, 1)};
  };
  const Dataset batches = read_csv(files)
                              .map(as_row)
                              .with_options({.auto_shard_policy = AutoShardPolicy::File})
                              .shuffle(4)
                              .batch(8);
  const auto make = [](const Strategy& strategy) {
    Sequential model({Dense({.units = 1})});
    model.compile({.strategy = strategy,
                   .optimizer = SGD({.learning_rate = 0.0}),
                   .loss = MeanSquaredError(),
                   .seed = 3});
    return model;
  };
  Sequential alone = make(OneDeviceStrategy());
  const double expected = alone.evaluate(batches).at("loss");

  Sequential model = make(mirrored(2));
  const History whole = model.fit(batches, {.epochs = 3});
  EXPECT_EQ(whole.samples, 3 * kSamples);
  for (const double loss : whole.series("loss")) EXPECT_NEAR(loss, expected, 1e-5 * expected);

  // Stopped in the middle of an epoch; one worker goes on with what is left of it.
  Sequential stopped = make(mirrored(2));
  int steps = 0;
  const std::string path = (folder / "stopped.safetensors").string();
  stopped.fit(
      batches,
      {.epochs = 1,
       .callbacks = {ModelCheckpoint({.path = path}),
                     LambdaCallback({.on_batch_end = [&](auto&, auto, auto&) { ++steps; }})},
       .interrupted = [&] { return steps >= 2; }});
  Sequential rest = make(OneDeviceStrategy());
  rest.build({1});
  const History left = rest.fit(batches, {.epochs = 1, .resume = path});
  EXPECT_LT(left.samples, kSamples);
  EXPECT_NEAR(left.series("loss").back(), expected, 1e-5 * expected);
}

// 35 rows in batches of 8, the last one of 3, over three replicas on two or three workers.
TEST(Workers, EvaluateAndPredictReadOnlyTheirRows) {
  if (TestWorker::current() == nullptr) GTEST_SKIP() << "runs within OverProcesses";
  constexpr int kRows = 35;
  std::vector<float> x;
  std::vector<float> y;
  for (int i = 0; i < kRows; ++i) {
    x.push_back(static_cast<float>(i) / kRows);
    y.push_back(static_cast<float>(i % 5));
  }
  std::atomic<int> decoded = 0;
  const Dataset rows =
      Dataset::from_tensor_slices({Tensor::of(x, {kRows, 1}), Tensor::of(y, {kRows, 1})});
  const Dataset batches = rows.map([&](const Element& row) {
                                ++decoded;
                                return row;
                              })
                              .batch(8)
                              .prefetch();
  const auto make = [](const Strategy& strategy) {
    Sequential model({Dense({.units = 1})});
    model.compile({.strategy = strategy,
                   .optimizer = SGD({.learning_rate = 0.0}),
                   .loss = MeanSquaredError(),
                   .seed = 3});
    return model;
  };
  Sequential alone = make(OneDeviceStrategy());
  const double loss = alone.evaluate(batches).at("loss");
  const Tensor outputs = alone.predict(batches);

  const Strategy strategy = mirrored(3);
  const World& world = *impl_of(strategy).world;
  int own = 0;  // rows of this worker
  for (const std::int64_t size : {8, 8, 8, 8, 3}) {
    own += static_cast<int>(
        evenly_split_range(size, world.size(), world.rank(0), world.rank(0) + world.local_size())
            .size());
  }
  Sequential model = make(strategy);
  decoded = 0;
  EXPECT_NEAR(model.evaluate(batches).at("loss"), loss, 1e-5 * loss);
  EXPECT_EQ(decoded.exchange(0), own);
  const auto expect_outputs = [&] {
    const Tensor all = model.predict(batches);
    ASSERT_EQ(all.shape(), outputs.shape());
    for (std::int64_t i = 0; i < all.elements(); ++i) {
      EXPECT_NEAR(all.values<float>()[static_cast<std::size_t>(i)],
                  outputs.values<float>()[static_cast<std::size_t>(i)], 1e-5)
          << i;
    }
    EXPECT_EQ(decoded.exchange(0), own);
  };
  expect_outputs();
  model.fit(rows.batch(8), {.epochs = 1, .validation_data = batches});
  // The first validation batch is evaluated once more, before training.
  const int first = static_cast<int>(
      evenly_split_range(8, world.size(), world.rank(0), world.rank(0) + world.local_size())
          .size());
  EXPECT_GE(decoded.load(), own + first);
  EXPECT_LT(decoded.exchange(0), 2 * own + 1);
  // As if no more rows fitted into memory: some workers have none in a group of rows.
  impl_of(model).most_rows = 3;
  expect_outputs();
  EXPECT_NEAR(model.evaluate(batches).at("loss"), loss, 1e-5 * loss);
}

// As in kWorkerVariable.
class TestResolver final : public ClusterResolver {
 public:
  std::string name() const override { return "a test"; }
  std::optional<ClusterSpec> resolve() const override {
    ClusterSpec spec{.started_by = name()};
    std::string over;
    std::istringstream(std::getenv(kWorkerVariable)) >> spec.worker >> spec.workers >> over >>
        spec.control_address;
    spec.role = spec.worker == 0 ? Role::Chief : Role::Worker;
    spec.local_worker = spec.worker;
    spec.local_workers = spec.workers;
    return spec;
  }
};

TEST(WorkersByResolver, MakeOneStrategyEach) {
  if (std::getenv(kWorkerVariable) == nullptr) GTEST_SKIP() << "runs within OverProcesses";
  const MultiWorkerOptions options{.resolver = std::make_shared<TestResolver>(),
                                   .devices = {"cpu:0"}};
  const MultiWorkerMirroredStrategy first(options);
  EXPECT_EQ(first.num_replicas_in_sync(), 2);
  try {
    const MultiWorkerMirroredStrategy second(options);
    ADD_FAILURE() << "a process is two workers";
  } catch (const UsageError& error) {
    EXPECT_NE(
        std::string(error.what()).find("this process already has a MultiWorkerMirroredStrategy"),
        std::string::npos)
        << error.what();
  }
  const MirroredStrategy other(DeviceNames{"cpu:0"});  // of one process: that is another matter
}

// Worker 1 has many times as much to do for its rows.
TEST(Workers, NameOneThatIsSlower) {
  if (TestWorker::current() == nullptr) GTEST_SKIP() << "runs within OverProcesses";
  const bool slow = TestWorker::current()->process() == 1;
  const Samples samples = make_samples(64);
  std::atomic<std::uint64_t> result = 0;
  const Dataset batches = Dataset::from_tensor_slices({samples.x, samples.y})
                              .map([&](const Element& row) {
                                std::uint64_t number = 1;
                                for (int i = 0; slow && i < 1'000'000; ++i) {
                                  number = number * 6364136223846793005U + 1442695040888963407U;
                                }
                                result += number;
                                return row;
                              })
                              .batch(8);
  Sequential model({Flatten(), Dense({.units = 4})});
  model.compile({.strategy = mirrored(2),
                 .optimizer = SGD(),
                 .loss = SparseCategoricalCrossentropy({.from_logits = true}),
                 .seed = 5});
  std::ostringstream shown;
  const History history = model.fit(batches, {.epochs = 8, .callbacks = {ProgressBar(shown)}});
  ASSERT_EQ(history.slow_workers.size(), 1U);
  EXPECT_EQ(history.slow_workers.front().worker, 1);
  EXPECT_GT(history.slow_workers.front().times, 1.1);
  EXPECT_NE(history.report().find("worker 1 was "), std::string::npos) << history.report();
  if (!slow) {
    EXPECT_NE(shown.str().find("worker 1 is "), std::string::npos) << shown.str();
  }
}

TEST(Workers, AreAllToldOfADeviceThatIsNotThere) {
  if (TestWorker::current() == nullptr) GTEST_SKIP() << "runs within OverProcesses";
  const std::string mine = TestWorker::current()->process() == 1 ? "cpu:7" : "cpu:0";
  try {
    mirrored(2, {.devices = {mine}});
    FAIL() << "a world was made with a device that is not there";
  } catch (const UsageError& error) {
    const std::string message = error.what();
    EXPECT_NE(message.find("[worker 1] [strategy] there is no device cpu:7"), std::string::npos)
        << message;
  }
  EXPECT_EQ(mirrored(2).num_replicas_in_sync(), 2);  // the workers still meet
}

// Four replicas, on two or three workers.
TEST(Workers, ShowTheirWeights) {
  if (TestWorker::current() == nullptr) GTEST_SKIP() << "runs within OverGloo";
  const Samples samples = make_samples(54);
  Sequential model({Conv2D({.filters = 8, .kernel_size = 3}),
                    BatchNormalization({.synchronized = true}), Activation("relu"), Flatten(),
                    Dropout({.rate = 0.2}), Dense({.units = 4})});
  model.compile({.strategy = mirrored(4),
                 .optimizer = Adam(),
                 .loss = SparseCategoricalCrossentropy({.from_logits = true}),
                 .seed = 5});
  model.fit(Dataset::from_tensor_slices({samples.x, samples.y}).batch(13), {.epochs = 3});
  std::string bytes;
  for (const std::vector<float>& weights : weights_of(model)) {
    bytes.append(reinterpret_cast<const char*>(weights.data()), weights.size() * sizeof(float));
  }
  std::printf("weights %08x\n", crc32c(bytes));
}

// Convolutions, and both kinds of batch norm.
Model norm_model() {
  return Sequential({Conv2D({.filters = 16, .kernel_size = 3}),
                     BatchNormalization({.synchronized = true}), Activation("relu"),
                     Conv2D({.filters = 16, .kernel_size = 3}), BatchNormalization(),
                     MaxPooling2D({.pool_size = 2}), Flatten(), Dense({.units = 4})});
}

std::vector<double> losses_of(Model model, const Strategy& strategy, const Optimizer& optimizer,
                              std::int64_t epochs) {
  const Samples samples = make_samples(40);
  model.compile({.strategy = strategy,
                 .optimizer = optimizer,
                 .loss = SparseCategoricalCrossentropy({.from_logits = true})});
  LossesOf seen;
  model.fit(Dataset::from_tensor_slices({samples.x, samples.y}).batch(16),
            {.epochs = epochs, .callbacks = {seen.callback()}});
  return seen.losses;
}

TEST(Workers, WithLambStayEqual) {
  if (TestWorker::current() == nullptr) GTEST_SKIP() << "runs within OverProcesses";
  const auto lamb = [] {
    return LAMB({.learning_rate = CosineDecay({.initial_learning_rate = 0.01, .decay_steps = 12}),
                 .global_clipnorm = 0.5});
  };
  const std::vector<double> together = losses_of(norm_model(), mirrored(2), lamb(), 4);
  EXPECT_LT(together.back(), together.front());
  // As many replicas in this process alone.
  const Strategy here = MirroredStrategy({.devices = {"cpu:0", "cpu:1"}});
  const std::vector<double> alone = losses_of(norm_model(), here, lamb(), 4);
  ASSERT_EQ(together.size(), alone.size());
  for (std::size_t step = 0; step < alone.size(); ++step) {
    EXPECT_NEAR(together[step], alone[step], 1e-4) << "step " << step;
  }
}

TEST(Workers, WithEveryRuleStayEqual) {
  if (TestWorker::current() == nullptr) GTEST_SKIP() << "runs within OverProcesses";
  const Optimizer rules[] = {
      SGD({.learning_rate = 0.01, .momentum = 0.9, .nesterov = true, .weight_decay = 1e-3}),
      AdamW({.learning_rate = 0.003, .clipnorm = 0.1}),
      RMSprop({.learning_rate = 0.001, .momentum = 0.5, .centered = true}),
      Adagrad({.learning_rate = 0.01, .clipvalue = 0.01}), LARS({.learning_rate = 0.1})};
  for (const Optimizer& rule : rules) losses_of(norm_model(), mirrored(2), rule, 2);
}

TEST(Workers, ThatTrainDifferentModelsAreToldWhichCollectiveDiffers) {
  if (TestWorker::current() == nullptr) GTEST_SKIP() << "runs within OverProcesses";
  const Samples samples = make_samples(16);
  const std::int64_t units = 8 + TestWorker::current()->process();
  Sequential model({Flatten(), Dense({.units = units, .name = "hidden"}), Dense({.units = 4})});
  model.compile({.strategy = mirrored(2),
                 .optimizer = SGD(),
                 .loss = SparseCategoricalCrossentropy({.from_logits = true})});
  try {
    model.fit(Dataset::from_tensor_slices({samples.x, samples.y}).batch(16));
    FAIL() << "workers with different models trained together";
  } catch (const UsageError& error) {
    const std::string message = error.what();
    for (const char* part : {"replica 0 (cpu:0 of worker 0)", "replica 1 (cpu:1 of worker 1)",
                             "all_reduce", "hidden/kernel"}) {
      EXPECT_NE(message.find(part), std::string::npos) << part << " in: " << message;
    }
  }
}

}  // namespace
}  // namespace lockstep::testing

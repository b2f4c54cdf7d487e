// The program's flags, exit codes and JSON are a contract: other people's scripts rely on them.
#include <gtest/gtest.h>

#include <filesystem>

#include "cli/expect.h"
#include "data/image_files.h"
#include "lockstep/data/sources/example.h"
#include "lockstep/data/sources/tfrecord.h"

namespace lockstep {
namespace {

double sum_of(const nlohmann::json& attribution) {
  double sum = 0;
  for (const char* part :
       {"compute", "communication", "input", "wait", "host", "start", "validation", "checkpoint"}) {
    sum += attribution.at(part).get<double>();
  }
  return sum;
}

TEST(Cli, WrongFlagsGetOneLineAndCodeTwo) {
  const Program program;
  expect_wrong_use(
      program, "",
      "train, evaluate, explain, predict, plot, find-lr, bench, plan, devices, launch, "
      "scale");
  expect_wrong_use(program, "levitate", "levitate");
  expect_wrong_use(program, "train --frobnicate", "--frobnicate");
  expect_wrong_use(program, "train --epochs many", "--epochs");
  expect_wrong_use(program, "train --model transmogrifier --data synthetic", "transmogrifier");
  expect_wrong_use(program, "train --data synthetic --optimizer sorcery", "sorcery");
  expect_wrong_use(program, "bench --batch-per-replica 0", "--batch-per-replica");
  expect_wrong_use(program, "bench --devices cuda:0", "cuda:0");
  expect_wrong_use(program, "bench --replicas 0", "--replicas");
  expect_wrong_use(program, "bench --replicas 1,2 --global-batch 64", "--global-batch 64");
  expect_wrong_use(program, "bench --replicas 3 --devices cpu:0,cpu:1", "--replicas 3");
  expect_wrong_use(program, "bench --replicas 2 --strategy one-device", "one-device");
  expect_wrong_use(program, "train --replicas 1,2 --data synthetic", "--replicas 1,2");
  expect_wrong_use(program, "train --data synthetic --balance heavy", "--balance heavy");
  expect_wrong_use(program, "train --data synthetic --learning-rate-scaling cubic", "cubic");
  expect_wrong_use(program, "bench --cores 100000", "--cores");
  expect_wrong_use(program, "bench --precision float16", "mixed_float16, mixed_bfloat16");
  expect_wrong_use(program, "bench --global-batch 32 --batch-per-replica 16", "--global-batch 32");
}

TEST(Cli, HelpAndVersionSucceed) {
  const Program program;
  for (const char* arguments : {"--help", "train --help", "bench --help", "plan --help"}) {
    const Outcome outcome = program.run(arguments);
    EXPECT_EQ(outcome.code, 0) << arguments;
    EXPECT_TRUE(outcome.err.empty()) << arguments;
    EXPECT_FALSE(outcome.out.empty()) << arguments;
  }
  EXPECT_EQ(program.run("--version").code, 0);
}

TEST(Cli, DevicesListsTheCpuAndSaysWhyBackendsAreMissing) {
  const Program program;
  const Outcome outcome = program.run("devices --json -");
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  const auto json = outcome.json();
  const auto& device = json.at("devices").at(0);
  EXPECT_EQ(device.at("name"), "cpu:0");
  EXPECT_EQ(device.at("kind"), "cpu");
  EXPECT_GE(device.at("cores").get<int>(), 1);
  EXPECT_GT(device.at("memory_bytes").get<std::int64_t>(), 0);
  for (const auto& missing : json.at("missing")) {
    EXPECT_FALSE(missing.at("backend").get<std::string>().empty());
    EXPECT_FALSE(missing.at("why").get<std::string>().empty());
  }
}

TEST(Cli, DevicesNamesADriverThatIsTooOld) {
  const std::filesystem::path old_driver = LOCKSTEP_BINARY_DIR "/old_driver";
  if (!std::filesystem::exists(old_driver)) GTEST_SKIP() << "built without CUDA";
  const Program program;
  const Outcome outcome =
      program.run("devices --json -", "LD_LIBRARY_PATH='" + old_driver.string() + "'");
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  const auto json = outcome.json();
  const auto& missing = json.at("missing");
  const auto cuda =
      std::ranges::find_if(missing, [](const auto& each) { return each.at("backend") == "cuda"; });
  ASSERT_NE(cuda, missing.end());
  const std::string why = cuda->at("why").template get<std::string>();
  EXPECT_NE(why.find("the NVIDIA driver is for CUDA 12.4"), std::string::npos) << why;
  EXPECT_NE(why.find("install a newer driver"), std::string::npos) << why;
}

TEST(Cli, Tf32IsTheDefaultAndAFlagTurnsItOff) {
  const Program program;
  EXPECT_EQ(program.run("bench --model mlp --steps 5 --no-tf32").code, 0);
  EXPECT_EQ(program.run("bench --model mlp --steps 5 --tf32").code, 2);
}

TEST(Cli, BenchPrintsOneJsonObject) {
  const Program program;
  const Outcome outcome =
      program.run("bench --model mlp --batch-per-replica 8 --steps 5 --ops --json -");
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  const auto json = outcome.json();
  EXPECT_EQ(json.at("model"), "mlp");
  EXPECT_EQ(json.at("batch_per_replica"), 8);
  const auto& result = json.at("results").at(0);
  EXPECT_EQ(result.at("replicas"), 1);
  EXPECT_GT(result.at("step_ms").get<double>(), 0);
  EXPECT_NEAR(result.at("samples_per_s").get<double>() * result.at("step_ms").get<double>(), 8e3,
              1);
  EXPECT_EQ(result.at("efficiency"), 1.0);
  EXPECT_GT(result.at("peak_bytes").get<std::int64_t>(), 784 * 128 * 4 * 3);  // weights, m and v
  EXPECT_NEAR(sum_of(result.at("attribution")), 1.0, 1e-6);
  EXPECT_FALSE(result.at("ops").empty());
}

// One and two replicas, with their ops and a trace of the run with two.
nlohmann::json bench_one_and_two(const Program& program) {
  const Outcome outcome = program.run(
      "bench --model lenet --batch-per-replica 4 --steps 5 --replicas 1,2 --ops --json - --trace "
      "trace.json");
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  return outcome.json();
}

TEST(Cli, BenchComparesReplicaCounts) {
  const Program program;
  const auto json = bench_one_and_two(program);
  EXPECT_EQ(json.at("batch_per_replica"), 4);
  ASSERT_EQ(json.at("results").size(), 2u);
  const auto& one = json.at("results").at(0);
  const auto& two = json.at("results").at(1);
  EXPECT_EQ(one.at("efficiency"), 1.0);
  EXPECT_EQ(two.at("replicas"), 2);
  EXPECT_GT(two.at("efficiency").get<double>(), 0);
  EXPECT_FALSE(one.contains("cores_at_once"));
  EXPECT_GT(two.at("cores_at_once").get<double>(), 0);
  if (std::filesystem::exists("/proc/thread-self/schedstat")) {
    ASSERT_EQ(two.at("run_queue_delay").size(), 2u);
    for (const auto& share : two.at("run_queue_delay")) EXPECT_GE(share.get<double>(), 0);
  }
  ASSERT_EQ(two.at("by_replica").size(), 2u);
  for (const auto& replica : two.at("by_replica")) EXPECT_NEAR(sum_of(replica), 1.0, 0.02);
  const std::string trace = program.text("trace.json");
  for (const char* track : {"replica 0", "replica 1", "replica 1 communication"}) {
    EXPECT_NE(trace.find(track), std::string::npos) << track;
  }
}

// The median span, in microseconds, of an op with a single node, on the first track.
double median_span(const nlohmann::json& trace, const std::string& op) {
  std::vector<double> times;
  for (const auto& event : trace.at("traceEvents")) {
    const std::string name = event.at("name");
    if (event.at("ph") != "X" || event.at("tid") != 0 || !name.starts_with(op + " ")) continue;
    times.push_back(event.at("dur"));
  }
  std::ranges::sort(times);
  const std::size_t half = times.size() / 2;
  return times.size() % 2 == 1 ? times[half] : (times.at(half) + times.at(half - 1)) / 2;
}

// The trace also holds spans of collectives and of waiting for the other replica.
TEST(Cli, BenchShowsTheTimeOfEachOpWithSeveralReplicas) {
  const Program program;
  const auto json = bench_one_and_two(program);
  EXPECT_FALSE(json.at("results").at(0).at("ops").empty());
  const auto trace = nlohmann::json::parse(program.text("trace.json"));
  int compared = 0;
  for (const auto& row : json.at("results").at(1).at("ops")) {
    const std::string op = row.at("op");
    if (op != "conv2d_grad_input" && op != "sparse_cross_entropy") continue;
    ASSERT_EQ(row.at("calls"), 1) << op;
    EXPECT_NEAR(row.at("ms").get<double>() * 1e3, median_span(trace, op), 1e-6) << op;
    ++compared;
  }
  EXPECT_EQ(compared, 2);
}

TEST(Cli, TrainsOnSeveralReplicas) {
  const Program program;
  const Outcome outcome = program.run(
      "train --model mlp --data synthetic --epochs 1 --steps 6 --batch-per-replica 8 --replicas 2 "
      "--learning-rate-scaling linear --warm-up-epochs 1 --run-dir run --json result.json");
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_NE(outcome.out.find("global batch 16 = 2 replicas × 8"), std::string::npos) << outcome.out;
  EXPECT_NE(outcome.out.find("0.002 (2 × 0.001"), std::string::npos) << outcome.out;
  const auto json = nlohmann::json::parse(program.text("result.json"));
  EXPECT_EQ(json.at("strategy"), "mirrored");
  EXPECT_EQ(json.at("devices"), nlohmann::json::array({"cpu:0", "cpu:1"}));
  EXPECT_EQ(json.at("replicas"), 2);
  EXPECT_EQ(json.at("global_batch"), 16);
  ASSERT_EQ(json.at("by_replica").size(), 2u);
  EXPECT_EQ(json.at("by_replica").at(1).at("samples"), 48);
}

TEST(Cli, PlanShowsEveryInstructionWithItsMemoryAndTheTotals) {
  const Program program;
  const Outcome text = program.run("plan --model mlp --batch 16");
  ASSERT_EQ(text.code, 0) << text.err;
  for (const char* word : {"matmul", "update", "arena offset", "peak memory", "GFLOP"}) {
    EXPECT_NE(text.out.find(word), std::string::npos) << word;
  }
  const Outcome outcome = program.run("plan --model mlp --batch 16 --json -");
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  const auto json = outcome.json();
  EXPECT_EQ(json.at("peak_bytes").get<std::int64_t>(),
            json.at("arena_bytes").get<std::int64_t>() +
                json.at("input_output_bytes").get<std::int64_t>() +
                json.at("variable_bytes").get<std::int64_t>() +
                json.at("constant_bytes").get<std::int64_t>());
  EXPECT_FALSE(json.at("steps").empty());
  ASSERT_EQ(json.at("devices").size(), 1u);
  const auto& device = json.at("devices").at(0);
  EXPECT_EQ(device.at("resident_bytes"), json.at("peak_bytes"));
  EXPECT_GT(device.at("memory_bytes").get<std::int64_t>(), 0);
  EXPECT_EQ(device.at("fits"), true);
  EXPECT_EQ(json.at("fits"), true);
}

TEST(Cli, WhatFitsNowhereIsPlannedAndSaidNotToFit) {
  const Program program;
  const Outcome text = program.run("plan --model lenet --batch 100000000");
  ASSERT_EQ(text.code, 0) << text.err;
  EXPECT_NE(text.out.find("does not fit"), std::string::npos) << text.out;
  const Outcome outcome =
      program.run("plan --model resnet50 --batch 100000 --devices cpu:0,cpu:1 --json -");
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  const auto json = outcome.json();
  ASSERT_EQ(json.at("devices").size(), 2u);
  EXPECT_GT(json.at("devices").at(1).at("resident_bytes").get<double>(), 1e12);
  EXPECT_EQ(json.at("fits"), false);
}

TEST(Cli, PlanSaysWhatIsComputedAgainAndWhatThatSaves) {
  const Program program;
  const std::string plan = "plan --model resnet18 --batch 8 --recompute ";
  const auto whole = program.run(plan + "none --json -").json().at("peak_bytes").get<std::size_t>();
  const std::size_t budget = whole * 3 / 4;
  const Outcome outcome = program.run(plan + std::to_string(budget) + " --json -");
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  const auto json = outcome.json();
  EXPECT_EQ(json.at("recompute").at("peak_bytes_before"), whole);
  EXPECT_LE(json.at("peak_bytes").get<std::size_t>(), budget);
  EXPECT_GT(json.at("recompute").at("nodes").at("batch_norm").get<int>(), 0);
  const Outcome text = program.run(plan + "blocks");
  EXPECT_NE(text.out.find("computed again: "), std::string::npos) << text.out;
  EXPECT_NE(text.out.find(".again"), std::string::npos) << text.out;
  const Outcome refused = program.run(plan + "1MiB");
  EXPECT_NE(refused.code, 0);
  EXPECT_NE(refused.err.find("it needs"), std::string::npos) << refused.err;
}

TEST(Cli, TrainsBenchesAndPlansInMixedPrecision) {
  const Program program;
  const Outcome outcome = program.run(
      "train --model lenet --data synthetic --steps 3 --batch-per-replica 8 --run-dir run "
      "--precision mixed_float16 --json result.json");
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_NE(outcome.out.find(", mixed_float16, "), std::string::npos) << outcome.out;
  const auto json = nlohmann::json::parse(program.text("result.json"));
  EXPECT_EQ(json.at("precision"), "mixed_float16");
  EXPECT_EQ(json.at("loss_scale"), 32768.0);
  EXPECT_EQ(json.at("overflowed_steps"), 0);

  const Outcome bench =
      program.run("bench --model mlp --steps 3 --precision mixed_bfloat16 --json -");
  ASSERT_EQ(bench.code, 0) << bench.err;
  EXPECT_EQ(bench.json().at("precision"), "mixed_bfloat16");
  const Outcome plan = program.run("plan --model mlp --batch 16 --precision mixed_bfloat16");
  EXPECT_NE(plan.out.find("bf16("), std::string::npos) << plan.out;
}

TEST(Cli, TrainWritesItsResultAndACheckpoint) {
  const Program program;
  const Outcome outcome = program.run(
      "train --model mlp --data synthetic --epochs 2 --steps 4 --batch-per-replica 8 "
      "--run-dir run --json result.json --trace trace.json");
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  const auto json = nlohmann::json::parse(program.text("result.json"));
  EXPECT_EQ(json.at("model"), "mlp");
  EXPECT_TRUE(json.at("strategy").is_string());
  EXPECT_EQ(json.at("devices"), nlohmann::json::array({"cpu:0"}));
  EXPECT_EQ(json.at("replicas"), 1);
  EXPECT_EQ(json.at("global_batch"), 8);
  EXPECT_EQ(json.at("precision"), "float32");
  EXPECT_EQ(json.at("steps"), 8);
  EXPECT_GT(json.at("seconds").get<double>(), 0);
  ASSERT_EQ(json.at("epochs").size(), 2u);
  const auto& epoch = json.at("epochs").at(1);
  EXPECT_EQ(epoch.at("epoch"), 1);
  EXPECT_TRUE(epoch.at("loss").is_number());
  EXPECT_TRUE(epoch.at("metrics").at("accuracy").is_number());
  EXPECT_TRUE(epoch.at("val_loss").is_number());
  EXPECT_TRUE(epoch.at("val_metrics").at("accuracy").is_number());
  EXPECT_GT(epoch.at("samples_per_s").get<double>(), 0);
  EXPECT_GT(json.at("step_ms").at("median").get<double>(), 0);
  EXPECT_GE(json.at("step_ms").at("p99").get<double>(),
            json.at("step_ms").at("median").get<double>());
  EXPECT_GT(json.at("peak_bytes").get<std::int64_t>(), 0);
  EXPECT_NEAR(sum_of(json.at("attribution")), 1.0, 1e-6);
  EXPECT_TRUE(std::filesystem::exists(program.folder() / json.at("checkpoint").get<std::string>()));
  EXPECT_FALSE(nlohmann::json::parse(program.text("trace.json")).empty());
}

TEST(Cli, TheTimeOfEveryReplicaHasEightParts) {
  const std::vector<std::string> parts = {"compute", "communication", "input",      "wait",
                                          "host",    "start",         "validation", "checkpoint"};
  const Program program;
  const Outcome outcome = program.run(
      "train --model mlp --data synthetic --steps 4 --batch-per-replica 8 --replicas 2 --run-dir "
      "run --json -");
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  const auto expect_parts = [&](const nlohmann::json& attribution) {
    EXPECT_EQ(attribution.size(), parts.size()) << attribution;
    for (const std::string& part : parts) EXPECT_TRUE(attribution.contains(part)) << part;
    EXPECT_NEAR(sum_of(attribution), 1.0, 1e-6);
  };
  const auto json = outcome.json();
  expect_parts(json.at("attribution"));
  ASSERT_EQ(json.at("by_replica").size(), 2u);
  for (const auto& replica : json.at("by_replica")) expect_parts(replica.at("attribution"));
  // The table of the report names exactly these, in this order.
  std::istringstream report(outcome.err.substr(outcome.err.find("  replica ")));
  std::vector<std::string> head(parts.size() + 2);
  for (std::string& word : head) report >> word;
  EXPECT_EQ(head.front(), "replica");
  EXPECT_EQ(std::vector(head.begin() + 1, head.end() - 1), parts);
  EXPECT_EQ(head.back(), "samples");
}

TEST(Cli, AResumedRunEndsWhereAnUninterruptedOneDoes) {
  const Program program;
  const std::string common =
      "train --model mlp --data synthetic --steps 4 --batch-per-replica 8 --json -";
  const Outcome whole = program.run(common + " --epochs 3 --run-dir whole");
  const Outcome first = program.run(common + " --epochs 1 --run-dir parts");
  const Outcome rest = program.run(common + " --epochs 3 --resume parts");
  ASSERT_EQ(whole.code, 0) << whole.err;
  ASSERT_EQ(first.code, 0) << first.err;
  ASSERT_EQ(rest.code, 0) << rest.err;
  ASSERT_EQ(rest.json().at("epochs").size(), 2u);
  EXPECT_EQ(rest.json().at("epochs").back().at("loss"),
            whole.json().at("epochs").back().at("loss"));
  EXPECT_EQ(rest.json().at("epochs").back().at("val_loss"),
            whole.json().at("epochs").back().at("val_loss"));
}

TEST(Cli, TheSeedDecidesTheRun) {
  const Program program;
  const std::string common =
      "train --model mlp --data synthetic --steps 4 --batch-per-replica 8 --epochs 1 --json - ";
  const auto loss = [&](const std::string& seed) {
    return program.run(common + seed).json().at("epochs").at(0).at("loss").get<double>();
  };
  EXPECT_EQ(loss("--seed 3"), loss("--seed 3"));
  EXPECT_NE(loss("--seed 3"), loss("--seed 4"));
}

TEST(Cli, RunsAreStoredUnderRunsWithALinkToTheLast) {
  const Program program;
  const Outcome outcome =
      program.run("train --model mlp --data synthetic --steps 2 --epochs 1 --batch-per-replica 8");
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_TRUE(std::filesystem::is_symlink(program.folder() / "runs/last"));
  EXPECT_TRUE(std::filesystem::is_directory(program.folder() / "runs/last"));
  EXPECT_NE(outcome.out.find("checkpoint"), std::string::npos) << outcome.out;
}

TEST(Cli, WrongFilesGetOneLineAndLeaveNothingBehind) {
  const Program program;
  std::filesystem::create_directory(program.folder() / "empty");
  std::ofstream(program.folder() / "not-a-folder") << "text";
  std::ofstream(program.folder() / "foreign.safetensors") << "this is no checkpoint";
  const std::string synthetic = "train --model mlp --data synthetic --steps 1 --run-dir run ";
  expect_wrong_use(program, "train --run-dir run --data nowhere", "nowhere");
  expect_wrong_use(program, "train --run-dir run --data not-a-folder", "not-a-folder");
  expect_wrong_use(program, "train --run-dir run --data empty", "empty");
  expect_wrong_use(program, synthetic + "--resume nowhere", "nowhere");
  expect_wrong_use(program, synthetic + "--resume foreign.safetensors", "foreign.safetensors");
  EXPECT_FALSE(std::filesystem::exists(program.folder() / "run"));
  expect_wrong_use(program, "devices --json missing/folder/file.json", "missing/folder");
}

void write_file(const std::filesystem::path& file, const Bytes& bytes) {
  std::filesystem::create_directories(file.parent_path());
  std::ofstream(file, std::ios::binary)
      .write(reinterpret_cast<const char*>(bytes.data()),
             static_cast<std::streamsize>(bytes.size()));
}

TEST(Cli, TrainRecognisesFoldersByTheirContents) {
  const Program program;
  // CIFAR-10: each record is a label and 3072 bytes.
  std::string records;
  for (int i = 0; i < 4; ++i) {
    records += static_cast<char>(i);
    records.append(3072, static_cast<char>(20 * i));
  }
  std::filesystem::create_directory(program.folder() / "cifar");
  for (const char* name : {"data_batch_1.bin", "data_batch_2.bin", "data_batch_3.bin",
                           "data_batch_4.bin", "data_batch_5.bin", "test_batch.bin"}) {
    std::ofstream(program.folder() / "cifar" / name, std::ios::binary) << records;
  }
  const Bytes picture = make_jpeg(40, 32);
  for (int i = 0; i < 10; ++i) {
    for (const char* kind : {"cat", "dog"}) {
      write_file(program.folder() / "photos" / kind / (std::to_string(i) + ".jpg"), picture);
    }
  }
  std::filesystem::create_directory(program.folder() / "records");
  for (const char* name : {"train-0.tfrecord", "train-1.tfrecord", "validation-0.tfrecord"}) {
    std::string file;
    for (std::int64_t i = 0; i < 6; ++i) {
      const std::string encoded(reinterpret_cast<const char*>(picture.data()), picture.size());
      append_tfrecord(file, serialize_example({{"image/encoded", encoded},
                                               {"image/class/label", std::vector{i % 3}}}));
    }
    std::ofstream(program.folder() / "records" / name, std::ios::binary) << file;
  }

  const auto epoch_of = [&](const std::string& data, const std::string& mention) {
    const Outcome outcome =
        program.run("train --model mlp --batch-per-replica 4 --epochs 1 --data " + data +
                    " --run-dir run-" + data + " --json -");
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    EXPECT_NE(outcome.err.find(mention), std::string::npos) << outcome.err;
    return outcome.code == 0 ? outcome.json().at("steps").get<int>() : 0;
  };
  EXPECT_EQ(epoch_of("cifar", "20 training and 4 test samples of shape (32, 32, 3)"), 5);
  EXPECT_EQ(epoch_of("photos", "18 training and 2 test samples"), 5);
  EXPECT_EQ(epoch_of("records", "12 training and 6 test samples"), 3);
}

}  // namespace
}  // namespace lockstep

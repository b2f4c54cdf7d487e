// A run's record, and resuming from it: nothing else is needed, and no change goes unnoticed.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>

#include "cli/expect.h"
#include "cli/idx_files.h"

namespace lockstep {
namespace {

const std::string kShort = "train --model mlp --data synthetic --steps 4 --batch-per-replica 8 ";

TEST(RunRecord, HoldsTheOptionsTheRunWasStartedWith) {
  const Program program;
  const Outcome outcome = program.run(kShort + "--seed 3 --learning-rate 0.002 --run-dir run");
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  const auto record = parsed(program, "run/run.json");
  const auto& options = record.at("options");
  EXPECT_EQ(options.at("model"), "mlp");
  EXPECT_EQ(options.at("seed"), 3);
  EXPECT_EQ(options.at("learning_rate"), 0.002);
  EXPECT_EQ(options.at("global_batch"), 8);
  EXPECT_EQ(options.at("epochs"), 1);
  EXPECT_EQ(options.at("precision"), "float32");
  EXPECT_EQ(record.at("effective").at("optimizer"), "adam");
  EXPECT_EQ(record.at("data").at("train_samples"), 128);
  EXPECT_EQ(record.at("data").at("class_names").size(), 10u);
  EXPECT_FALSE(record.at("program").at("version").get<std::string>().empty());
  const auto& libraries = record.at("program").at("libraries");
  for (const char* name : {"oneDNN", "CUDA"}) {
    const auto& version = libraries.at(name);  // null in a build without it
    EXPECT_TRUE(version.is_null() || version.get<std::string>().find('.') != std::string::npos)
        << name << " " << version;
  }
  EXPECT_EQ(record.at("started").at("command_line").at(1), "train");
  EXPECT_EQ(record.at("state").at("status"), "finished");
  EXPECT_EQ(record.at("state").at("epochs_done"), 1);
  EXPECT_EQ(record.at("state").at("best").at("epoch"), 0);
}

TEST(RunRecord, NamesTheClassesAndTheHandlingOfImages) {
  const Program program;
  write_idx(program.folder() / "digits", {.train = 40, .test = 8});
  const Outcome outcome = program.run("train --model mlp --data digits --epochs 1 --run-dir run");
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  const auto data = parsed(program, "run/run.json").at("data");
  EXPECT_EQ(data.at("kind"), "idx");
  EXPECT_EQ(data.at("files"), 4);
  EXPECT_EQ(data.at("sample"), nlohmann::json::array({28, 28, 1}));
  EXPECT_EQ(data.at("image").at("color_mode"), "grayscale");
  EXPECT_FLOAT_EQ(data.at("image").at("rescale").get<float>(), 1.0f / 255);
  EXPECT_EQ(data.at("class_names").at(2), "2");
}

std::vector<std::string> checkpoints_in(const std::filesystem::path& folder) {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    const std::string name = entry.path().filename().string();
    if (name.ends_with(".safetensors")) names.push_back(name);
  }
  std::ranges::sort(names);
  return names;
}

TEST(Resume, GoesOnFromTheNewestOfTheCheckpointsThatAreKept) {
  using Names = std::vector<std::string>;
  const Program program;
  const std::string keep = kShort + "--seed 5 --checkpoint-every 3 --keep 2 ";
  const Outcome whole = program.run(kShort + "--seed 5 --epochs 3 --run-dir whole --json -");
  ASSERT_EQ(program.run(keep + "--epochs 1 --run-dir parts").code, 0);
  EXPECT_EQ(
      checkpoints_in(program.folder() / "parts"),
      Names({"checkpoint-3.safetensors", "checkpoint-4.safetensors", "checkpoint.safetensors"}));
  const Outcome second = program.run("train --resume parts --epochs 3 --json -");
  ASSERT_EQ(second.code, 0) << second.err;
  EXPECT_EQ(second.json().at("epochs").back().at("loss"),
            whole.json().at("epochs").back().at("loss"));
  EXPECT_EQ(
      checkpoints_in(program.folder() / "parts"),
      Names({"checkpoint-12.safetensors", "checkpoint-9.safetensors", "checkpoint.safetensors"}));
  EXPECT_EQ(program.run("evaluate parts").code, 0);
}

TEST(Resume, NeedsNothingButTheRun) {
  const Program program;
  const Outcome whole = program.run(kShort + "--seed 5 --epochs 3 --run-dir whole --json -");
  const Outcome first = program.run(kShort + "--seed 5 --epochs 1 --run-dir parts");
  const Outcome rest = program.run("train --resume parts --epochs 3 --json -");
  ASSERT_EQ(whole.code, 0) << whole.err;
  ASSERT_EQ(first.code, 0) << first.err;
  ASSERT_EQ(rest.code, 0) << rest.err;
  ASSERT_EQ(rest.json().at("epochs").size(), 2u);
  EXPECT_EQ(rest.json().at("epochs").back().at("loss"),
            whole.json().at("epochs").back().at("loss"));
  const auto record = parsed(program, "parts/run.json");
  EXPECT_EQ(record.at("resumed").at(0).at("changed"), (nlohmann::json{{"epochs", 3}}));
  EXPECT_EQ(record.at("state").at("epochs_done"), 3);
}

TEST(Resume, RefusesWhatContradictsTheRun) {
  const Program program;
  ASSERT_EQ(program.run(kShort + "--seed 3 --run-dir run").code, 0);
  expect_wrong_use(program, "train --resume run --seed 4",
                   "--seed 4 contradicts the run in run, which has 3");
  expect_wrong_use(program, "train --resume run --model lenet", "which has mlp");
  expect_wrong_use(program, "train --resume run --optimizer sgd", "--optimizer sgd");
  expect_wrong_use(program, "train --resume run --data nowhere", "nowhere");
}

TEST(Resume, TellsDataSetsOfTheSameNamesAndSizesApart) {
  const Program program;
  write_idx(program.folder() / "clothes", {.train = 40, .test = 8, .shade = 1});
  write_idx(program.folder() / "digits", {.train = 40, .test = 8, .shade = 2});
  ASSERT_EQ(program.run("train --model mlp --data clothes --epochs 1 --run-dir run").code, 0);
  expect_wrong_use(program, "train --resume run --epochs 2 --data digits", "other data");
  // The same samples in another place are the same data.
  std::filesystem::rename(program.folder() / "clothes", program.folder() / "moved");
  expect_wrong_use(program, "train --resume run --epochs 2", "give its new location with --data");
  const Outcome moved = program.run("train --resume run --epochs 2 --data moved");
  EXPECT_EQ(moved.code, 0) << moved.err;
  // One byte has changed.
  write_idx(program.folder() / "moved", {.train = 40, .test = 8, .shade = 3});
  expect_wrong_use(program, "train --resume run --epochs 3", "put the old data back");
}

TEST(Resume, AGivenLearningRateTakesEffect) {
  const Program program;
  ASSERT_EQ(program.run(kShort + "--run-dir run").code, 0);
  const Outcome slower = program.run("train --resume run --epochs 2 --learning-rate 0.5 --json -");
  ASSERT_EQ(slower.code, 0) << slower.err;
  EXPECT_EQ(slower.json().at("epochs").at(0).at("lr"), 0.5);
  // And is kept.
  const Outcome next = program.run("train --resume run --epochs 3 --json -");
  EXPECT_EQ(next.json().at("epochs").at(0).at("lr"), 0.5);
}

TEST(Resume, AScheduleCanBeAddedAndRemoved) {
  const Program program;
  const auto last_rate = [&](const std::string& arguments) {
    const Outcome outcome = program.run(arguments + " --epochs 2 --json -");
    EXPECT_EQ(outcome.code, 0) << arguments << "\n" << outcome.err;
    return outcome.code == 0 ? outcome.json().at("epochs").back().at("lr").get<double>() : -1.0;
  };
  ASSERT_EQ(program.run(kShort + "--learning-rate 0.01 --run-dir plain").code, 0);
  const double of_whole =
      last_rate(kShort + "--learning-rate 0.01 --schedule linear --run-dir whole");
  EXPECT_DOUBLE_EQ(last_rate("train --resume plain --schedule linear"), of_whole);
  EXPECT_LT(of_whole, 0.009);
  ASSERT_EQ(program.run(kShort + "--learning-rate 0.01 --schedule cosine --run-dir decays").code,
            0);
  EXPECT_FLOAT_EQ(static_cast<float>(last_rate("train --resume decays --schedule constant")),
                  0.01f);
  ASSERT_EQ(program.run(kShort + "--learning-rate 0.01 --warm-up-epochs 1 --run-dir warm").code, 0);
  EXPECT_FLOAT_EQ(
      static_cast<float>(last_rate("train --resume warm --warm-up-epochs 0 --learning-rate 0.005")),
      0.005f);
}

TEST(Resume, AnotherMonitorStartsWithoutABest) {
  const Program program;
  ASSERT_EQ(program.run(kShort + "--save-best --run-dir run").code, 0);
  const std::filesystem::path best = program.folder() / "run/best.safetensors";
  ASSERT_TRUE(std::filesystem::remove(best));
  const Outcome outcome = program.run("train --resume run --epochs 2 --monitor val_accuracy");
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_TRUE(std::filesystem::exists(best));  // no accuracy is above the best loss
}

TEST(Resume, FailingToWriteInputTuningIsOnlyAWarning) {
  const Program program;
  ASSERT_EQ(program.run(kShort + "--run-dir run").code, 0);
  std::filesystem::create_directories(program.folder() / "run/input.tuning.writing/full");
  const Outcome outcome = program.run("train --resume run --epochs 2 --json result.json");
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_NE(outcome.out.find("warning: run/input.tuning"), std::string::npos) << outcome.out;
  EXPECT_EQ(parsed(program, "run/run.json").at("state").at("status"), "finished");
  EXPECT_EQ(parsed(program, "result.json").at("epochs").size(), 1u);
}

TEST(Resume, OtherDataUnderAPathThatIsNotUtf8GetsOneSentence) {
  const Program program;
  write_idx(program.folder() / "clothes", {.train = 40, .test = 8, .shade = 1});
  write_idx(program.folder() / "digits \xff", {.train = 40, .test = 8, .shade = 2});
  ASSERT_EQ(program.run("train --model mlp --data clothes --epochs 1 --run-dir run").code, 0);
  expect_wrong_use(program, "train --resume run --epochs 2 --data 'digits \xff'", "other data");
}

TEST(Resume, AnInvalidBestEntryIsReplaced) {
  const Program program;
  ASSERT_EQ(program.run(kShort + "--run-dir run").code, 0);
  for (const nlohmann::json& best :
       {nlohmann::json{{"monitor", 3}, {"value", 0.1}},
        nlohmann::json{{"monitor", "val_loss"}, {"value", "low"}}, nlohmann::json(7)}) {
    auto record = parsed(program, "run/run.json");
    record["state"]["best"] = best;
    std::ofstream(program.folder() / "run/run.json") << record.dump();
    const int epochs = record.at("state").at("epochs_done").get<int>() + 1;
    const Outcome outcome = program.run("train --resume run --epochs " + std::to_string(epochs));
    ASSERT_EQ(outcome.code, 0) << outcome.err;
    const auto state = parsed(program, "run/run.json").at("state");
    EXPECT_EQ(state.at("best").at("epoch"), epochs - 1) << best;
  }
}

TEST(Resume, ContinuesOnAnotherNumberOfReplicasWithTheSameBatchAndRate) {
  const Program program;
  const std::string common =
      "train --model mlp --data synthetic --steps 4 --global-batch 16 --learning-rate-scaling "
      "linear --warm-up-epochs 0 ";
  ASSERT_EQ(program.run(common + "--replicas 2 --run-dir run").code, 0);
  const Outcome one = program.run("train --resume run --epochs 2 --replicas 1 --json -");
  ASSERT_EQ(one.code, 0) << one.err;
  EXPECT_EQ(one.json().at("replicas"), 1);
  EXPECT_EQ(one.json().at("global_batch"), 16);
  EXPECT_FLOAT_EQ(one.json().at("epochs").at(0).at("lr").get<float>(), 0.002f);
}

TEST(Resume, SaysWhenThereIsNothingToDo) {
  const Program program;
  ASSERT_EQ(program.run(kShort + "--run-dir run").code, 0);
  const Outcome outcome = program.run("train --resume run");
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_NE(outcome.out.find("Nothing to do"), std::string::npos) << outcome.out;
  EXPECT_NE(outcome.out.find("--resume run --epochs 2"), std::string::npos) << outcome.out;
}

TEST(Resume, AcceptsRunsOfEarlierVersionsWithTheirFlagsAndANote) {
  const Program program;
  ASSERT_EQ(program.run(kShort + "--seed 3 --run-dir run").code, 0);
  std::filesystem::remove(program.folder() / "run/run.json");
  const Outcome outcome = program.run(kShort + "--seed 3 --epochs 2 --resume run");
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_NE(outcome.out.find("has no run.json"), std::string::npos) << outcome.out;
  EXPECT_EQ(parsed(program, "run/run.json").at("options").at("seed"), 3);
}

TEST(Resume, StartsOverIfTheRunNeverSaved) {
  const Program program;
  ASSERT_EQ(program.run(kShort + "--seed 3 --run-dir run").code, 0);
  std::filesystem::remove(program.folder() / "run/checkpoint.safetensors");
  const Outcome outcome = program.run("train --resume run --json -");
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_EQ(outcome.json().at("epochs").size(), 1u);
}

TEST(Resume, DamagedRecordsAreNamed) {
  const Program program;
  ASSERT_EQ(program.run(kShort + "--run-dir run").code, 0);
  const std::string good = program.text("run/run.json");
  const auto expect_refused = [&](const std::string& text) {
    std::ofstream(program.folder() / "run/run.json", std::ios::binary) << text;
    expect_wrong_use(program, "train --resume run --epochs 2", "run");
  };
  expect_refused("");
  expect_refused(good.substr(0, good.size() / 2));
  expect_refused("[]");
  expect_refused("{\"format\": \"something else\"}");
  expect_refused(std::string(100'000, '['));
  auto record = nlohmann::json::parse(good);
  record["format_version"] = 2;
  expect_refused(record.dump());
  record["format_version"] = 1;
  record["options"]["seed"] = "three";
  expect_refused(record.dump());
  record["options"].erase("seed");
  expect_refused(record.dump());
  const auto expect_refused_with = [&](const char* part, const char* key,
                                       const nlohmann::json& value) {
    auto changed = nlohmann::json::parse(good);
    changed[part][key] = value;
    expect_refused(changed.dump());
  };
  expect_refused_with("options", "global_batch", -8);
  expect_refused_with("options", "replicas", nlohmann::json::array({0}));
  expect_refused_with("options", "learning_rate", -1.0);
  expect_refused_with("data", "train_samples", "many");
  expect_refused_with("data", "train_samples", std::int64_t{1} << 62);
  expect_refused_with("data", "fingerprint", nullptr);
}

// The advice names flags, not calls of the C++ interface.
TEST(Resume, AdviceIsForUsersOfTheProgram) {
  const Program program;
  ASSERT_EQ(program.run(kShort + "--run-dir run").code, 0);
  expect_wrong_use(program, "train --resume run --epochs 2 --global-batch 4",
                   "keep the batch size");
  std::filesystem::remove(program.folder() / "run/run.json");
  expect_wrong_use(program, kShort + "--seed 4 --epochs 2 --resume run", "give that --seed");
}

TEST(Resume, IntoAnotherFolderLeavesTheFirstRunAlone) {
  const Program program;
  ASSERT_EQ(program.run(kShort + "--run-dir run").code, 0);
  const std::string before = program.text("run/run.json");
  const Outcome outcome = program.run("train --resume run --epochs 2 --run-dir branch");
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_EQ(program.text("run/run.json"), before);
  EXPECT_EQ(parsed(program, "branch/run.json").at("state").at("epochs_done"), 2);
}

}  // namespace
}  // namespace lockstep

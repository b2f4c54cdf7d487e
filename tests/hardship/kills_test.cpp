// Runs that are repeatedly killed at random moments end bit for bit like an undisturbed one.
#include <filesystem>
#include <fstream>
#include <sstream>

#include "cli/idx_files.h"
#include "hardship/hardship.h"
#include "lockstep/tensor/safetensors.h"
#include "temporary_folder.h"

namespace lockstep::hardship {
namespace {

namespace fs = std::filesystem;

std::vector<std::string> train_arguments(const std::string& run) {
  return {"train", "--model",  "mlp", "--data",    "digits", "--batch",
          "8",     "--epochs", "4",   "--run-dir", run,      "--checkpoint-every",
          "3",     "--seed",   "7"};
}

// Loss and metrics by epoch, without the columns that depend on the clock.
std::vector<std::string> rows_of(const fs::path& file) {
  std::ifstream stream(file);
  std::string header;
  std::getline(stream, header);
  std::vector<bool> timed;
  std::istringstream names(header);
  for (std::string name; std::getline(names, name, ',');) {
    timed.push_back(name == "seconds" || name == "samples_per_s");
  }
  std::vector<std::string> rows;
  for (std::string line; std::getline(stream, line);) {
    std::string kept;
    std::istringstream cells(line);
    std::size_t i = 0;
    for (std::string cell; std::getline(cells, cell, ','); ++i) {
      if (i < timed.size() && !timed[i]) kept += cell + ",";
    }
    rows.push_back(kept);
  }
  return rows;
}

void expect_same_tensors(const fs::path& a, const fs::path& b) {
  const TensorFile one = load_safetensors(a);
  const TensorFile other = load_safetensors(b);
  ASSERT_EQ(one.tensors.size(), other.tensors.size());
  for (const auto& [name, tensor] : one.tensors) {
    const auto found = other.tensors.find(name);
    ASSERT_NE(found, other.tensors.end()) << name;
    ASSERT_EQ(tensor.bytes(), found->second.bytes()) << name;
    EXPECT_EQ(std::memcmp(tensor.raw(), found->second.raw(), tensor.bytes()), 0) << name;
  }
}

// The names of all files in a folder: a run must leave no temporary files. The profile of its time
// and the measured step are written at the end, by a process that has trained at least a step:
// where one was killed between the last checkpoint and these files, they are missing.
std::vector<std::string> files_in(const fs::path& folder) {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder)) {
    const std::string name = entry.path().filename().string();
    if (name != "profile.json" && name != "measured.json") names.push_back(name);
  }
  std::ranges::sort(names);
  return names;
}

TEST(Kills, ARepeatedlyKilledRunEndsBitForBitLikeAnUndisturbedOne) {
  const TemporaryFolder folder;
  const fs::path root = folder.path();
  write_idx(root / "digits", {.train = 160, .test = 24});
  ASSERT_EQ(Child(root, train_arguments("whole")).wait(kLimit).code, 0);

  std::mt19937_64 random = generator();
  const std::uint64_t wanted = number_from("LOCKSTEP_HARDSHIP_KILLS", 12);
  std::uint64_t kills = 0;
  for (int run = 0; kills < wanted; ++run) {
    const std::string name = "run-" + std::to_string(run);
    std::vector<std::string> arguments = train_arguments(name);
    // Kills may come from just after the start until after an undisturbed run would end.
    int calls = 0;
    for (bool done = false; !done; ++calls) {
      ASSERT_LT(calls, 200) << "the run makes no progress";
      Child child(root, arguments);
      // At most twenty kills per run, so that all runs end.
      const Ended ended = calls < 20
                              ? child.kill_after(std::chrono::milliseconds(20 + below(random, 300)))
                              : child.wait(kLimit);
      if (ended.killed_by_us()) {
        ++kills;
      } else {
        expect_orderly(ended, name);
        ASSERT_EQ(ended.code, 0) << ended.output;
        done = true;
      }
      // Before the run has written its record there is nothing to resume from.
      if (fs::exists(root / name / "run.json")) {
        arguments = {"train", "--resume", name};
      } else {
        std::error_code ignored;
        fs::remove_all(root / name, ignored);
      }
    }
    expect_same_tensors(root / "whole/checkpoint.safetensors",
                        root / name / "checkpoint.safetensors");
    EXPECT_EQ(rows_of(root / "whole/metrics.csv"), rows_of(root / name / "metrics.csv")) << name;
    EXPECT_EQ(files_in(root / "whole"), files_in(root / name));
    if (HasFailure()) return;
  }
}

}  // namespace
}  // namespace lockstep::hardship

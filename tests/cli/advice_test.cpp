// The commands that `explain` advises are commands of this program: they run.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <fstream>

#include "cli/expect.h"
#include "cli/program.h"

namespace lockstep {
namespace {

constexpr int kRecorded = 40;  // steps

void write(const std::filesystem::path& file, const nlohmann::json& json) {
  std::ofstream(file) << json.dump();
}

// The recorded times of a run of two workers in which much is wrong: the second is slow, the link
// is, and checkpoints take long.
nlohmann::json with_causes(nlohmann::json profile) {
  profile["steps"] = kRecorded;
  profile["samples"] = kRecorded * 8;
  profile["seconds"] = 10.0;
  profile["workers"] = 2;
  profile["transport"] = "Gloo";
  profile["step_s"] = 0.2;
  profile["link"] = {{"latency_s", 1e-4}, {"s_per_byte", 1e-6}};
  profile["collectives"] = {
      {{"name", "all_reduce"}, {"bytes", 400'000}, {"seconds", 0.4}, {"exposed_s", 0.05}}};
  for (int r = 0; r < 2; ++r) {
    profile["by_replica"][r]["time"] = {{"compute", r == 0 ? 3.0 : 4.5},
                                        {"communication", 2.0},
                                        {"input", 0.0},
                                        {"wait", r == 0 ? 1.5 : 0.0},
                                        {"host", 0.5},
                                        {"start", 0.5},
                                        {"validation", 0.5},
                                        {"checkpoint", 2.0}};
  }
  profile["windows"] = nlohmann::json::array();
  for (int s = 0; s < kRecorded; ++s) {
    profile["windows"].push_back({{"first", s},
                                  {"steps", 1},
                                  {"step_s", 0.2},
                                  {"compute_s", {0.075, 0.1125}},
                                  {"input_s", {0.0, 0.0}},
                                  {"wait_s", {0.0375, 0.0}},
                                  {"samples", {4.0, 4.0}}});
  }
  return profile;
}

// Half of a step does not shrink with the batch.
nlohmann::json with_fixed_part(nlohmann::json step) {
  const auto count = static_cast<double>(step.at("instructions").size());
  for (auto& each : step["instructions"]) {
    const double seconds = each.value("collective", "").empty() ? 0.075 / count : 0;
    each["seconds"] = {{"fixed", seconds / 2}, {"per_sample", seconds / 8}};
  }
  return step;
}

TEST(AdviceCommand, EveryAdvisedCommandRuns) {
  const Program program;
  const std::string run =
      "train --model mlp --data synthetic --replicas 2 --batch-per-replica 4 --steps 8 --epochs 1 "
      "--checkpoint-every 4 --run-dir run";
  ASSERT_EQ(program.run(run).code, 0);
  const std::filesystem::path folder = program.folder() / "run";
  ASSERT_EQ(program
                .run("scale --model mlp --batch-per-replica 4 --replicas 1,2 --topology 2 "
                     "--seconds 0.2 --save step.json")
                .code,
            0);
  write(folder / "measured.json", with_fixed_part(parsed(program, "step.json")));
  write(folder / "profile.json", with_causes(parsed(program, "run/profile.json")));
  const Outcome outcome = program.run("explain run --no-measure --json -");
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  std::string all;
  const nlohmann::json explained = outcome.json();
  for (const auto& advice : explained.at("advice")) {
    EXPECT_FALSE(advice.at("change").get<std::string>().empty());
    EXPECT_GT(advice.at("speed_up").get<double>(), 1.0) << advice;
    const auto command = advice.at("command").get<std::string>();
    if (command.empty()) continue;
    all += command + "\n";
    const std::string start = "lockstep ";
    ASSERT_TRUE(command.starts_with(start)) << command;
    EXPECT_EQ(command.find("--run-dir"), std::string::npos) << command;
    const Outcome followed = program.run(command.substr(start.size()));
    EXPECT_EQ(followed.code, 0) << command << "\n" << followed.err;
  }
  for (const char* flag :
       {"--batch-per-replica", "--balance auto", "--checkpoint-every 8", "--gradient-dtype"}) {
    EXPECT_NE(all.find(flag), std::string::npos) << flag << " in\n" << all;
  }
}

}  // namespace
}  // namespace lockstep

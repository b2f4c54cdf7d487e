// Runs of the program: `lockstep train`, what `lockstep explain` advises, and the advised command.
#include "bench/prediction/advice.h"

#include <fmt/core.h>

#include <algorithm>
#include <optional>
#include <sstream>

#include "bench/causes/thief.h"
#include "bench/prediction/job.h"
#include "lockstep/device/cpu/cpu_device.h"

namespace lockstep {
namespace {

struct ProgramCase {
  const char* name;
  const char* model;
  int batch;  // per replica
  int steps;
  Words flags;  // one of which the advice that is followed changes
  Words more = {};
  bool slow_replica = false;
};

const ProgramCase kProgramCases[] = {
    {"tiny batches", "lenet", 2, 1500, {"--batch-per-replica"}},
    {"tiny batches", "mlp", 4, 8000, {"--batch-per-replica"}},
    {"a slow replica", "lenet", 64, 150, {"--balance", "--devices"}, {}, true},
    {"a checkpoint after every step",
     "mlp",
     64,
     600,
     {"--checkpoint-every"},
     {"--checkpoint-every", "1"}},
};

Words words_of_command(const std::string& command) {
  std::istringstream stream(command);
  Words words;
  for (std::string word; stream >> word;) words.push_back(word);
  return words;
}

std::string value_after(const Words& words, const std::string& flag) {
  for (std::size_t i = 0; i + 1 < words.size(); ++i) {
    if (words[i] == flag) return words[i + 1];
  }
  return "";
}

double seconds_of(const nlohmann::json& result) {
  return result.at("seconds").get<double>();
}

// The advised command for as many samples as the run had, with a result of its own.
Words for_as_many_samples(Words words, const ProgramCase& run) {
  words.erase(words.begin());  // lockstep
  const auto result = std::ranges::find(words, "--json");
  if (result != words.end()) words.erase(result, result + 2);
  const std::string batch = value_after(words, "--batch-per-replica");
  const auto steps = std::ranges::find(words, "--steps");
  if (!batch.empty()) *(steps + 1) = std::to_string(run.steps * run.batch / std::stoi(batch));
  return words;
}

// Whether a command changes one of the flags.
bool changes(const Words& command, const Words& before, const Words& flags) {
  return std::ranges::any_of(flags, [&](const std::string& flag) {
    const std::string value = value_after(command, flag);
    return !value.empty() && value != value_after(before, flag);
  });
}

std::optional<FollowedAdvice> follow(const Jobs& jobs, const ProgramCase& run, int round) {
  std::optional<Thief> thief;
  if (run.slow_replica) thief.emplace(available_cores()[1], 0.4);
  const std::string folder =
      jobs.file(fmt::format("{}-{}{}-{}", run.model, run.batch, run.flags.front(), round));
  // The noise scale of synthetic samples could rule out larger batches.
  Words train = {"train",
                 "--model",
                 run.model,
                 "--data",
                 "synthetic",
                 "--replicas",
                 "2",
                 "--epochs",
                 "1",
                 "--noise-scale",
                 "off",
                 "--batch-per-replica",
                 std::to_string(run.batch),
                 "--steps",
                 std::to_string(run.steps),
                 "--run-dir",
                 folder};
  train.insert(train.end(), run.more.begin(), run.more.end());
  const double before = seconds_of(jobs.run(train));
  const nlohmann::json explained = jobs.run({"explain", folder});
  for (const nlohmann::json& advice : explained.at("advice")) {
    const Words command = words_of_command(advice.at("command").get<std::string>());
    if (!changes(command, train, run.flags)) continue;
    Words then = for_as_many_samples(command, run);
    then.insert(then.end(), {"--run-dir", folder + "-then"});
    return FollowedAdvice{.change = advice.at("change").get<std::string>(),
                          .predicted = advice.at("speed_up").get<double>(),
                          .measured = before / seconds_of(jobs.run(then))};
  }
  return std::nullopt;
}

}  // namespace

void follow_advice(int rounds) {
  AdviceTable table;
  const Jobs jobs;
  for (const ProgramCase& each : kProgramCases) {
    std::vector<FollowedAdvice> followed;
    for (int round = 0; round < rounds; ++round) {
      if (const auto one = follow(jobs, each, round)) followed.push_back(*one);
    }
    table.row(fmt::format("{} ({})", each.name, each.model), followed, rounds);
  }
  follow_advice_in_fit(table, rounds);
}

}  // namespace lockstep

// Every option of every command with absurd values gives a sentence, never a crash or a hang.
#include <algorithm>
#include <set>
#include <sstream>

#include "cli/idx_files.h"
#include "hardship/hardship.h"
#include "temporary_folder.h"

namespace lockstep::hardship {
namespace {

// The arguments before the option under test, chosen so that an accepted call is short.
std::vector<std::string> base_of(const std::string& command) {
  if (command == "train") {
    return {"train", "--model", "mlp", "--data", "digits", "--steps", "2", "--run-dir", "new"};
  }
  if (command == "bench") return {"bench", "--model", "mlp", "--steps", "5"};
  if (command == "plan") return {"plan", "--model", "mlp"};
  if (command == "find-lr") {
    return {"find-lr", "--model", "mlp", "--data", "digits", "--steps", "10"};
  }
  if (command == "predict") return {"predict", "run", "digits"};
  if (command == "evaluate" || command == "plot") return {command, "run"};
  return {command};
}

// The names of the options in the output of --help: "--batch-per-replica".
std::set<std::string> options_in(const std::string& help) {
  std::set<std::string> names;
  for (std::size_t at = help.find("--"); at != std::string::npos; at = help.find("--", at + 2)) {
    std::size_t end = at + 2;
    while (end < help.size() &&
           (std::islower(static_cast<unsigned char>(help[end])) ||
            std::isdigit(static_cast<unsigned char>(help[end])) || help[end] == '-')) {
      ++end;
    }
    if (end > at + 2) names.insert(help.substr(at, end - at));
  }
  names.erase("--help");
  return names;
}

const std::vector<std::string>& absurd_values() {
  static const std::vector<std::string> values = {"",
                                                  "0",
                                                  "-1",
                                                  "1e400",
                                                  "nan",
                                                  "inf",
                                                  "0.5",
                                                  "9223372036854775807",
                                                  "9223372036854775808",
                                                  "18446744073709551616",
                                                  "1000000000",
                                                  "abc",
                                                  "{}",
                                                  "{epoch:9999999}",
                                                  "%s%n",
                                                  "/dev/null/x",
                                                  "no/such/folder",
                                                  ",,,",
                                                  "1,2,3",
                                                  "\xff\xfe",
                                                  std::string(5000, 'x')};
  return values;
}

TEST(Options, AnswerAbsurdValuesWithASentence) {
  const TemporaryFolder folder;
  const std::filesystem::path root = folder.path();
  write_idx(root / "digits", {.train = 40, .test = 8});
  const Ended trained = Child(root, {"train", "--model", "mlp", "--data", "digits", "--epochs", "1",
                                     "--run-dir", "run"})
                            .wait(kLimit);
  ASSERT_EQ(trained.code, 0) << trained.output;

  std::vector<std::pair<std::string, std::string>> all;  // command, option
  for (const char* command :
       {"train", "evaluate", "predict", "bench", "plan", "plot", "find-lr", "devices"}) {
    const Ended help = Child(root, {command, "--help"}).wait(kLimit);
    ASSERT_EQ(help.code, 0) << command;
    for (const std::string& option : options_in(help.output)) all.emplace_back(command, option);
  }
  ASSERT_GT(all.size(), 80u);
  std::mt19937_64 random = generator();
  std::ranges::shuffle(all, random);
  // The number of values per option; the short form (0) tries some options with one value each.
  const std::uint64_t tries = number_from("LOCKSTEP_HARDSHIP_VALUES", 0);
  if (tries == 0) all.resize(60);
  for (const auto& [command, option] : all) {
    for (std::uint64_t i = 0; i < std::max<std::uint64_t>(1, tries); ++i) {
      const auto& values = absurd_values();
      const std::string& value =
          tries >= values.size() ? values[i % values.size()] : values[below(random, values.size())];
      std::vector<std::string> arguments = base_of(command);
      arguments.push_back(option);
      arguments.push_back(value);
      const Ended ended = Child(root, arguments).wait(kLimit);
      const std::string what = command + " " + option + " '" + value.substr(0, 40) + "'";
      expect_orderly(ended, what);
      if (ended.code == 2) {
        EXPECT_EQ(ended.lines(), 1u) << what << "\n" << ended.output;
      }
      std::filesystem::remove_all(root / "new");
      if (HasFailure()) return;
    }
  }
}

}  // namespace
}  // namespace lockstep::hardship

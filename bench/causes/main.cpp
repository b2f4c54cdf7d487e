// Whether `explain` finds causes that were put there, and sizes them: a run with a cause and one
// without take turns, and what the cause cost is the difference of their times.
//
//   causes_bench [ROUNDS] [fit] [program] [links]
//
// prints a table: cause, what it cost, what was found, and the error. The exit code is 1 if a cause
// is missed or more than 10% off, if another one is named, or if anything is found in a clean run.
//
// Two replicas or workers with a core each. Slow ones share their core with a thread of real-time
// priority; that and links between network namespaces need root.
#include <fmt/core.h>

#include <exception>
#include <string>
#include <vector>

#include "bench/causes/cases.h"

namespace lockstep {
namespace {

int run(std::vector<std::string> words) {
  int rounds = 5;
  if (!words.empty() && words.front().find_first_not_of("0123456789") == std::string::npos) {
    rounds = std::stoi(words.front());
    words.erase(words.begin());
  }
  if (words.empty()) words = {"fit", "program", "links"};
  CauseTable table;
  for (const std::string& word : words) {
    if (word == "fit") {
      fit_cases(table, rounds);
    } else if (word == "program") {
      program_cases(table, rounds);
    } else if (word == "links") {
      link_cases(table, rounds);
    } else {
      fmt::print(stderr, "causes_bench [ROUNDS] [fit] [program] [links]\n");
      return 2;
    }
  }
  fmt::print("{} rounds each, in turns; ", rounds);
  return table.end();
}

}  // namespace
}  // namespace lockstep

int main(int count, char** words) {
  try {
    return lockstep::run({words + 1, words + count});
  } catch (const std::exception& error) {
    fmt::print(stderr, "causes_bench: {}\n", error.what());
    return 1;
  }
}

// faults --count N --seed S: runs N cases, and prints what came of them as a table.
#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>

#include "faults/faults.h"

int main(int count, char** arguments) {
  using namespace lockstep::faults;
  std::uint64_t cases = 40;
  std::uint64_t seed = 1;
  for (int i = 1; i + 1 < count; i += 2) {
    const std::uint64_t value = std::strtoull(arguments[i + 1], nullptr, 10);
    if (std::strcmp(arguments[i], "--count") == 0) cases = value;
    if (std::strcmp(arguments[i], "--seed") == 0) seed = value;
  }
  struct Row {
    int cases = 0;
    int wrong = 0;
    std::vector<double> lost;
  };
  std::map<std::string, Row> rows;
  if (!why_no_hosts().empty()) {
    std::fprintf(stderr, "no link is cut: %s\n", why_no_hosts().c_str());
  }
  Jobs jobs;
  int wrong = 0;
  for (std::uint64_t i = 0; i < cases; ++i) {
    const Case what = case_of(seed + i, has_etcd());
    const Outcome outcome = jobs.run(what);
    Row& row = rows[fmt::format("| {} | {} | {} | {} |", name_of(what.kind),
                                what.etcd ? "etcd" : "launcher", what.policy, expected(what))];
    ++row.cases;
    if (outcome.seconds_lost > 0) row.lost.push_back(outcome.seconds_lost);
    std::fprintf(stderr, "%4llu of %llu: seed %llu, %s: %s (%.1f s)\n",
                 static_cast<unsigned long long>(i + 1), static_cast<unsigned long long>(cases),
                 static_cast<unsigned long long>(seed + i), what.text().c_str(),
                 outcome.wrong.empty() ? "as expected" : outcome.wrong.c_str(), outcome.seconds);
    if (outcome.wrong.empty()) continue;
    ++row.wrong;
    ++wrong;
  }
  fmt::print(
      "| fault | members kept by | policy | what must come of it | cases | wrong | s lost, median "
      "| most |\n"
      "|---|---|---|---|---|---|---|---|\n");
  for (auto& [name, row] : rows) {
    std::ranges::sort(row.lost);
    const bool any = !row.lost.empty();
    fmt::print("{} {} | {} | {} | {} |\n", name, row.cases, row.wrong,
               any ? fmt::format("{:.2f}", row.lost[row.lost.size() / 2]) : "",
               any ? fmt::format("{:.2f}", row.lost.back()) : "");
  }
  return wrong == 0 ? 0 : 1;
}

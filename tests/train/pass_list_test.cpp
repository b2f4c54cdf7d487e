// The list of passes is the one that the architecture page shows.
#include <gtest/gtest.h>

#include <fstream>
#include <sstream>

#include "lockstep/kernels/kernel.h"
#include "lockstep/runtime/pass_list.h"

namespace lockstep {
namespace {

// The words between "optimizer" and the plan in the page's picture.
std::vector<std::string> documented_passes() {
  std::ifstream file(std::string(LOCKSTEP_SOURCE_DIR) + "/docs/architecture.md");
  std::stringstream page;
  page << file.rdbuf();
  const std::string text = page.str();
  const std::size_t begin = text.find("optimizer ─", text.find("trace ─ gradients"));
  const std::size_t end = text.find("─▶ Plan", begin);
  std::vector<std::string> names;
  std::string line = text.substr(begin, end - begin) + "─";
  for (std::size_t at = 0, next = 0; (next = line.find("─", at)) != std::string::npos;) {
    std::string name = line.substr(at, next - at);
    const auto first = name.find_first_not_of(" \n");
    if (first != std::string::npos) {
      names.push_back(name.substr(first, name.find_last_not_of(" \n") - first + 1));
    }
    at = next + std::string("─").size();
  }
  names.erase(names.begin());  // "optimizer"
  return names;
}

TEST(PassList, IsTheOneOfTheArchitecturePage) {
  std::vector<std::string> documented = documented_passes();
  const Backend& backend = cpu_kernels();
  if (!backend.fuses_pointwise()) std::erase(documented, "pointwise");
  std::vector<std::string> real;
  for (const std::string_view name : pass_names(backend)) real.emplace_back(name);
  EXPECT_EQ(real, documented);
}

}  // namespace
}  // namespace lockstep

// Every intended deviation from the peers is in one table, which the documents show.
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>

namespace {

std::string contents(const std::string& file) {
  std::ifstream stream(std::string(LOCKSTEP_SOURCE_DIR "/") + file);
  std::stringstream text;
  text << stream.rdbuf();
  return text.str();
}

TEST(Deviations, AllAreListedInTheDocuments) {
  const auto table = nlohmann::json::parse(contents("tests/conformance/deviations.json"));
  const std::string page = contents("docs/from-keras.md");
  ASSERT_FALSE(page.empty());
  for (const auto& row : table.at("deviations")) {
    const std::string line = "| " + row.at("lockstep").get<std::string>() + " | " +
                             row.at("peer").get<std::string>() + " | " +
                             row.at("why").get<std::string>() + " |";
    EXPECT_NE(page.find(line), std::string::npos)
        << "docs/from-keras.md lacks the row of tests/conformance/deviations.json:\n"
        << line;
  }
}

}  // namespace

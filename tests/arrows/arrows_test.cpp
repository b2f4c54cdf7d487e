// Checks the code against the table in docs/architecture.md and its list of what must never happen.
#include "arrows/arrows.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <regex>
#include <sstream>

namespace lockstep::arrows {
namespace {

namespace fs = std::filesystem;
const fs::path kRoot = LOCKSTEP_SOURCE_DIR;

std::string read(const fs::path& file) {
  std::ifstream stream(file, std::ios::binary);
  if (!stream) throw std::runtime_error("cannot read " + file.string());
  std::ostringstream text;
  text << stream.rdbuf();
  return text.str();
}

Table documented() {
  return parse_table(read(kRoot / "docs/architecture.md"));
}

std::vector<fs::path> sources() {
  std::vector<fs::path> files;
  for (const auto& entry : fs::recursive_directory_iterator(kRoot / "lockstep")) {
    const auto extension = entry.path().extension();
    if (entry.is_regular_file() &&
        (extension == ".h" || extension == ".cpp" || extension == ".cu" || extension == ".cuh")) {
      files.push_back(entry.path());
    }
  }
  return files;
}

const char* const kSmallTable =
    "| room | holds | may include |\n|---|---|---|\n"
    "| base | shapes | nothing |\n| profile | spans | nothing |\n"
    "| device | memory | nothing |\n| tensor | arrays | device |\n| comm | messages | tensor |\n"
    "| data | samples | tensor |\n| graph | nodes | tensor |\n| nn | layers | graph |\n"
    "| cli | the program | everything above |\n";

TEST(Arrows, EveryIncludeFollowsTheDocumentedTable) {
  const Table table = documented();
  const auto files = sources();
  ASSERT_GT(files.size(), 50u);
  for (const fs::path& file : files) {
    const std::string path = fs::relative(file, kRoot).generic_string();
    for (const std::string& violation : violations(table, path, read(file))) {
      ADD_FAILURE() << violation;
    }
  }
}

TEST(Arrows, EveryRoomWithFilesHasARowAndEveryRowHasFiles) {
  const Table table = documented();
  std::set<std::string> rooms;
  for (const fs::path& file : sources()) {
    const fs::path inside = fs::relative(file, kRoot / "lockstep");
    if (inside.has_parent_path()) rooms.insert(inside.begin()->string());
  }
  std::set<std::string> rows;
  for (const auto& [room, allowed] : table) rows.insert(room);
  EXPECT_EQ(rows, rooms);
  EXPECT_FALSE(rooms.contains("utils"));
}

TEST(Arrows, CMakeLinksNoRoomThatTheTableForbids) {
  const Table table = documented();
  const auto linked = linked_rooms(read(kRoot / "lockstep/CMakeLists.txt"));
  ASSERT_GT(linked.size(), 10u);
  for (const auto& [room, links] : linked) {
    ASSERT_TRUE(table.contains(room)) << room;
    for (const std::string& link : links) {
      EXPECT_TRUE(table.at(room).contains(link)) << room << " links " << link;
    }
  }
}

TEST(Arrows, EveryTestThatTheDocumentNamesExists) {
  std::string tests;
  for (const auto& entry : fs::recursive_directory_iterator(kRoot / "tests")) {
    if (entry.path().extension() == ".cpp") tests += read(entry.path());
  }
  static const std::regex named("`([A-Z][A-Za-z]+)\\.([A-Z][A-Za-z0-9]+)`");
  const std::string document = read(kRoot / "docs/architecture.md");
  int count = 0;
  for (std::sregex_iterator it(document.begin(), document.end(), named), end; it != end; ++it) {
    const std::string name = "(" + (*it)[1].str() + ", " + (*it)[2].str() + ")";
    EXPECT_NE(tests.find(name), std::string::npos) << "no test is called " << (*it)[0];
    ++count;
  }
  EXPECT_GT(count, 5);
}

TEST(Arrows, ArrowsAreTransitiveAndAllowNothingElse) {
  const Table table = parse_table(kSmallTable);
  EXPECT_TRUE(
      violations(table, "lockstep/graph/a.h", "#include \"lockstep/device/d.h\"\n").empty());
  EXPECT_TRUE(violations(table, "lockstep/graph/a.h", "#include \"lockstep/base/b.h\"\n").empty());
  EXPECT_EQ(violations(table, "lockstep/graph/a.h", "#include \"lockstep/nn/layer.h\"\n").size(),
            1u);
  EXPECT_EQ(violations(table, "lockstep/data/a.cpp", "#include \"lockstep/comm/c.h\"\n").size(),
            1u);
  EXPECT_EQ(violations(table, "lockstep/base/a.h", "#include <lockstep/graph/g.h>\n").size(), 1u);
  EXPECT_EQ(violations(table, "lockstep/utils/a.h", "").size(), 1u);
}

TEST(Arrows, ATableWithAnUpwardArrowIsRefused) {
  EXPECT_THROW(parse_table("no table here\n"), std::runtime_error);
  EXPECT_THROW(parse_table("| room | holds | may include |\n|---|---|---|\n| a | x | b |\n"),
               std::runtime_error);
}

TEST(Arrows, ALayerKnowsNeitherDevicesNorBackends) {
  const Table table = parse_table(kSmallTable);
  for (const char* line :
       {"#include \"lockstep/device/device.h\"\n", "#include <dnnl.hpp>\n",
        "#include <oneapi/dnnl/dnnl.hpp>\n", "#include <cuda_runtime.h>\n", "#include <nccl.h>\n",
        "#include <grpcpp/grpcpp.h>\n", "#include <mpi.h>\n", "#include <gloo/context.h>\n"}) {
    EXPECT_EQ(violations(table, "lockstep/nn/dense.cpp", line).size(), 1u) << line;
  }
}

TEST(Arrows, OnlyCommKnowsHowBytesGetToOtherWorkers) {
  const Table table = parse_table(kSmallTable);
  for (const std::string header : {"<gloo/context.h>", "<mpi.h>"}) {
    EXPECT_EQ(violations(table, "lockstep/data/a.cpp", "#include " + header).size(), 1u);
    EXPECT_TRUE(violations(table, "lockstep/comm/gloo/a.cpp", "#include " + header).empty());
  }
}

TEST(Arrows, OnlyTheProgramUsesTheTerminalAndTheEnvironment) {
  const Table table = parse_table(kSmallTable);
  for (const char* line :
       {"auto v = std::getenv(name);", "std::cout << 1;", "std::cerr << 1;", "printf(f);",
        "  std::printf(f);", "fmt::print(f);", "std::fprintf(stderr, f);", "std::exit(1);",
        "exit(2);", "std::abort();", "  if (bad) abort();", "else std::exit(1);", "::_exit(0);",
        "case 1: abort();", "ok ? go() : exit(1);", "#include <x>\nputs(s);"}) {
    EXPECT_EQ(violations(table, "lockstep/graph/a.cpp", line).size(), 1u) << line;
    EXPECT_TRUE(violations(table, "lockstep/cli/main.cpp", line).empty()) << line;
  }
  EXPECT_TRUE(violations(documented(), "lockstep/train/verbose.cpp", "std::cout << 1;").empty());
  EXPECT_EQ(violations(documented(), "lockstep/train/verbose.cpp", "std::exit(1);").size(), 1u);
  const char* const reads = "lockstep/cluster/process_environment.cpp";
  EXPECT_TRUE(violations(documented(), reads, "auto e = environ;").empty());
  EXPECT_EQ(violations(documented(), reads, "std::cout << 1;").size(), 1u);
  EXPECT_EQ(
      violations(documented(), "lockstep/cluster/environment.cpp", "auto e = environ;").size(), 1u);
  EXPECT_EQ(violations(table, "lockstep/graph/verbose.cpp", "std::cout << 1;").size(), 1u);
  for (const char* line :
       {"// std::cout << 1;", "fail(\"call exit(1)\");", "std::snprintf(b, n, f);", "loop.exit(1);",
        "/* getenv( */", "bool at_exit(int);", "virtual void abort(const std::string& reason) = 0;",
        "void Group::abort(int why) {", "R\"(std::cout)\""}) {
    EXPECT_TRUE(violations(table, "lockstep/graph/a.cpp", line).empty()) << line;
  }
}

}  // namespace
}  // namespace lockstep::arrows

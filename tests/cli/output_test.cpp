// Where results are written; a result that could not be written makes the command fail.
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <thread>

#include "cli/expect.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;

TEST(Output, ASymbolicLinkIsFollowedNotReplaced) {
  const Program program;
  fs::create_directory(program.folder() / "results");
  fs::create_symlink("results/latest.json", program.folder() / "link.json");
  ASSERT_EQ(program.run("devices --json link.json").code, 0);
  EXPECT_TRUE(fs::is_symlink(program.folder() / "link.json"));
  EXPECT_FALSE(parsed(program, "results/latest.json").at("devices").empty());
  fs::create_symlink("round", program.folder() / "round");
  expect_wrong_use(program, "devices --json round", "lead nowhere");
}

TEST(Output, DevicesAndPipesAreWrittenToAndNotReplaced) {
  const Program program;
  const Outcome null = program.run("devices --json /dev/null");
  EXPECT_EQ(null.code, 0) << null.err;
  EXPECT_TRUE(fs::is_character_file("/dev/null"));

  const Outcome out = program.run("devices --json /dev/stdout");
  ASSERT_EQ(out.code, 0) << out.err;
  EXPECT_FALSE(out.json().at("devices").empty());

  const fs::path pipe = program.folder() / "pipe";
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  std::string text;
  std::thread reader([&] {
    std::ifstream stream(pipe);
    std::getline(stream, text, '\0');
  });
  EXPECT_EQ(program.run("devices --json pipe").code, 0);
  reader.join();
  EXPECT_FALSE(nlohmann::json::parse(text).at("devices").empty());
  EXPECT_TRUE(fs::is_fifo(pipe));
}

TEST(Output, ATraceFollowsALinkToo) {
  const Program program;
  std::ofstream(program.folder() / "real.json") << "old";
  fs::create_symlink("real.json", program.folder() / "trace.json");
  const Outcome outcome = program.run("bench --model mlp --steps 2 --trace trace.json");
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_TRUE(fs::is_symlink(program.folder() / "trace.json"));
  EXPECT_FALSE(parsed(program, "real.json").at("traceEvents").empty());
}

TEST(Output, ResultsThatCannotBeWrittenAreAnError) {
  if (!fs::exists("/dev/full")) GTEST_SKIP() << "no /dev/full here";
  const Program program;
  const auto expect_failure = [&](const std::string& arguments, const std::string& redirection) {
    program.run(arguments + " " + redirection + " 2>said; echo $? >code");
    EXPECT_NE(program.text("code"), "0\n") << arguments << " " << redirection;
    const std::string said = program.text("said");
    const std::size_t last = said.find("lockstep: ");
    ASSERT_NE(last, std::string::npos) << arguments << " " << redirection << said;
    EXPECT_EQ(said.find('\n', last), said.size() - 1) << said;
  };
  expect_failure("devices --json /dev/full", ">ignored");
  expect_failure("devices", ">/dev/full");
  expect_failure("devices", ">&-");
  expect_failure("--help", ">/dev/full");
  expect_failure("train --model mlp --data synthetic --steps 1 --run-dir a --json -", ">/dev/full");
  expect_failure("train --model mlp --data synthetic --steps 1 --run-dir b", ">/dev/full");
  expect_failure("bench --model mlp --steps 1 --trace /dev/full", ">ignored");
}

// Like a full disk: metrics.csv is already larger than the limit on file sizes.
TEST(Output, MetricsThatCannotBeWrittenAreAnError) {
  const Program program;
  ASSERT_EQ(program.run("train --model mlp --data synthetic --steps 1 --run-dir run").code, 0);
  fs::remove(program.folder() / "run/checkpoint.safetensors");  // so that the run starts over
  fs::resize_file(program.folder() / "run/metrics.csv", std::uintmax_t{256} << 20);
  const Outcome outcome = program.run("train --resume run", "trap '' XFSZ; ulimit -f 65536;");
  EXPECT_NE(outcome.code, 0);
  EXPECT_EQ(outcome.error_lines(), 1u) << outcome.err;
  EXPECT_NE(outcome.err.find("metrics.csv cannot be written"), std::string::npos) << outcome.err;
  EXPECT_EQ(parsed(program, "run/run.json").at("state").at("status"), "failed");
}

TEST(Output, NoFileTakesThePlaceOfAClosedOutput) {
  const Program program;
  program.run("train --model mlp --data synthetic --steps 1 --run-dir run >&- ; true");
  EXPECT_EQ(parsed(program, "run/run.json").at("state").at("status"), "finished");
  EXPECT_EQ(program.text("run/.lock").find("epoch"), std::string::npos);
}

TEST(Output, AReaderThatLeavesDoesNotEndTheRun) {
  const Program program;
  program.run(
      "train --model mlp --data synthetic --steps 20 --epochs 2 --cores 1 --run-dir run | true");
  EXPECT_EQ(parsed(program, "run/run.json").at("state").at("status"), "finished");
}

}  // namespace
}  // namespace lockstep

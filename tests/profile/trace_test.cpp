#include "lockstep/profile/trace.h"

#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "lockstep/base/error.h"

namespace lockstep {
namespace {

TEST(Trace, IsJsonWithARowPerTrack) {
  Recorder recorder;
  recorder.track("replica 0").add("matmul \"quoted\"", SpanKind::Compute, 2000, 5000);
  recorder.track("input").add("batch", SpanKind::Input, 1000, 1500);
  const auto file = std::filesystem::path(testing::TempDir()) / "lockstep_trace_test.json";
  write_trace(recorder, file);

  std::ifstream in(file);
  const nlohmann::json trace = nlohmann::json::parse(in);
  const nlohmann::json& events = trace.at("traceEvents");
  ASSERT_EQ(events.size(), 4u);
  EXPECT_EQ(events[0].at("ph"), "M");
  EXPECT_EQ(events[0].at("args").at("name"), "replica 0");
  EXPECT_EQ(events[1].at("name"), "matmul \"quoted\"");
  EXPECT_EQ(events[1].at("cat"), "compute");
  EXPECT_EQ(events[1].at("ts"), 2.0);
  EXPECT_EQ(events[1].at("dur"), 3.0);
  EXPECT_NE(events[1].at("tid"), events[3].at("tid"));
  std::filesystem::remove(file);
}

TEST(Trace, SaysWhichFileCannotBeWritten) {
  const Recorder recorder;
  const auto file = std::filesystem::path(testing::TempDir()) / "no_such_folder" / "trace.json";
  try {
    write_trace(recorder, file);
    FAIL() << "a trace was written into a folder that does not exist";
  } catch (const DataError& error) {
    EXPECT_NE(std::string(error.what()).find(file.string()), std::string::npos);
  }
}

}  // namespace
}  // namespace lockstep

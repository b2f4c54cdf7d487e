// What lockstep explain writes: the contract of its JSON, a page that a browser shows, a trace, and
// charts, all of real runs.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <set>

#include "cli/expect.h"
#include "explain/browser.h"

namespace lockstep {
namespace {

using testing::Browser;

std::string train_words(const std::string& how) {
  return "train --model lenet --data synthetic --batch-per-replica 8 --steps 30 --epochs 3 "
         "--noise-scale 2 --run-dir run " +
         how;
}

void expect_contract(const nlohmann::json& json, int replicas) {
  EXPECT_TRUE(json.at("run").is_string());
  EXPECT_EQ(json.at("replicas"), replicas);
  const double speed_up = json.at("speed_up");
  EXPECT_GT(speed_up, 0);
  EXPECT_LE(speed_up, replicas * (1 + 1e-9));
  EXPECT_GE(json.at("possible").get<double>(), speed_up * (1 - 1e-9));
  double whole = speed_up / replicas;
  for (const auto& lost : json.at("lost")) {
    for (const char* key : {"cause", "where"}) EXPECT_TRUE(lost.at(key).is_string());
    EXPECT_GE(lost.at("seconds").get<double>(), 0);
    whole += lost.at("fraction").get<double>();
  }
  EXPECT_NEAR(whole, 1, 1e-6);
  for (const auto& advice : json.at("advice")) {
    for (const char* key : {"change", "gain", "command"}) EXPECT_TRUE(advice.at(key).is_string());
    EXPECT_TRUE(advice.at("sure").is_number());
  }
}

TEST(ExplainContract, HoldsForOneReplicaTwoAndTwoWorkers) {
  {
    const Program program;
    ASSERT_EQ(program.run(train_words("")).code, 0);
    const Outcome outcome = program.run("explain run --json -");
    ASSERT_EQ(outcome.code, 0) << outcome.err;
    expect_contract(outcome.json(), 1);
  }
  {
    const Program program;
    const Outcome trained = program.run(train_words("--replicas 2"));
    ASSERT_EQ(trained.code, 0) << trained.err;
    EXPECT_NE(trained.out.find("2 devices were "), std::string::npos) << trained.out;
    const Outcome outcome = program.run("explain run --json -");
    ASSERT_EQ(outcome.code, 0) << outcome.err;
    const nlohmann::json json = outcome.json();
    expect_contract(json, 2);
    // Held to account, and how much sooner a loss is reached.
    EXPECT_GT(json.at("predicted").at("step_ms").get<double>(), 0);
    EXPECT_GT(json.at("predicted").at("measured_ms").get<double>(), 0);
    ASSERT_FALSE(json.at("scaling").empty());
    EXPECT_EQ(json.at("scaling").at(0).at("replicas"), 1);
    const auto& points = json.at("time_to_loss").at("points");
    EXPECT_NEAR(points.at(0).at("sooner").get<double>(), 1, 1e-9);
    EXPECT_GT(points.at(0).at("learning_rate").get<double>(), 0);
    const nlohmann::json scale = program.run("scale run --replicas 1,2,4 --json -").json();
    ASSERT_EQ(scale.at("results").size(), 3u);
    for (const auto& result : scale.at("results")) {
      for (const char* key : {"replicas", "step_ms", "samples_per_s", "efficiency", "peak_bytes"}) {
        EXPECT_TRUE(result.at(key).is_number()) << key;
      }
    }
    EXPECT_EQ(scale.at("time_to_loss").at("points").size(), 3u);
  }
  {
    const Program program;
    const Outcome trained = program.run(
        "launch --workers 2 -- '" LOCKSTEP_BINARY_DIR "/bin/lockstep' " + train_words(""));
    ASSERT_EQ(trained.code, 0) << trained.err;
    const Outcome outcome = program.run("explain run --json -");
    ASSERT_EQ(outcome.code, 0) << outcome.err;
    expect_contract(outcome.json(), 2);
  }
}

TEST(ExplainContract, OneReplicaHasAParagraphToo) {
  const Program program;
  const Outcome trained = program.run(train_words(""));
  ASSERT_EQ(trained.code, 0) << trained.err;
  EXPECT_NE(trained.out.find("One device spent "), std::string::npos) << trained.out;
}

TEST(ExplainTrace, HasTheStepsOfBothWorkersOnOneClock) {
  const Program program;
  const Outcome trained = program.run(
      "launch --workers 2 -- '" LOCKSTEP_BINARY_DIR "/bin/lockstep' " + train_words(""));
  ASSERT_EQ(trained.code, 0) << trained.err;
  const Outcome outcome = program.run("explain run --no-measure --trace trace.json");
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  std::set<int> processes;
  bool shows_error = false;
  const nlohmann::json trace = parsed(program, "trace.json");
  for (const auto& event : trace.at("traceEvents")) {
    if (event.at("ph") == "X") processes.insert(event.at("pid").get<int>());
    const std::string name = event.at("ph") == "M" ? event.at("args").at("name") : "";
    if (name.find("clock within") != std::string::npos) shows_error = true;
  }
  EXPECT_TRUE(processes.contains(0) && processes.contains(1));
  EXPECT_TRUE(shows_error);
}

TEST(ExplainCharts, ArePlainWhereThereIsNoTerminal) {
  const Program program;
  ASSERT_EQ(program.run(train_words("--replicas 2")).code, 0);
  const Outcome outcome = program.run("explain run", "LC_ALL=C.UTF-8");
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_EQ(outcome.out.find('\x1b'), std::string::npos);
  for (const char* part :
       {"ideal", "got", "a step of", "critical path", "speed-up",
        "where the time of each replica went", "how much sooner a loss", "predicted"}) {
    EXPECT_NE(outcome.out.find(part), std::string::npos) << part << "\n" << outcome.out;
  }
  const Outcome plain = program.run("explain run --no-charts");
  EXPECT_EQ(plain.out.find("a step of"), std::string::npos) << plain.out;
}

TEST(ExplainFiles, EveryDamagedFileIsNamed) {
  const Program program;
  ASSERT_EQ(program.run(train_words("--replicas 2")).code, 0);
  ASSERT_EQ(program.run("explain run --json first.json").code, 0);
  const std::filesystem::path run = program.folder() / "run";
  for (const char* name : {"profile.json", "measured.json", "run.json"}) {
    SCOPED_TRACE(name);
    const std::string whole = program.text(std::string("run/") + name);
    std::ofstream(run / name) << whole.substr(0, whole.size() / 2);
    expect_wrong_use(program, "explain run --no-measure", name);
    std::ofstream(run / name) << "{\"format\": \"foreign\"}";
    expect_wrong_use(program, "explain run --no-measure", name);
    nlohmann::json newer = nlohmann::json::parse(whole);
    newer["format_version"] = 99;
    std::ofstream(run / name) << newer.dump();
    expect_wrong_use(program, "explain run --no-measure", "99");
    std::ofstream(run / name) << whole;
  }
  const std::string whole = program.text("run/metrics.csv");
  std::ofstream(run / "metrics.csv") << whole << "3,what,0.5\n";
  expect_wrong_use(program, "explain run --no-measure", "metrics.csv");
  std::ofstream(run / "metrics.csv") << "nonsense\n";
  expect_wrong_use(program, "explain run --no-measure", "metrics.csv");
  std::ofstream(run / "metrics.csv") << whole;
  EXPECT_EQ(program.run("explain run --no-measure --json again.json").code, 0);
}

TEST(ExplainPage, OfARealRunIsShownByABrowserOnEveryScreen) {
  const std::optional<std::string> browser_program = testing::find_browser();
  if (!browser_program) GTEST_SKIP() << "no chromium is installed (Debian: chromium)";
  const Program program;
  ASSERT_EQ(program.run(train_words("--replicas 2")).code, 0);
  const Outcome outcome = program.run("explain run --html page.html");
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  const std::filesystem::path file = program.folder() / "page.html";
  EXPECT_LT(std::filesystem::file_size(file), 3'000'000u);
  const std::string url = "file://" + file.string();
  Browser browser(*browser_program);
  for (const int width : {320, 390, 1280}) {
    for (const bool dark : {false, true}) {
      SCOPED_TRACE(::testing::Message() << width << (dark ? " dark" : " light"));
      browser.open(url, {.width = width, .height = 800, .phone = width < 500, .dark = dark});
      EXPECT_LE(browser.evaluate("document.documentElement.scrollWidth").get<int>(), width);
      EXPECT_TRUE(browser.complaints().empty()) << browser.complaints().front();
      for (const std::string& request : browser.requests()) {
        EXPECT_TRUE(request == url || request.starts_with("data:")) << request;
      }
      EXPECT_EQ(browser.evaluate("[...document.querySelectorAll('svg')].filter(s => "
                                 "s.getBoundingClientRect().width < 100).length"),
                0);
    }
  }
  for (const char* id : {"waterfall", "speed-up", "predicted", "sooner", "timeline", "replicas",
                         "input", "memory", "chart-1", "noise"}) {
    EXPECT_EQ(browser.evaluate("document.querySelectorAll('#" + std::string(id) + "').length"), 1)
        << id;
  }
  EXPECT_GT(browser.evaluate("document.querySelectorAll('#timeline rect.crit').length").get<int>(),
            0);
  EXPECT_NE(browser.evaluate("document.querySelector('#memory').textContent")
                .get<std::string>()
                .find("optimizer"),
            std::string::npos);
}

}  // namespace
}  // namespace lockstep

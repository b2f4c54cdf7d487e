// What a run recorded becomes a page, a trace, a curve and a few sentences.
#include "lockstep/explain/page_of_run.h"

#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <nlohmann/json.hpp>

#include "explain/made_step.h"
#include "lockstep/explain/attribute.h"
#include "lockstep/explain/explanation_text.h"

namespace lockstep {
namespace {

constexpr double kClockError = 25e-6;

// Two workers with a replica each. The second one's clock is known to 25 microseconds.
RunProfile recorded_run() {
  RunProfile run;
  run.model = "made";
  run.replicas = run.workers = 2;
  run.transport = "Gloo";
  run.steps = 100;
  run.global_batch = 64;
  run.samples = 6400;
  run.step_s = 0.020;
  run.seconds = 2.5;
  for (int r = 0; r < 2; ++r) {
    run.by_replica.push_back({.device = "cpu:0",
                              .worker = r,
                              .samples = 3200,
                              .time = {.compute = 1.5, .communication = 0.5, .start = 0.5}});
  }
  for (std::int64_t first = 0; first < 100; first += 50) {
    run.windows.push_back({.first = first,
                           .steps = 50,
                           .step_s = 0.020,
                           .compute_s = {0.015, 0.015},
                           .input_s = {0, 0},
                           .wait_s = {0, 0},
                           .samples = {32, 32}});
  }
  run.plan = {{.name = "forward"}, {.name = "all_reduce"}, {.name = "update", .after = {1}}};
  for (const bool slow : {false, true}) {
    ExampleStep step{.step = slow ? 40 : 8, .seconds = slow ? 0.040 : 0.020, .slow = slow};
    for (int w = 0; w < 2; ++w) {
      ProfiledTrack track{.name = "cpu:0", .worker = w, .clock_error_s = w == 0 ? 0 : kClockError};
      const double end = w == 0 ? 0.010 : 0.014;
      track.spans = {{"forward", SpanKind::Compute, 0, end},
                     {"all_reduce", SpanKind::Communication, end, 0.018},
                     {"update", SpanKind::Compute, 0.018, step.seconds}};
      step.tracks.push_back(track);
      ProfiledTrack beside{
          .name = "cpu:0 communication", .worker = w, .clock_error_s = w == 0 ? 0 : kClockError};
      beside.spans = {{"all_reduce", SpanKind::Communication, end, 0.018}};
      step.tracks.push_back(beside);
    }
    run.examples.push_back(step);
  }
  run.input_seconds = 4;
  run.stages = {{.name = "batch", .depth = 0, .busy_s = 1, .wait_s = 3, .threads = 1}};
  run.learning = {.optimizer = "sgd",
                  .learning_rate = 0.1,
                  .noise = NoiseScale{.value = 128, .low = 100, .high = 200},
                  .losses = {{.step = 0, .loss = 2.3}, {.step = 99, .loss = 0.4}},
                  .noises = {{.step = 50, .value = 90, .low = 60, .high = 150},
                             {.step = 99, .value = 128, .low = 100, .high = 200}}};
  run.memory.instructions = {{"matmul dense", {10, 20, 0, 30, 0}}};
  run.memory.peak = {{.layer = "dense", .bytes = 30, .kind = MemoryKind::Activations}};
  return run;
}

MeasuredStep made_alone() {
  MeasuredStep step = made_step("cpu");
  step.batch = 32;
  return step;
}

TEST(PageOfRun, ShowsAllThatWasRecorded) {
  const RunProfile run = recorded_run();
  const ScalingCurve curve = scaling_curve(run, made_alone());
  const PageContents contents = page_of(run, explain(run), curve);
  EXPECT_EQ(contents.replicas.size(), 2u);
  EXPECT_EQ(contents.replicas[1].name, "worker 1 cpu:0");
  double shares = 0;
  for (const auto& [name, share] : contents.replicas[0].parts) shares += share;
  EXPECT_NEAR(shares, 1, 1e-12);
  ASSERT_EQ(contents.input.size(), 1u);
  EXPECT_NEAR(contents.input[0].busy, 0.25, 1e-12);
  ASSERT_TRUE(contents.timeline.has_value());
  EXPECT_NEAR(contents.timeline->step_ms, 20, 1e-9);  // the typical one
  EXPECT_NEAR(contents.timeline->tracks.at(2).clock_error_ms, kClockError * 1e3, 1e-12);
  int critical = 0;
  for (const page::TimelineTrack& track : contents.timeline->tracks) {
    for (const page::TimelineSpan& span : track.spans) critical += span.critical ? 1 : 0;
  }
  EXPECT_GE(critical, 2);
  EXPECT_EQ(contents.noise.size(), 2u);
  EXPECT_EQ(contents.charts.at(0).curves.at(0).y, (std::vector<double>{2.3, 0.4}));
  ASSERT_TRUE(contents.outlook.has_value());
  const std::string html = page_html(contents);
  for (const char* id : {"waterfall", "speed-up", "sooner", "timeline", "replicas", "input",
                         "memory", "chart-1", "noise"}) {
    EXPECT_NE(html.find("id=\"" + std::string(id) + "\""), std::string::npos) << id;
  }
}

TEST(PageOfRun, ARunWithoutAnythingHasAPage) {
  RunProfile run;
  run.by_replica.resize(1);
  const std::string html = page_html(page_of(run, explain(run), {}));
  EXPECT_NE(html.find("</html>"), std::string::npos);
  EXPECT_EQ(html.find("id=\"timeline\""), std::string::npos);
  EXPECT_FALSE(timeline_of(run).has_value());
}

TEST(TraceOfRun, HasEveryWorkerOnTheChiefsClockWithItsError) {
  const nlohmann::json trace = nlohmann::json::parse(trace_of(recorded_run()));
  std::map<int, std::string> names;
  std::map<std::int64_t, std::pair<double, double>> extent;  // of the steps
  int critical = 0;
  for (const auto& event : trace.at("traceEvents")) {
    if (event.at("ph") == "M" && event.at("name") == "process_name") {
      names[event.at("pid")] = event.at("args").at("name");
    }
    if (event.at("ph") != "X" || event.at("pid") == -1) continue;
    const auto& arguments = event.at("args");
    if (event.at("pid") == 1) {
      EXPECT_NEAR(arguments.at("clock_error_us").get<double>(), 25, 1e-9);
    } else {
      EXPECT_FALSE(arguments.contains("clock_error_us"));
    }
    critical += arguments.value("critical", false) ? 1 : 0;
    const double begin = event.at("ts");
    const double end = begin + event.at("dur").get<double>();
    EXPECT_GE(event.at("dur").get<double>(), 0);
    const auto [place, is_new] =
        extent.try_emplace(arguments.at("step").get<std::int64_t>(), begin, end);
    place->second.first = std::min(place->second.first, begin);
    place->second.second = std::max(place->second.second, end);
  }
  EXPECT_EQ(names.at(0), "worker 0");
  EXPECT_EQ(names.at(1), "worker 1 (clock within 25.0 us)");
  EXPECT_GE(critical, 2);
  // The steps follow one another.
  ASSERT_EQ(extent.size(), 2u);
  EXPECT_GT(extent.at(40).first, extent.at(8).second);
  EXPECT_NEAR(extent.at(40).second - extent.at(40).first, 40'000, 1e-6);
}

TEST(ScalingCurveOfRun, GoesThroughOneAndWhatTheRunWas) {
  const RunProfile run = recorded_run();
  const ScalingCurve curve = scaling_curve(run, made_alone());
  ASSERT_FALSE(curve.points.empty());
  EXPECT_EQ(curve.points.front().replicas, 1);
  EXPECT_NEAR(curve.points.front().speed_up, 1, 1e-12);
  int measured = 0;
  for (const ScalingPoint& point : curve.points) {
    EXPECT_NEAR(point.batch, 32.0 * point.replicas, 1e-9);
    EXPECT_LE(point.speed_up, point.replicas + 1e-9);
    if (!point.measured) continue;
    ++measured;
    EXPECT_EQ(point.replicas, 2);
    EXPECT_NEAR(*point.measured, 2 * curve.points.front().step_s / run.step_s, 1e-9);
  }
  EXPECT_EQ(measured, 1);
}

TEST(LossOutlookOfRun, IsThatOfTheNoiseScaleWithTheRateForEachBatch) {
  const RunProfile run = recorded_run();
  const ScalePoint points[] = {{1, 32, 0.010}, {2, 64, 0.010}, {64, 2048, 0.010}};
  const std::optional<LossOutlook> outlook = loss_outlook(run.learning, 64, points);
  ASSERT_TRUE(outlook.has_value());
  // Steps of 1 + B_noise / B: 5 and 3 of them, that take the same time.
  EXPECT_NEAR(outlook->points[1].sooner, 5.0 / 3.0, 1e-12);
  EXPECT_NEAR(outlook->points[1].faster, 2, 1e-12);
  EXPECT_NEAR(outlook->rates[1], 0.1, 1e-12);          // the run's own batch
  EXPECT_NEAR(outlook->rates[0], 0.1 * 3 / 5, 1e-12);  // SGD
  EXPECT_EQ(outlook->largest->devices, 2);
  const std::string text = text_of(*outlook);
  EXPECT_NE(text.find("1.67x"), std::string::npos) << text;
  EXPECT_NE(text.find("learning rate"), std::string::npos) << text;
  Learning unknown = run.learning;
  unknown.noise.reset();
  EXPECT_FALSE(loss_outlook(unknown, 64, points).has_value());
}

TEST(Paragraph, SaysWhatWasGotWhatWasPossibleAndWhatWouldHelp) {
  Explanation explanation{.run = "run",
                          .replicas = 4,
                          .seconds = 100,
                          .step_ms = 12,
                          .speed_up = 2.4,
                          .possible = 3.4,
                          .lost = {{Cause::Input, 10, 0.1, "limited by map decode"},
                                   {Cause::Bandwidth, 29.5, 0.295, "bucket 3"},
                                   {Cause::Host, 0.5, 0.005, ""}},
                          .advice = {{.change = "batch 32 -> 128 per replica",
                                      .gain = "2.4x -> 3.3x",
                                      .speed_up = 1.4,
                                      .sure = 0.8,
                                      .command = "lockstep train --batch-per-replica 128"}},
                          .predicted = {}};
  const std::string text = paragraph_of(explanation);
  EXPECT_EQ(text,
            "4 devices were 2.40x as fast as one alone, of 3.40x possible. Time was lost to "
            "communication bandwidth 30% (bucket 3), input 10%.\n"
            "  What would help most: batch 32 -> 128 per replica: 2.4x -> 3.3x.\n"
            "    lockstep train --batch-per-replica 128\n");
  explanation.replicas = 1;
  explanation.speed_up = 0.6;
  explanation.advice.clear();
  EXPECT_EQ(paragraph_of(explanation),
            "One device spent 60% of the time on training steps. The rest went to communication "
            "bandwidth 30% (bucket 3), input 10%.\n");
}

}  // namespace
}  // namespace lockstep
